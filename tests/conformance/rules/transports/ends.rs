//! The two ends of a transport service, as rules for any of them need them.

use super::kind::Kind;
use crate::provider::Provider;
use crate::support;
use bellwire::queue::{Completion, PostError};
use bellwire::state::{QpAttr, QpAttrMask as M, QpState};
use bellwire::wqe::*;
use bellwire::wr::{SendFlags, Sge, WcStatus};
use bellwire::{
    Ah, Cq, Device, Endpoint, Error, Pd, Qp, QpInit, QpTransport, Region, Srq, SrqInit,
};
use bellwire::{XrcTarget, Xrcd};
use bellwire_tests::fixture::*;

/// The key of all datagrams here.
pub const QKEY: u32 = 0x1234;

/// An address that no key covers.
pub const NOWHERE: Sge = Sge {
    addr: 8,
    length: 8,
    lkey: 1,
};

/// Every attribute with a value that any kind of queue pair can have towards `peer`.
pub fn attr(device: &Device, state: QpState, peer: &Endpoint) -> QpAttr {
    QpAttr {
        qkey: QKEY,
        ..support::attr(device, state, peer)
    }
}

/// A queue pair of any kind.
pub trait Stands {
    fn kind(&self) -> Kind;
    fn device(&self) -> &Device;
    fn endpoint(&self) -> Endpoint;
    fn query(&self) -> QpAttr;
    fn modify(&mut self, attr: &QpAttr, mask: M) -> Result<(), Error>;

    /// To RESET; gives what was reported on the way.
    fn reset(&mut self) -> Vec<u64>;

    /// Has a send fail, which leads to SQE.
    fn fail_a_send(&mut self);

    fn state(&self) -> QpState {
        self.query().qp_state
    }

    /// Changes the state alone.
    fn go_to(&mut self, qp_state: QpState) {
        let attr = QpAttr {
            qp_state,
            ..QpAttr::default()
        };
        self.modify(&attr, M::STATE)
            .unwrap_or_else(|error| panic!("to {qp_state}: {error}"));
    }

    /// From RESET to `state`, step by step, towards `peer`.
    fn bring(&mut self, peer: &Endpoint, state: QpState) {
        use QpState::*;
        let way: &[QpState] = match state {
            Reset => &[],
            Init => &[Init],
            Rtr => &[Init, Rtr],
            Rts | Sqd | Sqe | Err => &[Init, Rtr, Rts],
        };
        for &to in way {
            let step = self.kind().legal(self.state(), to);
            let (required, _) = step.expect("the way is legal");
            let attr = QpAttr {
                sq_psn: self.endpoint().psn,
                ..attr(self.device(), to, peer)
            };
            self.modify(&attr, required | M::STATE)
                .unwrap_or_else(|error| panic!("to {to}: {error}"));
        }
        self.leave_rts(state);
        assert_eq!(self.state(), state);
    }

    /// From RTS to one of the states behind it; stays where it is for the others.
    fn leave_rts(&mut self, state: QpState) {
        match state {
            QpState::Sqd => {
                self.go_to(state);
                // Nothing is in flight, and yet a device may take its time.
                until("the drain", || !self.query().sq_draining);
            }
            QpState::Err => self.go_to(state),
            QpState::Sqe => self.fail_a_send(),
            QpState::Reset | QpState::Init | QpState::Rtr | QpState::Rts => {}
        }
    }
}

/// An end that messages come to.
pub trait Receives: Stands {
    /// Whether its receives are flushed with it: those of a shared queue are not.
    const OWN: bool;

    /// Posts a receive and rings.
    fn post_receive(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError>;
    fn region(&self) -> &Region;

    /// The completion queue of its receives.
    fn cq(&mut self) -> (&mut Cq, Quiet);

    /// A receive for a message of up to `length` bytes, at the region's start.
    fn receive(&mut self, wr_id: u64, length: u32) {
        let room = self.region().sge(0, length + HEADER as u32);
        self.post_receive(wr_id, &[room])
            .expect("room in the queue");
    }

    fn arrived(&mut self) -> Completion<'static> {
        wait(self.cq().0)
    }

    /// Asserts the next outcome.
    fn took(&mut self, wr_id: u64, status: WcStatus) {
        let done = self.arrived();
        assert_eq!((done.wr_id, done.status()), (wr_id, status));
    }

    /// Asserts that nothing arrives.
    fn took_nothing(&mut self) {
        let (cq, quiet) = self.cq();
        nothing(cq, quiet);
    }
}

/// Room for the header in front of a datagram.
const HEADER: usize = 40;

/// A transport service beside RC.
pub trait Service: QpTransport + Supports<Send> + Sized {
    const KIND: Kind;
    /// Whether what becomes of a message is reported to the sender.
    const RELIABLE: bool;
    /// Bytes in front of a message that has arrived.
    const HEAD: usize = 0;
    /// What requests name, kept by the sender.
    type Name;
    type Receiver: Receives;

