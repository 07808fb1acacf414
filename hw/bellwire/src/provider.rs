//! The provider behind an object: the software HCA, libibverbs, or a ConnectX device's own rings.
//!
//! This file and the folder `provider/` are the only ones that match on [`Provider`]; everything else calls
//! the methods here. A new provider is a crate of its own, whose types have the methods that are listed in
//! `provider/calls.rs`; one more case here; and a file in `provider/` that creates its objects.

mod calls;
mod data_path;
mod mlx5;
mod soft;
mod verbs;

use crate::cq::{Cq, NewCq};
use crate::error::Error;
use crate::event::{AsyncQueue, Bell, EventQueue};
use crate::pd::Pd;
use crate::qp::{Made, QpTransport, Wanted};
use crate::soft::{CqCtx, PORTS, Running, SrqCtx, XrcDomain, XrcTarget, address_vector};
use crate::srq::{NewSrq, Srq, SrqShared};
use bellwire_core::access::AccessFlags;
use bellwire_core::port::DoorbellRecord;
use bellwire_core::qp::AhAttr;
use bellwire_core::wqe::AddressVector;
use bellwire_core::wr::MwType;
use bellwire_provider::attr::{DeviceInfo, XrcdMode};
use bellwire_provider::short::Short;
use bellwire_provider::source::{Absent, Choice, ProviderKind};
use std::iter;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// What each provider has in its own way. The case is chosen by a `match`, never by a `dyn` call.
///
/// libibverbs creates the objects of ConnectX devices, too, so both cases often have the same type.
///
/// `repr` gives it a tag of its own: each doorbell and poll reads the tag, which would otherwise be derived
/// from a field's unused values, by five instructions.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Provider<S, V, M = V> {
    /// Of a software HCA.
    Soft(S),
    /// Of a device that libibverbs posts to and polls; also of librdmacm.
    Verbs(V),
    /// Of a ConnectX device whose rings core drives.
    Mlx5(M),
}

/// Two things of the same provider.
type Pair<S, V, M, T, W, N> = Provider<(S, T), (V, W), (M, N)>;

/// Evaluates an expression that is the same for every provider, mostly a call of a method that all have.
macro_rules! each {
    ($provider:expr, $case:pat => $call:expr) => {
        match $provider {
            $crate::provider::Provider::Soft($case) => $call,
            $crate::provider::Provider::Verbs($case) => $call,
            $crate::provider::Provider::Mlx5($case) => $call,
        }
    };
}

pub(crate) use data_path::{OnCq, Polled};
pub(crate) use each;

impl<S, V, M> Provider<S, V, M> {
    pub fn kind(&self) -> ProviderKind {
        match self {
            Self::Soft(_) => ProviderKind::Soft,
            Self::Verbs(_) => ProviderKind::Verbs,
            Self::Mlx5(_) => ProviderKind::Mlx5,
        }
    }

    /// That of a software HCA.
    pub fn soft(&self) -> Option<&S> {
        match self {
            Self::Soft(soft) => Some(soft),
            _ => None,
        }
    }

    /// That of a device that libibverbs posts to and polls.
    #[inline(always)]
    pub fn verbs(&self) -> Option<&V> {
        match self {
            Self::Verbs(verbs) => Some(verbs),
            _ => None,
        }
    }

    /// That of a device whose rings core drives.
    pub fn mlx5(&self) -> Option<&M> {
        match self {
            Self::Mlx5(mlx5) => Some(mlx5),
            _ => None,
        }
    }

    pub fn as_ref(&self) -> Provider<&S, &V, &M> {
        match self {
            Self::Soft(soft) => Provider::Soft(soft),
            Self::Verbs(verbs) => Provider::Verbs(verbs),
            Self::Mlx5(mlx5) => Provider::Mlx5(mlx5),
        }
    }

    pub fn as_mut(&mut self) -> Provider<&mut S, &mut V, &mut M> {
        match self {
            Self::Soft(soft) => Provider::Soft(soft),
            Self::Verbs(verbs) => Provider::Verbs(verbs),
            Self::Mlx5(mlx5) => Provider::Mlx5(mlx5),
        }
    }

    /// Both, if they are of the same provider.
    pub fn with<T, W, N>(self, other: Provider<T, W, N>) -> Option<Pair<S, V, M, T, W, N>> {
        match (self, other) {
            (Self::Soft(one), Provider::Soft(other)) => Some(Provider::Soft((one, other))),
            (Self::Verbs(one), Provider::Verbs(other)) => Some(Provider::Verbs((one, other))),
            (Self::Mlx5(one), Provider::Mlx5(other)) => Some(Provider::Mlx5((one, other))),
            _ => None,
        }
    }
}

