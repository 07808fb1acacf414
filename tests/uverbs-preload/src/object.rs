//! Handles of a context's objects, and what the errors of bellwire are to a program.

use bellwire::Error;
use rustix::io::Errno;
use std::collections::HashMap;

/// Objects of one kind, by handle. A handle is not given again soon.
#[derive(Debug)]
pub struct Table<T> {
    objects: HashMap<u32, T>,
    next: u32,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            next: 1,
        }
    }
}

impl<T> Table<T> {
    pub fn insert(&mut self, object: T) -> u32 {
        while self.objects.contains_key(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        let handle = self.next;
        self.next = handle.wrapping_add(1);
        self.objects.insert(handle, object);
        handle
    }

    /// # Errors
    /// `EINVAL`: there is no such object.
    pub fn get(&self, handle: u32) -> Result<&T, Errno> {
        self.objects.get(&handle).ok_or(Errno::INVAL)
    }

    /// As [`get`](Self::get).
    pub fn get_mut(&mut self, handle: u32) -> Result<&mut T, Errno> {
        self.objects.get_mut(&handle).ok_or(Errno::INVAL)
    }

    /// As [`get`](Self::get).
    pub fn remove(&mut self, handle: u32) -> Result<T, Errno> {
        self.objects.remove(&handle).ok_or(Errno::INVAL)
    }

    /// Puts an object back under the handle that it was removed from.
    pub fn put_back(&mut self, handle: u32, object: T) {
        self.objects.insert(handle, object);
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.objects.values()
    }

    /// Takes all of them.
    pub fn take_all(&mut self) -> Vec<T> {
        self.objects.drain().map(|(_, object)| object).collect()
    }
}

/// What the kernel would answer in the place of an error.
pub fn errno(error: Error) -> Errno {
    match error {
        Error::Io { error, .. } => Errno::from_io_error(&error).unwrap_or(Errno::IO),
        Error::WouldBlock => Errno::AGAIN,
        Error::Exhausted { .. } => Errno::NOMEM,
        Error::Busy { .. } | Error::WindowsBound { .. } => Errno::BUSY,
        Error::DeviceFatal => Errno::IO,
        Error::Unsupported { .. } => Errno::OPNOTSUPP,
        _ => Errno::INVAL,
    }
}
