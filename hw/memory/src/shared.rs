//! Memory shared between processes: memfd_create(2) and its seals, fcntl(2).

use super::error::MemoryError;
use super::file_limit::set_length;
use super::mapping::Mapping;
use super::pages::{PageKind, Thp};
use super::region::Region;
use super::size::Size;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The seals that fix the length: no process can truncate the file while it is mapped, which would make the
/// next access raise SIGBUS.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Longest name of a memfd in bytes, memfd_create(2).
const MAX_NAME: usize = 249;

/// The name of a memfd, which takes no memory of its own. `None`: it is too long, or has a zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name(Option<[u8; MAX_NAME + 1]>);

impl Name {
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; MAX_NAME + 1];
        let fits = name.len() <= MAX_NAME && !name.contains('\0');
        if let Some(room) = bytes.get_mut(..name.len()).filter(|_| fits) {
            room.copy_from_slice(name.as_bytes());
        }
        Self(fits.then_some(bytes))
    }

    /// # Errors
    /// [`MemoryError::BadName`].
    pub fn get(&self) -> Result<&CStr, MemoryError> {
        let bytes = self.0.as_ref().ok_or(MemoryError::BadName)?;
        CStr::from_bytes_until_nul(bytes).map_err(|_| MemoryError::BadName)
    }
}

/// Creates a memfd of `len` bytes (whole pages of `kind`) and maps it, without populating it.
pub(super) fn create(
    name: &CStr,
    kind: PageKind,
    len: usize,
    node: Option<u32>,
) -> Result<(OwnedFd, Region), MemoryError> {
    let huge = match kind {
        PageKind::Huge1G => libc::MFD_HUGETLB | libc::MFD_HUGE_1GB,
        PageKind::Huge2M => libc::MFD_HUGETLB | libc::MFD_HUGE_2MB,
        PageKind::Transparent | PageKind::Base => 0,
    };
    if kind == PageKind::Transparent {
        Thp::Shmem.check()?;
    }
    let failed = |cause| {
        if kind.is_hugetlb() {
            kind.shortage(len, node, cause)
        } else {
            MemoryError::Os {
                doing: format!("make {} of shared memory", Size(len as u64)),
                source: cause,
            }
        }
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | huge;
    // SAFETY: the name is a C string that outlives the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        return Err(failed(io::Error::last_os_error()));
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    set_length(file.as_fd(), len)?;
    let make = || -> io::Result<(OwnedFd, Region)> {
        // SAFETY: F_ADD_SEALS takes an integer.
        if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, SEALS) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // For hugetlb memory this mmap reserves the pages (no MAP_NORESERVE), and fails if the pool is short.
        let region = map(file.as_fd(), kind, len)?;
        Ok((file.into(), region))
    };
    make().map_err(failed)
}

/// Maps the file from its start. If shmem may use huge pages, the kernel chooses a suitable address.
fn map(fd: BorrowedFd<'_>, kind: PageKind, len: usize) -> io::Result<Region> {
    let region = Region::new(len, libc::MAP_SHARED, Some(fd))?;
    region.exclude();
    if kind == PageKind::Transparent {
        region.advise_huge()?;
    }
    Ok(region)
}

impl Mapping {
    /// Maps the shared region behind `fd`, which another process created with [`Mapping::shared`] and passed
    /// to this one (SCM_RIGHTS, `/proc/<pid>/fd`, inheritance). `len` is the length that its creator reports.
    /// Writes on either side are visible on the other; the two sides agree on the writer of each byte at each
    /// time, as for any shared memory.
    ///
    /// The file must have the seals `F_SEAL_SHRINK` and `F_SEAL_GROW` and be `len` bytes long, so that a
    /// malicious peer cannot truncate it while this process uses it. Seals do not prevent punching holes
    /// (`fallocate`): the bytes of a hole read as zero and, for hugetlb memory whose pool has become empty,
    /// an access to a hole raises SIGBUS. The pages of a registered region are pinned for the device, but not
    /// for the processor's page tables.
    ///
    /// # Errors
    ///
    /// [`ZeroLength`](MemoryError::ZeroLength), [`NotSealed`](MemoryError::NotSealed),
    /// [`WrongLength`](MemoryError::WrongLength), and [`Os`](MemoryError::Os) if it cannot be mapped, for
    /// example because the descriptor is not open for writing. The descriptor is closed.
    pub fn from_fd(fd: OwnedFd, len: usize) -> Result<Self, MemoryError> {
        if len == 0 {
            return Err(MemoryError::ZeroLength);
        }
        let file = File::from(fd);
        // Check the seals first, because they cannot be removed, and then the length that they fix.
        // SAFETY: F_GET_SEALS takes no argument. A file that does not support seals returns -1, EINVAL.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return Err(MemoryError::NotSealed);
        }
        let failed = |source| MemoryError::Os {
            doing: format!(
                "map {} of shared memory (is the descriptor open for writing?)",
                Size(len as u64)
            ),
            source,
        };
        let actual = file.metadata().map_err(failed)?.len();
        if actual != len as u64 {
            return Err(MemoryError::WrongLength {
                expected: len,
                actual,
            });
        }
        let kind = kind_of(file.as_fd(), len).map_err(failed)?;
        let region = map(file.as_fd(), kind, len).map_err(failed)?;
        // Its owner decides whether its own core files have it.
        region.keep_out_of_core_files();
        region.populate().map_err(failed)?;
        Ok(Self::of_descriptor(region, kind, file.into()))
    }
}

