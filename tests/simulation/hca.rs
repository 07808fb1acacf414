//! The device that two links are on: the software HCA, or a ConnectX device of the stand-in for the kernel.

use bellwire::fault::plan::Limits;
use bellwire::soft::{ClockKind, HcaConfig, JournalEntry, Mode, Script};
use bellwire::{Device, ProviderKind};
use bellwire_tests::stand_in::{Executed, StandIn};
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A look at what happens in real time is so far from the next, at the most.
const PAUSE: Duration = Duration::from_micros(50);

/// A device, by the faults that it can be made to have and by its own record of what it executed.
pub struct Hca {
    pub device: Device,
    /// It runs by itself, in real time.
    real: Option<(StandIn, Instant)>,
}

impl Hca {
    /// A software HCA that executes on the thread that rings, and whose clock moves only when it is
    /// advanced.
    pub fn soft(seed: u64) -> Self {
        let device = Device::soft(HcaConfig {
            mode: Mode::Inline,
            clock: ClockKind::Virtual,
            seed: Some(seed),
            journal: true,
        });
        Self { device, real: None }
    }

    /// A new context on the ConnectX device of the stand-in, by its own rings.
    pub fn connectx() -> Self {
        let stand_in = StandIn::find().expect("to be run on the stand-in, see CONTRIBUTING.md");
        let open = || Device::open("mlx5_0").expect("the stand-in's device");
        let mut device = open();
        assert_eq!(device.provider(), ProviderKind::Mlx5);
        if device.create_cq(1).is_err() {
            // It broke: those that are opened from here on work.
            order(&stand_in, "reset");
            device = open();
        }
        // What is left of those before.
        order(&stand_in, "clear");
        order(&stand_in, "settle");
        let _ = stand_in.journal().expect("a journal");
        Self {
            device,
            real: Some((stand_in, Instant::now())),
        }
    }

    /// Whether time passes by itself, and so things happen.
    pub fn is_real(&self) -> bool {
        self.real.is_some()
    }

    /// How long the links wait for what.
    pub fn limits(&self, seed: u64) -> Limits {
        let limits = Limits {
            attempts: 6,
            settle: 20 * MS,
            backoff_first: MS,
            backoff_max: 20 * MS,
            seed,
            ..Limits::default()
        };
        match self.is_real() {
            // Who is late is on a busy machine.
            true => Limits {
                drain: SECOND,
                port: 2 * SECOND,
                exchange: SECOND,
                ready: SECOND,
                step: SECOND,
                ..limits
            },
            false => Limits {
                recovery: 5 * SECOND,
                drain: 50 * MS,
                timewait: 100 * MS,
                port: 200 * MS,
                exchange: 500 * MS,
                ready: 300 * MS,
                step: 100 * MS,
                ..limits
            },
        }
    }

    /// Moves the clock on; what it says then. Where time passes by itself it is not waited for longer than
    /// something may take to happen.
    pub fn advance(&self, now: Duration, by: Duration) -> Duration {
        match &self.real {
            None => {
                self.device.as_soft().unwrap().advance(by);
                now + by
            }
            Some((_, start)) => {
                std::thread::sleep(by.min(PAUSE));
                start.elapsed()
            }
        }
    }

    /// Returns when the device has executed what was rung, as far as it goes.
    pub fn settle(&self) {
        if let Some((stand_in, _)) = &self.real {
            order(stand_in, "settle");
        }
    }

    /// `cq_of`: the queue pair whose receives complete on this completion queue.
    ///
    /// # Errors
    /// What the device cannot be made to have: a status that no syndrome says, something that befalls a
    /// completion queue that no queue pair is on.
    pub fn inject(
        &self,
        script: &Script,
        cq_of: impl Fn(u32) -> Option<u32>,
    ) -> std::io::Result<()> {
        match &self.real {
            None => self
                .device
                .as_soft()
                .unwrap()
                .inject(script)
                .map_err(std::io::Error::other),
            Some((stand_in, _)) => stand_in.inject(script, cq_of),
        }
    }

    pub fn clear_faults(&self) {
        match &self.real {
            None => self.device.as_soft().unwrap().clear_faults(),
            Some((stand_in, _)) => order(stand_in, "clear"),
        }
    }

    pub fn port_up(&self) {
        match &self.real {
            None => self.device.as_soft().unwrap().set_port_up(true),
            Some((stand_in, _)) => order(stand_in, "now port-up"),
        }
    }

    /// What was executed since this was last asked for.
    pub fn journal(&self) -> Vec<Executed> {
        if let Some((stand_in, _)) = &self.real {
            return stand_in.journal().expect("it was asked to keep one");
        }
        let entries = self
            .device
            .as_soft()
            .unwrap()
            .journal()
            .expect("it was asked to keep one");
        let executed = entries.into_iter().filter_map(|entry| match entry {
            JournalEntry::Executed {
                request,
                opcode,
                bytes,
                receive,
                ..
            } => Some(Executed {
                qp_num: request.qp_num,
                opcode,
                bytes,
                receive,
            }),
            _ => None,
        });
        executed.collect()
    }
}

fn order(stand_in: &StandIn, command: &str) {
    (stand_in.order(command)).unwrap_or_else(|error| panic!("{command}: {error}"));
}
