//! The devices that libibverbs lists, and the reasons why others are missing.

use super::context::{Context, Drives};
use super::kernel::{self, Kernel};
use super::library::cause;
use super::sys;
use crate::error::Error;
use bellwire_provider::attr::{DeviceInfo, PortState};
use bellwire_provider::source::ProviderKind;
use bellwire_provider::source::{Absent, Cause, Choice};
use bellwire_sys::mlx5dv;
use std::ffi::CStr;
use std::ptr::NonNull;
use std::sync::Arc;

/// The device list of libibverbs, kept while its devices are examined.
struct List {
    first: NonNull<*mut sys::ibv_device>,
    count: usize,
}

/// A device of a list.
struct Listed<'a> {
    device: NonNull<sys::ibv_device>,
    name: String,
    _list: &'a List,
}

impl List {
    fn get() -> Result<Self, Cause> {
        bellwire_sys::load().map_err(cause)?;
        let mut count = 0;
        // SAFETY: the library is loaded, and the count can be written.
        let first = sys::made(unsafe { sys::ibv_get_device_list(&raw mut count) });
        let first = first.map_err(|error| Cause::CannotList {
            reason: error.to_string(),
        })?;
        Ok(Self {
            first,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    fn devices(&self) -> impl Iterator<Item = Listed<'_>> {
        // SAFETY: the list has `count` entries.
        let devices = unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.count) };
        let devices = devices.iter().filter_map(|&device| NonNull::new(device));
        devices.map(|device| {
            // SAFETY: the device is of a list that is held; names are C strings.
            let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(device.as_ptr())) };
            Listed {
                device,
                name: name.to_string_lossy().into_owned(),
                _list: self,
            }
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is from `ibv_get_device_list`. Open devices stay open.
        unsafe { sys::ibv_free_device_list(self.first.as_ptr()) };
    }
}

impl Listed<'_> {
    fn open(&self, drives: Drives) -> Result<Arc<Context>, Error> {
        // SAFETY: the device is of a list that is held.
        let context = sys::made(unsafe { sys::ibv_open_device(self.device.as_ptr()) });
        let context = context.map_err(|error| Error::io("open the device", error))?;
        // SAFETY: the context was just opened, and nothing else owns it.
        unsafe { Context::new(context, &self.name, drives) }
    }

    fn absent(&self, cause: Cause) -> Absent {
        of_device(&self.name, cause)
    }

    /// The reason why the device could not be opened.
    fn closed(&self, error: &Error, kernel: &[Kernel]) -> Absent {
        let device = kernel.iter().find(|device| device.name == self.name);
        let cause = device.and_then(Kernel::why_closed);
        self.absent(cause.unwrap_or_else(|| Cause::CannotOpen {
            reason: error.to_string(),
        }))
    }
}

fn of_device(name: &str, cause: Cause) -> Absent {
    Absent::new(ProviderKind::Verbs, Some(name.to_owned()), cause)
}

/// Opens a device.
///
/// # Errors
/// [`Error::UnknownDevice`] names the devices that there are, and says why others are missing; [`Error::Io`]:
/// the device cannot be opened.
pub fn open(wanted: &str, drives: Drives) -> Result<Arc<Context>, Error> {
    let list = List::get();
    for listed in list.iter().flat_map(List::devices) {
        if listed.name == wanted {
            return listed.open(drives);
        }
    }
    let there = names(&list);
    let absent = unlisted(&there, list.err(), kernel::devices().as_deref());
    Err(Error::UnknownDevice {
        name: wanted.into(),
        there: there.into(),
        absent: absent.into(),
    })
}

fn names(list: &Result<List, Cause>) -> Vec<String> {
    let devices = list.iter().flat_map(List::devices);
    devices.map(|listed| listed.name).collect()
}

/// The reasons why libibverbs does not list devices of the kernel, or lists none at all.
fn unlisted(names: &[String], refused: Option<Cause>, kernel: Option<&[Kernel]>) -> Vec<Absent> {
    if let Some(
        cause @ (Cause::NotBuilt
        | Cause::LibraryNotFound { .. }
        | Cause::LibraryRefused { .. }
        | Cause::LibraryTooOld { .. }),
    ) = refused
    {
        return vec![Absent::verbs(cause)];
    }
    let unlisted = kernel.unwrap_or_default().iter();
    let unlisted = unlisted.filter(|device| !names.contains(&device.name));
    let mut absent: Vec<_> = unlisted
        .map(|device| of_device(&device.name, device.why_unlisted()))
        .collect();
    let all = absent.len();
    absent.retain(|absent| absent.cause != Cause::NoNodes);
    if absent.len() < all {
        absent.push(Absent::verbs(Cause::NoNodes));
    }
    match refused {
        _ if kernel.is_none() && names.is_empty() => {
            absent.push(Absent::verbs(kernel::why_none()));
        }
        Some(refused) => {
            // libibverbs did not get as far as looking for providers.
            absent.retain(|absent| !matches!(absent.cause, Cause::NoProvider { .. }));
            absent.push(Absent::verbs(refused));
        }
        None if all == 0 && names.is_empty() => absent.push(Absent::verbs(Cause::NoDevice)),
        None => {}
    }
    absent
}

/// Describes each device that can be opened, and gives the reasons why others are missing.
pub fn describe(drives: Drives) -> (Vec<DeviceInfo>, Vec<Absent>) {
    let list = List::get();
    let kernel = kernel::devices();
    let there = kernel.as_deref().unwrap_or_default();
    let (mut devices, mut absent) = (Vec::new(), Vec::new());
    for listed in list.iter().flat_map(List::devices) {
        match listed.open(drives) {
            Ok(context) => {
                absent.extend(ringless(&context, there));
                devices.push(context.info());
            }
            Err(error) => absent.push(listed.closed(&error, there)),
        }
    }
    absent.extend(unlisted(&names(&list), list.err(), kernel.as_deref()));
    (devices, absent)
}

/// The reason why the rings of a ConnectX device cannot be driven: libmlx5 is missing.
fn ringless(context: &Context, kernel: &[Kernel]) -> Option<Absent> {
    let device = kernel.iter().find(|device| device.name == context.name())?;
    let is_mlx5 = device.driver()?.starts_with("mlx5");
    let unloaded = mlx5dv::load().err()?;
    let name = Some(device.name.clone());
    is_mlx5.then(|| Absent::new(ProviderKind::Mlx5, name, cause(unloaded)))
}

/// Opens the first device that has an active port.
///
/// # Errors
/// There is no such device: the reasons why.
pub fn auto(drives: Drives) -> Result<(Arc<Context>, Choice), Vec<Absent>> {
    let list = List::get();
    let kernel = kernel::devices();
    let there = kernel.as_deref().unwrap_or_default();
    let mut before = Vec::new();
    for listed in list.iter().flat_map(List::devices) {
        match listed.open(drives) {
            Ok(context) => {
                let ports = context.attr().phys_port_cnt;
                let is_active = |port: &u8| {
                    let attr = context.query_port(*port);
                    attr.is_ok_and(|attr| attr.state == PortState::Active)
                };
                match (1..=ports).find(is_active) {
                    Some(port) => return Ok((context, Choice::ActivePort { port, before })),
                    None => before.push(listed.absent(Cause::NoActivePort { ports })),
                }
            }
            Err(error) => before.push(listed.closed(&error, there)),
        }
    }
    before.extend(unlisted(&names(&list), list.err(), kernel.as_deref()));
    Err(before)
}
