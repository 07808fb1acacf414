//! Byte for byte: what bellwire posts to a ConnectX device's rings, and what libmlx5 posts there, by
//! `ibv_post_send` and by `ibv_wr_*`; and what both make of the same completion entries. In one process on
//! the stand-in for the kernel, whose device holds still, so that the rings stay as they were written.
//!
//! Worlds are random and follow from a seed. One that differs names it, and `BELLWIRE_BYTES_SEED=…` runs
//! it alone; `BELLWIRE_BYTES_WORLDS` asks for more of each kind.
//!
//! [`differ::Difference`] says in what both may differ, and why.
//!
//! Compared are, for random requests on RC, UC, UD and shared receive queues, the ring, the doorbell records
//! and the writes to the registers; for random completion entries of both sizes every field, and the bytes
//! that they scatter, with `ibv_poll_cq` and with `ibv_start_poll` of the libmlx5 that is installed.

mod compare;
mod cqe;
mod differ;
mod ours;
mod place;
mod request;
mod tally;
mod theirs;
mod world;

use bellwire::state::{AhAttr, GlobalRoute};
use bellwire::wqe::{Rc, Uc, Ud};
use bellwire::{Device, Pd, ProviderKind, Qp, QpInit};
use bellwire_tests::stand_in::StandIn;
use libtest_mimic::{Arguments, Failed, Trial};
use ours::{Compared, Named};
use request::Arena;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use tally::Tally;
use theirs::Library;
use world::{Ground, Sabotage, World};

/// What a test gives.
pub type Check<T = ()> = Result<T, Box<dyn Error>>;

/// Worlds of each transport and size of entries.
const WORLDS: u64 = 64;

/// Worlds in each of which one bit is wrong, of each kind of bit.
const WRONG: u64 = 24;

const FIRST_SEED: u64 = 0x0b17_e500_0000;

/// Why there is no stand-in.
const ABSENT: &str = "the stand-in for the kernel is not there: `cargo xtask test uverbs`";

const DEVICE: &str = "mlx5_0";
const WINDOWS: usize = 3;

fn main() -> ExitCode {
    let mut args = Arguments::from_args();
    // All are on one device, and change the environment.
    args.test_threads = Some(1);
    let mut trials = Vec::new();
    for size in [64, 128] {
        trials.push(trial::<Rc>("RC", size));
        trials.push(trial::<Uc>("UC", size));
        trials.push(trial::<Ud>("UD", size));
    }
    trials.push(Trial::test("a wrong bit is seen", || Ok(wrong_bits()?)));
    // Behind the others, whose worlds it counts.
    trials.push(Trial::test("everything was met", || {
        Ok(everything_was_met()?)
    }));
    // There is no device to compare elsewhere.
    let on_stand_in = StandIn::find().is_some();
    let trials = (trials.into_iter())
        .map(|trial| trial.with_ignored_flag(!on_stand_in))
        .collect();
    libtest_mimic::run(&args, trials).exit_code()
}

fn trial<T: Compared>(transport: &str, size: u32) -> Trial {
    let name = format!("{transport}, entries of {size} bytes");
    Trial::test(name, move || Ok::<_, Failed>(worlds::<T>(size)?))
}

/// Sets what libmlx5 reads when it opens a device, or makes a completion queue.
fn environment(size: u32) {
    // SAFETY: threads that there may be beside this one, the stand-in's device and those that wait for
    // events, do not look at the environment.
    unsafe {
        std::env::set_var("MLX5_CQE_SIZE", size.to_string());
        // Where it writes the entries of failed requests.
        std::env::set_var("MLX5_DEBUG_FILE", "/dev/null");
    }
}

/// `shared`: our queue pairs find no register that is not somebody's.
fn ground(size: u32, shared: bool) -> Check<Ground> {
    environment(size);
    let device = Device::open(DEVICE)?;
    if device.provider() != ProviderKind::Mlx5 {
        return Err("the device's rings are not driven: see Device::open".into());
    }
    let addresses = addresses();
    let library = Library::open(DEVICE, &addresses, WINDOWS)?;
    // What is posted stays as it was posted, and what completes is the test's to say.
    StandIn::find().ok_or(ABSENT)?.order("pause")?;
    let pd = device.alloc_pd();
    let crowd = match shared {
        true => crowd(&pd)?,
        false => Vec::new(),
    };
    let handles = addresses.iter().map(|attr| pd.create_ah(attr));
    Ok(Ground {
        named: Named {
            ahs: handles.collect::<Result<_, _>>()?,
            windows: library.windows(),
            lkey: library.lkey(),
        },
        pd,
        library,
        arena: Arena::new(),
        crowd,
    })
}

