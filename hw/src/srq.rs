use crate::{Error, Pd, soft::SrqCtx};
use bellwire_core::queue::Attach;
/// x
#[derive(Debug)]
pub struct Srq;
#[derive(Debug)]
pub(crate) struct SrqUse;
impl Srq {
    pub(crate) fn use_by(&self, _: &Pd) -> Result<SrqUse, Error> {
        Ok(SrqUse)
    }
}
impl SrqUse {
    pub fn ctx(&self) -> &'static SrqCtx {
        unreachable!()
    }
    pub fn attach(&self, _: u32) -> Attach<'static> {
        unreachable!()
    }
}
