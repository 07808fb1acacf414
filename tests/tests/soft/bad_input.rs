//! What the software HCA does not have. What every device refuses is in the conformance suite.

use bellwire::memory::Mapping;
use bellwire::soft::Mode;
use bellwire::{AccessFlags, Error, Region};
use bellwire_tests::fixture::device;

#[test]
fn zero_based_regions() {
    let pd = device(Mode::Inline).alloc_pd();
    let mapping = Mapping::anonymous(4096).build().expect("memory");
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::ZERO_BASED;
    let refused = Region::new(&pd, mapping, access);
    assert!(matches!(refused, Err(Error::ZeroBasedRegion)));
}
