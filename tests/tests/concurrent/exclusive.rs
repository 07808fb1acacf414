//! Blocks are slices, so nobody but their owner may reach them; whatever others can reach is copied, by
//! as many threads at once as like. All of it is safe code.
#![forbid(unsafe_code)]

use bellwire::memory::Mapping;
use bellwire::soft::Mode;
use bellwire::wqe::{BindMwInfo, RdmaWrite};
use bellwire::wr::{MwType, Remote, WcStatus};
use bellwire::{AccessFlags, ClassLayout, ConnectAttr, Error, Pd, Region, Slab};
use bellwire_tests::fixture::{
    ALL, ENGINE, End, SIGNALED, connect_with, device, fabric_name, init, node, slab,
};
use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

const LAYOUT: [ClassLayout; 1] = [ClassLayout { size: 64, count: 4 }];

fn pd() -> Pd {
    device(Mode::Inline).alloc_pd()
}

fn cut(pd: &Pd, mapping: Mapping, access: AccessFlags) -> Result<Slab, Error> {
    Slab::new(Region::new(pd, mapping, access).expect("a region"), &LAYOUT)
}

fn anonymous() -> Mapping {
    Mapping::anonymous(4096).build().expect("memory")
}

/// The error says what stands against it.
fn refused(slab: Result<Slab, Error>, why: &str) {
    let text = slab.expect_err("others reach it").to_string();
    assert!(text.contains(why), "{text}");
}

#[test]
fn a_region_that_a_key_opens_has_no_blocks() {
    let pd = pd();
    for right in [
        AccessFlags::REMOTE_WRITE,
        AccessFlags::REMOTE_READ,
        AccessFlags::REMOTE_ATOMIC,
        // A window grants what the region does not.
        AccessFlags::MW_BIND,
    ] {
        let access = AccessFlags::LOCAL_WRITE | right;
        let (name, _) = right.iter_names().next().expect("a name");
        refused(cut(&pd, anonymous(), access), name);
    }
    refused(cut(&pd, anonymous(), ALL), "REMOTE_WRITE and REMOTE_READ");
    for own in [
        AccessFlags::empty(),
        AccessFlags::LOCAL_WRITE,
        AccessFlags::LOCAL_WRITE | AccessFlags::RELAXED_ORDERING,
    ] {
        cut(&pd, anonymous(), own).expect("nobody else reaches it");
    }
}

#[test]
fn memory_with_a_descriptor_has_no_blocks() {
    let pd = pd();
    let ours = Mapping::shared("exclusive", 4096).build().expect("memory");
    let copy = ours.fd().expect("a descriptor").try_clone_to_owned();
    let other = Mapping::from_fd(copy.expect("a descriptor"), 4096).expect("a mapping");
    for mapping in [ours, other] {
        refused(
            cut(&pd, mapping, AccessFlags::LOCAL_WRITE),
            "use memory that no other process can map",
        );
    }
    let shared = Mapping::shared("exclusive", 4096).build().expect("memory");
    refused(cut(&pd, shared, ALL), "without REMOTE_WRITE");
}

#[test]
fn a_devices_memory_has_no_descriptor_and_may_have_blocks() {
    let node = node(&fabric_name(), Mode::Inline);
    for device in [node, device(Mode::Inline)] {
        let mapping = device.mapping(4096).build().expect("memory");
        assert!(mapping.fd().is_none());
        let slab = cut(&device.alloc_pd(), mapping, AccessFlags::LOCAL_WRITE);
        let slab = slab.expect("nobody else reaches it");
        let mut block = slab.take(64).expect("one");
        block.as_mut_slice().fill(7);
    }
}

/// Its memory can be found where the kernel lists descriptors, and opened from there.
#[test]
fn memory_of_blocks_is_not_mapped_a_second_time() {
    // As many as nothing else has in this program, whose tests run at the same time.
    const BYTES: usize = 11 * 4096;
    let pd = node(&fabric_name(), Mode::Inline).alloc_pd();
    let second = || {
        let of_it = |at: &PathBuf| fs::metadata(at).is_ok_and(|file| file.len() == BYTES as u64);
        let listed = fs::read_dir("/proc/self/fd").expect("a list");
        let mut paths = listed.filter_map(|entry| Some(entry.ok()?.path()));
        let path = paths.find(of_it).expect("its descriptor");
        let file = OpenOptions::new().read(true).write(true).open(path);
        Mapping::from_fd(file.expect("opened anew").into(), BYTES)
    };
    let mapping = pd.device().mapping(BYTES).build().expect("memory");
    assert!(second().is_ok(), "nobody has blocks of it yet");
    let slab = cut(&pd, mapping, AccessFlags::LOCAL_WRITE).expect("nobody else reaches it");
    second().expect_err("a block is its owner's alone");
    drop(slab);
}

