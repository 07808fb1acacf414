//! The device itself: its tables, its clock, and the lock that everything but the data path takes.

use super::clock::{Clock, ClockKind};
use super::control::Control;
use super::engine::Engine;
use super::mr::MrTable;
use super::qp::{QpCtx, QpTable};
use super::quiesce::Barriers;
use super::run::run;
use super::srq::SrqTable;
use crossbeam_utils::CachePadded;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Who executes entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Whoever rings the doorbell, on its own thread: the lowest latency. Waiting requests (no
    /// receive posted, peer gone) go on when somebody polls or rings.
    #[default]
    Inline,
    /// Threads of the device's own, as a NIC would. They poll, and sleep when idle for long.
    Engine {
        /// How many; at least one.
        threads: usize,
    },
}

/// How a software HCA is made.
#[derive(Clone, Copy, Debug, Default)]
pub struct HcaConfig {
    /// Who executes entries.
    pub mode: Mode,
    /// How it tells the time.
    pub clock: ClockKind,
    /// Where its random-looking keys come from; from the operating system when `None`.
    pub seed: Option<u64>,
}

/// A software HCA.
#[derive(Debug)]
pub(crate) struct Hca {
    pub(super) mrs: MrTable,
    pub(super) qps: QpTable,
    pub(super) srqs: SrqTable,
    pub(super) barriers: Barriers,
    pub(super) clock: Clock,
    pub(super) engine: Option<Engine>,
    /// When the next waiting request is due; `u64::MAX` while none waits.
    pub(super) next_due: CachePadded<AtomicU64>,
    control: Mutex<Control>,
}

/// A running software HCA: goes, with its threads, when the last object on it does.
#[derive(Debug)]
pub(crate) struct Running {
    hca: Arc<Hca>,
    threads: Vec<JoinHandle<()>>,
}

impl std::ops::Deref for Running {
    type Target = Hca;

    #[inline(always)]
    fn deref(&self) -> &Hca {
        &self.hca
    }
}

impl Running {
    pub fn start(config: HcaConfig) -> Arc<Self> {
        let seed = config.seed.unwrap_or_else(|| {
            // The standard library's hasher is seeded by the operating system.
            std::hash::RandomState::new().build_hasher().finish()
        });
        let workers = match config.mode {
            Mode::Inline => 0,
            Mode::Engine { threads } => threads.max(1),
        };
        let hca = Arc::new(Hca {
            mrs: MrTable::new(seed),
            qps: QpTable::new(),
            srqs: SrqTable::new(),
            barriers: Barriers::get(),
            clock: Clock::new(config.clock),
            engine: (workers != 0).then(|| Engine::new(workers)),
            next_due: CachePadded::new(AtomicU64::new(u64::MAX)),
            control: Mutex::new(Control::new(seed)),
        });
        let threads = (0..workers)
            .map(|worker| {
                let hca = hca.clone();
                std::thread::Builder::new()
                    .name(format!("bellwire-hca-{worker}"))
                    .spawn(move || super::engine::work(&hca, worker))
                    .unwrap_or_else(|error| panic!("cannot start the HCA's thread: {error}"))
            })
            .collect();
        Arc::new(Self { hca, threads })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(engine) = &self.hca.engine {
            engine.stop();
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has said so; there is nothing more to do about it here.
            let _ = thread.join();
        }
    }
}

impl Hca {
    /// The lock of everything but the data path. A panic under it leaves nothing half done that the
    /// next holder could trip over: requests are told one at a time.
    pub(super) fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The doorbell: executes on this thread, or tells the engine.
    #[inline(always)]
    pub(super) fn ring(&self, ctx: &'static QpCtx, qpn: u32, counter: u32) {
        // Release: partner of the acquire of whoever executes; the entries come before.
        ctx.sender.producer.store(counter, Ordering::Release);
        match &self.engine {
            None => self.execute(ctx, qpn),
            Some(engine) => engine.kick(qpn),
        }
    }

    /// Executes what has been rung. On one thread at a time for each queue pair. One copy of it, not
    /// one at each doorbell: it is long.
    #[inline(never)]
    pub(super) fn execute(&self, ctx: &'static QpCtx, qpn: u32) {
        let sender = &ctx.sender;
        sender.section.enter(self.barriers);
        // Acquire: partner of the release with which the lock's holder opened it.
        if sender.closed.load(Ordering::Acquire) {
            sender.section.leave();
            return self.rung_while_closed(ctx, qpn);
        }
        // SAFETY: open, and this is the section: the work is this thread's.
        let work = unsafe { &mut *sender.work.get() };
        // Acquire: partner of the release in `ring`.
        let producer = sender.producer.load(Ordering::Acquire);
        let stop = match work {
            Some(work) => {
                let stop = run(self, work, producer);
                if stop.is_some() {
                    work.stop = stop;
                }
                stop.is_some()
            }
            None => false,
        };
        if stop {
            // Relaxed: this thread's own; the section's release publishes it.
            sender.closed.store(true, Ordering::Relaxed);
            sender.section.leave();
            return self.stopped(qpn);
        }
        sender.section.leave();
    }

    /// Whether some request waits for its time.
    #[inline(always)]
    pub(crate) fn waiting(&self) -> bool {
        // Relaxed: a hint; `progress` looks under the lock.
        self.next_due.load(Ordering::Relaxed) != u64::MAX
    }

    /// Lets waiting requests go on whose time has come.
    #[cold]
    pub(crate) fn progress(&self) {
        let now = self.clock.now();
        // Relaxed: as above.
        if now >= self.next_due.load(Ordering::Relaxed) {
            self.run_timers(&mut self.control(), now);
        }
    }

    /// Moves a virtual clock on, and stops at each time for which a request waits, to let it go on.
    /// `false`: the clock is real.
    pub(crate) fn advance(&self, by: Duration) -> bool {
        if !self.clock.is_virtual() {
            return false;
        }
        let mut control = self.control();
        let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
        let end = self.clock.now().saturating_add(by);
        self.run_timers(&mut control, end);
        self.clock.set(end);
        true
    }
}
