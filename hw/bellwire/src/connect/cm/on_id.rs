//! A queue pair on an id: the communication manager changes its state by itself.

use super::attempts::Attempts;
use super::event::{EventKind, Multicast};
use super::id::Id;
use crate::error::Error;
use crate::provider::each;
use crate::qp::{PathAttr, Qp};
use bellwire_core::wqe::{Rc, Ud};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What an id keeps itself: its queue pair, the path of that queue pair's packets, and the addresses that it
/// tries.
#[derive(Default)]
pub(super) struct OnId {
    slot: Mutex<Slot>,
    /// Separate from the queue pair, which is locked while it is connected.
    path: Mutex<PathAttr>,
    /// Locked while an address is tried.
    attempts: Mutex<Attempts>,
}

#[derive(Default)]
pub(super) struct Slot {
    pub qp: Option<Qp<Rc>>,
    /// A connection is being made, or was made, with it.
    pub used: bool,
    /// The connection is made.
    pub established: bool,
    /// The queue pair of a datagram id.
    ud: Option<Qp<Ud>>,
}

impl OnId {
    pub fn slot(&self) -> MutexGuard<'_, Slot> {
        // If a panic interrupts a state change, the queue pair's state shows it.
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The path attributes that the program set.
    pub fn path(&self) -> MutexGuard<'_, PathAttr> {
        // A panic never leaves the path half changed.
        self.path.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The addresses that are tried.
    pub fn attempts(&self) -> MutexGuard<'_, Attempts> {
        // If a panic interrupts an attempt, no further address is tried.
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    pub fn qp(&mut self, what: &'static str) -> Result<&mut Qp<Rc>, Error> {
        self.qp.as_mut().ok_or(Error::CmNoQp { what })
    }
}

impl fmt::Debug for OnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnId")
    }
}

/// The error number that the C library would report.
fn errno(error: &Error) -> i32 {
    match error {
        Error::Io { error, .. } => error.raw_os_error(),
        Error::Memory(_) => Some(libc::ENOMEM),
        Error::Address { tried, .. } => tried.last().and_then(|last| last.errno),
        _ => None,
    }
    .unwrap_or(libc::EINVAL)
}

