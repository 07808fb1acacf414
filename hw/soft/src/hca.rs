//! The device itself: its tables, its clock, and the lock that protects everything except the data path.

use super::clock::{Clock, ClockKind};
use super::control::Control;
use super::engine::Engine;
use super::journal::{Journal, JournalEntry};
use super::managers::Managers;
use super::mr::MrTable;
use super::polls::Polls;
use super::port::{self, Port};
use super::qp::{QpCtx, QpTable};
use super::remote::{Looks, Scratch, Views, run_node};
use super::srq::SrqTable;
use super::turn::Thread;
use crate::error::Error;
use crate::event::{Contexts, Element, EventType};
use crate::fabric::{Attention, Export, MAX_PACKET, Meetings, Node, Owner};
use bellwire_core::port::Staged;
use bellwire_core::wqe::FirstBlock;
use bellwire_memory::fork::Own;
use bellwire_provider::entropy;
use bellwire_provider::numbers::Numbers;
use bellwire_provider::pinned::{boxed, room_for};
use bellwire_provider::quiesce::Barriers;
use bellwire_provider::short::Short;
use bellwire_provider::thread;
use crossbeam_utils::CachePadded;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Which threads execute work requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The thread that rings the doorbell: the lowest latency. Requests that wait (no receive posted, peer
    /// gone) are continued by a later poll or doorbell.
    #[default]
    Inline,
    /// Threads of the device, as in a NIC. They poll, and sleep after being idle for long.
    Engine {
        /// How many; at least one.
        threads: usize,
    },
}

/// Configuration of a software HCA.
#[derive(Clone, Copy, Debug, Default)]
pub struct HcaConfig {
    /// Which threads execute work requests.
    pub mode: Mode,
    /// Which clock the device uses.
    pub clock: ClockKind,
    /// Seed for memory keys and other random values; `None` takes one from the operating system.
    pub seed: Option<u64>,
    /// For tests: whether the device keeps a journal (`SoftDevice::journal`) of what it executes. While it
    /// does, entries are executed one by one under the device's lock, as they are while faults are pending.
    pub journal: bool,
}

/// A software HCA.
#[derive(Debug)]
pub struct Hca {
    pub(super) mrs: MrTable,
    pub(super) qps: QpTable,
    pub(super) srqs: SrqTable,
    pub(super) port: Port,
    pub(super) barriers: Barriers,
    pub(super) clock: Clock,
    pub(super) engine: Option<Engine>,
    /// When the next waiting request is due. While none waits, the value of `never`.
    pub(super) next_due: CachePadded<AtomicU64>,
    /// Of a node of a fabric.
    pub(super) looks: CachePadded<Looks>,
    /// Numbers of the completion queues.
    pub cqns: Numbers,
    pub contexts: Contexts,
    /// Of the threads that poll its completion queues.
    pub(super) polls: Polls,
    /// How many protection domains the program has.
    pub pds: AtomicU32,
    control: Mutex<Control>,
    /// The thread that holds that lock.
    locked_by: AtomicUsize,
    /// The program's user when it opened the device.
    pub(super) owner: Owner,
    /// The node of the fabric that the device is, if it is one.
    pub(super) node: Option<Node>,
    /// Mapped memory of other nodes.
    pub(super) views: Views,
    /// Record of what was executed, if a journal is kept.
    pub(super) journal: Option<Journal>,
    /// Connection managers of its queue pairs.
    pub managers: Managers,
    /// Packets of other processes are read under the lock only: see `Control::gated`.
    pub(super) receives_under_lock: AtomicBool,
    /// Value of `next_due` while nothing waits.
    never: u64,
}

/// A running software HCA. It is dropped, with its threads, together with the last object on it.
#[derive(Debug)]
pub struct Running {
    hca: Own<Arc<Hca>>,
    threads: Own<Vec<JoinHandle<()>>>,
}

impl Running {
    /// Whether it belongs to the process that this one was forked from.
    pub fn is_inherited(&self) -> bool {
        Own::is_inherited(&self.hca)
    }
}

impl Deref for Running {
    type Target = Hca;

    #[inline(always)]
    fn deref(&self) -> &Hca {
        &self.hca
    }
}

impl Running {
    /// Starts a device that only this process can reach.
    ///
    /// # Errors
    /// There is no memory for it, or its threads could not be started.
    pub fn start(config: HcaConfig) -> Result<Arc<Self>, Error> {
        Self::build(config, None, Self::seed(config))
    }

