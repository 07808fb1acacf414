//! A clock cheap enough to time single operations, and what a reading of it costs.

use std::time::{Duration, Instant};

/// How long the counter is compared with the machine's clock.
const CALIBRATION: Duration = Duration::from_millis(20);

/// A counter and its rate.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    counter: Counter,
    /// Nanoseconds of a tick.
    pub tick: f64,
    /// Nanoseconds that a reading takes. Each sample has one in it.
    pub cost: f64,
}

#[derive(Clone, Copy, Debug)]
enum Counter {
    /// The processor's time stamp counter, which does not stop and keeps its rate.
    #[cfg(target_arch = "x86_64")]
    Tsc,
    /// [`Instant`], counted from here.
    Instant(Instant),
}

impl Counter {
    fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::__cpuid;
            const POWER: u32 = 0x8000_0007;
            const INVARIANT_TSC: u32 = 1 << 8;
            // An older Rust has `__cpuid` as an unsafe function.
            #[allow(unused_unsafe, reason = "unsafe before Rust 1.94 only")]
            // SAFETY: every x86-64 has the instruction.
            let invariant = unsafe {
                __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx & INVARIANT_TSC != 0
            };
            if invariant {
                return Self::Tsc;
            }
        }
        Self::Instant(Instant::now())
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Tsc => {
                #[allow(unused_unsafe, reason = "unsafe before some Rust only")]
                // SAFETY: every x86-64 has both. The fence keeps the reading behind earlier instructions.
                unsafe {
                    std::arch::x86_64::_mm_lfence();
                    std::arch::x86_64::_rdtsc()
                }
            }
            Self::Instant(start) => start.elapsed().as_nanos() as u64,
        }
    }
}

impl Clock {
    /// Finds the clock, its rate and its cost. Takes 20 ms.
    pub fn calibrate() -> Self {
        let counter = Counter::best();
        let tick = match counter {
            #[cfg(target_arch = "x86_64")]
            Counter::Tsc => {
                let (wall, from) = (Instant::now(), counter.now());
                while wall.elapsed() < CALIBRATION {}
                let ticks = counter.now() - from;
                wall.elapsed().as_nanos() as f64 / ticks.max(1) as f64
            }
            Counter::Instant(_) => 1.0,
        };
        let mut clock = Self {
            counter,
            tick,
            cost: 0.0,
        };
        clock.cost = clock.measure_cost();
        clock
    }

    /// The fastest of many runs of readings: the one that nothing disturbed.
    fn measure_cost(&self) -> f64 {
        const READINGS: u64 = 1000;
        let run = || {
            let from = self.now();
            for _ in 0..READINGS {
                std::hint::black_box(self.now());
            }
            self.now() - from
        };
        let ticks = (0..50).map(|_| run()).min().unwrap_or(0);
        ticks as f64 * self.tick / READINGS as f64
    }

    /// The counter.
    #[inline(always)]
    pub fn now(&self) -> u64 {
        self.counter.now()
    }

    /// For people.
    pub fn name(&self) -> String {
        match self.counter {
            #[cfg(target_arch = "x86_64")]
            Counter::Tsc => format!("rdtsc at {:.0} MHz", 1e3 / self.tick),
            Counter::Instant(_) => "std::time::Instant".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_the_machine() {
        let clock = Clock::calibrate();
        let (wall, from) = (Instant::now(), clock.now());
        std::thread::sleep(Duration::from_millis(50));
        let ticks = clock.now() - from;
        let (ours, theirs) = (ticks as f64 * clock.tick, wall.elapsed().as_nanos() as f64);
        // The readings are not at the same moment: a busy machine may lie between them.
        assert!(
            ours <= theirs * 1.01 && ours >= 45e6,
            "{ours} against {theirs}"
        );
        assert!(clock.cost > 0.0 && clock.cost < 1e4, "{}", clock.cost);
    }
}
