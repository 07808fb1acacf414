//! What there is on a device, by numbers.

use crate::device::Device;
use crate::provider::Provider;

/// How many objects there are on a device, of each kind (`rdma resource show`). To see that nothing
/// is left.
///
/// ```
/// let device = bellwire::Device::soft(Default::default());
/// let before = device.resources();
/// let mut cq = device.create_cq(512)?;
/// let qp = device.alloc_pd().create_qp(&mut cq, &Default::default())?;
/// assert_eq!(device.resources().qp, before.qp + 1);
/// drop((qp, cq));
/// assert_eq!(device.resources(), before);
/// # Ok::<(), bellwire::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resources {
    /// Protection domains.
    pub pd: u32,
    /// Completion queues.
    pub cq: u32,
    /// Queue pairs, targets of XRC among them.
    pub qp: u32,
    /// Memory regions.
    pub mr: u32,
    /// Memory windows.
    pub mw: u32,
    /// Shared receive queues.
    pub srq: u32,
}

impl Device {
    /// What there is on the device: of a software HCA by all its contexts in this process, as its own
    /// tables have it; of a device of libibverbs by this context. For the control path.
    pub fn resources(&self) -> Resources {
        match &self.hca {
            Provider::Soft(hca) => hca.resources(),
            #[cfg(feature = "verbs")]
            Provider::Verbs(context) => context.resources(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Resources;
    use crate::{AccessFlags, Device, SrqInit, wr::MwType};

    #[test]
    fn each_kind_is_counted_until_it_goes() {
        let device = Device::soft(Default::default());
        assert_eq!(device.resources(), Resources::default());
        // Another context has the same device.
        let pd = device.reopen().expect("a context").alloc_pd();
        let mut cq = pd.device().create_cq(1024).expect("a queue");
        let srq = pd.create_srq(&SrqInit::default()).expect("a queue");
        let qp = pd.create_qp(&mut cq, &Default::default()).expect("room");
        let mapping = crate::memory::Mapping::anonymous(64).build().expect("64");
        let region = crate::Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE).expect("a key");
        let mw = pd.alloc_mw(MwType::Type2).expect("a key");
        let all = Resources {
            pd: 1,
            cq: 1,
            qp: 1,
            mr: 1,
            mw: 1,
            srq: 1,
        };
        assert_eq!(device.resources(), all);
        drop(pd);
        assert_eq!(device.resources(), all);
        drop((qp, mw));
        let left = Resources {
            qp: 0,
            mw: 0,
            ..all
        };
        assert_eq!(device.resources(), left);
        drop((srq, region));
        drop(cq);
        assert_eq!(device.resources(), Resources::default());
    }
}