impl Id {
    /// Puts a queue pair on the id, which owns it from here on, and returns the one that was there
    /// before. When [`connect`](Self::connect), [`accept`](Self::accept) and
    /// [`disconnect`](Self::disconnect) are given `None` they use this queue pair, as librdmacm does
    /// after rdma_create_qp(3). It may have its own receive queue or a shared one.
    ///
    /// Put it there in INIT, by [`init_qp`](Self::init_qp), with receives posted, and
    /// [take](Self::take_qp) it when it is connected. Meanwhile its state changes when events are
    /// received:
    ///
    /// - The peer's response takes it to RTS. The event is [`Connected`](EventKind::Connected), or
    ///   [`ConnectError`](EventKind::ConnectError) when the device refuses that: the queue pair is then
    ///   in ERR, and the peer gets `Rejected`.
    /// - `Rejected` and `Unreachable` take it to ERR: posted requests are flushed and reported. Once the
    ///   connection is made, `Unreachable` changes nothing: Linux 6.0 and later reports it when the hardware
    ///   address of the neighbour changes. If packets no longer arrive, requests fail after their retries.
    ///
    /// A queue pair that is still on the id when the id is destroyed is dropped with it.
    ///
    /// ```
    /// # use bellwire::connect::cm::{ConnParam, EventChannel, EventKind, PortSpace};
    /// # use bellwire::{AccessFlags, QpInit, state::QpState};
    /// # use std::time::Duration;
    /// # const SOON: Duration = Duration::from_secs(5);
    /// # let channel = EventChannel::open("soft")?;
    /// # let next = || Ok::<_, bellwire::Error>(channel.get(SOON)?.expect("in time").ack());
    /// # let listener = channel.id(PortSpace::Tcp)?;
    /// # listener.bind(("127.0.0.1", 0))?;
    /// # listener.listen(8)?;
    /// # let client = channel.id(PortSpace::Tcp)?;
    /// # client.resolve_addr(None, ("127.0.0.1", listener.port()), SOON)?;
    /// # next()?;
    /// # client.resolve_route(SOON)?;
    /// # next()?;
    /// # let device = client.device()?.expect("bound by its address");
    /// # let pd = device.alloc_pd();
    /// # let mut cq = device.create_cq(1024)?;
    /// let mut qp = pd.create_qp(&mut cq, &QpInit::default())?;
    /// client.init_qp(&mut qp, AccessFlags::empty())?;
    /// client.put_qp(qp);
    /// client.connect(None, &ConnParam::default())?;
    /// # let EventKind::ConnectRequest { id: server, .. } = next()? else { panic!() };
    /// # let mut qp = pd.create_qp(&mut cq, &QpInit::default())?;
    /// # server.init_qp(&mut qp, AccessFlags::empty())?;
    /// # server.accept(&mut qp, &ConnParam::default())?;
    /// assert!(matches!(next()?, EventKind::Connected { .. }));
    /// let qp = client.take_qp().expect("put there");
    /// assert_eq!(qp.state(), QpState::Rts);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn put_qp(&self, qp: Qp<Rc>) -> Option<Qp<Rc>> {
        let mut slot = self.on_id().slot();
        slot.used = false;
        slot.established = false;
        slot.qp.replace(qp)
    }

    /// Takes the queue pair off the id, in whatever state it is; `None` if there is none. The connection
    /// stays as it is, and the program changes the queue pair's state from here on.
    pub fn take_qp(&self) -> Option<Qp<Rc>> {
        self.take_qp_if(|_| true)
    }

    /// Takes the queue pair off the id if `wanted` returns true for it; otherwise it stays. `wanted` must
    /// not use the id.
    pub fn take_qp_if(&self, wanted: impl FnOnce(&Qp<Rc>) -> bool) -> Option<Qp<Rc>> {
        self.on_id().slot().qp.take_if(|qp| wanted(qp))
    }

    /// Puts a queue pair on a datagram id, and returns the one that was there before. When
    /// `MulticastJoin` is received the queue pair is attached to the group. If that is refused (the group
    /// has as many members as the device supports, for instance) the event is `MulticastError`;
    /// [`leave`](Self::leave) the group then. The program detaches the queue pair itself.
    pub fn put_ud_qp(&self, qp: Qp<Ud>) -> Option<Qp<Ud>> {
        self.on_id().slot().ud.replace(qp)
    }

    /// Takes the queue pair off a datagram id; `None` if there is none.
    pub fn take_ud_qp(&self) -> Option<Qp<Ud>> {
        self.take_ud_qp_if(|_| true)
    }

    /// [`take_qp_if`](Self::take_qp_if) for a datagram id.
    pub fn take_ud_qp_if(&self, wanted: impl FnOnce(&Qp<Ud>) -> bool) -> Option<Qp<Ud>> {
        self.on_id().slot().ud.take_if(|qp| wanted(qp))
    }

    /// Whether a queue pair is on the id.
    pub fn has_qp(&self) -> bool {
        let slot = self.on_id().slot();
        slot.qp.is_some() || slot.ud.is_some()
    }

    /// Attaches the queue pair of a datagram id to a group that was joined.
    fn attach(&self, group: Multicast) -> EventKind {
        let slot = self.on_id().slot();
        let (gid, lid) = (group.ah_attr.grh.dgid, group.ah_attr.dlid);
        match slot.ud.as_ref().map(|qp| qp.attach_mcast(gid, lid)) {
            None | Some(Ok(())) => EventKind::MulticastJoin { group },
            Some(Err(error)) => {
                let status = -errno(&error);
                EventKind::MulticastError { status }
            }
        }
    }

    /// Changes the state of the queue pair on the id as the event requires, and returns the resulting
    /// event.
    pub(super) fn drive(&self, kind: EventKind) -> EventKind {
        if let EventKind::MulticastJoin { group } = kind {
            return self.attach(group);
        }
        if !matches!(
            kind,
            EventKind::ConnectResponse { .. }
                | EventKind::Established
                | EventKind::Rejected { .. }
                | EventKind::Unreachable { .. }
        ) {
            return kind;
        }
        let mut slot = self.on_id().slot();
        let Slot {
            qp: Some(qp),
            used: true,
            established,
            ..
        } = &mut *slot
        else {
            return kind;
        };
        let refused = match kind {
            EventKind::ConnectResponse { conn } => match self.establish(qp) {
                Ok(()) => {
                    *established = true;
                    return EventKind::Connected { conn };
                }
                Err(error) => {
                    // Otherwise the peer would wait. It does no harm if the peer is gone.
                    let _gone = each!(&self.0, id => id.reject(b""));
                    let status = -errno(&error);
                    EventKind::ConnectError { status }
                }
            },
            EventKind::Established => {
                *established = true;
                return kind;
            }
            EventKind::Unreachable { .. } if *established => return kind,
            kind => kind,
        };
        // If the device cannot do this it is gone, and reports that itself.
        let _broken = qp.to_error();
        refused
    }
}
