//! What tests of queue pairs share: connected ends on a software HCA, and waiting with a deadline.

use bellwire::memory::{Mapping, Pages};
use bellwire::queue::{Completion, PostError};
use bellwire::soft::{ClockKind, HcaConfig, Mode};
use bellwire::wqe::{Operation, Payload, Rc, Supports};
use bellwire::wr::{SendFlags, Sge, WcStatus};
use bellwire::{AccessFlags, ClassLayout, ConnectAttr, Cq, Device, Pd, Qp, QpInit, Region, Slab};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Everything that a region can be opened to.
pub const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// Signalled, the usual case here.
pub const SIGNALED: SendFlags = SendFlags::SIGNALED;

pub use crate::patience::DEADLINE;

/// How long nothing has to come before it counts as nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quiet(pub Duration);

impl From<Mode> for Quiet {
    /// None where the poster executes, a while where threads do.
    fn from(mode: Mode) -> Self {
        Self(match mode {
            Mode::Inline => Duration::ZERO,
            Mode::Engine { .. } => Duration::from_millis(5),
        })
    }
}

/// The software HCA's engine, as tests use it.
pub const ENGINE: Mode = Mode::Engine { threads: 1 };

/// Makes a test of each function for each mode.
#[macro_export]
macro_rules! in_both_modes {
    ($($name:ident),* $(,)?) => {
        mod inline {
            $(#[test] fn $name() { super::$name(bellwire::soft::Mode::Inline) })*
        }
        mod engine {
            $(#[test] fn $name() { super::$name($crate::fixture::ENGINE) })*
        }
    };
}

/// What most tests create queue pairs with.
pub fn init() -> QpInit {
    QpInit {
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 200,
        ..QpInit::default()
    }
}

/// A device of this mode, on the real clock.
pub fn device(mode: Mode) -> Device {
    Device::soft(HcaConfig {
        mode,
        ..HcaConfig::default()
    })
}

/// An inline device whose clock moves only when it is advanced, and whose keys are those of `seed`.
pub fn virtual_device(seed: u64) -> Device {
    Device::soft(HcaConfig {
        mode: Mode::Inline,
        clock: ClockKind::Virtual,
        seed: Some(seed),
        ..HcaConfig::default()
    })
}

/// A region of `bytes`, opened to everything.
pub fn region(pd: &Pd, bytes: usize) -> Region {
    region_with(pd, bytes, ALL)
}

/// A region of `bytes`, opened to `access`.
pub fn region_with(pd: &Pd, bytes: usize, access: AccessFlags) -> Region {
    let mapping = Mapping::shared("bellwire-test", bytes)
        .build()
        .expect("memory");
    Region::new(pd, mapping, access).expect("a region")
}

/// A slab, of a region that nobody else reaches.
pub fn slab(pd: &Pd, layout: &[ClassLayout]) -> Slab {
    let bytes = Slab::bytes(layout).expect("a layout");
    let mapping = pd.device().mapping(bytes).pages(Pages::Base).build();
    let region = Region::new(pd, mapping.expect("memory"), AccessFlags::LOCAL_WRITE);
    Slab::new(region.expect("a region"), layout).expect("a slab")
}

/// A queue pair, its completion queue, and memory.
#[derive(Debug)]
pub struct End {
    /// The queue pair.
    pub qp: Qp,
    /// Completions of both its queues.
    pub cq: Cq,
    /// 64 KiB, opened to everything.
    pub region: Region,
    quiet: Quiet,
}

/// A completion queue that holds all of one such queue pair.
pub fn cq_for(device: &Device, init: &QpInit) -> Cq {
    let (send, recv) = init.cq_entries();
    device.create_cq(send + recv).expect("a completion queue")
}

impl End {
    /// How long nothing has to come before it counts as nothing.
    pub fn quiet(&self) -> Quiet {
        self.quiet
    }

    /// An end in RESET. `quiet` is the device's, as its mode has it.
    pub fn new(pd: &Pd, quiet: impl Into<Quiet>, init: &QpInit) -> Self {
        let mut cq = cq_for(pd.device(), init);
        let qp = pd.create_qp(&mut cq, init).expect("a queue pair");
        let region = region(pd, 1 << 16);
        Self {
            qp,
            cq,
            region,
            quiet: quiet.into(),
        }
    }

    /// Stages a send request on registered memory.
    ///
    /// # Errors
    /// As the queue has it.
    pub fn post<O: Operation, P: Payload>(
        &mut self,
        wr_id: u64,
        operation: O,
        payload: P,
        flags: SendFlags,
    ) -> Result<(), PostError>
    where
        Rc: Supports<O>,
    {
        post(&mut self.qp, wr_id, operation, payload, flags)
    }

    /// Stages a signalled send request and rings.
    pub fn go<O: Operation, P: Payload>(&mut self, wr_id: u64, operation: O, payload: P)
    where
        Rc: Supports<O>,
    {
        self.post(wr_id, operation, payload, SIGNALED)
            .expect("room in the send queue");
        self.qp.sq().ring();
    }

    /// Posts a receive and rings.
    pub fn receive(&mut self, wr_id: u64, sges: &[Sge]) {
        post_recv(&mut self.qp, wr_id, sges).expect("room in the receive queue");
        self.qp.rq().ring();
    }

    /// The next completion.
    ///
    /// # Panics
    /// When none comes before the deadline.
    pub fn wait(&mut self) -> Completion<'static> {
        wait(&mut self.cq)
    }

    /// The next completion's identifier and status.
    pub fn outcome(&mut self) -> (u64, WcStatus) {
        let completion = self.wait();
        (completion.wr_id, completion.status())
    }

    /// Asserts that nothing more completes.
    pub fn nothing(&mut self) {
        nothing(&mut self.cq, self.quiet);
    }

    /// To RESET; gives what was reported on the way.
    pub fn reset(&mut self) -> Vec<u64> {
        let mut reported = Vec::new();
        self.qp
            .reset(&mut self.cq, |wr_id, _| reported.push(wr_id))
            .expect("reset from any state");
        reported
    }
}

/// As [`End::post`], for a queue pair.
///
/// # Errors
/// As there.
pub fn post<O: Operation, P: Payload>(
    qp: &mut Qp,
    wr_id: u64,
    operation: O,
    payload: P,
    flags: SendFlags,
) -> Result<(), PostError>
where
    Rc: Supports<O>,
{
    // SAFETY: the keys in these tests are those of regions, whose memory is only ever copied in and
    // out; the device refuses elements that no key covers.
    unsafe { qp.sq().post(wr_id, (), operation, payload, flags) }
}

/// Stages a receive into registered memory.
///
/// # Errors
/// As the queue has it.
pub fn post_recv(qp: &mut Qp, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
    // SAFETY: as in `post`.
    unsafe { qp.rq().post(wr_id, sges) }
}

/// The next completion.
///
/// # Panics
/// When none comes before the deadline.
pub fn wait(cq: &mut Cq) -> Completion<'static> {
    let start = Instant::now();
    loop {
        for _ in 0..1000 {
            if let Some(completion) = cq.poll_one() {
                return completion;
            }
        }
        assert!(start.elapsed() < DEADLINE, "no completion");
        pause(start);
    }
}

