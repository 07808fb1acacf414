//! Files as memory, to send their contents without reading them first.

use super::error::MemoryError;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

/// A regular file, mapped shared from its start to the length that it had when it was opened.
///
/// **Truncation.** If the file is truncated while it is mapped, an access beyond its new end raises SIGBUS,
/// which kills the process; a device accesses pages that no longer belong to the file. This crate cannot
/// prevent that: map only files that are never truncated, or copy them into a [`Mapping`](super::Mapping).
/// For the same reason, and because other processes may write the file at any time, the bytes are accessible
/// only by pointer or by `unsafe` functions.
///
/// Unlike the pages of a [`Mapping`](super::Mapping), a file's pages are neither populated nor locked in
/// advance: the first access to each may wait for the disk. Registering the mapping with a device reads all
/// of it in. Since Linux 6.5, registration for local or remote *write* is refused for files whose file system
/// tracks dirty pages (ext4, xfs and others, but not tmpfs): `FOLL_LONGTERM`.
#[derive(Debug)]
pub struct FileMapping {
    path: PathBuf,
    /// `None`: the file is empty, so nothing is mapped.
    map: Option<MmapRaw>,
    writable: bool,
}

impl FileMapping {
    /// Maps the file for reading. A write through the pointer raises SIGSEGV.
    ///
    /// # Errors
    ///
    /// [`MemoryError::File`] with the path, if the file cannot be opened, is not a regular file, or
    /// cannot be mapped.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MemoryError> {
        Self::map(path.as_ref(), false)
    }

    /// Maps the file for reading and writing. Changes reach the file when the kernel writes them back, or at
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_rw(path: impl AsRef<Path>) -> Result<Self, MemoryError> {
        Self::map(path.as_ref(), true)
    }

    fn map(path: &Path, writable: bool) -> Result<Self, MemoryError> {
        let map = || -> io::Result<Option<MmapRaw>> {
            let file = OpenOptions::new()
                .read(true)
                .write(writable)
                // Do not block on opening a FIFO, which is refused below anyway.
                .custom_flags(libc::O_NONBLOCK)
                .open(path)?;
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                return Err(io::Error::other("not a regular file"));
            }
            let len = usize::try_from(metadata.len()).map_err(io::Error::other)?;
            let mut options = MmapOptions::new();
            options.len(len);
            Ok(match (len, writable) {
                (0, _) => None,
                (_, false) => Some(options.map_raw_read_only(&file)?),
                (_, true) => Some(options.map_raw(&file)?),
            })
        };
        match map() {
            Ok(map) => Ok(Self {
                path: path.to_owned(),
                map,
                writable,
            }),
            Err(source) => Err(MemoryError::File {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// The address of the first byte: page-aligned, or dangling if the file is empty. Valid as long as `self`
    /// lives.
    pub fn as_ptr(&self) -> *const u8 {
        match &self.map {
            Some(map) => map.as_ptr(),
            None => NonNull::dangling().as_ptr(),
        }
    }

    /// Like [`as_ptr`](Self::as_ptr), for writing; `None` if the file was opened for reading only.
    pub fn as_mut_ptr(&self) -> Option<*mut u8> {
        self.writable.then(|| self.as_ptr().cast_mut())
    }

    /// The file's length when it was opened, in bytes.
    pub fn len(&self) -> usize {
        self.map.as_ref().map_or(0, MmapRaw::len)
    }

    /// Whether the file was empty when it was opened.
    pub fn is_empty(&self) -> bool {
        self.map.is_none()
    }

    /// The path that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's bytes.
    ///
    /// # Safety
    ///
    /// As long as the slice lives, this mapping and the file must not be written, by this process or another,
    /// and the file must not be truncated.
    pub unsafe fn as_slice(&self) -> &[u8] {
        // SAFETY: pointer and length are those of the mapping, which lives as long as `self`; the caller
        // guarantees that the bytes do not change and the file is not truncated. An empty slice may dangle.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Writes the changes to the disk and waits until they are written (msync(2), `MS_SYNC`).
    ///
    /// # Errors
    ///
    /// [`MemoryError::File`] with the path, if the file system could not write them.
    pub fn flush(&self) -> Result<(), MemoryError> {
        match &self.map {
            Some(map) if self.writable => map.flush().map_err(|source| MemoryError::File {
                path: self.path.clone(),
                source,
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A path for one test in the temporary directory; the file is removed on drop.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("bellwire-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn with(name: &str, bytes: &[u8]) -> Self {
            let scratch = Self::new(name);
            fs::write(&scratch.0, bytes).unwrap();
            scratch
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    fn refused(path: &Path, why: &str) {
        for result in [FileMapping::open(path), FileMapping::open_rw(path)] {
            let text = result.unwrap_err().to_string();
            assert!(text.contains(path.to_str().unwrap()), "{text}");
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn reads_what_the_file_holds() {
        let bytes: Vec<u8> = (0..10_001u32).map(|i| i as u8).collect();
        let file = Scratch::with("read", &bytes);
        let map = FileMapping::open(&file.0).unwrap();
        assert_eq!((map.len(), map.is_empty()), (bytes.len(), false));
        assert_eq!(map.path(), file.0);
        assert_eq!(map.as_mut_ptr(), None);
        // SAFETY: no other code uses the file.
        assert_eq!(unsafe { map.as_slice() }, bytes);
        map.flush().unwrap();
    }

    #[test]
    fn writes_reach_the_file() {
        let file = Scratch::with("write", b"hello world");
        let map = FileMapping::open_rw(&file.0).unwrap();
        let at = map.as_mut_ptr().unwrap();
        // SAFETY: five bytes at offset 6 are within the file's 11, and no other code uses the file.
        unsafe { at.add(6).copy_from_nonoverlapping(b"there".as_ptr(), 5) };
        map.flush().unwrap();
        assert_eq!(fs::read(&file.0).unwrap(), b"hello there");
    }

    #[test]
    fn an_empty_file_is_an_empty_mapping() {
        let file = Scratch::with("empty", b"");
        for map in [
            FileMapping::open(&file.0).unwrap(),
            FileMapping::open_rw(&file.0).unwrap(),
        ] {
            assert_eq!((map.len(), map.is_empty()), (0, true));
            assert!(!map.as_ptr().is_null());
            // SAFETY: the mapping has no bytes.
            assert_eq!(unsafe { map.as_slice() }, b"");
            map.flush().unwrap();
        }
    }

    #[test]
    fn what_cannot_be_mapped_is_named() {
        refused(&Scratch::new("missing").0, "No such file");
        refused(Path::new("/dev/null"), "not a regular file");
        let dir = std::env::temp_dir();
        let text = FileMapping::open(&dir).unwrap_err().to_string();
        assert!(text.contains(dir.to_str().unwrap()), "{text}");
        assert!(text.contains("not a regular file"), "{text}");

        let fifo = Scratch::new("fifo");
        let name = std::ffi::CString::new(fifo.0.to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        refused(&fifo.0, "not a regular file");
    }
}
