//! A queue pair for datagrams, with what it needs.

use bellwire::wqe::Ud;
use bellwire::wr::Sge;
use bellwire::{ConnectAttr, Cq, Device, Qp, Region, Srq, SrqInit};
use bellwire_tests::fixture::{init, region};

pub const QKEY: u32 = 0x1234;

/// See the module.
pub struct Station {
    pub qp: Qp<Ud>,
    pub cq: Cq,
    pub region: Region,
    srq: Option<Srq>,
}

impl Station {
    /// In RTS. It may receive from a shared receive queue.
    pub fn new(device: &Device, shares: bool) -> Self {
        let pd = device.alloc_pd();
        let (send, recv) = init().cq_entries_of::<Ud>();
        let of_three = SrqInit {
            max_sge: 3,
            ..SrqInit::default()
        };
        let srq = shares.then(|| pd.create_srq(&of_three).expect("a queue"));
        let mut cq = device
            .create_cq(send + recv.max(of_three.max_wr))
            .expect("a queue");
        let qp = match &srq {
            Some(srq) => pd.create_qp_on_srq::<Ud>(&mut cq, srq, &init()),
            None => pd.create_qp_of::<Ud>(&mut cq, &init()),
        };
        let mut qp = qp.expect("a pair");
        let attr = ConnectAttr {
            qkey: QKEY,
            ..ConnectAttr::default()
        };
        qp.init(&attr).expect("INIT");
        qp.start(&attr).expect("RTS");
        let region = region(&pd, 1 << 16);
        Self {
            qp,
            cq,
            region,
            srq,
        }
    }

    /// Posts a receive, number 7.
    pub fn receive(&mut self, sges: &[Sge]) {
        // SAFETY: the region's own key, and memory that is only copied.
        unsafe {
            match &mut self.srq {
                Some(srq) => {
                    srq.post(7, sges).expect("room");
                    srq.ring();
                }
                None => {
                    self.qp.rq().post(7, sges).expect("room");
                    self.qp.rq().ring();
                }
            }
        }
    }
}
