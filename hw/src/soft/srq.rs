use super::cq::CqCtx;
use bellwire_core::wqe::SrqRing;
#[derive(Debug)]
pub(crate) struct SrqCtx;
pub(super) struct Popped {
    pub index: u16,
    pub limit_reached: bool,
}
impl SrqCtx {
    pub fn fail(&self) {}
    pub(super) fn pop(&self) -> Option<Popped> {
        None
    }
    pub fn pd(&self) -> u32 {
        0
    }
    pub fn domain(&self) -> Option<u32> {
        None
    }
    pub fn ring(&self) -> SrqRing<'static> {
        unreachable!()
    }
    pub fn completes_on(&self) -> Option<(&'static CqCtx, u32)> {
        None
    }
}
#[derive(Debug)]
pub(crate) struct SrqTable;
impl SrqTable {
    pub fn new() -> Self {
        Self
    }
    pub fn find(&self, _: u32) -> Option<&'static SrqCtx> {
        None
    }
}
impl super::hca::Hca {
    pub(super) fn srq_limit_reached(&self, _: &SrqCtx) {}
}
