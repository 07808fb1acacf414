//! The device: one for the process, with a thread that watches the registers and executes.

use crate::descriptors;
use crate::uar::Uars;
use bellwire::rings::{Cq, Qp};
use bellwire::soft::HcaConfig;
use bellwire::{Device, Error};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Names the fabric that the device is a node of.
const FABRIC: &str = "UVERBS_PRELOAD_FABRIC";

/// Has the device keep a journal.
const JOURNAL: &str = "UVERBS_PRELOAD_JOURNAL";

/// Rounds without work before the thread yields its processor, and before it sleeps.
const SPINS: u32 = 2_000;
const YIELDS: u32 = 20_000;
const SLEEP: Duration = Duration::from_micros(50);

/// The device's identifier: its GID is made of it, so that sysfs knows that before the device is there.
pub fn guid() -> u64 {
    static GUID: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(std::process::id()));
    *GUID
}

static DEVICE: Mutex<Option<Device>> = Mutex::new(None);

fn present() -> MutexGuard<'static, Option<Device>> {
    DEVICE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new context on the process's device, which starts with the first one.
///
/// # Errors
/// What kept the device from starting.
pub fn open() -> Result<Device, Error> {
    device()?.reopen()
}

/// The process's device, which starts if it has not yet.
///
/// # Errors
/// What kept it from starting.
pub fn device() -> Result<Device, Error> {
    let mut present = present();
    match &*present {
        Some(device) => Ok(device.clone()),
        None => renew(&mut present),
    }
}

/// Another device takes the place of the process's, as after a reset: for contexts that are opened from
/// here on.
///
/// # Errors
/// What kept it from starting.
pub fn reset() -> Result<(), Error> {
    device()?;
    renew(&mut present()).map(|_| ())
}

fn renew(present: &mut Option<Device>) -> Result<Device, Error> {
    let config = HcaConfig {
        seed: Some(guid()),
        journal: std::env::var_os(JOURNAL).is_some_and(|value| value == "1"),
        ..HcaConfig::default()
    };
    let device = match std::env::var(FABRIC) {
        Ok(fabric) => Device::join(&fabric, config)?,
        Err(_) => Device::soft(config),
    };
    if present.is_none() {
        run_thread()?;
    }
    change(|watched, _| watched.device = Some(device.clone()));
    *present = Some(device.clone());
    Ok(device)
}

/// What the thread watches. Changed as a whole.
#[derive(Clone, Debug, Default)]
struct Watched {
    device: Option<Device>,
    pages: Vec<Page>,
    qps: Vec<(PageId, Arc<Qp>)>,
    cqs: Vec<(PageId, Cq)>,
    /// Pages on which counters begin anew, by the number of the change.
    fresh: Vec<(u64, Page)>,
}

/// A page of a context's registers.
#[derive(Clone, Debug)]
pub struct Page {
    pub uars: Arc<Uars>,
    pub page: u32,
}

type PageId = (usize, u32);

impl Page {
    fn id(&self) -> PageId {
        (Arc::as_ptr(&self.uars).addr(), self.page)
    }
}

static WATCHED: LazyLock<Mutex<Arc<Watched>>> = LazyLock::new(Mutex::default);
/// Counts the changes, and those that the thread has taken over.
static CHANGES: AtomicU64 = AtomicU64::new(0);
static TAKEN_OVER: AtomicU64 = AtomicU64::new(0);

fn watched() -> MutexGuard<'static, Arc<Watched>> {
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes what is watched. When this returns the thread touches nothing any more that was taken out.
fn change(change: impl FnOnce(&mut Watched, u64)) {
    let number = {
        let mut watched = watched();
        let mut new = Watched::clone(&watched);
        // Relaxed: changed under the lock only.
        let number = CHANGES.load(Ordering::Relaxed) + 1;
        // Relaxed: one that is kept too long is made fresh once more.
        let old = TAKEN_OVER.load(Ordering::Relaxed);
        new.fresh.retain(|(number, _)| *number > old);
        change(&mut new, number);
        *watched = Arc::new(new);
        // Release: partner of the acquire in `watch`.
        CHANGES.store(number, Ordering::Release);
        number
    };
    // Acquire: partner of the release in `watch`.
    while TAKEN_OVER.load(Ordering::Acquire) < number {
        std::thread::yield_now();
    }
}

/// Watches a queue pair, rung on this page.
pub fn add_qp(page: &Page, qp: &Arc<Qp>) {
    change(|watched, number| {
        watched.add_page(page, number);
        watched.qps.push((page.id(), qp.clone()));
    });
}

/// Watches a queue pair no more.
pub fn remove_qp(qp: &Arc<Qp>) {
    change(|watched, _| {
        watched.qps.retain(|(_, of)| !Arc::ptr_eq(of, qp));
        watched.drop_pages();
    });
}

/// Watches a completion queue, armed on this page.
pub fn add_cq(page: &Page, cq: &Cq) {
    change(|watched, number| {
        watched.add_page(page, number);
        watched.cqs.push((page.id(), cq.clone()));
    });
}