/// As many queue pairs as there are registers.
fn crowd(pd: &Pd) -> Check<Vec<Qp>> {
    let mut cq = pd.device().create_cq(16)?;
    let init = QpInit {
        reserve_cq: false,
        ..QpInit::default()
    };
    let mut crowd = Vec::new();
    loop {
        let mut qp = pd.create_qp(&mut cq, &init)?;
        let last = qp.sq().shares_register();
        crowd.push(qp);
        if last {
            return Ok(crowd);
        }
    }
}

/// With a global route and without.
fn addresses() -> Vec<AhAttr> {
    let plain = AhAttr {
        dlid: 0x1234,
        sl: 5,
        src_path_bits: 0x55,
        static_rate: 3,
        port_num: 1,
        ..AhAttr::default()
    };
    let routed = AhAttr {
        is_global: true,
        grh: GlobalRoute {
            dgid: std::array::from_fn(|at| 0xa0 + at as u8),
            flow_label: 0xf_1234,
            sgid_index: 0,
            hop_limit: 63,
            traffic_class: 0x77,
        },
        ..plain
    };
    vec![
        AhAttr {
            port_num: 1,
            ..AhAttr::default()
        },
        plain,
        routed,
    ]
}

/// A number in the environment, in tens or with `0x`.
fn asked(variable: &str) -> Check<Option<u64>> {
    let Ok(text) = std::env::var(variable) else {
        return Ok(None);
    };
    let number = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    Ok(Some(
        number.map_err(|error| format!("{variable}: {error}"))?,
    ))
}

/// What all worlds have met.
static MET: Mutex<Option<Tally>> = Mutex::new(None);

fn met(tally: Tally) {
    let mut met = MET.lock().unwrap_or_else(PoisonError::into_inner);
    met.get_or_insert_default().add(tally);
}

/// Runs the world of a seed to its end.
fn run<T: Compared>(ground: &Ground, seed: u64, size: u32, tally: &mut Tally) -> Check {
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::<T>::new(ground, seed, size, None, tally)?;
        world.live()?;
        world.end()
    }));
    let error = match lived {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "panicked, see above".to_owned(),
    };
    Err(format!(
        "world {seed:#x}: {error}\nalone: BELLWIRE_BYTES_SEED={seed:#x}, see CONTRIBUTING.md"
    )
    .into())
}

fn worlds<T: Compared>(size: u32) -> Check {
    let ground = ground(size, size == 128)?;
    let mut tally = Tally::default();
    let seeds = match asked("BELLWIRE_BYTES_SEED")? {
        Some(seed) => seed..seed + 1,
        None => FIRST_SEED..FIRST_SEED + asked("BELLWIRE_BYTES_WORLDS")?.unwrap_or(WORLDS),
    };
    for seed in seeds {
        run::<T>(&ground, seed, size, &mut tally)?;
    }
    println!(
        "\nreport: {:?}, entries of {size} bytes: {}",
        T::TYPE,
        tally.line()
    );
    met(tally);
    Ok(())
}

/// Each bit that is changed on one side makes a difference.
fn wrong_bits() -> Check {
    for size in [64, 128] {
        let ground = ground(size, false)?;
        for sabotage in Sabotage::ALL {
            let mut struck = 0;
            for seed in FIRST_SEED..FIRST_SEED + WRONG {
                let mut tally = Tally::default();
                let mut world = World::<Rc>::new(&ground, seed, size, Some(sabotage), &mut tally)?;
                let lived = world.live();
                if world.struck() == lived.is_ok() {
                    return Err(format!("{sabotage:?} in world {seed:#x}: {lived:?}").into());
                }
                struck += u64::from(world.struck());
                world.end()?;
            }
            if struck < WRONG / 2 {
                return Err(format!("{sabotage:?} struck {struck} times").into());
            }
        }
    }
    Ok(())
}

fn everything_was_met() -> Check {
    let met = MET.lock().unwrap_or_else(PoisonError::into_inner);
    match &*met {
        // Some were left out.
        _ if asked("BELLWIRE_BYTES_SEED")?.is_some() => Ok(()),
        Some(met) => met.idles_nowhere(),
        None => Err("no world was run before".into()),
    }
}
