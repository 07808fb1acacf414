//! Paths, according to what a device supports.

use super::{Qp, QpTransport};
use crate::device::Device;
use crate::error::Error;
use bellwire_core::wr::QpType;
use bellwire_provider::limits::in_range;
pub use bellwire_provider::path::PathAttr;
use bellwire_provider::path::{UdpSport, label_of};

const ONE_OF_BOTH: Error = Error::Unsupported {
    what: "take this UDP source port with this flow label",
    instead: "it makes the port of the flow label: name one of them",
};

/// Checks a path for a queue pair of this transport, through this port.
///
/// # Errors
/// [`Error::OutOfRange`]; [`Error::Unsupported`].
pub(crate) fn check(
    path: &PathAttr,
    device: &Device,
    port_num: u8,
    of: QpType,
) -> Result<(), Error> {
    path.check_ranges()?;
    if path.pkey_index != 0 {
        let table = device.query_port(port_num)?.pkey_tbl_len.max(1);
        let last = u32::from(table) - 1;
        in_range("pkey_index", path.pkey_index.into(), 0, last)?;
    }
    let Some(port) = path.udp_sport else {
        return Ok(());
    };
    match device.hca.udp_sport() {
        Some(_) if !matches!(of, QpType::Rc | QpType::Uc) => Err(PathAttr::NO_UDP_SPORT),
        Some(UdpSport::Set) => Ok(()),
        Some(UdpSport::Label) if [0, label_of(port)].contains(&path.flow_label) => Ok(()),
        Some(UdpSport::Label) => Err(ONE_OF_BOTH),
        None => Err(PathAttr::NO_UDP_SPORT),
    }
}

/// A path as the attributes of the device's queue pairs express it.
pub(crate) fn on(path: &PathAttr, device: &Device) -> PathAttr {
    let label = match (path.udp_sport, device.hca.udp_sport()) {
        (Some(port), Some(UdpSport::Label)) => label_of(port),
        _ => path.flow_label,
    };
    PathAttr {
        flow_label: label,
        ..*path
    }
}

impl<T: QpTransport> Qp<T> {
    /// Sets the UDP source port in RTS, if one is given. If that fails, the queue pair is moved to ERR, since
    /// it is not connected as requested.
    pub(crate) fn set_udp_sport(&mut self, port: Option<u16>) -> Result<(), Error> {
        let Some(port) = port else {
            return Ok(());
        };
        let set = self.pd.device().hca.set_udp_sport(self.qpn, port);
        match set {
            Ok(()) => self.udp_sport = Some(port),
            // If the device refuses ERR as well, it has failed, and reports that itself.
            Err(_) => drop(self.to_error()),
        }
        set
    }
}