impl<S, V> Provider<S, V> {
    /// That of libibverbs, whether it posts and polls or core does.
    pub fn libibverbs(&self) -> Option<&V> {
        match self {
            Self::Soft(_) => None,
            Self::Verbs(verbs) | Self::Mlx5(verbs) => Some(verbs),
        }
    }
}

impl<S, V> Provider<Arc<S>, Arc<V>> {
    /// Whether both are the same object.
    pub fn is_same(&self, other: &Self) -> bool {
        let both = self.as_ref().with(other.as_ref());
        both.is_some_and(|both| each!(both, (one, other) => Arc::ptr_eq(one, other)))
    }
}

/// The device behind a context.
pub(crate) type Hca = Provider<Arc<Running>, Arc<bellwire_verbs::Context>>;

impl From<Arc<bellwire_verbs::Context>> for Hca {
    fn from(context: Arc<bellwire_verbs::Context>) -> Self {
        match context.drives_rings() {
            true => Self::Mlx5(context),
            false => Self::Verbs(context),
        }
    }
}

impl Hca {
    /// Whether both are the same device, which may have been opened twice.
    pub fn is_alike(&self, other: &Self) -> bool {
        let contexts = self.libibverbs().zip(other.libibverbs());
        contexts.map_or_else(
            || self.is_same(other),
            |(one, other)| one.name() == other.name(),
        )
    }

    /// Opens a device by name.
    pub fn open(name: &str) -> Result<Self, Error> {
        match soft::open(name)? {
            Some(hca) => Ok(Self::Soft(hca)),
            None => Ok(bellwire_verbs::open(name, bellwire_mlx5::drives)?.into()),
        }
    }

    /// Opens the device that `"auto"` stands for.
    pub fn auto() -> Result<(Self, Choice), Error> {
        match bellwire_verbs::auto(bellwire_mlx5::drives) {
            Ok((context, choice)) => Ok((context.into(), choice)),
            Err(before) => Ok((Self::Soft(soft::shared()?), Choice::Fallback { before })),
        }
    }

    /// Opens the same device again.
    pub fn reopen(&self) -> Result<Self, Error> {
        match self {
            Self::Soft(hca) => Ok(Self::Soft(hca.clone())),
            Self::Verbs(context) | Self::Mlx5(context) => {
                Ok(bellwire_verbs::open(context.name(), bellwire_mlx5::drives)?.into())
            }
        }
    }

    /// The devices that can be opened, and the reasons why others are missing.
    pub fn list() -> (Vec<DeviceInfo>, Vec<Absent>) {
        let (others, absent) = bellwire_verbs::describe(bellwire_mlx5::drives);
        (iter::once(soft::info()).chain(others).collect(), absent)
    }

    /// The name by which the device is opened.
    pub fn name(&self) -> Short<128> {
        match self {
            Self::Soft(hca) => soft::name(hca),
            Self::Verbs(context) | Self::Mlx5(context) => {
                Short::new(format_args!("{}", context.name()))
            }
        }
    }

    /// The queue of a new context's asynchronous events.
    pub fn async_queue(&self) -> Result<Arc<AsyncQueue>, Error> {
        match self {
            Self::Soft(hca) => hca.contexts.open(PORTS),
            Self::Verbs(context) | Self::Mlx5(context) => verbs::async_queue(context),
        }
    }

    /// The queue of a completion channel. With a bell, and if the channel's events are queued in this
    /// process, they ring the bell.
    pub fn cq_events(&self, bell: Option<&Arc<Bell>>) -> Result<EventQueue<()>, Error> {
        match self {
            Self::Soft(_) => {
                bell.map_or_else(EventQueue::new, |bell| EventQueue::ringing(bell.clone()))
            }
            Self::Verbs(context) | Self::Mlx5(context) => verbs::cq_events(context),
        }
    }

    /// Makes the software HCA execute requests whose time has come.
    pub fn progress(&self) {
        match self {
            Self::Soft(hca) if hca.waiting() => hca.progress(),
            Self::Soft(_) | Self::Verbs(_) | Self::Mlx5(_) => {}
        }
    }

    /// Runs `look` while the device writes no entry to this completion queue. `look` must not use the device.
    /// For the control path.
    pub fn hold_still<R>(&self, cq: &CqSide, look: impl FnOnce() -> R) -> R {
        match (self, cq) {
            (Self::Soft(hca), _) => hca.hold_still(look),
            (_, Provider::Verbs(cq)) => cq.hold_still(look),
            (_, Provider::Mlx5(cq)) => cq.hold_still(look),
            // A device of libibverbs has no such completion queue.
            (_, Provider::Soft(_)) => look(),
        }
    }

    /// The number of protection domains.
    pub fn pds(&self) -> &AtomicU32 {
        each!(self, device => &device.pds)
    }

