//! What posting and polling cost on a ConnectX device: by its rings, as bellwire does it, and by libmlx5,
//! in one process on one device. `cargo xtask mlx5-cost` compares them, on the stand-in for the kernel.
//!
//! `mlx5-cost DEVICE THEIRS` prints nanoseconds of a request for each way and kind; with a way, a kind and
//! a number of rounds behind it does only that, for who counts the instructions of `measured_*`. THEIRS is
//! the library made of `theirs.c`.
//!
//! Everything is on one processor, the device's thread included: what is measured is between two of its
//! turns, in which the entries and registers stay in the cache, as they would beside a NIC that takes
//! them from there.

use bellwire::queue::SendRequest;
use bellwire::wqe::RdmaWrite;
use bellwire::wr::{Remote, SendFlags, Sge};
use bellwire::{Cq, Device, ProviderKind, Qp};
use bellwire_benches::looped_with;
use std::error::Error;
use std::ffi::{CString, c_char, c_int, c_void};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// As in `theirs.c`.
const REQUESTS: usize = 64;
const BATCH: usize = 32;
const INLINE: usize = 32;
const BYTES: u32 = 64;

/// Rounds, whose median counts.
const ROUNDS: usize = 500;

/// Time that the device has to execute a round.
const PAUSE: Duration = Duration::from_micros(200);

/// What is posted: the numbers are `theirs.c`'s.
const KINDS: [(&str, c_int); 4] = [
    ("inline-32", 0),
    ("sge-64", 1),
    ("batch-32", 2),
    ("unsignaled", 3),
];
const BATCHED: c_int = 2;
const UNSIGNALED: c_int = 3;

type Done<T = ()> = Result<T, Box<dyn Error>>;

/// Who posts and polls.
enum Way {
    Ours(Box<Ours>),
    Theirs(Theirs),
}

const WAYS: [&str; 3] = ["bellwire", "post_send", "wr"];

struct Ours {
    qp: Qp,
    cq: Cq,
    from: Sge,
    to: Remote,
    list: Vec<Wr>,
}

/// A request of a batch, prepared as those of `theirs.c` are.
struct Wr {
    wr_id: u64,
    from: Sge,
    to: Remote,
    flags: SendFlags,
}

/// A request of 64 bytes by address.
#[inline(always)]
fn post_one(ours: &mut Ours, wr_id: u64, flags: SendFlags) -> bool {
    let write = RdmaWrite { remote: ours.to };
    // SAFETY: memory of a region that is there until the completion is.
    unsafe { ours.qp.sq().post(wr_id, (), write, ours.from, flags) }.is_ok()
}

#[inline(never)]
fn measured_ours_post(ours: &mut Ours, kind: c_int) -> bool {
    let mut posted = true;
    match kind {
        0 => {
            for wr_id in 0..REQUESTS as u64 {
                let write = RdmaWrite { remote: ours.to };
                let bytes = black_box(&[7; INLINE]);
                let mut sq = ours.qp.sq();
                posted &= sq
                    .post_inline(wr_id, (), write, bytes, SendFlags::SIGNALED)
                    .is_ok();
                sq.ring();
            }
        }
        BATCHED => {
            let request = |wr: &Wr| {
                Some(SendRequest {
                    wr_id: wr.wr_id,
                    address: (),
                    operation: RdmaWrite { remote: wr.to },
                    payload: wr.from,
                    flags: wr.flags,
                })
            };
            for list in ours.list.chunks(BATCH) {
                let mut sq = ours.qp.sq();
                // SAFETY: memory of a region that is there until the completion is.
                posted &= unsafe { sq.post_list(list, request) }.is_ok();
                sq.ring();
            }
        }
        _ => {
            for wr_id in 0..REQUESTS as u64 {
                let last = wr_id == REQUESTS as u64 - 1;
                let flags = match kind != UNSIGNALED || last {
                    true => SendFlags::SIGNALED,
                    false => SendFlags::empty(),
                };
                posted &= post_one(ours, wr_id, flags);
                ours.qp.sq().ring();
            }
        }
    }
    posted
}

/// How many were found, up to so many; `None`: one failed.
#[inline(never)]
fn measured_ours_poll(ours: &mut Ours, count: usize) -> Option<usize> {
    let (mut found, mut good) = (0, true);
    while found < count
        && let Some(completion) = ours.cq.poll_one()
    {
        good &= completion.result.is_ok();
        found += 1;
    }
    good.then_some(found)
}

/// As [`measured_ours_poll`], [`BATCH`] at once.
#[inline(never)]
fn measured_ours_poll_batch(ours: &mut Ours, count: usize) -> Option<usize> {
    let (mut found, mut good) = (0, true);
    while found < count {
        let polled = (ours.cq).poll(BATCH, |completion| good &= completion.result.is_ok());
        if polled == 0 {
            break;
        }
        found += polled;
    }
    good.then_some(found)
}

/// The library of `theirs.c`.
struct Theirs {
    side: *mut c_void,
    prepare: unsafe extern "C" fn(*mut c_void, c_int),
    post: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    poll: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
}

