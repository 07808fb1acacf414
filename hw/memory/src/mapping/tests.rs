use super::*;
use crate::pool::Knob;
use crate::region::faults_during;
use std::fs;

const MIB: usize = 1 << 20;

fn is_mapped(start: usize, len: usize) -> bool {
    let area = format!("{start:08x}-{:08x} ", start + len);
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| line.starts_with(&area))
}

fn base(len: usize) -> Mapping {
    Mapping::anonymous(len).pages(Pages::Base).build().unwrap()
}

/// The requirements on every region, for all kinds of pages: long enough, whole pages, aligned, zeroed, and
/// without a page fault on first use.
fn assert_ready(mut region: Mapping, asked: usize) {
    let page = region.page_kind().size();
    assert!(region.len() >= asked && region.len() < asked + page);
    assert!(region.len().is_multiple_of(page));
    assert!(region.as_ptr().addr().is_multiple_of(page));
    // SAFETY: only this thread uses the region.
    let bytes = unsafe { region.as_mut_slice() };
    let faults = faults_during(|| {
        for at in (0..bytes.len()).step_by(4096) {
            assert_eq!(bytes[at], 0);
            bytes[at] = 0xff;
        }
    });
    assert!(faults < 16, "{faults} faults in {} bytes", bytes.len());
}

#[test]
fn every_region_is_ready_for_the_data_path() {
    // No concurrent test may take pages that this one finds in the pool.
    let _knob = Knob::take();
    for asked in [1, 4096, 5000, MIB, 2 * MIB, 5 * MIB + 1] {
        for pages in [Pages::Auto, Pages::Base] {
            for builder in [Mapping::anonymous(asked), Mapping::shared("ready", asked)] {
                assert_ready(builder.pages(pages).build().unwrap(), asked);
            }
        }
    }
}

