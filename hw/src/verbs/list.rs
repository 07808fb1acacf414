//! Which devices libibverbs has.

use super::context::Context;
use super::sys;
use crate::device::{DeviceInfo, PortState};
use crate::error::Error;
use std::ffi::CStr;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// The list that libibverbs gives, for as long as its devices are looked at.
struct List {
    first: NonNull<*mut sys::ibv_device>,
    count: usize,
}

impl List {
    fn get() -> io::Result<Self> {
        let mut count = 0;
        // SAFETY: the count can be written.
        let first = sys::made(unsafe { sys::ibv_get_device_list(&raw mut count) })?;
        Ok(Self {
            first,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    fn devices(&self) -> &[*mut sys::ibv_device] {
        // SAFETY: the list has so many entries.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: from `ibv_get_device_list`. Devices that are open stay.
        unsafe { sys::ibv_free_device_list(self.first.as_ptr()) };
    }
}

/// # Safety
/// The device is in a list that is not freed yet.
unsafe fn name(device: *mut sys::ibv_device) -> String {
    // SAFETY: the caller's promise; names are strings of C.
    let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) };
    name.to_string_lossy().into_owned()
}

/// The names of all devices. None where the kernel has no RDMA.
pub(crate) fn names() -> Vec<String> {
    let Ok(list) = List::get() else {
        return Vec::new();
    };
    // SAFETY: the list is held.
    let names = list.devices().iter().map(|&device| unsafe { name(device) });
    names.collect()
}

/// Opens a device.
///
/// # Errors
/// [`Error::UnknownDevice`] names those that there are; [`Error::Io`] when it cannot be opened.
pub(crate) fn open(wanted: &str) -> Result<Arc<Context>, Error> {
    // Without a list there is none: the kernel has no RDMA.
    let list = List::get().ok();
    for &device in list.iter().flat_map(List::devices) {
        // SAFETY: the list is held.
        if unsafe { name(device) } == wanted {
            // SAFETY: as above.
            let context = sys::made(unsafe { sys::ibv_open_device(device) });
            let context = context.map_err(|error| Error::io("open the device", error))?;
            // SAFETY: just opened, and nobody else's.
            return unsafe { Context::new(context, wanted) };
        }
    }
    Err(Error::UnknownDevice {
        name: wanted.to_owned(),
        there: names(),
    })
}

/// What the list of devices says of each that can be opened.
pub(crate) fn describe() -> Vec<DeviceInfo> {
    let contexts = names().into_iter().filter_map(|name| open(&name).ok());
    contexts.map(|context| context.info()).collect()
}

/// The first device that has a port which is up.
pub(crate) fn first_active() -> Option<Arc<Context>> {
    let contexts = names().into_iter().filter_map(|name| open(&name).ok());
    contexts.into_iter().find(|context| {
        (1..=context.attr().phys_port_cnt).any(|port| {
            let attr = context.query_port(port);
            attr.is_ok_and(|attr| attr.state == PortState::Active)
        })
    })
}