fn pair_in(pd: &Pd) -> (End, End) {
    let new = || End::new(pd, Mode::Inline, &init());
    let (mut a, mut b) = (new(), new());
    connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
    (a, b)
}

/// What the keys of a slab can be used for in safe code: nothing.
#[test]
fn no_request_reaches_a_block() {
    let pd = pd();
    let slab = slab(&pd, &LAYOUT);
    let mut block = slab.take(64).expect("one");
    let bytes = block.as_mut_slice();
    bytes.fill(7);

    let addr = slab.mr().addr();
    for rkey in [slab.mr().rkey(), slab.mr().lkey()] {
        let (mut a, _b) = pair_in(&pd);
        let remote = Remote { addr, rkey };
        let write = RdmaWrite { remote };
        let posted = a.qp.sq().post_inline(1, (), write, &[9; 8], SIGNALED);
        posted.expect("room");
        a.qp.sq().ring();
        assert_eq!(a.outcome(), (1, WcStatus::RemAccessErr));
    }
    let (mut a, _b) = pair_in(&pd);
    let mut window = pd.alloc_mw(MwType::Type2).expect("a window");
    let bind = window.bind_wr(&BindMwInfo {
        lkey: slab.mr().lkey(),
        addr,
        length: 64,
        access: AccessFlags::REMOTE_WRITE.bits(),
    });
    let posted = a.qp.sq().post_empty(2, (), bind, SIGNALED);
    posted.expect("room");
    a.qp.sq().ring();
    assert_eq!(a.outcome(), (2, WcStatus::MwBindErr));
    assert_eq!(bytes, [7; 64]);
}

/// Threads that read and write one memory by two mappings, and a device that writes to it: every byte is
/// one that was written there, and aligned words are whole. ThreadSanitizer looks for races.
#[test]
fn a_region_is_read_and_written_by_all_at_once() {
    const ROUNDS: u8 = 250;
    let pd = device(ENGINE).alloc_pd();
    let mapping = Mapping::shared("exclusive", 1 << 16)
        .build()
        .expect("memory");
    let fd = mapping.fd().expect("a descriptor").try_clone_to_owned();
    let again = Mapping::from_fd(fd.expect("a descriptor"), mapping.len()).expect("a mapping");
    let regions = [mapping, again].map(|one| Region::new(&pd, one, ALL).expect("a region"));
    let writing = AtomicUsize::new(2);

    thread::scope(|scope| {
        // Short strings across words, long ones, and whole words, at places that overlap.
        for region in &regions {
            let writing = &writing;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    region.write(3, &[round; 50]);
                    region.write(100, &[round; 3000]);
                    region.write(4096, &[round; 24]);
                }
                // Release: partner of the acquire below.
                writing.fetch_sub(1, Ordering::Release);
            });
            scope.spawn(move || {
                let mut bytes = vec![0; 4000];
                // Acquire: partner of the release above.
                while writing.load(Ordering::Acquire) != 0 {
                    region.read(0, &mut bytes);
                    assert!(bytes.iter().all(|byte| *byte < ROUNDS));
                    let word = region.word(4096).load(Ordering::Acquire).to_ne_bytes();
                    assert!(word.iter().all(|byte| *byte == word[0]), "{word:?}");
                }
            });
        }
        let mut a = End::new(&pd, ENGINE, &init());
        let mut b = End::new(&pd, ENGINE, &init());
        connect_with(&mut a.qp, &mut b.qp, &ConnectAttr::default());
        let remote = regions[0].remote(4096);
        for round in 0..ROUNDS {
            let write = RdmaWrite { remote };
            let posted = a.qp.sq().post_inline(1, (), write, &[round; 16], SIGNALED);
            posted.expect("room");
            a.qp.sq().ring();
            assert_eq!(a.outcome(), (1, WcStatus::Success));
        }
    });
}
