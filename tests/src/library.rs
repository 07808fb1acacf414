//! The host's libibverbs, to be changed: an older one lacks symbols, and everything else is as it is.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Its name.
pub const NAME: &str = "libibverbs.so.1";

/// The file that the linker finds by this name; where no compiler is installed, the one in Debian's folder.
pub fn find(name: &str) -> Option<PathBuf> {
    let mut cc = Command::new("cc");
    let found = match cc.arg(format!("-print-file-name={name}")).output() {
        Ok(said) => PathBuf::from(String::from_utf8(said.stdout).ok()?.trim()),
        Err(_) => Path::new("/usr/lib")
            .join(format!("{}-linux-gnu", std::env::consts::ARCH))
            .join(name),
    };
    fs::canonicalize(found).ok()
}

/// The bytes of its file.
pub struct Library(Vec<u8>);

impl Library {
    /// As it is.
    pub fn of_host() -> Self {
        let path = find(NAME).expect("the host's libibverbs");
        Self(fs::read(path).expect("the host's libibverbs"))
    }

    /// Replaces a string, which is there once, by another of the same length; gives where it is.
    pub fn replace(&mut self, from: &str, to: &str) -> usize {
        assert_eq!(from.len(), to.len());
        let whole = [b"\0", from.as_bytes(), b"\0"].concat();
        let mut found = (self.0.windows(whole.len()).enumerate()).filter(|(_, at)| *at == whole);
        let (before, _) = found
            .next()
            .unwrap_or_else(|| panic!("{from} is not there"));
        assert!(found.next().is_none(), "{from} is there twice");
        self.0[before + 1..][..to.len()].copy_from_slice(to.as_bytes());
        before + 1
    }

    fn number<const N: usize>(&self, at: usize) -> usize {
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(&self.0[at..][..N]);
        u64::from_le_bytes(bytes) as usize
    }

    /// The value of the dynamic section's entry with this tag (`Elf64_Dyn`). For a table the value is its
    /// address, which equals its offset in the file: tables are in the first segment.
    fn dynamic(&self, tag: usize) -> usize {
        const PT_DYNAMIC: usize = 2;
        let headers = (0..self.number::<2>(56)).map(|at| self.number::<8>(32) + 56 * at);
        let mut dynamic = headers.filter(|&at| self.number::<4>(at) == PT_DYNAMIC);
        let entries = self.number::<8>(dynamic.next().expect("a dynamic section") + 8);
        let mut entries = (0..).map(|at| entries + 16 * at);
        self.number::<8>(
            entries
                .find(|&at| self.number::<8>(at) == tag)
                .expect("a tag")
                + 8,
        )
    }

    /// Takes a symbol away from all others: by another name nobody finds it, for its hash is the old one's,
    /// and by its visibility the library itself does not look for it.
    pub fn hide(&mut self, symbol: &str) {
        const DT_STRTAB: usize = 5;
        const DT_SYMTAB: usize = 6;
        const STV_HIDDEN: u8 = 2;
        let other = format!("{}~", &symbol[..symbol.len() - 1]);
        let name = self.replace(symbol, &other);
        let (names, symbols) = (self.dynamic(DT_STRTAB), self.dynamic(DT_SYMTAB));
        let mut entries = (symbols..names).step_by(24);
        let entry = entries.find(|&at| self.number::<4>(at) == name - names);
        self.0[entry.expect("a symbol") + 5] = STV_HIDDEN;
    }

    /// Writes it there.
    pub fn write(&self, path: &Path) {
        fs::write(path, &self.0).expect("a file");
    }
}
