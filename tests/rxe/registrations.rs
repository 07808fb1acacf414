//! Registrations beside the plain one. rxe of Linux 6.1 names memory by any address; it has neither
//! dma-bufs nor re-registration, and says so.

use crate::tests;
use bellwire::memory::Mapping;
use bellwire::wqe::*;
use bellwire::wr::WcStatus::{RemAccessErr, Success};
use bellwire::wr::{Remote, Sge};
use bellwire::{AccessFlags, ConnectAttr, Mr, Pd, Rereg};
use bellwire_tests::ends::*;
use bellwire_tests::fixture::*;
use std::os::fd::AsFd as _;
use std::ptr::NonNull;

tests! { memory_under_an_address_of_choice, what_the_driver_does_not_have_is_reported }

const BYTES: usize = 8192;

/// Registered before it is mapped away: the region goes first.
struct Elsewhere {
    mr: Mr,
    memory: Mapping,
}

impl Elsewhere {
    fn new(pd: &Pd, iova: u64) -> Self {
        let memory = Mapping::anonymous(BYTES).build().expect("memory");
        let start = NonNull::new(memory.as_ptr()).expect("mapped");
        // SAFETY: the memory goes after the region, and is only copied in and out.
        let mr = unsafe { pd.register_at(start, BYTES, iova, ALL) }.expect("a region");
        Self { mr, memory }
    }

    fn bytes(&self, offset: usize) -> [u8; 8] {
        // SAFETY: within the mapping; what was written was reported before.
        unsafe {
            self.memory
                .as_ptr()
                .add(offset)
                .cast::<[u8; 8]>()
                .read_volatile()
        }
    }
}

/// From zero on, and as high as can be: written to, sent from, and closed right behind its end.
fn memory_under_an_address_of_choice() {
    for iova in [0, 0x1000, 0xffff_ffff_ffff_0000] {
        let (mut a, mut b) = near();
        connect_with(&mut a.qp, &mut b.qp, &impatient());
        let there = Elsewhere::new(b.qp.pd(), iova);
        assert_eq!((there.mr.addr(), there.mr.length()), (iova, BYTES as u64));
        let at = |offset: u64| Remote {
            addr: iova + offset,
            rkey: there.mr.rkey(),
        };
        // Across the border of the pages.
        a.region.write(0, b"by iova!");
        let here = a.region.sge(0, 8);
        a.go(1, RdmaWrite { remote: at(4092) }, here);
        account(&mut a, &[(1, Success)], &[]);
        assert_eq!(&there.bytes(4092), b"by iova!");
        // As a local element, of either queue.
        let sge = |offset: u64| Sge {
            addr: iova + offset,
            length: 8,
            lkey: there.mr.lkey(),
        };
        a.receive(RECEIVES, &[a.region.sge(64, 8)]);
        b.receive(RECEIVES, &[sge(0)]);
        b.go(1, Send {}, sge(4092));
        a.go(2, Send {}, a.region.sge(0, 8));
        account(&mut a, &[(2, Success)], &[(RECEIVES, Success)]);
        account(&mut b, &[(1, Success)], &[(RECEIVES, Success)]);
        let mut came = [0; 8];
        a.region.read(64, &mut came);
        assert_eq!((&came, &there.bytes(0)), (b"by iova!", b"by iova!"));
        let remote = at(BYTES as u64 - 7);
        a.go(3, RdmaWrite { remote }, a.region.sge(0, 8));
        account(&mut a, &[(3, RemAccessErr)], &[]);
        begins_anew(&mut a, &mut b);
    }
}

fn what_the_driver_does_not_have_is_reported() {
    let (mut a, mut b) = near();
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    let mut there = Elsewhere::new(b.qp.pd(), 0);
    let keys = (there.mr.lkey(), there.mr.rkey());
    let change = Rereg {
        access: Some(AccessFlags::LOCAL_WRITE),
        ..Rereg::default()
    };
    // SAFETY: the memory stays the same, and nobody names it.
    let refused = unsafe { there.mr.reregister(&change) };
    assert_eq!(
        refused.expect_err("rxe has none of it").to_string(),
        "the device cannot re-register memory: destroy the region, and register the memory anew"
    );
    // It is as it was.
    assert_eq!((there.mr.lkey(), there.mr.rkey()), keys);
    assert_eq!(there.mr.access(), ALL);
    let remote = Remote {
        addr: 0,
        rkey: keys.1,
    };
    a.region.write(0, b"as ever.");
    a.go(1, RdmaWrite { remote }, a.region.sge(0, 8));
    account(&mut a, &[(1, Success)], &[]);
    assert_eq!(&there.bytes(0), b"as ever.");

    let file = std::fs::File::open("/dev/null").expect("a descriptor");
    let refused = b.qp.pd().register_dmabuf(file.as_fd(), 0, BYTES, 0, ALL);
    let error = refused.expect_err("rxe has none of it").to_string();
    assert!(
        error.starts_with("the device cannot register a dma-buf: "),
        "{error}"
    );
    works(&mut a, &mut b);
}