/// Watches a completion queue no more, of the context with these registers.
pub fn remove_cq(uars: &Arc<Uars>, cq: &Cq) {
    let context = Arc::as_ptr(uars).addr();
    change(|watched, _| {
        // Two devices give the same numbers.
        let is_it = |(at, of): &(PageId, Cq)| at.0 == context && of.cqn() == cq.cqn();
        watched.cqs.retain(|of| !is_it(of));
        watched.drop_pages();
    });
}

/// The device looks at no ring and no register.
static PAUSED: AtomicBool = AtomicBool::new(false);

/// Has the device stand still, from when this returns, or go on with what was rung meanwhile. Commands
/// are executed all the same.
pub fn pause(paused: bool) {
    // Relaxed: the change below says so.
    PAUSED.store(paused, Ordering::Relaxed);
    change(|_, _| ());
}

/// Counters begin anew on this page: the next ring may be with what the register says already.
pub fn begin_anew(page: &Page) {
    change(|watched, number| watched.fresh.push((number, page.clone())));
}

/// Returns when everything that was rung before has been looked at, and executed as far as it goes.
pub fn settle() {
    // Between the two it looks at everything once.
    (0..2).for_each(|_| change(|_, _| ()));
}

/// The queue pair of this number, of the present device.
pub fn qp(qp_num: u32) -> Option<Arc<Qp>> {
    let watched = watched();
    let newest = watched.qps.iter().rev();
    newest
        .map(|(_, qp)| qp)
        .find(|qp| qp.qp_num() == qp_num)
        .cloned()
}

impl Watched {
    fn add_page(&mut self, page: &Page, number: u64) {
        // Fresh, for the queue that is new on it may ring at once.
        self.fresh.push((number, page.clone()));
        if !self.pages.iter().any(|of| of.id() == page.id()) {
            self.pages.push(page.clone());
        }
    }

    /// Pages that nothing is on any more.
    fn drop_pages(&mut self) {
        let (qps, cqs) = (&self.qps, &self.cqs);
        let used = |id| qps.iter().any(|(on, _)| *on == id) || cqs.iter().any(|(on, _)| *on == id);
        self.pages.retain(|page| used(page.id()));
    }

    /// Begins anew on the pages that changes after this one ask it for.
    fn freshen(&self, last: u64, paused: bool) {
        for (_, page) in self.fresh.iter().filter(|(number, _)| *number > last) {
            page.uars.forget(page.page);
            if !paused {
                self.look_at_page(page);
            }
        }
    }

    fn look_at_page(&self, page: &Page) {
        let on_it = |id: PageId| id == page.id();
        (self.qps.iter().filter(|(id, _)| on_it(*id))).for_each(|(_, qp)| qp.look_at_sends());
        (self.cqs.iter().filter(|(id, _)| on_it(*id))).for_each(|(_, cq)| cq.look_at_arm());
    }

    /// Looks at everything once; whether there was something to do.
    fn look(&self) -> bool {
        let mut worked = false;
        for page in &self.pages {
            if page.uars.rung(page.page) {
                worked = true;
                self.look_at_page(page);
            }
        }
        self.qps.iter().for_each(|(_, qp)| qp.look_at_receives());
        worked
    }
}

fn run_thread() -> Result<(), Error> {
    let thread = std::thread::Builder::new().name("uverbs-preload".to_owned());
    let started = thread.spawn(move || {
        // Signals are the program's.
        // SAFETY: changes this thread's mask only.
        unsafe {
            let mut all = std::mem::zeroed();
            libc::sigfillset(&raw mut all);
            // By these, memory that is gone fails a request.
            for signal in [libc::SIGSEGV, libc::SIGBUS] {
                libc::sigdelset(&raw mut all, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
        }
        watch();
    });
    match started {
        // It runs as long as the process, and in no child of it.
        Ok(_) => {
            // SAFETY: the function may be called at any time.
            unsafe { libc::pthread_atfork(None, None, Some(forked)) };
            Ok(())
        }
        Err(error) => Err(Error::Io {
            what: "start the device's thread",
            error,
        }),
    }
}

extern "C" fn forked() {
    descriptors::disown();
}

fn watch() {
    let mut now = watched().clone();
    let (mut idle, mut paused) = (0u32, false);
    loop {
        // Acquire: partner of the release in `change`; what is watched now is seen.
        let changes = CHANGES.load(Ordering::Acquire);
        // Relaxed: written by this thread only.
        let last = TAKEN_OVER.load(Ordering::Relaxed);
        if last != changes {
            now = watched().clone();
            // Relaxed: it was changed before the change that was acquired.
            let (was, is) = (paused, PAUSED.load(Ordering::Relaxed));
            paused = is;
            now.freshen(last, paused);
            if was && !paused {
                // Bells of the pages that began anew meanwhile were not heard.
                now.pages.iter().for_each(|page| now.look_at_page(page));
            }
            // Release: partner of the acquire in `change`; what was watched is let go before.
            TAKEN_OVER.store(changes, Ordering::Release);
        }
        let worked = !paused && now.look();
        now.device.iter().for_each(Device::progress);
        idle = if worked { 0 } else { idle.saturating_add(1) };
        match idle {
            0..SPINS => std::hint::spin_loop(),
            SPINS..YIELDS => std::thread::yield_now(),
            _ => std::thread::sleep(SLEEP),
        }
    }
}
