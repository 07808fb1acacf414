//! A reliable connection over the software HCA: what arrives, and what is told.

use bellwire::be::Be32;
use bellwire::memory::Mapping;
use bellwire::queue::Imm;
use bellwire::soft::{HcaConfig, Mode};
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, WcOpcode, WcStatus};
use bellwire::*;

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

struct End {
    cq: Cq,
    qp: Qp,
    region: Region,
}

fn end(pd: &Pd) -> End {
    let init = QpInit {
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 200,
        ..QpInit::default()
    };
    let (s, r) = init.cq_entries();
    let mut cq = pd.device().create_cq(s + r).unwrap();
    let qp = pd.create_qp(&mut cq, &init).unwrap();
    let region = Region::new(pd, Mapping::anonymous(1 << 16).build().unwrap(), ALL).unwrap();
    End { cq, qp, region }
}

fn pair(mode: Mode) -> (End, End) {
    let device = Device::soft(HcaConfig {
        mode,
        ..HcaConfig::default()
    });
    let pd = device.alloc_pd();
    let (mut a, mut b) = (end(&pd), end(&pd));
    let connect = ConnectAttr::default();
    a.qp.init(&connect).unwrap();
    b.qp.init(&connect).unwrap();
    a.qp.connect(&b.qp.endpoint(), &connect).unwrap();
    b.qp.connect(&a.qp.endpoint(), &connect).unwrap();
    (a, b)
}

fn wait(cq: &mut Cq) -> bellwire::queue::Completion<'static> {
    let start = std::time::Instant::now();
    loop {
        if let Some(c) = cq.poll_one() {
            return c;
        }
        assert!(start.elapsed().as_secs() < 10, "no completion");
    }
}

fn all_ops(mode: Mode) {
    let (mut a, mut b) = pair(mode);
    let s = SendFlags::SIGNALED;
    for n in 0..5000u64 {
        // inline write
        let word = n.wrapping_mul(0x9e3779b97f4a7c15);
        let remote = b.region.remote(64);
        a.qp.sq()
            .post_inline(n, (), RdmaWrite { remote }, &word.to_ne_bytes(), s)
            .unwrap();
        a.qp.sq().ring();
        let c = wait(&mut a.cq);
        assert_eq!((c.wr_id, c.status(), c.retired), (n, WcStatus::Success, 1));
        assert_eq!(
            b.region.word(64).load(std::sync::atomic::Ordering::Acquire),
            word
        );
        // send
        unsafe {
            b.qp.rq()
                .post(7, &[b.region.sge(4096, 100), b.region.sge(8192, 1000)])
                .unwrap()
        };
        b.qp.rq().ring();
        let len = (n % 190) as usize;
        let data: Vec<u8> = (0..len).map(|i| (i as u64 + n) as u8).collect();
        a.qp.sq()
            .post_inline(n, (), SendWithImm { imm: Be32::new(5) }, &data, s)
            .unwrap();
        a.qp.sq().ring();
        let c = wait(&mut b.cq);
        let ok = c.result.unwrap();
        assert_eq!(
            (c.wr_id, ok.opcode, ok.byte_len(), ok.imm()),
            (7, WcOpcode::Recv, Some(len as u32), Imm::Data(Be32::new(5)))
        );
        let mut got = vec![0; len];
        b.region.read(4096, &mut got[..len.min(100)]);
        if len > 100 {
            b.region.read(8192, &mut got[100..]);
        }
        assert_eq!(got, data);
        assert_eq!(wait(&mut a.cq).status(), WcStatus::Success);
        // fetch add
        let remote = b.region.remote(64);
        unsafe {
            a.qp.sq()
                .post(
                    1,
                    (),
                    AtomicFetchAndAdd { remote, add: 3 },
                    a.region.sge(0, 8),
                    s,
                )
                .unwrap()
        };
        unsafe {
            a.qp.sq()
                .post(2, (), RdmaRead { remote }, a.region.sge(8, 8), s)
                .unwrap()
        };
        a.qp.sq().ring();
        assert_eq!(wait(&mut a.cq).wr_id, 1);
        let c = wait(&mut a.cq);
        assert_eq!((c.wr_id, c.result.unwrap().byte_len()), (2, Some(8)));
        assert_eq!(
            a.region.word(0).load(std::sync::atomic::Ordering::Acquire),
            word
        );
        assert_eq!(
            a.region.word(8).load(std::sync::atomic::Ordering::Acquire),
            word.wrapping_add(3)
        );
    }
}

#[test]
fn inline() {
    all_ops(Mode::Inline)
}

#[test]
fn engine() {
    all_ops(Mode::Engine { threads: 1 })
}
