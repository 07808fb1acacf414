//! For tests: the machine's hugetlb pool. All tests share it, so they take turns.

use super::pages::{Pool, pool_dir};
use std::fs::{self, File};
use std::io;

/// A test's turn: a lock on the `nr_hugepages` file, which also excludes other processes.
pub(super) struct Knob {
    _locked: File,
}

/// Pages added to a pool, and removed on drop.
pub(super) struct Raised<'a> {
    page: usize,
    added: usize,
    _turn: &'a Knob,
}

impl Knob {
    /// Waits for the turn. On a kernel without 2 MiB hugetlb pages it prints a line that says so and returns
    /// `None`.
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

    /// Adds `n` free pages of `page` bytes to the pool. If that is not permitted, or the memory is too
    /// fragmented, it prints the reason and returns `None`.
    pub(super) fn raise(&self, page: usize, n: usize) -> Option<Raised<'_>> {
        self.raise_to(
            page,
            Pool::read(page, None).map_or(0, |pool| pool.total) + n,
        )
    }

    /// Like [`raise`](Self::raise), but raises the pool to `total` pages.
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

    /// The number of free pages of `page` bytes.
    pub(super) fn available(&self, page: usize) -> usize {
        Pool::read(page, None).unwrap().available()
    }
}

/// Sets the pool's size to `to(size)`, and returns the size before and after.
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
