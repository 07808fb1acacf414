//! The number of objects on a device, and its counters.

use crate::device::Device;
use bellwire_provider::attr::{DeviceCounters, Resources};

impl Device {
    /// The number of objects on the device: on a software HCA those of all its contexts in this process,
    /// according to the device's own tables; on a device of libibverbs those of this context. For the control
    /// path.
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
    pub fn resources(&self) -> Resources {
        self.hca.resources()
    }

    /// Counts of RNR NAKs and retries, for the control path: any thread may call it. On a software HCA those of all
    /// its contexts in this process, where the device's lock is taken for the time of two reads. On a device of
    /// libibverbs those of all processes, as far as its driver has them in
    /// `/sys/class/infiniband/DEVICE/ports/N/hw_counters`.
    pub fn counters(&self) -> DeviceCounters {
        self.hca.counters()
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
        // Another context of the same device.
        let pd = device.reopen().expect("a context").alloc_pd();
        let mut cq = pd.device().create_cq(1024).expect("a queue");
        let srq = pd.create_srq(&SrqInit::default()).expect("a queue");
        let qp = pd.create_qp(&mut cq, &Default::default()).expect("room");
        let mapping = crate::memory::Mapping::anonymous(64).build().expect("64");
        let region = crate::Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE).expect("a key");
        let mw = pd.alloc_mw(MwType::Type2).expect("a key");
        let mut all = Resources::default();
        (all.pd, all.cq, all.qp, all.mr, all.mw, all.srq) = (1, 1, 1, 1, 1, 1);
        assert_eq!(device.resources(), all);
        drop(pd);
        assert_eq!(device.resources(), all);
        drop((qp, mw));
        let mut left = all;
        (left.qp, left.mw) = (0, 0);
        assert_eq!(device.resources(), left);
        drop((srq, region));
        drop(cq);
        assert_eq!(device.resources(), Resources::default());
    }
}