    /// Allocates a protection domain; returns its number.
    pub fn alloc_pd(&self) -> (PdSide, u32) {
        // If libibverbs refuses, creating an object in the domain returns the error.
        let pd = |context| bellwire_verbs::Pd::new(context).map(Arc::new);
        match self {
            Self::Soft(hca) => (Provider::Soft(()), hca.alloc_pd()),
            Self::Verbs(context) => (Provider::Verbs(pd(context)), context.next_pd()),
            Self::Mlx5(context) => (Provider::Mlx5(pd(context)), context.next_pd()),
        }
    }

    /// Registers memory; returns lkey and rkey.
    ///
    /// # Safety
    /// The memory is valid until the region is deregistered, its provenance is exposed, and the program
    /// accesses it as the access flags allow.
    pub unsafe fn register_mr(
        &self,
        pd: &Pd,
        addr: u64,
        length: u64,
        access: AccessFlags,
    ) -> Result<(u32, u32), Error> {
        // SAFETY: the caller guarantees that the memory stays valid and is accessed as the flags allow.
        unsafe {
            match self {
                Self::Soft(hca) => {
                    let key = hca.register_mr(pd.id(), addr, length, access)?;
                    Ok((key, key))
                }
                Self::Verbs(context) | Self::Mlx5(context) => {
                    if matches!(self, Self::Mlx5(_)) {
                        // A poll copies what the device put into a completion. Where there is none, an access that
                        // faults there ends the process.
                        let _without = crate::memory::fault::install();
                    }
                    context.register_mr(pd.verbs()?, addr, length, addr, access)
                }
            }
        }
    }

    pub fn alloc_mw(&self, pd: &Pd, kind: MwType) -> Result<u32, Error> {
        match self {
            Self::Soft(hca) => hca.alloc_mw(pd.id(), kind),
            Self::Verbs(context) | Self::Mlx5(context) => context.alloc_mw(pd.verbs()?, kind),
        }
    }

    /// Records that a window is to be bound to the region with this lkey, or to none, by a request on rings
    /// that libibverbs does not read.
    pub fn note_bind(&self, rkey: u32, lkey: Option<u32>) {
        if let Self::Mlx5(context) = self {
            context.note_bind(rkey, lkey);
        }
    }

    /// Creates an address handle: the vector for requests, and what has to be kept as long as it is used.
    pub fn create_ah(&self, pd: &Pd, attr: &AhAttr) -> Result<(AddressVector, AhSide), Error> {
        match self {
            Self::Soft(pd) => {
                pd.prepare_datagrams(attr)?;
                Ok((address_vector(attr), Provider::Soft(())))
            }
            Self::Verbs(_) => verbs::create_ah(pd, attr),
            Self::Mlx5(_) => mlx5::create_ah(pd, attr),
        }
    }

    pub fn create_cq(&self, new: &NewCq<'_>) -> Result<Cq, Error> {
        match self {
            Self::Soft(hca) => soft::create_cq(hca, new),
            Self::Verbs(context) => verbs::create_cq(context, new),
            Self::Mlx5(context) => mlx5::create_cq(context, new),
        }
    }

    pub fn create_srq(&self, new: NewSrq<'_, '_>) -> Result<Srq, Error> {
        match self {
            Self::Soft(hca) => soft::create_srq(hca, new),
            Self::Verbs(context) => verbs::create_srq(context, new),
            Self::Mlx5(context) => mlx5::create_srq(context, &new),
        }
    }

    pub fn create_qp<T: QpTransport>(&self, wanted: Wanted<'_, '_>) -> Result<Made<T>, Error> {
        match self {
            Self::Soft(hca) => soft::create_qp(hca, wanted),
            Self::Verbs(context) => verbs::create_qp(context, wanted),
            Self::Mlx5(context) => mlx5::create_qp(context, wanted),
        }
    }

