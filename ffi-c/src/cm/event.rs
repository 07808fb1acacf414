//! Events.

use super::{bw_cm_channel, bw_cm_id, contexts, milliseconds};
use crate::ah::bw_ah_attr;
use crate::code::BW_EAGAIN;
use crate::failure::{Failure, guard};
use crate::handle::{self, get, peek};
use crate::sized::{self, Versioned};
use crate::waits::wake;
use hw::connect::cm::{Conn, Event, EventKind};
use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::time::Instant;

/// Maximum bytes of private data in an event.
pub const BW_CM_PRIVATE_MAX: usize = 256;

/// An event (`rdma_cm_event`). It is a copy, and need not be acknowledged. Fields that it does not have
/// are 0.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct bw_cm_event {
    /// `sizeof(bw_cm_event)`.
    pub size: u32,
    /// The event: a `bw_cm_event_type`. `bw_classify` returns its meaning, `bw_cm_event_str` its text.
    pub event: u32,
    /// 0 if nothing failed, otherwise a negative error number, or the reason of a rejection. 28 is
    /// a rejection by the peer's program, 8 means that nothing listens.
    pub status: i32,
    /// Bytes of private data.
    pub private_data_len: u32,
    /// The context of the id that it is for; for a request, that of the listener.
    pub context: *mut c_void,
    /// For a request: the id that it arrived with, the caller's until `bw_cm_id_destroy`; accept or
    /// reject it. Otherwise NULL.
    pub request: *mut bw_cm_id,
    /// The peer's queue pair number; for a multicast group the number that requests have to name.
    pub qp_num: u32,
    /// Datagrams only: the Q_Key that requests have to name.
    pub qkey: u32,
    /// Datagrams only: the path, for `bw_ah_create`. For a multicast group `dgid` and `dlid` are those
    /// of the group, for `bw_qp_attach_mcast`.
    pub ah_attr: bw_ah_attr,
    /// READs and atomics in flight that the peer wants this side to respond to.
    pub responder_resources: u8,
    /// READs and atomics in flight that the peer responds to.
    pub initiator_depth: u8,
    /// Not 0: the peer has hardware flow control.
    pub flow_control: u8,
    /// Transport retries (no acknowledgement).
    pub retry_count: u8,
    /// RNR retries (no receive posted).
    pub rnr_retry_count: u8,
    /// Not 0: the peer uses a shared receive queue.
    pub srq: u8,
    /// 0.
    pub reserved: u16,
    /// The peer's private data as received: it may be followed by zeroes, and must not be trusted.
    pub private_data: [u8; BW_CM_PRIVATE_MAX],
}

impl Default for bw_cm_event {
    fn default() -> Self {
        Self {
            size: size_of::<Self>() as u32,
            event: 0,
            status: 0,
            private_data_len: 0,
            context: null_mut(),
            request: null_mut(),
            qp_num: 0,
            qkey: 0,
            ah_attr: bw_ah_attr::default(),
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            srq: 0,
            reserved: 0,
            private_data: [0; BW_CM_PRIVATE_MAX],
        }
    }
}

// SAFETY: repr(C), integers and pointers, without padding; the size is the first field.
unsafe impl Versioned for bw_cm_event {
    const SIZES: &'static [usize] = &[size_of::<Self>()];
}

impl bw_cm_event {
    fn connection(&mut self, conn: &Conn) {
        self.qp_num = conn.qp_num;
        self.srq = conn.srq.into();
        self.responder_resources = conn.param.responder_resources;
        self.initiator_depth = conn.param.initiator_depth;
        self.flow_control = conn.param.flow_control.into();
        self.retry_count = conn.param.retry_count;
        self.rnr_retry_count = conn.param.rnr_retry_count;
    }

    /// All fields except for the context.
    fn of(event: &Event, channel: &bw_cm_channel) -> Self {
        let kind = event.kind();
        let mut filled = Self {
            event: kind.event().number().into(),
            status: kind.status(),
            ..Self::default()
        };
        let data = kind.private_data();
        let length = data.len().min(BW_CM_PRIVATE_MAX);
        filled.private_data[..length].copy_from_slice(&data[..length]);
        filled.private_data_len = length as u32;
        match kind {
            EventKind::ConnectRequest { conn, .. }
            | EventKind::ConnectResponse { conn }
            | EventKind::Connected { conn } => {
                filled.connection(conn);
            }
            EventKind::Found { peer } => {
                (filled.qp_num, filled.qkey) = (peer.qp_num, peer.qkey);
                filled.ah_attr = (&peer.ah_attr).into();
            }
            EventKind::MulticastJoin { group } => {
                (filled.qp_num, filled.qkey) = (group.qp_num, group.qkey);
                filled.ah_attr = (&group.ah_attr).into();
            }
            _ => {}
        }
        if let EventKind::ConnectRequest { id, .. } | EventKind::LookupRequest { id, .. } = kind {
            let request = bw_cm_id::new(id.clone(), channel, null_mut());
            filled.request = handle::new(request);
        }
        filled
    }
}

/// If `awake` is not 0, ends every wait in `bw_cm_get_event` on the channel, and every later one
/// that would sleep, with `BW_EWOKEN`. Events that are queued are still returned. If it is 0, waits
/// sleep again. So a program lets its threads return before it destroys the channel, whichever
/// comes first.
///
/// It allocates nothing, takes no lock and does not change `bw_last_error`: a signal handler may call it.
///
/// Errors: `BW_ENULL`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_channel_wake(channel: *const bw_cm_channel, awake: c_int) -> c_int {
    // SAFETY: the header's conventions on handles.
    let channel = unsafe { peek(channel) };
    wake(channel.map(|channel| channel.channel.waiters()), awake)
}

/// Takes the channel's oldest event, and waits for one up to `timeout_ms` milliseconds. 0 does not
/// wait, UINT32_MAX waits forever. Set `event->size` before the call.
///
/// A signal handler does not end a wait with a limit, which goes on for the time that is left.
///
/// Errors: `BW_EAGAIN` if there is none, `BW_EINTR` when a signal handler has interrupted a wait that has no limit,
/// `BW_EWOKEN` by `bw_cm_channel_wake`, `BW_EOTHER` for an event that only a newer librdmacm has, and
/// when a peer waits at a listener for which the process has no descriptor or no memory left: the text names the limit,
/// and the channel goes on; `BW_ENULL`, `BW_ESIZE`.
/// Thread: any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bw_cm_get_event(
    channel: *const bw_cm_channel,
    event: *mut bw_cm_event,
    timeout_ms: u32,
) -> c_int {
    guard(|| {
        // SAFETY: the header's conventions on handles and sized structs.
        let channel = unsafe {
            sized::check(event)?;
            get(channel, "event channel")?
        };
        let timeout = milliseconds(timeout_ms);
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let left = deadline.map_or(timeout, |at| at.saturating_duration_since(Instant::now()));
            let got = channel.channel.get(left)?;
            let got =
                got.ok_or_else(|| Failure::new(BW_EAGAIN, "no event has come in this time"))?;
            let context = contexts().get(got.id()).copied();
            // The id was destroyed meanwhile: its event is dropped.
            let Some(context) = context else { continue };
            let mut filled = bw_cm_event::of(&got, channel);
            filled.context = with_exposed_provenance_mut(context);
            // SAFETY: `sized::check` has checked `event`.
            return unsafe { sized::write(event, &filled) };
        }
    })
}
