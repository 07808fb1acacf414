//! Completion channels: sleeping until a completion queue has a new entry.

use crate::cq::bw_cq;
use crate::device::bw_device;
use crate::failure::{Failure, guard};
use crate::handle::{get, get_mut, give, peek, take};
use crate::used::{Used, User};
use crate::waits::wake;
use hw::event::CompChannel;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

/// A completion channel: a completion queue that was created on it raises an event here for its next
/// entry once it is armed.
#[derive(Debug)]
pub struct bw_comp_channel {
    pub(crate) channel: CompChannel,
    contexts: Arc<Contexts>,
    used: Used,
    _device: User,
}

/// The contexts of the completion queues on a channel, by number of the queue.
#[derive(Debug, Default)]
struct Contexts(Mutex<HashMap<u32, Arc<Context>>>);

/// The context that the program gave to a completion queue.
#[derive(Debug)]
struct Context(*mut c_void);

// SAFETY: only handed back, never dereferenced.
unsafe impl Send for Context {}
// SAFETY: only handed back, never dereferenced.
unsafe impl Sync for Context {}

impl Contexts {
    fn with<R>(&self, call: impl FnOnce(&mut HashMap<u32, Arc<Context>>) -> R) -> R {
        call(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A completion queue on a channel. Dropped after the queue, when its events are all acknowledged.
#[derive(Debug)]
pub(crate) struct Registered {
    contexts: Arc<Contexts>,
    cqn: u32,
    context: Arc<Context>,
    _channel: User,
}

impl bw_comp_channel {
    pub(crate) fn register(&self, cqn: u32, context: *mut c_void) -> Registered {
        let context = Arc::new(Context(context));
        self.contexts
            .with(|known| known.insert(cqn, context.clone()));
        Registered {
            contexts: self.contexts.clone(),
            cqn,
            context,
            _channel: self.used.by(),
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.contexts.with(|known| {
            // The number may belong to another queue by now.
            if known
                .get(&self.cqn)
                .is_some_and(|it| Arc::ptr_eq(it, &self.context))
            {
                known.remove(&self.cqn);
            }
        });
    }
}

/// Creates a completion channel, for `bw_cq_attr.channel`.
///
/// Owner: the caller, until `bw_comp_channel_destroy`. It keeps the device open.
/// Errors: `BW_EOTHER` if the system has no descriptor left, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_comp_channel_create(
    device: *const bw_device,
    channel: *mut *mut bw_comp_channel,
) -> c_int {
    // SAFETY: the header's conventions on handles and results.
    unsafe {
        give(channel, || {
            let device = get(device, "device")?;
            Ok(bw_comp_channel {
                channel: device.device.create_comp_channel()?,
                contexts: Arc::default(),
                used: Used::default(),
                _device: device.used.by(),
            })
        })
    }
}

/// Returns the channel's descriptor, 0 or more: readable while an event is queued. For poll and
/// epoll; it must not be read or closed. While a program sleeps in poll with an inline device it
/// has to call `bw_device_progress` now and then. Otherwise requests that wait for a point in time
/// do not continue.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_comp_channel_fd(channel: *const bw_comp_channel) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe { Ok(get(channel, "completion channel")?.channel.as_fd()) })
}

/// Sets whether `bw_get_cq_event` returns `BW_EAGAIN` instead of blocking. This is the descriptor's
/// flag O_NONBLOCK, which the program may also set itself.
///
/// Errors: `BW_EOTHER` if the system refuses, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_comp_channel_set_nonblocking(
    channel: *const bw_comp_channel,
    nonblocking: c_int,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let channel = get(channel, "completion channel")?;
        Ok(channel.channel.set_nonblocking(nonblocking != 0)?)
    })
}

/// Takes the oldest event of the channel (`ibv_get_cq_event`). Returns the number of the completion
/// queue and, unless `cq_context` is NULL, the context that it was created with. Blocks if there is
/// none. Each event has to be acknowledged by `bw_ack_cq_events`.
///
/// Errors: `BW_EAGAIN` if there is none and the descriptor does not block, `BW_EINTR` when a signal handler has
/// interrupted the wait, `BW_EWOKEN` by `bw_comp_channel_wake`, `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_get_cq_event(
    channel: *const bw_comp_channel,
    cqn: *mut u32,
    cq_context: *mut *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles.
        let channel = unsafe { get(channel, "completion channel")? };
        if cqn.is_null() {
            return Err(Failure::null("the place for the number"));
        }
        let number = channel.channel.get_cq_event()?.defer();
        let context = channel.contexts.with(|known| known.get(&number).cloned());
        // SAFETY: not NULL.
        unsafe {
            cqn.write(number);
            if !cq_context.is_null() {
                // Always known: the queue is not destroyed before the event is acknowledged.
                cq_context.write(context.map_or(std::ptr::null_mut(), |context| context.0));
            }
        }
        Ok(())
    })
}

/// Acknowledges `count` events of the completion queue of this number (`ibv_ack_cq_events`), at the
/// cost of one. Destroying the queue waits for it.
///
/// Errors: `BW_EINVAL` if fewer events are unacknowledged: then none is acknowledged. `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_ack_cq_events(
    channel: *const bw_comp_channel,
    cqn: u32,
    count: u32,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let channel = get(channel, "completion channel")?;
        Ok(channel.channel.ack_events(cqn, count)?)
    })
}

/// Arms a completion queue (`ibv_req_notify_cq`): its next entry raises one event on its channel.
/// If `solicited_only` is not 0, it is the next entry that reports an error or a message sent with
/// BW_SEND_SOLICITED. Entries that are already there raise nothing: arm, then poll until the queue
/// is empty, then sleep, so that nothing is missed.
///
/// Errors: `BW_EINVAL` if it has no channel, `BW_ENULL`.
/// Thread: the completion queue's owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cq_req_notify(cq: *mut bw_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        let cq = get_mut(cq, "completion queue")?;
        Ok(cq.cq.req_notify(solicited_only != 0)?)
    })
}

/// If `awake` is not 0, ends every wait in `bw_get_cq_event` on the channel, and every later one
/// that would sleep, with `BW_EWOKEN`. Events that are queued are still returned. If it is 0, waits
/// sleep again. So a program lets its threads return before it destroys the channel, whichever
/// comes first.
///
/// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_comp_channel_wake(
    channel: *const bw_comp_channel,
    awake: c_int,
) -> c_int {
    // SAFETY: the header's conventions on handles.
    let channel = unsafe { peek(channel) };
    wake(channel.map(|channel| channel.channel.waiters()), awake)
}

/// Destroys a completion channel.
///
/// Errors: `BW_EBUSY` while there are completion queues on it, `BW_ENULL`.
/// Thread: any; no other call on the channel may be under way or follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_comp_channel_destroy(channel: *mut bw_comp_channel) -> c_int {
    // SAFETY: the header's conventions on handles.
    guard(|| unsafe {
        take(channel, "completion channel", |channel| {
            channel
                .used
                .check("completion channel", "completion queues")
        })
    })
}
