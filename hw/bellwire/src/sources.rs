//! The sources of devices, the reasons why a source has none, and why `"auto"` chose its device.

use crate::device::Device;
use crate::error::Error;
use crate::provider::Hca;
use bellwire_provider::attr::DeviceInfo;
pub use bellwire_provider::source::{Absent, Cause, Choice};
use std::sync::Arc;

/// The result of [`Device::list`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceList {
    /// The devices that [`Device::open`] can open.
    pub devices: Vec<DeviceInfo>,
    /// Missing devices, and the reasons.
    pub absent: Vec<Absent>,
}

impl Device {
    /// Lists the devices that [`open`](Self::open) can open, and the reasons why others are missing. To list
    /// a device, it is opened.
    pub fn list() -> DeviceList {
        let (devices, absent) = Hca::list();
        DeviceList { devices, absent }
    }

    /// Why `"auto"` chose this device; `None`: it was opened by its own name.
    ///
    /// ```
    /// let device = bellwire::Device::open("auto")?;
    /// let choice = device.choice().expect("it was chosen");
    /// println!("{}: {choice}", device.name());
    /// # Ok::<(), bellwire::Error>(())
    /// ```
    pub fn choice(&self) -> Option<&Choice> {
        self.choice.as_deref()
    }

    /// Opens the device that `"auto"` stands for.
    pub(crate) fn auto() -> Result<Self, Error> {
        let (hca, choice) = Hca::auto()?;
        let mut device = Self::of(hca)?;
        device.choice = Some(Arc::new(choice));
        Ok(device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOFT: &str = "soft";

    /// Whatever devices the machine has: the list, the error for an unknown name, and `"auto"` agree.
    #[test]
    fn all_say_the_same() {
        let list = Device::list();
        assert_eq!(list.devices[0].name, SOFT);
        let others = list.devices.len() - 1;
        let Err(Error::UnknownDevice { there, absent, .. }) = Device::open("no such device") else {
            panic!("it is there");
        };
        assert!(there.len() >= others);
        assert!(others > 0 || !absent.is_empty() || !list.absent.is_empty());
        let unlisted = absent.iter().filter(|absent| !list.absent.contains(absent));
        assert_eq!(unlisted.count(), 0);

        let auto = Device::open("auto").expect("a device");
        match auto.choice().expect("it was chosen") {
            Choice::ActivePort { .. } => assert_ne!(auto.name(), SOFT),
            Choice::Fallback { before } => {
                assert_eq!(auto.name(), SOFT);
                assert!(absent.iter().all(|absent| before.contains(absent)));
            }
            other => panic!("{other:?}"),
        }
        let named = Device::open(SOFT).expect("the software HCA");
        assert_eq!(named.choice(), None);
    }
}
