//! Steps that make objects, and connect them.

use crate::world::{Owned, World, any, keep};
use bellwire::memory::{Mapping, Pages};
use bellwire::soft::{Fault, HcaConfig, Mode, Script, Trigger};
use bellwire::wr::MwType;
use bellwire::{
    AccessFlags, ClassLayout, ConnectAttr, CqInit, Cqs, Device, Qp, QpInit, Region, Slab, SrqInit,
};
use bellwire_tests::fixture::{ALL, ENGINE};
use std::time::Duration;

const LAYOUT: [ClassLayout; 2] = [
    ClassLayout {
        size: 64,
        count: 64,
    },
    ClassLayout {
        size: 256,
        count: 32,
    },
];

const SMALL: QpInit = QpInit {
    max_send_wr: 16,
    max_recv_wr: 16,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline_data: 28,
    sq_sig_all: false,
    reserve_cq: true,
    suppress_flush: false,
};

impl World<'_> {
    pub fn make(&mut self) {
        self.tally.made += 1;
        if self.devices.is_empty() || self.random.below(1000) == 0 {
            return self.make_device();
        }
        match self.random.below(40) {
            0..2 => self.make_pd(),
            2..10 => self.make_cq(),
            10..28 => self.make_qp(),
            28..31 => self.make_srq(),
            31..33 => self.make_slab(),
            33..35 => self.make_cache(),
            35..37 => self.make_window(),
            37..39 => self.make_region(),
            _ => self.make_links(),
        }
    }

    fn make_device(&mut self) {
        // Most often another handle of one that is there: what a slab keeps for good keeps its device, and
        // that its threads.
        if let Some(pd) = any(&mut self.random, &mut self.pds)
            && self.random.below(8) != 0
        {
            let device = pd.device().clone();
            return keep(&mut self.random, &mut self.devices, 2, device);
        }
        let mode = match self.random.below(32) {
            0 => ENGINE,
            _ => Mode::Inline,
        };
        let device = Device::soft(HcaConfig {
            mode,
            ..HcaConfig::default()
        });
        self.pds.push(device.alloc_pd());
        keep(&mut self.random, &mut self.devices, 2, device);
    }

    fn make_pd(&mut self) {
        if let Some(device) = any(&mut self.random, &mut self.devices) {
            let pd = device.alloc_pd();
            keep(&mut self.random, &mut self.pds, 4, pd);
        }
    }

    fn make_cq(&mut self) {
        let Some(device) = any(&mut self.random, &mut self.devices) else {
            return;
        };
        let channel = device.create_comp_channel().ok();
        let init = CqInit {
            entries: 32 << self.random.below(5),
            qps: 8,
            channel: channel.as_ref(),
        };
        if let Ok(cq) = device.create_cq_with(&init) {
            keep(&mut self.random, &mut self.cqs, 6, cq);
        }
    }

    fn make_qp(&mut self) {
        let random = &mut self.random;
        let init = QpInit {
            sq_sig_all: random.below(4) == 0,
            reserve_cq: random.below(8) != 0,
            suppress_flush: random.below(4) == 0,
            ..SMALL
        };
        let len = self.cqs.len() as u64;
        let first = match len {
            0 => return,
            _ => random.below(len) as usize,
        };
        let second = match random.below(3) {
            0 => random.below(len) as usize,
            _ => first,
        };
        // Of one device, most often.
        let device = self.cqs[first].device();
        let alike = (self.pds.iter()).find(|pd| pd.device().is_same_context(device));
        let other = self.pds.first().filter(|_| random.below(16) == 0);
        let Some(pd) = other.or(alike).cloned() else {
            return;
        };
        let (cqs, cqns) = match self.cqs.get_disjoint_mut([first, second]) {
            Ok([send, recv]) => {
                let cqns = (send.cqn(), recv.cqn());
                (Cqs::Split(send, recv), cqns)
            }
            Err(_) => {
                let cq = &mut self.cqs[first];
                let cqn = cq.cqn();
                (Cqs::Shared(cq), (cqn, cqn))
            }
        };
        let made = match any(random, &mut self.srqs) {
            Some(srq) if random.below(4) == 0 => pd.create_qp_on_srq(cqs, srq, &init),
            _ => pd.create_qp(cqs, &init),
        };
        if let Ok(qp) = made {
            keep(random, &mut self.ends, 16, qp.endpoint());
            keep(random, &mut self.qps, 10, Owned { qp, cqns });
            self.connect_last();
        }
    }

    fn make_srq(&mut self) {
        let init = SrqInit {
            max_wr: 15,
            ..SrqInit::default()
        };
        if let Some(pd) = any(&mut self.random, &mut self.pds)
            && let Ok(srq) = pd.create_srq(&init)
        {
            keep(&mut self.random, &mut self.srqs, 3, srq);
        }
    }

    fn region(&mut self, access: AccessFlags) -> Option<Region> {
        let pd = any(&mut self.random, &mut self.pds)?;
        let bytes = Slab::bytes(&LAYOUT).expect("small");
        let mapping = Mapping::anonymous(bytes).pages(Pages::Base).build();
        Region::new(pd, mapping.ok()?, access).ok()
    }

    fn make_slab(&mut self) {
        let own = [AccessFlags::LOCAL_WRITE, ALL][usize::from(self.random.below(4) == 0)];
        if let Some(region) = self.region(own)
            && let Ok(slab) = Slab::new(region, &LAYOUT)
        {
            match self.slabs.len() {
                ..4 => self.slabs.push(slab),
                _ => drop(slab),
            }
        }
    }

    fn make_cache(&mut self) {
        if let Some(slab) = any(&mut self.random, &mut self.slabs)
            && let Ok(cache) = slab.cache(64)
        {
            keep(&mut self.random, &mut self.caches, 4, cache);
        }
    }

    fn make_window(&mut self) {
        let kind = [MwType::Type1, MwType::Type2][self.random.below(2) as usize];
        if let Some(pd) = any(&mut self.random, &mut self.pds)
            && let Ok(window) = pd.alloc_mw(kind)
        {
            keep(&mut self.random, &mut self.windows, 4, window);
        }
    }

    fn make_region(&mut self) {
        if let Some(region) = self.region(ALL | AccessFlags::MW_BIND) {
            let at = self.random.below(64) as usize * 64;
            keep(&mut self.random, &mut self.remotes, 8, region.remote(at));
            keep(&mut self.random, &mut self.regions, 4, region);
        }
    }

    /// Any queue pair to the next states, or to ERR.
    pub fn connect(&mut self) {
        let len = self.qps.len();
        if len != 0 {
            self.qps
                .swap(self.random.below(len as u64) as usize, len - 1);
            self.connect_last();
        }
    }

    /// The last one, with any peer: itself, one that is there, or one that was.
    pub fn connect_last(&mut self) {
        // Nobody waits long for who is not there, or has no receive.
        let attr = ConnectAttr {
            timeout: 1,
            retry_cnt: 0,
            rnr_retry: self.random.below(2) as u8,
            min_rnr_timer: 1,
            ..ConnectAttr::default()
        };
        let random = &mut self.random;
        let to_itself = random.below(2) == 0;
        let peer = any(random, &mut self.ends).copied();
        let Some(Owned { qp, .. }) = self.qps.last_mut() else {
            return;
        };
        if random.below(20) == 0 {
            let _ = qp.to_error();
            return;
        }
        let peer = peer.filter(|_| !to_itself).unwrap_or(qp.endpoint());
        let _ = qp.init(&attr);
        let _ = Qp::connect(qp, &peer, &attr);
    }

    /// A device breaks; from here on another is used.
    pub fn break_something(&mut self) {
        let after = Trigger::After(Duration::ZERO);
        if let Some(device) = any(&mut self.random, &mut self.devices) {
            if let Some(soft) = device.as_soft() {
                let _ = soft.inject(&Script::default().with(after, Fault::DeviceFatal));
            }
            device.progress();
            self.devices.clear();
            self.pds.clear();
        }
    }
}