/// How long a test looks again and again for what it waits for, before it sleeps in between: most comes soon, and
/// what does not would take the processor from the tests beside it.
const SOON: Duration = Duration::from_micros(500);

/// Between two looks of somebody who has waited since `start`.
fn pause(start: Instant) {
    if start.elapsed() < SOON {
        std::thread::yield_now();
    } else {
        std::thread::sleep(SOON / 10);
    }
}

/// Waits until `done`.
///
/// # Panics
/// When it is not before the deadline.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "{what} never came");
        pause(start);
    }
}

/// Asserts that nothing completes.
pub fn nothing(cq: &mut Cq, quiet: impl Into<Quiet>) {
    let Quiet(quiet) = quiet.into();
    let start = Instant::now();
    loop {
        if let Some(completion) = cq.poll_one() {
            panic!("unexpected {completion:?}");
        }
        if start.elapsed() >= quiet {
            return;
        }
        pause(start);
    }
}

/// Connects two ends that are in RESET.
pub fn connect_with(a: &mut Qp, b: &mut Qp, attr: &ConnectAttr) {
    a.init(attr).expect("INIT");
    b.init(attr).expect("INIT");
    a.connect(&b.endpoint_for(attr), attr).expect("RTS");
    b.connect(&a.endpoint_for(attr), attr).expect("RTS");
}

/// Two ends in RESET in one protection domain.
pub fn ends(device: &Device, quiet: impl Into<Quiet>) -> (End, End) {
    let pd = device.alloc_pd();
    let quiet = quiet.into();
    (End::new(&pd, quiet, &init()), End::new(&pd, quiet, &init()))
}

/// A node of the fabric of this name.
pub fn node(fabric: &str, mode: Mode) -> Device {
    let config = HcaConfig {
        mode,
        ..HcaConfig::default()
    };
    Device::join(fabric, config).expect("a node of the fabric")
}

/// A name that no other fabric has.
pub fn fabric_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: a number of its own for each.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("bellwire-test-{}-{number}", std::process::id())
}

/// Two connected ends.
pub fn pair_with(device: &Device, quiet: impl Into<Quiet>, attr: &ConnectAttr) -> (End, End) {
    let (mut a, mut b) = ends(device, quiet);
    connect_with(&mut a.qp, &mut b.qp, attr);
    (a, b)
}

/// Two connected ends on a device of their own.
pub fn pair(mode: Mode) -> (End, End) {
    pair_with(&device(mode), mode, &ConnectAttr::default())
}

/// Two connected ends on an inline device with a virtual clock.
pub fn virtual_pair(attr: &ConnectAttr) -> (Device, End, End) {
    let device = virtual_device(1);
    let (a, b) = pair_with(&device, Mode::Inline, attr);
    (device, a, b)
}

/// A small generator of numbers that look random (xorshift64*).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// Bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        std::array::from_fn(|_| (self.number() >> 32) as u8)
    }

    /// As many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.number() >> 32) as u8).collect()
    }
}

/// Lets this process, and those that it starts, have as many descriptors as the system allows.
///
/// # Panics
/// When the system refuses.
pub fn raise_descriptors() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: one entry, read and written.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &limit), 0);
    }
}
