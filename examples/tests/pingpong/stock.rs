//! rdma-core's ibv_rc_pingpong, as far as its peer can see: its line of text, its one buffer for both
//! directions, and the order of its sends.

use bellwire::state::{AhAttr, Mtu, QpAttr, QpState, transition};
use bellwire::wqe::{Rc, Send, Transport};
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, Cq, Device, Qp, QpInit, Region};
use std::time::{Duration, Instant};

/// `sprintf(msg, "%04x:%06x:%06x:%s", …)` and its NUL.
pub fn line(lid: u16, qpn: u32, psn: u32, gid: [u8; 16]) -> Vec<u8> {
    let gid: String = gid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{lid:04x}:{qpn:06x}:{psn:06x}:{gid}\0").into_bytes()
}

const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const DEPTH: u32 = 8;
const PSN: u32 = 0x12_3456;

/// A side of its game, on a device of the software's.
pub struct Stock {
    qp: Qp,
    cq: Cq,
    region: Region,
    size: usize,
}

impl Stock {
    pub fn new(fabric: &str, size: usize) -> Self {
        let device = Device::open(&format!("soft:{fabric}")).unwrap();
        let pd = device.alloc_pd();
        let mapping = device.mapping(size).build().unwrap();
        let region = Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE).unwrap();
        let init = QpInit {
            max_send_wr: 1,
            max_recv_wr: DEPTH,
            ..QpInit::default()
        };
        let (sends, receives) = init.cq_entries();
        let mut cq = device.create_cq(sends + receives).unwrap();
        let qp = pd.create_qp(&mut cq, &init).unwrap();
        let mut stock = Self {
            qp,
            cq,
            region,
            size,
        };
        stock.step(QpState::Reset, QpState::Init, &QpAttr::default());
        (0..DEPTH).for_each(|_| stock.receive());
        stock
    }

    fn step(&mut self, from: QpState, to: QpState, attr: &QpAttr) {
        let attr = QpAttr {
            qp_state: to,
            port_num: 1,
            ..*attr
        };
        let mask = transition(Rc::TYPE, from, to).unwrap().required;
        self.qp.modify(&attr, mask).unwrap();
    }

    /// Its memset, and with `marked` what -c has it write.
    pub fn fill(&mut self, fill: u8, marked: bool) {
        let mut bytes = vec![fill; self.size];
        for page in bytes.chunks_mut(4096).filter(|_| marked) {
            page[0] = 0;
        }
        self.region.write(0, &bytes);
    }

    pub fn memory(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.size];
        self.region.read(0, &mut bytes);
        bytes
    }

    pub fn line(&self) -> Vec<u8> {
        let endpoint = self.qp.endpoint();
        line(endpoint.lid, endpoint.qp_num, PSN, [0; 16])
    }

    /// `sscanf(msg, "%x:%x:%x:%s", …)`, and to RTS.
    pub fn connect(&mut self, theirs: &[u8]) {
        let text = std::str::from_utf8(theirs).unwrap().trim_end_matches('\0');
        let fields: Vec<&str> = text.split(':').collect();
        let number = |at: usize| u32::from_str_radix(fields[at], 16).unwrap();
        // Without -g rdma-core's programs only print the GID.
        assert_eq!((fields.len(), fields[3].len()), (4, 32));
        let attr = QpAttr {
            path_mtu: Mtu::Mtu1024,
            dest_qp_num: number(1),
            rq_psn: number(2),
            sq_psn: PSN,
            max_dest_rd_atomic: 1,
            max_rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ah_attr: AhAttr {
                dlid: number(0) as u16,
                port_num: 1,
                ..AhAttr::default()
            },
            ..QpAttr::default()
        };
        self.step(QpState::Init, QpState::Rtr, &attr);
        self.step(QpState::Rtr, QpState::Rts, &attr);
    }

    fn receive(&mut self) {
        let place = [self.region.sge(0, self.size as u32)];
        // SAFETY: the region goes after the queue pair, and is copied from and to only.
        unsafe { self.qp.rq().post(RECEIVE, &place).unwrap() };
        self.qp.rq().ring();
    }

    pub fn send(&mut self) {
        let message = self.region.sge(0, self.size as u32);
        let mut sq = self.qp.sq();
        // SAFETY: the region is dropped after the queue pair, and is copied from and to only.
        unsafe {
            sq.post(SEND, (), Send {}, message, SendFlags::SIGNALED)
                .unwrap();
        }
        sq.ring();
    }

    /// The next completion.
    fn take(&mut self) -> u64 {
        let begun = Instant::now();
        loop {
            if let Some(completion) = self.cq.poll_one() {
                completion.result.unwrap();
                return completion.wr_id;
            }
            assert!(begun.elapsed() < Duration::from_secs(300), "the peer hangs");
            std::thread::yield_now();
        }
    }

    /// Waits for what it has sent and for the answer.
    pub fn take_both(&mut self) {
        assert_eq!(self.take() + self.take(), SEND + RECEIVE);
        self.receive();
    }

    /// Its loop.
    pub fn play(&mut self, client: bool, iters: u32) {
        let mut pending = RECEIVE;
        let (mut sent, mut received) = (0, 0);
        if client {
            self.send();
            pending |= SEND;
        }
        while sent < iters || received < iters {
            let id = self.take();
            if id == SEND {
                sent += 1;
            } else {
                received += 1;
                self.receive();
            }
            pending &= !id;
            if sent < iters && pending == 0 {
                self.send();
                pending = RECEIVE | SEND;
            }
        }
    }
}
