//! Address vectors, from the attributes of their paths.

use bellwire_core::be::{Be16, Be32};
use bellwire_core::wqe::AddressVector;
use bellwire_tests::vectors::{Row, to_hex};
use std::error::Error;

/// The device's codes of `ibv_rate`: the number plus 5 for the InfiniBand rates, the same code for the
/// later ones near them, and 0 for no limit.
fn rate_code(rate: u8) -> Option<u8> {
    Some(match rate {
        // MAX, 168 Gb/s; 1 is not a rate.
        0 | 1 | 14 => 0,
        2..=10 => rate + 5,
        // 14 Gb/s as 20, 25 as 30.
        11 => 6 + 5,
        15 => 4 + 5,
        _ => return None,
    })
}

/// Checks that core's layout puts the attributes of a row where the driver does.
pub fn check(row: &Row) -> Result<(), Box<dyn Error>> {
    let ethernet = row.str("link")? == "eth";
    let global = row.int::<u8>("is_global")? != 0;
    let sl: u8 = row.int("sl")?;
    let rate = rate_code(row.int("static_rate")?).ok_or("a rate without a code here")?;
    let flow_label: u32 = row.int("flow_label")?;
    let mut vector = AddressVector::default();
    if ethernet {
        vector.stat_rate_sl = rate << 4 | (sl & 7) << 1;
        vector.rmac = row.bytes("dmac")?;
        if row.int::<u8>("roce_v2")? != 0 {
            // The source port carries the flow label (IBTA annex A17).
            let folded = flow_label & 0x3fff ^ flow_label >> 14;
            vector.rlid = Be16::new(folded as u16 | 0xc000);
        }
    } else {
        vector.stat_rate_sl = rate << 4 | sl;
        vector.fl_mlid = row.int::<u8>("src_path_bits")? & 0x7f;
        vector.rlid = Be16::new(row.int("dlid")?);
    }
    if global {
        vector.tclass = row.int("tclass")?;
        vector.hop_limit = row.int("hop_limit")?;
        let index: u32 = row.int("sgid_index")?;
        let present = if ethernet { 0 } else { 1 << 30 };
        vector.grh_gid_fl = Be32::new(present | index << 20 | flow_label);
        vector.rgid = row.bytes("dgid")?;
    }
    // SAFETY: 48 bytes without padding.
    let ours: [u8; 48] = unsafe { std::mem::transmute(vector) };
    let recorded = row.bytes::<48>("av")?;
    if ours != recorded {
        return Err(format!("core\n{}, the row\n{}", to_hex(&ours), to_hex(&recorded)).into());
    }
    Ok(())
}
