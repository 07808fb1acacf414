//! The device itself: its tables, its clock, and the lock that everything but the data path takes.

use super::clock::{Clock, ClockKind};
use super::control::Control;
use super::engine::Engine;
use super::journal::{Journal, JournalEntry};
use super::mr::MrTable;
use super::numbers::Numbers;
use super::port::{self, Port};
use super::qp::{QpCtx, QpTable};
use super::quiesce::Barriers;
use super::remote::{Scratch, Views, run_node};
use super::run::run;
use super::srq::SrqTable;
use crate::connect::cm::Managers;
use crate::error::Error;
use crate::event::{Contexts, Element, EventType};
use crate::fabric::{Export, MAX_PACKET, Node};
use crossbeam_utils::CachePadded;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
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
    /// For tests: whether it keeps a [journal](crate::Device::journal) of what it executes. While it
    /// does every entry is executed under the device's lock, one by one, as with faults to come.
    pub journal: bool,
}

/// A software HCA.
#[derive(Debug)]
pub(crate) struct Hca {
    pub(super) mrs: MrTable,
    pub(super) qps: QpTable,
    pub(super) srqs: SrqTable,
    pub(super) port: Port,
    pub(super) barriers: Barriers,
    pub(super) clock: Clock,
    pub(super) engine: Option<Engine>,
    /// When the next waiting request is due; `u64::MAX` while none waits.
    pub(super) next_due: CachePadded<AtomicU64>,
    /// Numbers of completion queues.
    pub(crate) cqns: Numbers,
    pub(crate) contexts: Contexts,
    /// Protection domains.
    pub(crate) pds: AtomicU32,
    control: Mutex<Control>,
    /// Its place among those of other processes.
    pub(super) node: Option<Node>,
    /// What it has mapped of theirs.
    pub(super) views: Views,
    /// What it executed, if that is recorded.
    pub(super) journal: Option<Journal>,
    /// Who manages connections of its queue pairs.
    pub(crate) managers: Managers,
    /// What `next_due` is while nothing waits.
    never: u64,
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
    /// Starts one that is this process's own.
    pub fn start(config: HcaConfig) -> Arc<Self> {
        Self::build(config, None, Self::seed(config))
    }

    /// Starts one that is a node of the fabric of this name.
    ///
    /// # Errors
    /// [`Error::FabricName`], [`Error::FabricClock`], [`Error::Exhausted`], [`Error::Io`].
    pub fn join(config: HcaConfig, fabric: &str) -> Result<Arc<Self>, Error> {
        if config.clock != ClockKind::Real {
            return Err(Error::FabricClock);
        }
        let seed = Self::seed(config);
        if Barriers::get().is_asymmetric() && !Barriers::join() {
            return Err(Error::io(
                "use membarrier(2) between processes",
                std::io::Error::last_os_error(),
            ));
        }
        // Random even where keys are not: whoever has had the same place was another one.
        let incarnation = std::hash::RandomState::new().build_hasher().finish();
        let export = Export::new().map_err(|error| Error::io("make shared memory", error))?;
        let node = Node::claim(fabric, incarnation, Arc::new(export))?;
        let running = Self::build(config, Some(node), seed);
        running.hca.connect_all();
        Ok(running)
    }

    fn seed(config: HcaConfig) -> u64 {
        config.seed.unwrap_or_else(|| {
            // The standard library's hasher is seeded by the operating system.
            std::hash::RandomState::new().build_hasher().finish()
        })
    }

