//! The flight recorder.

use super::*;
use crate::code::*;
use crate::direct::*;
use crate::dump::bw_dump_flags::*;
use crate::dump::bw_dump_format::*;
use crate::dump::*;
use crate::fault_number::bw_wc_status::*;
use std::ffi::CStr;

/// A dump; its length is queried first.
fn dump(end: &End, attr: *const bw_dump_attr) -> String {
    let mut length = 0;
    // SAFETY: valid handles and structs; the buffer has room for the NUL.
    unsafe {
        fails(
            bw_qp_dump(end.qp, attr, null_mut(), 0, &mut length),
            BW_ELIMIT,
        );
        let mut buffer = vec![0x7f; length + 1];
        // The buffer is one byte too short.
        let mut again = 0;
        let code = bw_qp_dump(end.qp, attr, buffer.as_mut_ptr(), length, &mut again);
        fails(code, BW_ELIMIT);
        assert_eq!(again, length);
        assert!(
            buffer.iter().all(|&byte| byte == 0x7f),
            "nothing was written"
        );
        let text = bw_qp_dump(end.qp, attr, buffer.as_mut_ptr(), length + 1, null_mut());
        ok(text);
        let text = CStr::from_ptr(buffer.as_ptr());
        assert_eq!(text.to_bytes().len(), length);
        text.to_str().expect("UTF-8").to_owned()
    }
}

#[test]
fn what_failed_is_in_the_text_and_in_the_json() {
    let world = World::plain();
    let (a, memory) = (&world.a, &world.b.memory);
    let note = c"about to \"fail\"";
    // SAFETY: valid handles and pointers.
    unsafe {
        for (wr_id, rkey) in [
            (1, memory.rkey),
            (2, memory.rkey ^ 0xff00),
            (3, memory.rkey),
        ] {
            let data = b"data".as_ptr().cast();
            ok(bw_post_write_inline(
                a.qp,
                wr_id,
                data,
                4,
                memory.addr,
                rkey,
                crate::number::bw_send_flags::BW_SEND_SIGNALED as u32,
            ));
        }
        ok(bw_qp_note(a.qp, note.as_ptr()));
        ok(bw_ring_sq(a.qp));
    }
    assert_eq!(a.wait().status, BW_WC_SUCCESS as u32);
    assert_eq!(a.wait().status, BW_WC_REM_ACCESS_ERR as u32);
    let text = dump(a, null());
    for fact in [
        "state ERR",
        "#0 retired SUCCESS: RDMA_WRITE wr_id 1 signaled",
        "#1 retired REM_ACCESS_ERR: RDMA_WRITE wr_id 2 signaled",
        "#2 completed WR_FLUSH_ERR: RDMA_WRITE wr_id 3 signaled",
        "inline 4 64617461",
        "about to \"fail\"",
    ] {
        assert!(text.contains(fact), "{fact:?} is not in {text}");
    }
    let mut attr = sized!(bw_dump_attr {
        format: BW_DUMP_JSON as u32,
        entries: 2
    });
    attr.flags = BW_DUMP_NO_INLINE as u32;
    let json: serde_json::Value = serde_json::from_str(&dump(a, &attr)).expect("JSON");
    assert_eq!(json["state"], "ERR");
    assert_eq!(json["sends"].as_array().map(Vec::len), Some(2));
    assert_eq!(json["sends"][0]["status"], "REM_ACCESS_ERR");
    assert_eq!(json["sends"][0]["inline"]["length"], 4);
    assert_eq!(json["sends"][0]["inline"]["hex"], serde_json::Value::Null);
    assert_eq!(json["completions"].as_array().map(Vec::len), Some(2));
    let notes = json["notes"].as_array().expect("a list");
    assert!(notes.iter().any(|note| note["what"] == "about to \"fail\""));
    // The dump took no completion.
    assert_eq!(a.wait().status, BW_WC_WR_FLUSH_ERR as u32);

    let mut room = [0; 8];
    // SAFETY: valid handles, structs and pointers, except where the calls have to find NULL.
    unsafe {
        let mut bad = |attr: &bw_dump_attr, code| {
            fails(
                bw_qp_dump(a.qp, attr, room.as_mut_ptr(), 8, null_mut()),
                code,
            );
        };
        attr.format = 2;
        bad(&attr, BW_EINVAL);
        attr.format = 0;
        attr.flags = 2;
        bad(&attr, BW_EINVAL);
        attr.flags = 0;
        bad(&attr, BW_ELIMIT);
        attr.size = 4;
        bad(&attr, BW_ESIZE);
        attr.size = 1 << 20;
        bad(&attr, BW_ESIZE);
        fails(
            bw_qp_dump(a.qp, null(), null_mut(), 8, null_mut()),
            BW_ENULL,
        );
        fails(
            bw_qp_dump(null_mut(), null(), null_mut(), 0, null_mut()),
            BW_ENULL,
        );
        fails(bw_qp_note(null_mut(), note.as_ptr()), BW_ENULL);
        fails(bw_qp_note(a.qp, null()), BW_ENULL);
        // Text that is not UTF-8 is converted as far as possible.
        ok(bw_qp_note(a.qp, c"\xff!".as_ptr()));
    }
    assert_eq!(room, [0; 8]);
    assert!(dump(a, null()).contains("\u{fffd}!"));
    world.destroy();
}