#[test]
fn lengths_that_cannot_be_are_errors() {
    for make in [Mapping::anonymous, |len| Mapping::shared("max", len)] {
        for pages in [
            Pages::Auto,
            Pages::Huge1G,
            Pages::Huge2M,
            Pages::Transparent,
            Pages::Base,
        ] {
            let error = |len| make(len).pages(pages).build().unwrap_err();
            assert!(matches!(error(0), MemoryError::ZeroLength));
            for len in [usize::MAX, usize::MAX - 4095, isize::MAX as usize] {
                let error = error(len);
                assert!(matches!(error, MemoryError::TooLarge { .. }), "{error}");
            }
            // Can be rounded up, but no machine has this much memory.
            error(1 << 62);
        }
    }
    // A peer of a fabric would allocate it page by page until no memory is left.
    for make in [Mapping::anonymous, |len| Mapping::shared("all", len)] {
        let error = make(1 << 46).build().unwrap_err();
        let MemoryError::Os { source, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(source.raw_os_error(), Some(libc::ENOMEM), "{error}");
    }
    let text = Mapping::anonymous(1 << 62).build().unwrap_err().to_string();
    assert!(
        text.contains("4 EiB") && text.contains("ask for less"),
        "{text}"
    );
}

#[test]
fn dropping_unmaps() {
    // A length that no other test uses, so that the area can be identified by its bounds.
    let len = 37 * PageKind::Base.size();
    for builder in [Mapping::anonymous(len), Mapping::shared("dropped", len)] {
        let region = builder.pages(Pages::Base).build().unwrap();
        let start = region.as_ptr().addr();
        assert!(is_mapped(start, len));
        drop(region);
        assert!(!is_mapped(start, len));
    }
}

#[test]
fn any_thread_may_hold_it() {
    let region = base(4096);
    let at = std::thread::scope(|s| {
        let at = || region.as_ptr().addr();
        s.spawn(at).join().unwrap()
    });
    assert_eq!(at, region.as_ptr().addr());
    std::thread::spawn(move || drop(region)).join().unwrap();
}

#[test]
fn slices_are_the_region() {
    let mut region = base(4096);
    // SAFETY: only this thread uses the region.
    unsafe { region.as_mut_slice() }.fill(3);
    // SAFETY: only this thread uses the region, and does not write while the slice lives.
    let bytes = unsafe { region.as_slice() };
    assert_eq!(
        (bytes.len(), bytes[0], bytes[bytes.len() - 1]),
        (region.len(), 3, 3)
    );
    assert_eq!(bytes.as_ptr(), region.as_ptr().cast_const());
}

#[test]
fn only_shared_regions_have_a_descriptor() {
    assert!(base(4096).fd().is_none());
    assert!(Mapping::shared("fd", 4096).build().unwrap().fd().is_some());
}

#[test]
fn transparent_says_what_is_behind_it() {
    let built = Mapping::anonymous(5 * MIB)
        .pages(Pages::Transparent)
        .build();
    if let Err(off) = Thp::Anonymous.check() {
        assert_eq!(built.unwrap_err().to_string(), off.to_string());
        return;
    }
    let region = built.unwrap();
    assert_eq!(
        (region.page_kind(), region.len()),
        (PageKind::Transparent, 6 * MIB)
    );
    assert!(region.huge_now().unwrap() <= region.len());

    // SAFETY: the advice does not change the contents of the region.
    let collapsed = unsafe {
        libc::madvise(
            region.as_ptr().cast(),
            region.len(),
            25, /* MADV_COLLAPSE, Linux 6.1 */
        )
    };
    if collapsed == 0 {
        assert_eq!(region.huge_now().unwrap(), region.len());
        assert_eq!(
            region.to_string(),
            "6 MiB with transparent hugepages (6 MiB backed by them now)"
        );
        // Split the huge page: the page kind stays, and `huge_now` changes.
        // SAFETY: the range is inside the region, whose contents are not needed any more.
        let split = unsafe { libc::madvise(region.as_ptr().cast(), 4096, libc::MADV_DONTNEED) };
        assert_eq!(split, 0);
        assert_eq!(region.huge_now().unwrap(), 4 * MIB);
        assert_eq!(region.page_kind(), PageKind::Transparent);
    } else {
        let why = std::io::Error::last_os_error();
        println!("skipped: MADV_COLLAPSE: {why}");
    }
    assert_ready(
        Mapping::anonymous(3 * MIB)
            .pages(Pages::Transparent)
            .build()
            .unwrap(),
        3 * MIB,
    );
}

#[test]
fn base_pages_are_not_huge() {
    let always = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
        .is_ok_and(|s| s.contains("[always]"));
    if always {
        println!("skipped: transparent hugepages are always on");
        return;
    }
    // Next to a region that may have huge pages, which must not be counted for this one.
    let beside = Mapping::anonymous(4 * MIB).pages(Pages::Transparent);
    let _beside = beside.build();
    let region = base(4 * MIB);
    assert_eq!(region.huge_now().unwrap(), 0);
}

#[test]
fn the_line_for_people() {
    let kib = PageKind::Base.size() >> 10;
    let line = |builder: MappingBuilder| builder.pages(Pages::Base).build().unwrap().to_string();
    let page = PageKind::Base.size();
    assert_eq!(
        line(Mapping::anonymous(page)),
        format!("{kib} KiB in 1 base page of {kib} KiB")
    );
    assert_eq!(
        line(Mapping::shared("line", 2 * page)),
        format!("{} KiB in 2 base pages of {kib} KiB, shared", 2 * kib)
    );
}

#[test]
fn hugepages_are_taken_first_and_given_back() {
    let Some(knob) = Knob::take() else { return };
    let Some(_raised) = knob.raise(2 * MIB, 4) else {
        return;
    };
    let before = knob.available(2 * MIB);
    for pages in [Pages::Auto, Pages::Huge2M] {
        for builder in [
            Mapping::anonymous(7 * MIB),
            Mapping::shared("huge", 7 * MIB),
        ] {
            let shared = builder.name.is_some();
            let region = builder.pages(pages).build().unwrap();
            assert_eq!(
                (region.page_kind(), region.len()),
                (PageKind::Huge2M, 8 * MIB)
            );
            assert_eq!(region.huge_now().unwrap(), 8 * MIB);
            assert_eq!(knob.available(2 * MIB), before - 4);
            let end = if shared { ", shared" } else { "" };
            assert_eq!(
                region.to_string(),
                format!("8 MiB in 4 hugetlb pages of 2 MiB{end}")
            );
            assert_ready(region, 7 * MIB);
            assert_eq!(knob.available(2 * MIB), before);
        }
    }
}

#[test]
fn one_gib_pages() {
    const GIB: usize = 1 << 30;
    let Some(knob) = Knob::take() else { return };
    let Some(_raised) = knob.raise(GIB, 1) else {
        return;
    };
    let before = knob.available(GIB);
    for builder in [Mapping::anonymous(GIB), Mapping::shared("gib", GIB)] {
        let region = builder.build().unwrap();
        assert_eq!((region.page_kind(), region.len()), (PageKind::Huge1G, GIB));
        assert!(region.as_ptr().addr().is_multiple_of(GIB));
        assert_eq!(region.huge_now().unwrap(), GIB);
        assert!(
            region
                .to_string()
                .starts_with("1 GiB in 1 hugetlb page of 1 GiB")
        );
        drop(region);
        assert_eq!(knob.available(GIB), before);
    }
}

#[test]
fn a_short_pool_is_an_error_that_says_how_short_or_the_next_kind() {
    let Some(knob) = Knob::take() else { return };
    // Raise the pool by some pages if permitted, and then request one page more than it has.
    let _raised = knob.raise(2 * MIB, 3);
    let have = knob.available(2 * MIB);
    let len = (have + 1) * 2 * MIB;
    for make in [Mapping::anonymous, |len| Mapping::shared("short", len)] {
        let error = make(len).pages(Pages::Huge2M).build().unwrap_err();
        match error {
            MemoryError::NoHugePages {
                page,
                need,
                free,
                wanted,
                node,
            } => {
                assert_eq!((page, need, free, node), (2 * MIB, have + 1, have, None));
                assert!(wanted > have);
            }
            other => panic!("{other}"),
        }
        assert_eq!(
            knob.available(2 * MIB),
            have,
            "nothing stays taken or promised"
        );
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("memfd:short"));

        let next = make(len).build().unwrap();
        assert!(!next.page_kind().is_hugetlb(), "{next}");
    }
}

