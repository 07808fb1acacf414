//! The file that is made up, and the file that is written.

use anyhow::{Context, Result, bail};
use std::fs::{File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// Writes a file of bytes that do not repeat.
///
/// # Errors
/// Those of writing.
pub fn generate(path: &Path, size: u64) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut left = size;
    let mut state = size;
    while left != 0 {
        // SplitMix64 (Steele, Lea, Flood 2014).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^= word >> 31;
        let now = left.min(8);
        file.write_all(&word.to_le_bytes()[..now as usize])?;
        left -= now;
    }
    file.flush()
}

/// An output that appears under its name only when it is whole.
#[derive(Debug)]
pub struct Output {
    /// Beside the output, under another name.
    pub file: NamedTempFile,
    path: PathBuf,
    force: bool,
}

/// Collects small blocks. Those of a usual size go past it, so that they are not copied once more.
pub fn collecting<W: Write>(to: W) -> BufWriter<W> {
    BufWriter::with_capacity(64 << 10, to)
}

impl Output {
    /// Begins an output; with `force` it may replace another file.
    ///
    /// # Errors
    /// When there is something under the name that may not be replaced, or nothing can be written
    /// there.
    pub fn new(path: PathBuf, force: bool) -> Result<Self> {
        let name = path.display();
        match path.symlink_metadata() {
            Ok(meta) if !meta.is_file() => {
                bail!("{name} is not a regular file, and is left as it is: name another output")
            }
            Ok(_) if !force => {
                bail!("{name} exists already: name another output, or give --force to replace it")
            }
            _ => {}
        }
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let file = Builder::new()
            .prefix(".mover-")
            // As any new file: what the umask leaves.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)
            .with_context(|| format!("cannot write {name}"))?;
        Ok(Self { file, path, force })
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// When a file of that name has come meanwhile, or the folder does not allow it.
    pub fn keep(self) -> Result<()> {
        let name = format!("cannot write {}", self.path.display());
        let kept = if self.force {
            self.file.persist(&self.path)
        } else {
            self.file.persist_noclobber(&self.path)
        };
        kept.map(|_| ()).context(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_up_has_the_size_and_does_not_repeat() {
        let folder = tempfile::tempdir().unwrap();
        for size in [0, 1, 8, 4097] {
            let path = folder.path().join(size.to_string());
            generate(&path, size).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(bytes.len() as u64, size);
            let mut words: Vec<_> = bytes.chunks_exact(8).collect();
            words.sort_unstable();
            assert!(words.windows(2).all(|pair| pair[0] != pair[1]));
        }
    }

    #[test]
    fn an_output_appears_when_it_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut output = Output::new(path.clone(), false).unwrap();
        output.file.write_all(b"whole").unwrap();
        assert!(!path.exists());
        output.keep().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");

        let refused = Output::new(path.clone(), false).unwrap_err().to_string();
        assert!(refused.contains("--force"), "{refused}");
        drop(Output::new(path.clone(), true).unwrap());
        assert_eq!(
            std::fs::read(&path).unwrap(),
            b"whole",
            "not kept, not replaced"
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_came_meanwhile_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let output = Output::new(path.clone(), false).unwrap();
        std::fs::write(&path, "other").unwrap();
        assert!(output.keep().is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"other");
    }

    #[test]
    fn folders_and_devices_are_left_alone() {
        for path in ["/dev/null", "/tmp"] {
            assert!(Output::new(path.into(), true).is_err());
        }
    }
}
