//! Of tests: the machine's hugetlb pool, which is one for all, so tests take turns at it.

use super::pages::{Pool, pool_dir};
use std::fs::{self, File};
use std::io;

/// The turn. A file lock on the knob itself, so that it also holds between processes.
pub(super) struct Knob {
    _locked: File,
}

/// Pages added to a pool, taken away on drop.
pub(super) struct Raised<'a> {
    page: usize,
    added: usize,
    _turn: &'a Knob,
}

impl Knob {
    /// Waits for the turn. `None`, and a line that says so, on a kernel without 2 MiB hugepages.
    pub(super) fn take() -> Option<Self> {
        let path = pool_dir(2 << 20, None).join("nr_hugepages");
        match File::open(&path).and_then(|file| file.lock().map(|()| file)) {
            Ok(file) => Some(Self { _locked: file }),
            Err(e) => {
                println!("skipped: {}: {e}", path.display());
                None
            }
        }
    }

    /// Adds `n` pages of `page` bytes to the pool, all of them free. `None`, and a line that says
    /// why, if that is not permitted or the memory is too fragmented.
    pub(super) fn raise(&self, page: usize, n: usize) -> Option<Raised<'_>> {
        self.raise_to(
            page,
            Pool::read(page, None).map_or(0, |pool| pool.total) + n,
        )
    }

    /// As [`raise`](Self::raise), to a pool of `total` pages.
    pub(super) fn raise_to(&self, page: usize, total: usize) -> Option<Raised<'_>> {
        let (before, after) = match change(page, |_| total) {
            Ok(counts) => counts,
            Err(e) => {
                println!("skipped: {}: {e}", pool_dir(page, None).display());
                return None;
            }
        };
        let raised = Raised {
            page,
            added: after.saturating_sub(before),
            _turn: self,
        };
        if after < total {
            println!("skipped: a pool of {total} hugepages was wanted, {after} could be had");
            return None;
        }
        Some(raised)
    }

    /// Free pages of `page` bytes now.
    pub(super) fn available(&self, page: usize) -> usize {
        Pool::read(page, None).unwrap().available()
    }
}

/// Sets the pool's size to `to(size)`; the size before and after.
fn change(page: usize, to: impl Fn(usize) -> usize) -> io::Result<(usize, usize)> {
    let before = Pool::read(page, None)?.total;
    let knob = pool_dir(page, None).join("nr_hugepages");
    fs::write(knob, to(before).to_string())?;
    Ok((before, Pool::read(page, None)?.total))
}

impl Drop for Raised<'_> {
    fn drop(&mut self) {
        if let Err(e) = change(self.page, |total| total.saturating_sub(self.added)) {
            println!("the hugetlb pool was not restored: {e}");
        }
    }
}
