//! Memory that is lent to the peer for one exchange.
//!
//! - **Keys.** A grant opens its memory by a window of type 2, which the link binds in front of the request and
//!   invalidates after the answer. The link keeps its windows for further grants. A device without windows registers the
//!   memory instead, and deregisters it: calls of the kernel for each grant.
//! - **Entries.** The link posts the bind and the invalidation among the program's sends. Their identifiers, and those of
//!   requests with grants, are numbers of the link. Neither entry is reported or counted. While a grant is open the
//!   link's completions take the slow path of a poll, so that programs without grants pay nothing.
//! - **The report waits for the revocation.** After a plain answer that is an invalidation by the peer's SEND_WITH_INV,
//!   or by the link. In all other cases the link destroys the window, which waits until the device does not use the
//!   window any more.
//! - **A recovery** that resets or replaces the queue pair ends the grants of the link. The peer would not know a new
//!   key, so a request with a grant is never posted again.

// `table` has the open grants, and what completions mean for them. `post` posts requests with grants, and revokes.

mod error;
mod post;
mod table;
#[cfg(test)]
mod tests;

use crate::pd::{Mr, Region};
use bellwire_core::access::AccessFlags;
use bellwire_core::slab::Block;
use bellwire_core::wqe::BindMwInfo;
pub use error::{GrantError, RefusedGrant};
use std::sync::Arc;
pub(super) use table::Grants;

/// The rights that a grant may give.
const RIGHTS: AccessFlags = AccessFlags::REMOTE_READ
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC);