#[test]
fn the_size_that_the_error_names_is_enough() {
    let Some(knob) = Knob::take() else { return };
    let ask = |need: usize| {
        Mapping::anonymous(need * 2 * MIB)
            .pages(Pages::Huge2M)
            .build()
    };
    // Use some pages of the pool, if permitted.
    let used = knob.raise(2 * MIB, 3);
    let _held = used.as_ref().map(|_| ask(2).unwrap());
    let need = knob.available(2 * MIB) + 2;
    let Err(MemoryError::NoHugePages { wanted, .. }) = ask(need) else {
        panic!("the pool had more than it said");
    };
    let Some(_raised) = knob.raise_to(2 * MIB, wanted) else {
        return;
    };
    assert_eq!(ask(need).unwrap().len(), need * 2 * MIB);
}

#[test]
fn hugepages_on_a_node() {
    let Some(knob) = Knob::take() else { return };
    let Some(_raised) = knob.raise(2 * MIB, 2) else {
        return;
    };
    let node = numa::online_nodes().unwrap()[0];
    let ask = |len| {
        Mapping::anonymous(len)
            .pages(Pages::Huge2M)
            .numa_node(node)
            .build()
    };
    match ask(2 * MIB) {
        Ok(region) => {
            assert_eq!(numa::numa_node_of(region.as_ptr()).unwrap(), node);
            let end = format!(" of 2 MiB, on NUMA node {node}");
            assert!(region.to_string().ends_with(&end), "{region}");
        }
        // On a machine with several nodes the pages may be on another node; a sandbox may forbid mbind.
        Err(e) => println!("skipped: {e}"),
    }
}