    /// Starts a device that is a node of the fabric of this name. The other nodes connect in the background.
    ///
    /// # Errors
    /// [`Error::FabricName`], [`Error::FabricClock`], [`Error::Exhausted`], [`Error::Io`].
    pub fn join(config: HcaConfig, fabric: &str) -> Result<Arc<Self>, Error> {
        if config.clock != ClockKind::Real {
            return Err(Error::FabricClock);
        }
        let seed = Self::seed(config);
        let owner = Owner::now();
        // Random even where keys are seeded: it has to differ from those of earlier nodes in the same place.
        let incarnation = entropy::draw();
        let export = Export::new().map_err(|error| Error::io("make shared memory", error))?;
        let node = Node::claim(owner, fabric, incarnation, Arc::new(export))?;
        node.call_first();
        Self::build(config, Some(node), seed)
    }

    fn seed(config: HcaConfig) -> u64 {
        config.seed.unwrap_or_else(entropy::draw)
    }

    fn build(config: HcaConfig, mut node: Option<Node>, seed: u64) -> Result<Arc<Self>, Error> {
        let port = match &node {
            Some(node) => Port::new(node.owner().prefix(node.name()), seed, node.lid()),
            None => Port::new(port::LINK_LOCAL, seed, port::LID),
        };
        // On a node, `waiting` is always true, so that callers also look for packets of peers.
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
                None => MrTable::new(seed)?,
            },
            qps: QpTable::new()?,
            srqs: SrqTable::new()?,
            port,
            barriers: Barriers::get(),
            clock: Clock::new(config.clock),
            engine: (workers != 0).then(|| Engine::new(workers)).transpose()?,
            next_due: CachePadded::new(AtomicU64::new(never)),
            looks: CachePadded::default(),
            cqns: Numbers::new("completion queues"),
            contexts: Contexts::default(),
            polls: Polls::default(),
            pds: AtomicU32::new(0),
            control: Mutex::new(Control::new(seed, config.journal)?),
            locked_by: AtomicUsize::new(0),
            owner: node.as_ref().map_or_else(Owner::of_process, Node::owner),
            node,
            views: Views::default(),
            journal: config.journal.then(Journal::default),
            managers: Managers::default(),
            receives_under_lock: AtomicBool::new(config.journal),
            never,
        });
        hca.make_scratch()?;
        let threads = Own::default();
        let hca = Own::new(hca);
        // If a thread cannot be started, dropping `running` stops those that were.
        let mut running = Self { hca, threads };
        for worker in 0..workers {
            let work = move |hca: &Hca| super::engine::work(hca, worker);
            running.spawn(
                &Short::<24>::new(format_args!("bellwire-hca{worker}")),
                work,
            )?;
        }
        if running.hca.node.is_some() {
            let meetings = Meetings::new()?;
            running.spawn("bellwire-node", |hca| run_node(hca, meetings))?;
        }
        Ok(Arc::new(running))
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce(&Hca) + Send + 'static) -> Result<(), Error> {
        let threads = self.threads.len() + 1;
        room_for(&mut self.threads, threads)?;
        let hca = self.shared();
        let spawned = thread::start(name, move || work(&hca));
        let thread = spawned.map_err(|error| Error::io("start a thread of the device", error))?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Running {
    /// The device, for as long as it is kept. Its threads end with this.
    pub(super) fn shared(&self) -> Arc<Hca> {
        Arc::clone(&self.hca)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A child of fork leaves what belongs to its parent as it is.
        if self.is_inherited() {
            return;
        }
        if let Some(engine) = &self.hca.engine {
            engine.stop();
        }
        if let Some(node) = &self.hca.node {
            node.stop();
        }
        for thread in self.threads.drain(..) {
            // A worker that panicked has printed its message; there is nothing more to do about it here.
            let _ = thread.join();
        }
    }
}

/// The device's lock, held until it is dropped.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    control: MutexGuard<'a, Control>,
    by: &'a AtomicUsize,
}

impl Deref for Locked<'_> {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.control
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Control {
        &mut self.control
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // Relaxed: see `Hca::locked`.
        self.by.store(0, Ordering::Relaxed);
    }
}