/// The memory of a grant.
#[derive(Debug)]
pub(super) enum Memory {
    /// None, or memory that the caller keeps.
    Callers,
    Block(Block<'static>),
    Region(#[expect(dead_code, reason = "keeps the memory registered")] Arc<Region>),
}

/// Memory to be lent to a peer for one exchange: a block ([`Slab::grant`](crate::Slab::grant)) or a range of a region.
/// A request takes it ([`Link::post_grant`](super::Link::post_grant)), and carries its key to the peer. The request is
/// reported when the exchange is over and the key is invalid. So the peer cannot access the memory after the report,
/// whatever became of the request. The report returns the block.
///
/// The exchange is over, whichever comes first, when
///
/// - the peer answers by a SEND_WITH_INV of the key. The receive is reported before the request;
/// - the program has the answer by other means, and calls [`Link::end_grant`](super::Link::end_grant);
/// - the program [cancels](super::Link::cancel) the request, or its [deadline](super::Link::cancel_after) passes;
/// - the link recovers, or ends.
///
/// | outcome | meaning |
/// |---|---|
/// | [`Done`] | the exchange was answered |
/// | [`NotExecuted`] | the peer's program did not get the request |
/// | [`Failed`] | the request or the bind of its window failed; the peer's program did not get it |
/// | [`InDoubt`] with [`Doubt::Cancelled`], [`Doubt::DeadlinePassed`] | the peer may have got it, and did not answer in time |
/// | [`InDoubt`] with another reason | the connection failed before the answer |
///
/// In the last two cases the memory may have been written, in part or whole, and an answer may still come. Its key is
/// invalid: a peer that uses it gets `REM_ACCESS_ERR`, or `REM_INV_REQ_ERR` for a SEND_WITH_INV, and both links recover.
///
/// A request counts once. [`retired`](super::LinkCompletion::retired) does not count the link's own entries.
///
/// ```
/// use bellwire::fault::outcome::{Outcome, Replay};
/// use bellwire::link::{Link, LinkInit, LinkState, pair};
/// use bellwire::memory::Mapping;
/// use bellwire::wqe::{RdmaWrite, Send, SendWithInv};
/// use bellwire::wr::{Remote, SendFlags};
/// use bellwire::{AccessFlags, ClassLayout, Device, Region, Slab};
///
/// let pd = Device::soft(Default::default()).alloc_pd();
/// let layout = [ClassLayout { size: 4096, count: 4 }];
/// let mapping = Mapping::anonymous(Slab::bytes(&layout)?).build()?;
/// let region = Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE)?;
/// let slab = Slab::with_grants(region, &layout)?;
/// let (here, there) = pair();
/// let mut client = Link::new(&pd, LinkInit::default(), here)?;
/// let mut server = Link::new(&pd, LinkInit::default(), there)?;
/// client.post_recv_block(1, slab.take(4096)?)?;
/// server.post_recv_block(1, slab.take(4096)?)?;
/// while [client.state(), server.state()] != [LinkState::Ready; 2] {
///     client.poll(16, |_| ());
///     server.poll(16, |_| ());
/// }
///
/// // The client lends a block, and sends where it is.
/// let block = slab.take(4096)?;
/// let grant = slab.grant(block, 4096, AccessFlags::REMOTE_WRITE).map_err(|(error, _)| error)?;
/// let message = |at: Remote| {
///     let mut bytes = [0; 12];
///     bytes[..8].copy_from_slice(&at.addr.to_le_bytes());
///     bytes[8..].copy_from_slice(&at.rkey.to_le_bytes());
///     bytes
/// };
/// client.post_grant(2, grant, Send {}, message, SendFlags::empty())?;
/// client.ring();
///
/// // The server writes into it, and gives it back with the answer.
/// let mut asked = None;
/// while asked.is_none() {
///     server.poll(16, |completion| asked = completion.block);
/// }
/// let asked = asked.unwrap();
/// let (addr, rkey) = asked.as_slice()[..12].split_at(8);
/// let addr = u64::from_le_bytes(addr.try_into()?);
/// let rkey = u32::from_le_bytes(rkey.try_into()?);
/// let write = RdmaWrite { remote: Remote { addr, rkey } };
/// server.post_inline(2, write, b"value", SendFlags::empty(), Replay::Surface)?;
/// server.post_inline(3, SendWithInv { rkey }, b"ok", SendFlags::SIGNALED, Replay::Surface)?;
/// server.ring();
///
/// let mut value = None;
/// while value.is_none() {
///     client.poll(16, |completion| {
///         if completion.wr_id == 2 {
///             assert_eq!(completion.outcome, Outcome::Done);
///             value = completion.block;
///         }
///     });
///     server.poll(16, |_| ());
/// }
/// assert_eq!(&value.unwrap().as_slice()[..5], b"value");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Done`]: bellwire_core::fault::outcome::Outcome::Done
/// [`NotExecuted`]: bellwire_core::fault::outcome::Outcome::NotExecuted
/// [`Failed`]: bellwire_core::fault::outcome::Outcome::Failed
/// [`InDoubt`]: bellwire_core::fault::outcome::Outcome::InDoubt
/// [`Doubt::Cancelled`]: bellwire_core::fault::outcome::Doubt::Cancelled
/// [`Doubt::DeadlinePassed`]: bellwire_core::fault::outcome::Doubt::DeadlinePassed
#[derive(Debug)]
pub struct Grant {
    pub(super) memory: Memory,
    pub(super) info: BindMwInfo,
    /// The protection domain of the memory; 0 if it is not known.
    pub(super) pd: usize,
}

impl Grant {
    pub(crate) fn of_block(
        mr: &Mr,
        block: Block<'static>,
        length: u32,
        access: AccessFlags,
    ) -> Result<Self, (GrantError, Block<'static>)> {
        let info = match info(
            mr.lkey(),
            block.addr(),
            length,
            block.capacity().into(),
            access,
        ) {
            Ok(info) => info,
            Err(error) => return Err((error, block)),
        };
        Ok(Self {
            memory: Memory::Block(block),
            info,
            pd: mr.pd().address(),
        })
    }

    /// A grant of `length` bytes of a region, from `offset` on. The region needs
    /// [`MW_BIND`](AccessFlags::MW_BIND), and [`LOCAL_WRITE`](AccessFlags::LOCAL_WRITE) if the peer may write. It is kept
    /// until the request is reported. Its bytes are shared memory, during the exchange and after it.
    ///
    /// # Errors
    /// [`GrantError`].
    pub fn range(
        region: &Arc<Region>,
        offset: usize,
        length: u32,
        access: AccessFlags,
    ) -> Result<Self, GrantError> {
        let mr = region.mr();
        let max = region.len().saturating_sub(offset) as u64;
        let addr = mr.addr().wrapping_add(offset as u64);
        let mut needs = AccessFlags::MW_BIND;
        if access.intersects(AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC) {
            needs |= AccessFlags::LOCAL_WRITE;
        }
        if !mr.access().contains(needs) {
            return Err(GrantError::NotLendable);
        }
        Ok(Self {
            memory: Memory::Region(region.clone()),
            info: info(mr.lkey(), addr, length, max, access)?,
            pd: mr.pd().address(),
        })
    }

    /// A grant of memory that the caller keeps: `length` bytes at `addr` of the region whose `lkey` it is.
    /// This is the raw path. A request fails with `MW_BIND_ERR`, and the link recovers, if the region does not have the
    /// bytes, or lacks [`MW_BIND`](AccessFlags::MW_BIND).
    ///
    /// # Errors
    /// [`GrantError`].
    ///
    /// # Safety
    /// The memory stays valid and registered until the grant is dropped or its request is reported. Meanwhile the program
    /// accesses it as memory that a peer accesses with these rights.
    pub unsafe fn raw(
        lkey: u32,
        addr: u64,
        length: u32,
        access: AccessFlags,
    ) -> Result<Self, GrantError> {
        Ok(Self {
            memory: Memory::Callers,
            info: info(lkey, addr, length, u64::MAX, access)?,
            pd: 0,
        })
    }

    /// Takes the memory back, which was not lent.
    pub fn into_block(self) -> Option<Block<'static>> {
        match self.memory {
            Memory::Block(block) => Some(block),
            _ => None,
        }
    }
}

fn info(
    lkey: u32,
    addr: u64,
    length: u32,
    max: u64,
    access: AccessFlags,
) -> Result<BindMwInfo, GrantError> {
    if access.is_empty() || !RIGHTS.contains(access) {
        return Err(GrantError::Rights { access });
    }
    if length == 0 || u64::from(length) > max {
        return Err(GrantError::Length { given: length, max });
    }
    Ok(BindMwInfo {
        lkey,
        addr,
        length,
        access: access.bits(),
    })
}
