//! Counters that the device's driver keeps in sysfs.

use super::context::Context;
use bellwire_provider::attr::DeviceCounters;
use std::path::Path;

/// Files of `hw_counters` with RNR NAKs that came: of rxe, and of bnxt_re.
const RNR_NAKS: &[&str] = &["rcvd_rnr_err", "rnr_naks_rcvd"];

/// Files with acknowledgements that did not come in time: of mlx5, and of bnxt_re.
const RETRIES: &[&str] = &["local_ack_timeout_err", "to_retransmits"];

/// The sum over all ports of the files with these names; `None` if there is none.
fn sum(ports: &Path, names: &[&str]) -> Option<u64> {
    let ports = std::fs::read_dir(ports).ok()?;
    let folders = ports.filter_map(|port| Some(port.ok()?.path().join("hw_counters")));
    let files = folders.flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    let values = files.filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok());
    values.reduce(u64::wrapping_add)
}

fn read(ports: &Path) -> DeviceCounters {
    let mut counters = DeviceCounters::default();
    counters.rnr_naks = sum(ports, RNR_NAKS);
    counters.retries = sum(ports, RETRIES);
    counters
}

impl Context {
    /// The driver's counts of the device.
    pub fn counters(&self) -> DeviceCounters {
        let device = Path::new("/sys/class/infiniband").join(self.name());
        read(&device.join("ports"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_added_up_and_what_no_driver_counts_is_unknown() {
        let ports = std::env::temp_dir().join(format!("bellwire-counters-{}", std::process::id()));
        for (port, value) in [("1", "3\n"), ("2", "40\n")] {
            let folder = ports.join(port).join("hw_counters");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("rcvd_rnr_err"), value).unwrap();
            std::fs::write(folder.join("to_retransmits"), "none").unwrap();
        }
        let counters = read(&ports);
        std::fs::remove_dir_all(&ports).unwrap();
        assert_eq!((counters.rnr_naks, counters.retries), (Some(43), None));
    }
}