impl Hca {
    /// The lock that protects everything except the data path. Poisoning is ignored: requests are completed
    /// one at a time, so a panic under the lock leaves no inconsistent state to the next holder.
    pub(super) fn control(&self) -> Locked<'_> {
        self.locked(self.control.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The lock, if it is free.
    pub(super) fn try_control(&self) -> Option<Locked<'_>> {
        match self.control.try_lock() {
            Ok(control) => Some(self.locked(control)),
            Err(TryLockError::Poisoned(error)) => Some(self.locked(error.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn locked<'a>(&'a self, control: MutexGuard<'a, Control>) -> Locked<'a> {
        // Relaxed: a thread finds itself there only while it holds the lock.
        (self.locked_by).store(Thread::current().number(), Ordering::Relaxed);
        Locked {
            control,
            by: &self.locked_by,
        }
    }

    /// Whether this thread holds the lock.
    pub(super) fn is_locked_by(&self, me: Thread) -> bool {
        // Relaxed: as in `locked`.
        self.locked_by.load(Ordering::Relaxed) == me.number()
    }

    /// The doorbell for everything up to this counter: executes on this thread, or notifies the engine.
    pub(super) fn ring(&self, ctx: &'static QpCtx, counter: u32) {
        // Release: pairs with the Acquire in `execute_rung`, so that the executing thread sees the entries.
        ctx.sender.producer.store(counter, Ordering::Release);
        match self.engine {
            Some(_) => self.notify(ctx),
            None => self.execute(ctx, counter),
        }
    }

    /// The doorbell for these entries.
    ///
    /// # Safety
    /// That of [`SendDoorbell::ring`](bellwire_core::port::SendDoorbell::ring).
    #[inline(always)]
    pub(super) unsafe fn ring_staged(&self, ctx: &'static QpCtx, staged: &Staged) {
        // Release: as in `ring`.
        (ctx.sender.producer).store(staged.counter, Ordering::Release);
        if self.engine.is_some() {
            return self.notify(ctx);
        }
        if staged.count != 1 {
            return self.execute(ctx, staged.counter);
        }
        // SAFETY: posted, and not completed before it is executed.
        let block = unsafe { FirstBlock::of(staged.last) };
        self.execute_last(ctx, block, staged.known, staged.counter);
    }

    /// Notifies the engine of what has been rung.
    #[inline(never)]
    fn notify(&self, ctx: &QpCtx) {
        if let Some(engine) = &self.engine {
            engine.kick(ctx.sender.index);
        }
    }

    /// Delivers an event to the open contexts that own the element. `false`: none does.
    pub fn broadcast(&self, element: Element, event: EventType) -> bool {
        self.contexts.broadcast(element, event)
    }

    /// The device's time.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.clock.now())
    }

    /// Whether the device's time advances only by `advance`.
    pub fn has_virtual_time(&self) -> bool {
        self.clock.is_virtual()
    }

    /// Whether threads of the device execute work requests.
    pub fn has_engine(&self) -> bool {
        self.engine.is_some()
    }

    /// Whether some request waits for its time. Always true for a node of a fabric.
    #[inline(always)]
    pub fn waiting(&self) -> bool {
        // Relaxed: a hint; `progress` looks under the lock.
        self.next_due.load(Ordering::Relaxed) != u64::MAX
    }

    /// Whether some request waits for its time, also for a node of a fabric.
    pub(super) fn waits_for_time(&self) -> bool {
        // Relaxed: a hint; `progress_timers` looks again under the lock.
        self.next_due.load(Ordering::Relaxed) != self.never
    }

    /// Value of `next_due` while nothing waits.
    pub(super) fn never(&self) -> u64 {
        self.never
    }

    /// The program's user when it opened the device: whose devices it may reach, whatever its user is now.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// The name of the fabric, if the device is a node of one.
    pub fn fabric(&self) -> Option<&str> {
        self.node.as_ref().map(Node::name)
    }

    /// Whether other processes have to wake this one, if the device is a node of a fabric.
    pub fn attention(&self) -> Option<Arc<Attention>> {
        self.node.as_ref().map(|node| node.attention.clone())
    }

    /// Takes the entries of the journal. `None`: no journal is kept.
    pub fn take_journal(&self) -> Option<Vec<JournalEntry>> {
        // Under the lock, so that no entry is half recorded.
        let _control = self.control();
        self.journal.as_ref().map(Journal::take)
    }

    /// Allocates the buffers in which requests of other processes are executed.
    fn make_scratch(&self) -> Result<(), Error> {
        if self.node.is_some() {
            let pd = self.alloc_pd();
            let mut control = self.control();
            control.inbox = Some(boxed([0; MAX_PACKET])?);
            control.scratch = Some(Scratch::new(self, &mut control, pd)?);
        }
        Ok(())
    }

    /// Continues the waiting requests whose time has come, and handles packets of other processes.
    pub fn progress(&self) {
        if self.waits_for_time() {
            self.progress_timers();
        }
        self.look_alone();
    }

    /// Continues the waiting requests whose time has come.
    #[cold]
    pub(super) fn progress_timers(&self) {
        let now = self.clock.now();
        // Relaxed: a hint; `run_timers` looks again under the lock.
        if now >= self.next_due.load(Ordering::Relaxed) {
            self.run_timers(&mut self.control(), now);
        }
    }

    /// Advances a virtual clock, and stops at each time for which a request waits, to continue that request.
    /// `false`: the clock is real.
    pub fn advance(&self, by: Duration) -> bool {
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
