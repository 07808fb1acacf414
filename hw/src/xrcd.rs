//! XRC domains.

use crate::device::Device;

/// An XRC domain: its queue pairs reach its shared receive queues, and no others. Clones are the same
/// one. It goes with the last object in it.
#[derive(Clone, Debug)]
pub struct Xrcd {
    device: Device,
    id: u32,
}

impl Device {
    /// A new XRC domain (`ibv_open_xrcd`, without a file).
    pub fn open_xrcd(&self) -> Xrcd {
        Xrcd {
            device: self.clone(),
            // Of another device nothing can be created in it, which says why.
            id: self.hca.soft("XRC").map_or(0, |hca| hca.alloc_xrcd()),
        }
    }
}

impl Xrcd {
    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }
}