    fn build(config: HcaConfig, mut node: Option<Node>, seed: u64) -> Arc<Self> {
        let port = Port::new(seed, node.as_ref().map_or(port::LID, Node::lid));
        // Others look at what peers want whenever they look whether something is due.
        let never = if node.is_some() {
            u64::MAX - 1
        } else {
            u64::MAX
        };
        if let Some(node) = &mut node {
            node.set_gid(port.gid());
        }
        let workers = match config.mode {
            Mode::Inline => 0,
            Mode::Engine { threads } => threads.max(1),
        };
        let hca = Arc::new(Hca {
            mrs: match &node {
                Some(node) => MrTable::shared(seed, node.export().clone()),
                None => MrTable::new(seed),
            },
            qps: QpTable::new(),
            srqs: SrqTable::new(),
            port,
            barriers: Barriers::get(),
            clock: Clock::new(config.clock),
            engine: (workers != 0).then(|| Engine::new(workers)),
            next_due: CachePadded::new(AtomicU64::new(never)),
            cqns: Numbers::new("completion queues"),
            contexts: Contexts::default(),
            pds: AtomicU32::new(0),
            control: Mutex::new(Control::new(seed, config.journal)),
            node,
            views: Views::default(),
            journal: config.journal.then(Journal::default),
            managers: Managers::default(),
            never,
        });
        hca.make_scratch();
        let spawn = |name: String, work: Box<dyn FnOnce(&Hca) + Send>| {
            let hca = hca.clone();
            std::thread::Builder::new()
                .name(name)
                .spawn(move || work(&hca))
                .unwrap_or_else(|error| panic!("cannot start the HCA's thread: {error}"))
        };
        let mut threads: Vec<_> = (0..workers)
            .map(|worker| {
                let work = Box::new(move |hca: &Hca| super::engine::work(hca, worker));
                spawn(format!("bellwire-hca-{worker}"), work)
            })
            .collect();
        if hca.node.is_some() {
            threads.push(spawn("bellwire-node".to_owned(), Box::new(run_node)));
        }
        Arc::new(Self { hca, threads })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(engine) = &self.hca.engine {
            engine.stop();
        }
        if let Some(node) = &self.hca.node {
            node.stop();
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

    /// The lock, if nobody has it.
    pub(super) fn try_control(&self) -> Option<MutexGuard<'_, Control>> {
        match self.control.try_lock() {
            Ok(control) => Some(control),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
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
            // Release: partner of the acquire in `Hca::go_on`, which takes the work over.
            sender.closed.store(true, Ordering::Release);
            sender.section.leave();
            return self.stopped(qpn);
        }
        sender.section.leave();
    }

    /// Gives an event to the open contexts that have the element; `false`: none has it.
    pub(crate) fn broadcast(&self, element: Element, event: EventType) -> bool {
        self.contexts.broadcast(element, event)
    }

    /// The device's time.
    pub(crate) fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.now())
    }

    /// Whether threads of its own execute.
    pub(crate) fn has_engine(&self) -> bool {
        self.engine.is_some()
    }

    /// Whether some request waits for its time.
    #[inline(always)]
    pub(crate) fn waiting(&self) -> bool {
        // Relaxed: a hint; `progress` looks under the lock.
        self.next_due.load(Ordering::Relaxed) != u64::MAX
    }

    /// Whether some request waits for its time; of a node of a fabric as well.
    pub(super) fn waits_for_time(&self) -> bool {
        // Relaxed: as above.
        self.next_due.load(Ordering::Relaxed) != self.never
    }

    /// What `next_due` is while nothing waits.
    pub(super) fn never(&self) -> u64 {
        self.never
    }

    /// The name of the fabric that it is a node of.
    pub(crate) fn fabric(&self) -> Option<&str> {
        self.node.as_ref().map(Node::name)
    }

    /// The count of completion queues that are to raise an event, where other processes have to know.
    pub(crate) fn armed(&self) -> Option<Arc<AtomicU32>> {
        self.node.as_ref().map(|node| node.armed().clone())
    }

    /// Takes what the journal has; `None`: none is kept.
    pub(crate) fn take_journal(&self) -> Option<Vec<JournalEntry>> {
        // Under the lock, so that no entry is half recorded.
        let _control = self.control();
        self.journal.as_ref().map(Journal::take)
    }

    /// Where requests of other processes are executed.
    fn make_scratch(&self) {
        if self.node.is_some() {
            let pd = self.alloc_pd();
            let mut control = self.control();
            control.inbox = Some(Box::new([0; MAX_PACKET]));
            control.scratch = Scratch::new(self, &mut control, pd);
        }
    }

    /// Lets waiting requests go on whose time has come, and looks at what other processes want.
    #[inline(never)]
    pub(crate) fn progress(&self) {
        if let Some(node) = &self.node {
            self.look(node);
            if !self.waits_for_time() {
                return;
            }
        }
        self.progress_timers();
    }

    /// Lets waiting requests go on whose time has come.
    #[cold]
    pub(super) fn progress_timers(&self) {
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