/// The kind of pages of a memfd that another process created.
fn kind_of(fd: BorrowedFd<'_>, len: usize) -> io::Result<PageKind> {
    // SAFETY: statfs consists of integers, for which zero is valid.
    let mut fs: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `fs` is writable and has the type that fstatfs fills in.
    super::region::check(unsafe { libc::fstatfs(fd.as_raw_fd(), &mut fs) })?;
    // Both are of different types in different C libraries; the number has 32 bits.
    if fs.f_type as u32 == libc::HUGETLBFS_MAGIC as u32 {
        let size = fs.f_bsize as usize;
        return [PageKind::Huge1G, PageKind::Huge2M]
            .into_iter()
            .find(|kind| kind.size() == size)
            .ok_or_else(|| {
                let size = Size(size as u64);
                io::Error::other(format!("its hugepages are of {size}, not 2 MiB or 1 GiB"))
            });
    }
    if len.is_multiple_of(PageKind::Transparent.size()) && Thp::Shmem.check().is_ok() {
        Ok(PageKind::Transparent)
    } else {
        Ok(PageKind::Base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pages;
    use crate::pool::Knob;
    use std::fs::OpenOptions;

    const LEN: usize = 1 << 20;

    fn base(len: usize) -> Mapping {
        let builder = Mapping::shared("bellwire-test", len).pages(Pages::Base);
        builder.build().unwrap()
    }

    fn dup(region: &Mapping) -> OwnedFd {
        region.fd().unwrap().try_clone_to_owned().unwrap()
    }

    /// A memfd that the test creates itself.
    fn memfd(len: u64, seals: i32) -> OwnedFd {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"foreign".as_ptr(), flags) };
        assert!(fd >= 0);
        // SAFETY: the descriptor is new.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(len).unwrap();
        // SAFETY: F_ADD_SEALS takes an integer.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) }, 0);
        file.into()
    }

    /// Each side sees the other's writes, at both ends of the region.
    fn assert_shared(ours: &Mapping, theirs: &Mapping) {
        assert_eq!(ours.len(), theirs.len());
        assert_ne!(ours.as_ptr(), theirs.as_ptr());
        for (offset, byte) in [(0, 0x5a), (ours.len() - 1, 0xa5)] {
            for (from, to) in [(ours, theirs), (theirs, ours)] {
                // SAFETY: the offset is inside both regions, which only this thread uses.
                unsafe {
                    from.as_ptr().add(offset).write_volatile(byte);
                    assert_eq!(to.as_ptr().add(offset).read_volatile(), byte);
                    to.as_ptr().add(offset).write_volatile(0);
                }
            }
        }
    }

    #[test]
    fn both_sides_see_the_same_bytes_and_either_may_go_first() {
        let ours = base(LEN);
        let theirs = Mapping::from_fd(dup(&ours), ours.len()).unwrap();
        assert_shared(&ours, &theirs);
        // SAFETY: the first byte of a region that only this thread uses.
        unsafe { ours.as_ptr().write_volatile(9) };
        drop(ours);
        let third = Mapping::from_fd(dup(&theirs), LEN).unwrap();
        assert_shared(&theirs, &third);
    }

    #[test]
    fn opening_keeps_what_the_creator_wrote() {
        let ours = base(LEN);
        // SAFETY: the region is LEN bytes long, and only this thread uses it.
        unsafe { ours.as_ptr().write_bytes(7, LEN) };
        let theirs = Mapping::from_fd(dup(&ours), LEN).unwrap();
        // SAFETY: only this thread uses the region, and does not write while the slice lives.
        assert!(unsafe { theirs.as_slice() }.iter().all(|&b| b == 7));
    }

    #[test]
    fn nobody_can_change_the_length() {
        let ours = base(LEN);
        let peer = File::from(dup(&ours));
        for len in [0, LEN as u64 - 1, LEN as u64 + 4096] {
            let error = peer.set_len(len).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{len}");
        }
        assert_eq!(peer.metadata().unwrap().len(), LEN as u64);
    }

    #[test]
    fn a_descriptor_without_both_seals_is_refused() {
        for seals in [0, libc::F_SEAL_SHRINK, libc::F_SEAL_GROW] {
            let error = Mapping::from_fd(memfd(4096, seals), 4096).unwrap_err();
            assert!(matches!(error, MemoryError::NotSealed), "{seals}: {error}");
        }
        assert!(Mapping::from_fd(memfd(4096, SEALS), 4096).is_ok());
        let no_memfd = File::open("/proc/self/exe").unwrap();
        let error = Mapping::from_fd(no_memfd.into(), 4096).unwrap_err();
        assert!(matches!(error, MemoryError::NotSealed), "{error}");
    }

    #[test]
    fn a_length_that_is_not_the_files_is_refused() {
        let ours = base(LEN);
        for len in [1, LEN - 1, LEN + 1, usize::MAX] {
            let error = Mapping::from_fd(dup(&ours), len).unwrap_err();
            assert!(
                matches!(error, MemoryError::WrongLength { expected, actual }
                    if expected == len && actual == LEN as u64),
                "{error}"
            );
        }
        let error = Mapping::from_fd(dup(&ours), 0).unwrap_err();
        assert!(matches!(error, MemoryError::ZeroLength), "{error}");
    }

    #[test]
    fn a_length_that_is_no_whole_page_is_mapped_as_it_is() {
        let theirs = Mapping::from_fd(memfd(5000, SEALS), 5000).unwrap();
        assert_eq!(theirs.len(), 5000);
        // SAFETY: the last byte of the region, which only this thread uses.
        unsafe { theirs.as_ptr().add(4999).write_volatile(1) };
    }

    #[test]
    fn a_descriptor_for_reading_only_is_refused() {
        let ours = base(LEN);
        let path = format!("/proc/self/fd/{}", ours.fd().unwrap().as_raw_fd());
        let reader = OpenOptions::new().read(true).open(path).unwrap();
        let error = Mapping::from_fd(reader.into(), LEN).unwrap_err();
        assert!(error.to_string().contains("open for writing"), "{error}");
    }

    #[test]
    fn names_are_checked_and_seen() {
        for name in ["a\0b".to_owned(), "n".repeat(250)] {
            let error = Mapping::shared(&name, 4096).build().unwrap_err();
            assert!(matches!(error, MemoryError::BadName), "{error}");
        }
        assert!(Mapping::shared(&"n".repeat(249), 4096).build().is_ok());
        let region = Mapping::shared("bellwire-seen", 4096).build().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(maps.contains("/memfd:bellwire-seen"));
        drop(region);
    }

    #[test]
    fn transparent_follows_the_setting_of_shmem() {
        let built = Mapping::shared("thp", 4 << 20)
            .pages(Pages::Transparent)
            .build();
        match Thp::Shmem.check() {
            Err(off) => assert_eq!(built.unwrap_err().to_string(), off.to_string()),
            Ok(()) => {
                let ours = built.unwrap();
                assert_eq!(ours.page_kind(), PageKind::Transparent);
                let theirs = Mapping::from_fd(dup(&ours), ours.len()).unwrap();
                assert_eq!(theirs.page_kind(), PageKind::Transparent);
                assert_shared(&ours, &theirs);
            }
        }
    }

    #[test]
    fn hugetlb_regions_are_shared_too() {
        let Some(knob) = Knob::take() else { return };
        let Some(_raised) = knob.raise(2 << 20, 2) else {
            return;
        };
        let ours = Mapping::shared("huge", 3 << 20)
            .pages(Pages::Huge2M)
            .build()
            .unwrap();
        assert_eq!((ours.page_kind(), ours.len()), (PageKind::Huge2M, 4 << 20));
        assert_eq!(ours.huge_now().unwrap(), 4 << 20);
        let theirs = Mapping::from_fd(dup(&ours), ours.len()).unwrap();
        assert_eq!(theirs.page_kind(), PageKind::Huge2M);
        assert_eq!(theirs.huge_now().unwrap(), 4 << 20);
        assert_shared(&ours, &theirs);
    }
}
