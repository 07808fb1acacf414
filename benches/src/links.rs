//! Two links that work.

use bellwire::fault::plan::Limits;
use bellwire::link::{Link, LinkInit, LinkState, pair};
use bellwire::memory::Mapping;
use bellwire::{AccessFlags, Device, Region};
use std::fmt;
use std::time::Duration;

/// Two links of an inline device that work, and memory at the second that the first may write to.
pub struct Links {
    /// The first.
    pub a: Link,
    /// The second.
    pub b: Link,
    /// Opened to the first.
    pub region: Region,
}

impl fmt::Debug for Links {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Links").finish_non_exhaustive()
    }
}

/// Two links that work.
///
/// # Panics
/// When there is no memory.
pub fn links() -> Links {
    let device = Device::soft(Default::default());
    let pd = device.alloc_pd();
    let mapping = Mapping::anonymous(4096).build().expect("memory");
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let region = Region::new(&pd, mapping, access).expect("a region");
    let (here, there) = pair();
    let init = LinkInit {
        limits: Limits {
            // Recoveries may follow one another without a limit.
            settle: Duration::ZERO,
            ..Limits::default()
        },
        ..LinkInit::default()
    };
    let mut links = Links {
        a: Link::new(&pd, init.clone(), here).expect("a link"),
        b: Link::new(&pd, init, there).expect("a link"),
        region,
    };
    while [links.a.state(), links.b.state()] != [LinkState::Ready; 2] {
        links.a.poll(1, drop);
        links.b.poll(1, drop);
    }
    links
}