impl Theirs {
    fn open(library: &str, device: &str, extended: bool) -> Done<Self> {
        let (library, device) = (CString::new(library)?, CString::new(device)?);
        // SAFETY: a library of ours, which may be opened at any time.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW) };
        let symbol = |name: &str| {
            let name = CString::new(name)?;
            // SAFETY: a null handle finds what is not there either.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            match found.is_null() {
                true => Err(Box::<dyn Error>::from(
                    "the library of theirs.c has no such function",
                )),
                false => Ok(found),
            }
        };
        // SAFETY: the functions have these types.
        unsafe {
            let open: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void =
                std::mem::transmute(symbol("theirs_open")?);
            let side = open(device.as_ptr(), extended.into());
            if side.is_null() {
                return Err("libibverbs cannot open the device".into());
            }
            Ok(Self {
                side,
                prepare: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, c_int)>(
                    symbol("theirs_prepare")?,
                ),
                post: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
                >(symbol("measured_theirs_post")?),
                poll: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
                >(symbol("measured_theirs_poll")?),
            })
        }
    }
}

impl Way {
    fn open(name: &str, device: &str, library: &str) -> Done<Self> {
        Ok(match name {
            "bellwire" => {
                let device = Device::open(device)?;
                if device.provider() != ProviderKind::Mlx5 {
                    return Err("the device's rings are not driven: see Device::open".into());
                }
                let bellwire_benches::End { qp, cq, region } = looped_with(&device, INLINE as u32);
                let (from, to) = (region.sge(0, BYTES), region.remote(1024));
                // It stays as long as the process.
                std::mem::forget(region);
                let request = |wr_id| Wr {
                    wr_id,
                    from,
                    to,
                    flags: SendFlags::SIGNALED,
                };
                let list = (0..REQUESTS as u64).map(request).collect();
                Self::Ours(Box::new(Ours {
                    qp,
                    cq,
                    from,
                    to,
                    list,
                }))
            }
            "post_send" => Self::Theirs(Theirs::open(library, device, false)?),
            "wr" => Self::Theirs(Theirs::open(library, device, true)?),
            _ => return Err("the ways are bellwire, post_send and wr".into()),
        })
    }

    fn prepare(&self, kind: c_int) {
        if let Self::Theirs(theirs) = self {
            // SAFETY: open.
            unsafe { (theirs.prepare)(theirs.side, kind) };
        }
    }

    fn post(&mut self, kind: c_int) -> bool {
        match self {
            Self::Ours(ours) => measured_ours_post(ours, kind),
            // SAFETY: open.
            Self::Theirs(theirs) => unsafe { (theirs.post)(theirs.side, kind) == 0 },
        }
    }

    /// How many there were, up to so many. `None`: something failed.
    fn poll(&mut self, kind: c_int, count: usize) -> Option<usize> {
        match self {
            Self::Ours(ours) if kind == BATCHED => measured_ours_poll_batch(ours, count),
            Self::Ours(ours) => measured_ours_poll(ours, count),
            Self::Theirs(theirs) => {
                // SAFETY: open.
                let found = unsafe { (theirs.poll)(theirs.side, kind, count as c_int) };
                usize::try_from(found).ok()
            }
        }
    }

    /// A round: nanoseconds to post, and to poll. `None`: the device was not done, and neither counts.
    fn round(&mut self, kind: c_int) -> Done<Option<(u128, u128)>> {
        let count = if kind == UNSIGNALED { 1 } else { REQUESTS };
        let begun = Instant::now();
        let posted = self.post(kind);
        let post = begun.elapsed().as_nanos();
        if !posted {
            return Err("a request was refused".into());
        }
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        let mut found = self.poll(kind, count);
        let poll = begun.elapsed().as_nanos();
        let whole = found == Some(count);
        while let Some(some) = found
            && some < count
        {
            std::thread::sleep(PAUSE);
            found = self.poll(kind, count - some).map(|more| some + more);
        }
        if found.is_none() {
            return Err("a request failed".into());
        }
        Ok(whole.then_some((post, poll)))
    }
}

fn median(mut all: Vec<u128>) -> f64 {
    all.sort_unstable();
    all.get(all.len() / 2).map_or(f64::NAN, |&all| all as f64) / REQUESTS as f64
}

/// On one processor, with whatever threads come.
fn stay_here() {
    // SAFETY: plain numbers; the set is this function's own.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(usize::try_from(libc::sched_getcpu()).unwrap_or(0), &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

fn main() -> Done {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [device, library, rest @ ..] = args.as_slice() else {
        return Err("usage: mlx5-cost DEVICE THEIRS [WAY KIND ROUNDS]".into());
    };
    stay_here();
    if let [way, kind, rounds] = rest {
        let kind = KINDS.iter().find(|(name, _)| name == kind);
        let &(_, kind) = kind.ok_or("no such kind")?;
        let mut way = Way::open(way, device, library)?;
        way.prepare(kind);
        for _ in 0..rounds.parse()? {
            way.round(kind)?;
        }
        return Ok(());
    }
    let mut ways = Vec::new();
    for name in WAYS {
        ways.push((name, Way::open(name, device, library)?));
    }
    for (kind_name, kind) in KINDS {
        let mut took = [const { (Vec::new(), Vec::new()) }; WAYS.len()];
        ways.iter().for_each(|(_, way)| way.prepare(kind));
        for _ in 0..ROUNDS {
            for ((_, way), (post, poll)) in ways.iter_mut().zip(&mut took) {
                if let Some(round) = way.round(kind)? {
                    post.push(round.0);
                    poll.push(round.1);
                }
            }
        }
        for ((name, _), (post, poll)) in ways.iter().zip(took) {
            println!("{name} {kind_name} {:.2} {:.2}", median(post), median(poll));
        }
    }
    Ok(())
}