    /// Opens an XRC domain: a new one, or that of the file.
    pub fn open_xrcd(&self, of: Option<(BorrowedFd<'_>, XrcdMode)>) -> Result<XrcdSide, Error> {
        match self {
            Self::Soft(hca) => Ok(Provider::Soft(match of {
                Some((file, mode)) => hca.open_xrcd_of(file, mode)?,
                None => hca.open_xrcd(),
            })),
            // It refuses where core drives the rings.
            Self::Verbs(context) | Self::Mlx5(context) => Ok(Provider::Verbs(match of {
                Some((file, mode)) => bellwire_verbs::Xrcd::open_of(context, file, mode)?,
                None => bellwire_verbs::Xrcd::open(context)?,
            })),
        }
    }
}

impl From<Arc<Running>> for Hca {
    fn from(hca: Arc<Running>) -> Self {
        Self::Soft(hca)
    }
}

/// A protection domain of libibverbs, or the error number that it was refused with.
pub(crate) type PdSide = Provider<(), Result<Arc<bellwire_verbs::Pd>, i32>>;

/// What an address handle keeps.
pub(crate) type AhSide = Provider<(), Arc<bellwire_verbs::Ah>>;

/// An XRC domain.
pub(crate) type XrcdSide = Provider<Arc<XrcDomain>, Arc<bellwire_verbs::Xrcd>>;

impl XrcdSide {
    /// Creates an XRC target in RESET. Its events are delivered to this queue.
    pub fn create_target(&self, hca: &Hca, events: &Arc<AsyncQueue>) -> Result<TargetSide, Error> {
        match (self, hca) {
            (Self::Soft(domain), Provider::Soft(hca)) => {
                Ok(Provider::Soft(XrcTarget::create(hca, events, domain)?))
            }
            (Self::Verbs(xrcd) | Self::Mlx5(xrcd), _) => {
                Ok(Provider::Verbs(bellwire_verbs::Target::create(xrcd)?))
            }
            (Self::Soft(_), _) => Err(Error::Foreign { what: "XRC domain" }),
        }
    }

    /// Opens a target that exists.
    pub fn open_target(&self, qp_num: u32) -> Result<TargetSide, Error> {
        match self {
            Self::Soft(domain) => Ok(Provider::Soft(domain.target(qp_num)?)),
            Self::Verbs(xrcd) | Self::Mlx5(xrcd) => {
                Ok(Provider::Verbs(bellwire_verbs::Target::open(xrcd, qp_num)?))
            }
        }
    }
}

/// An XRC target.
pub(crate) type TargetSide = Provider<Arc<XrcTarget>, bellwire_verbs::Target>;

/// The producing side of a completion queue.
pub(crate) type CqSide = Provider<Box<CqCtx>, Box<bellwire_verbs::Cq>, Box<bellwire_mlx5::Cq>>;

/// The device's shared receive queue.
pub(crate) type SrqSide = Provider<soft::SrqRef, Arc<bellwire_verbs::Srq>>;

impl SrqSide {
    /// The limit; zero if none is set, or if it was reached.
    ///
    /// # Safety
    /// The queue was not revoked.
    pub unsafe fn limit(&self) -> u32 {
        match self {
            // SAFETY: the caller guarantees that the queue was not revoked.
            Self::Soft(srq) => unsafe { srq.ctx() }.queue.limit().into(),
            Self::Verbs(srq) | Self::Mlx5(srq) => srq.limit(),
        }
    }

    /// Sets the limit.
    ///
    /// # Safety
    /// The queue was not revoked.
    pub unsafe fn set_limit(&self, limit: u16) -> Result<(), Error> {
        match self {
            // SAFETY: the caller guarantees that the queue was not revoked.
            Self::Soft(srq) => unsafe { srq.ctx() }.queue.set_limit(limit),
            Self::Verbs(srq) | Self::Mlx5(srq) => srq.set_limit(limit)?,
        }
        Ok(())
    }

    /// Destroys the device's queue; `None`: it was destroyed before. Returns the entries that were posted and
    /// have not completed; the device's memory of them is freed with the iterator.
    pub fn revoke<'s>(&'s self, srq: &'s SrqShared) -> Option<Left<'s>> {
        match self {
            Self::Soft(_) => soft::revoke_srq(srq),
            Self::Verbs(queue) => {
                verbs::revoke_srq(queue, srq)?;
                Some(Left::Device(Box::new(queue.left())))
            }
            Self::Mlx5(queue) => {
                verbs::revoke_srq(queue, srq)?;
                let left = iter::once(()).flat_map(|()| mlx5::left(srq));
                Some(Left::Device(Box::new(left)))
            }
        }
    }
}

/// Entries of a shared receive queue that the device has not completed.
pub(crate) enum Left<'s> {
    Soft(Box<SrqCtx>),
    Device(Box<dyn Iterator<Item = u16> + 's>),
}

impl Iterator for Left<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        match self {
            Self::Soft(ctx) => ctx.pop().map(|popped| popped.index),
            Self::Device(left) => left.next(),
        }
    }
}

/// The doorbell of a send queue.
pub(crate) type SendDoorbell =
    Provider<bellwire_soft::SendDoorbell, bellwire_verbs::SendDoorbell, bellwire_mlx5::Doorbell>;

/// The doorbell of a receive queue. That of a ConnectX device is a doorbell record, which the device reads.
pub(crate) type RecvDoorbell =
    Provider<bellwire_soft::RecvDoorbell, bellwire_verbs::RecvDoorbell, &'static DoorbellRecord>;