    /// Two ends in RESET, the sender in the first domain.
    fn ends_on(pds: (&Pd, &Pd), p: &Provider, init: &QpInit) -> (Talker<Self>, Self::Receiver);
    fn address(name: &Self::Name) -> Address<'_, Self>;

    /// Puts `value` into the receiver's memory: by a message that consumes no receive where there is
    /// such, else by one that finds one where one can be posted.
    fn put(tx: &mut Talker<Self>, wr_id: u64, rx: &mut Self::Receiver, value: u64);
}

/// An end that sends.
pub struct Talker<T: Service> {
    pub qp: Qp<T>,
    pub cq: Cq,
    pub region: Region,
    name: T::Name,
    quiet: Quiet,
}

impl<T: Service> Talker<T> {
    fn new(pd: &Pd, p: &Provider, init: &QpInit, name: T::Name) -> Self {
        let (send, recv) = init.cq_entries_of::<T>();
        let mut cq = pd.device().create_cq(send + recv).expect("a queue");
        Self {
            qp: pd.create_qp_of(&mut cq, init).expect("a queue pair"),
            cq,
            region: region(pd, 1 << 16),
            name,
            quiet: p.quiet,
        }
    }

    /// Stages a send request on registered memory.
    pub fn post<O: Operation>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: impl Payload,
        flags: SendFlags,
    ) -> Result<(), PostError>
    where
        T: Supports<O>,
    {
        let to = T::address(&self.name);
        // SAFETY: the keys in these tests are those of regions, whose memory is only ever copied in
        // and out; the device refuses elements that no key covers.
        unsafe { self.qp.sq().post(wr_id, to, operation, payload, flags) }
    }

    /// Stages a signalled send request and rings.
    pub fn go<O: Operation>(&mut self, wr_id: u64, operation: O, payload: impl Payload)
    where
        T: Supports<O>,
    {
        self.post(wr_id, operation, payload, SIGNALED)
            .expect("room in the send queue");
        self.qp.sq().ring();
    }

    /// The next completion.
    pub fn wait(&mut self) -> Completion<'static> {
        wait(&mut self.cq)
    }

    /// Asserts the next outcome.
    pub fn completes(&mut self, wr_id: u64, status: WcStatus) {
        let done = self.wait();
        assert_eq!((done.wr_id, done.status()), (wr_id, status));
    }

    /// Asserts that nothing more completes.
    pub fn nothing(&mut self) {
        nothing(&mut self.cq, self.quiet);
    }

    /// What a receive posted here comes to.
    pub fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        // SAFETY: as in `post`.
        let posted = unsafe { self.qp.rq().post(wr_id, sges) };
        self.qp.rq().ring();
        posted
    }
}

impl<T: Service> Stands for Talker<T> {
    fn kind(&self) -> Kind {
        T::KIND
    }

    fn device(&self) -> &Device {
        self.qp.pd().device()
    }

    fn endpoint(&self) -> Endpoint {
        self.qp.endpoint()
    }

    fn query(&self) -> QpAttr {
        self.qp.query()
    }

    fn modify(&mut self, attr: &QpAttr, mask: M) -> Result<(), Error> {
        self.qp.modify(attr, mask)
    }

    fn reset(&mut self) -> Vec<u64> {
        let mut reported = Vec::new();
        self.qp
            .reset(&mut self.cq, |wr_id, _| reported.push(wr_id))
            .expect("reset from any state");
        reported
    }

    fn fail_a_send(&mut self) {
        self.go(u64::MAX, Send {}, NOWHERE);
        self.completes(u64::MAX, WcStatus::LocProtErr);
    }
}

impl<T: Service> Receives for Talker<T> {
    const OWN: bool = true;

    fn post_receive(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.post_recv(wr_id, sges)
    }

    fn region(&self) -> &Region {
        &self.region
    }

    fn cq(&mut self) -> (&mut Cq, Quiet) {
        (&mut self.cq, self.quiet)
    }
}

impl Service for Uc {
    const KIND: Kind = Kind::Uc;
    const RELIABLE: bool = false;
    type Name = ();
    type Receiver = Talker<Uc>;

    fn ends_on(pds: (&Pd, &Pd), p: &Provider, init: &QpInit) -> (Talker<Uc>, Talker<Uc>) {
        let end = |pd| Talker::new(pd, p, init, ());
        (end(pds.0), end(pds.1))
    }

    fn address((): &()) {}

    fn put(tx: &mut Talker<Uc>, wr_id: u64, rx: &mut Talker<Uc>, value: u64) {
        let remote = rx.region.remote(0);
        tx.go(wr_id, RdmaWrite { remote }, Inline(&value.to_ne_bytes()));
    }
}

impl Service for Ud {
    const KIND: Kind = Kind::Ud;
    const RELIABLE: bool = false;
    const HEAD: usize = HEADER;
    /// The way to the receiver, and its number.
    type Name = (Ah, u32);
    type Receiver = Talker<Ud>;

