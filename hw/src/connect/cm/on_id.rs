//! A queue pair on an id: the communication manager takes it through its states by itself.

use super::event::{EventKind, Multicast};
use super::id::{Id, both};
use crate::error::Error;
use crate::qp::Qp;
use bellwire_core::wqe::{Rc, Ud};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where an id keeps its queue pair.
#[derive(Default)]
pub(super) struct OnId(Mutex<Slot>);

#[derive(Default)]
pub(super) struct Slot {
    pub qp: Option<Qp<Rc>>,
    /// A connection is made with it, or was.
    pub used: bool,
    /// Of an id of datagrams.
    ud: Option<Qp<Ud>>,
}

impl OnId {
    pub fn slot(&self) -> MutexGuard<'_, Slot> {
        // A queue pair that was half moved says so by its state.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

/// What C would say of an error.
fn errno(error: &Error) -> i32 {
    match error {
        Error::Io { error, .. } => error.raw_os_error(),
        _ => None,
    }
    .unwrap_or(libc::EINVAL)
}

impl Id {
    /// Puts a queue pair on the id, which owns it from here on, and gives the one that was there
    /// before. Where `None` is given for the queue pair, [`connect`](Self::connect),
    /// [`accept`](Self::accept) and [`disconnect`](Self::disconnect) take this one, as librdmacm does
    /// after rdma_create_qp(3). It may have a receive queue of its own or a shared one.
    ///
    /// Put it there in INIT, by [`init_qp`](Self::init_qp), with receives posted; and
    /// [take](Self::take_qp) it when it is connected. Meanwhile whoever gets the events moves it:
    ///
    /// - The peer's answer takes it to RTS. The event is [`Connected`](EventKind::Connected), or
    ///   [`ConnectError`](EventKind::ConnectError) when the device refuses that: the queue pair is in ERR
    ///   then, and the peer is told by `Rejected`.
    /// - `Rejected` and `Unreachable` take it to ERR: what was posted is flushed, and told.
    ///
    /// One that is still there when the id goes is dropped with it.
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
        slot.qp.replace(qp)
    }

    /// Takes the queue pair off the id, in whatever state it is; `None`: there is none. The connection
    /// stays as it is, and the program moves the queue pair from here on.
    pub fn take_qp(&self) -> Option<Qp<Rc>> {
        self.on_id().slot().qp.take()
    }

    /// As [`put_qp`](Self::put_qp), on an id of datagrams: whoever gets a `MulticastJoin` attaches the
    /// queue pair to the group. Where that is refused (the group has as many members as the device
    /// can have, say) the event is `MulticastError`; [`leave`](Self::leave) the group then.
    /// Detaching the queue pair is the program's.
    pub fn put_ud_qp(&self, qp: Qp<Ud>) -> Option<Qp<Ud>> {
        self.on_id().slot().ud.replace(qp)
    }

    /// Takes the queue pair of datagrams off the id; `None`: there is none.
    pub fn take_ud_qp(&self) -> Option<Qp<Ud>> {
        self.on_id().slot().ud.take()
    }

    /// Attaches the queue pair of datagrams on the id to a group that was joined.
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

    /// Takes the queue pair on the id to where an event leaves it, and gives what happened then.
    pub(super) fn drive(&self, kind: EventKind) -> EventKind {
        if let EventKind::MulticastJoin { group } = kind {
            return self.attach(group);
        }
        if !matches!(
            kind,
            EventKind::ConnectResponse { .. }
                | EventKind::Rejected { .. }
                | EventKind::Unreachable { .. }
        ) {
            return kind;
        }
        let mut slot = self.on_id().slot();
        let Slot {
            qp: Some(qp),
            used: true,
            ..
        } = &mut *slot
        else {
            return kind;
        };
        let refused = match kind {
            EventKind::ConnectResponse { conn } => match self.establish(qp) {
                Ok(()) => return EventKind::Connected { conn },
                Err(error) => {
                    // Else the peer would wait; that it has gone does no harm.
                    let _gone = both!(self, id => id.reject(b""));
                    let status = -errno(&error);
                    EventKind::ConnectError { status }
                }
            },
            kind => kind,
        };
        // A device that does not take it there is gone, and tells so itself.
        let _broken = qp.to_error();
        refused
    }
}