    fn ends_on(pds: (&Pd, &Pd), p: &Provider, init: &QpInit) -> (Talker<Ud>, Talker<Ud>) {
        let way = |from: &Pd, to: &Pd| {
            let there = from
                .device()
                .way_to(&to.device().endpoint(0, 1, None), 1, None);
            from.create_ah(&there).expect("an address handle")
        };
        let rx = Talker::new(pds.1, p, init, (way(pds.1, pds.0), 0));
        let name = (way(pds.0, pds.1), rx.qp.qp_num());
        let tx = Talker::new(pds.0, p, init, name);
        (tx, rx)
    }

    fn address((ah, qpn): &(Ah, u32)) -> UdAddress<'_> {
        ah.to(*qpn, QKEY)
    }

    fn put(tx: &mut Talker<Ud>, wr_id: u64, rx: &mut Talker<Ud>, value: u64) {
        let room = rx.region.sge(0, HEADER as u32 + 8);
        // Refused in RESET, and flushed in ERR.
        let _there = rx.post_recv(u64::MAX, &[room]);
        tx.go(wr_id, Send {}, Inline(&value.to_ne_bytes()));
    }
}

impl Service for Xrc {
    const KIND: Kind = Kind::XrcSend;
    const RELIABLE: bool = true;
    /// The number of the shared receive queue at the target.
    type Name = u32;
    type Receiver = Target;

    fn ends_on(pds: (&Pd, &Pd), p: &Provider, init: &QpInit) -> (Talker<Xrc>, Target) {
        let xrcd = pds.1.device().open_xrcd().expect("a domain");
        let rx = Target::new(pds.1, p, &xrcd);
        let tx = Talker::new(pds.0, p, init, rx.srq.srq_num());
        (tx, rx)
    }

    fn address(name: &u32) -> u32 {
        *name
    }

    fn put(tx: &mut Talker<Xrc>, wr_id: u64, rx: &mut Target, value: u64) {
        let remote = rx.region.remote(0);
        tx.go(wr_id, RdmaWrite { remote }, Inline(&value.to_ne_bytes()));
    }
}

/// The target of an extended reliable connection, with a shared receive queue in its domain.
pub struct Target {
    qp: XrcTarget,
    srq: Srq,
    cq: Cq,
    region: Region,
    quiet: Quiet,
}

impl Target {
    fn new(pd: &Pd, p: &Provider, xrcd: &Xrcd) -> Self {
        let max_wr = init().max_recv_wr;
        let sizes = SrqInit {
            max_wr,
            ..SrqInit::default()
        };
        let mut cq = pd.device().create_cq(2 * max_wr).expect("a queue");
        let srq = pd.create_xrc_srq(xrcd, &mut cq, &sizes);
        Self {
            qp: xrcd.create_target().expect("a target"),
            srq: srq.expect("a shared receive queue"),
            cq,
            region: region(pd, 1 << 16),
            quiet: p.quiet,
        }
    }
}

impl Stands for Target {
    fn kind(&self) -> Kind {
        Kind::XrcRecv
    }

    fn device(&self) -> &Device {
        self.qp.xrcd().device()
    }

    fn endpoint(&self) -> Endpoint {
        self.qp.endpoint()
    }

    fn query(&self) -> QpAttr {
        self.qp.query()
    }

    fn modify(&mut self, attr: &QpAttr, mask: M) -> Result<(), Error> {
        self.qp.modify(attr, mask)
    }

    fn reset(&mut self) -> Vec<u64> {
        self.go_to(QpState::Reset);
        Vec::new()
    }

    fn fail_a_send(&mut self) {
        panic!("the rule needs Feature::XrcSqe");
    }
}

impl Receives for Target {
    const OWN: bool = false;

    fn post_receive(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        // SAFETY: as in `Talker::post`.
        let posted = unsafe { self.srq.post(wr_id, sges) };
        self.srq.ring();
        posted
    }

    fn region(&self) -> &Region {
        &self.region
    }

    fn cq(&mut self) -> (&mut Cq, Quiet) {
        (&mut self.cq, self.quiet)
    }
}

/// Two ends in RESET on a device of their own.
pub fn ends<T: Service>(p: &Provider) -> (Talker<T>, T::Receiver) {
    let pds = p.pds();
    T::ends_on((&pds.0, &pds.1), p, &init())
}

/// Two ends that talk.
pub fn pair<T: Service>(p: &Provider) -> (Talker<T>, T::Receiver) {
    pair_of(p, &init())
}

/// As [`pair`], of queue pairs made so.
pub fn pair_of<T: Service>(p: &Provider, init: &QpInit) -> (Talker<T>, T::Receiver) {
    let pds = p.pds();
    let (mut tx, mut rx) = T::ends_on((&pds.0, &pds.1), p, init);
    tx.bring(&rx.endpoint(), QpState::Rts);
    rx.bring(&tx.endpoint(), QpState::Rts);
    (tx, rx)
}

/// Sends a message without a byte, so that it is not the next one that is the first of the
/// connection.
pub fn greet<T: Service>(tx: &mut Talker<T>, rx: &mut T::Receiver) {
    rx.receive(60, 0);
    tx.go(61, Send {}, NoPayload);
    tx.completes(61, WcStatus::Success);
    rx.took(60, WcStatus::Success);
}
