//! Two threads on two cores: one leads and measures, the other follows.

use super::machine::Machine;
use anyhow::{Result, anyhow};
use bellwire_examples::{Alarm, PeerGone, Wait, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::ScopedJoinHandle;

/// The leader's hold on the follower.
#[derive(Debug)]
pub struct Follower<'a, C> {
    commands: Sender<C>,
    sent: u64,
    taken: &'a AtomicU64,
    wait: Wait<'a>,
}

impl<C> Follower<'_, C> {
    /// Makes the follower do something. When this returns it has begun, and is polling.
    ///
    /// # Errors
    /// [`PeerGone`].
    pub fn start(&mut self, command: C) -> Result<(), PeerGone> {
        self.commands.send(command).map_err(|_| PeerGone)?;
        self.sent += 1;
        let (sent, taken) = (self.sent, self.taken);
        // Acquire: partner of the release in `follow`.
        self.wait
            .until(|| (taken.load(Ordering::Acquire) == sent).then_some(()))
    }
}

/// Runs `lead` and, on another core, `follow` for each command, until `lead` returns.
///
/// # Errors
/// That of the thread that failed first.
pub fn duo<C: Send, T: Send>(
    machine: &Machine,
    gone: &AtomicBool,
    lead: impl FnOnce(&mut Follower<'_, C>) -> Result<T> + Send,
    follow: impl FnMut(C) -> Result<()> + Send,
) -> Result<T> {
    let wait = machine.wait(gone);
    let taken = &AtomicU64::new(0);
    let (commands, orders) = channel();
    let (leader_cpu, follower_cpu) = machine.cpus;
    std::thread::scope(|scope| {
        let follower = scope.spawn(move || {
            let alarm = Alarm::new(gone);
            pin(follower_cpu)?;
            follow_orders(orders, taken, wait, follow)?;
            alarm.disarm();
            Ok(())
        });
        let leader = scope.spawn(move || {
            let alarm = Alarm::new(gone);
            pin(leader_cpu)?;
            let mut hold = Follower {
                commands,
                sent: 0,
                taken,
                wait,
            };
            let led = lead(&mut hold)?;
            alarm.disarm();
            Ok(led)
        });
        let (led, followed) = (join(leader), join(follower));
        // Of two errors the one that is not about the other thread is the cause.
        match (led, followed) {
            (Ok(led), Ok(())) => Ok(led),
            (Err(error), Ok(())) | (Ok(_), Err(error)) => Err(error),
            (Err(error), Err(other)) if error.is::<PeerGone>() => Err(other),
            (Err(error), Err(_)) => Err(error),
        }
    })
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(anyhow!("a measuring thread panicked")))
}

fn follow_orders<C>(
    orders: Receiver<C>,
    taken: &AtomicU64,
    wait: Wait<'_>,
    mut follow: impl FnMut(C) -> Result<()>,
) -> Result<()> {
    loop {
        // Polled, not slept for: a thread that has to be woken starts late.
        let order = wait.until(|| match orders.try_recv() {
            Ok(command) => Some(Some(command)),
            Err(TryRecvError::Disconnected) => Some(None),
            Err(TryRecvError::Empty) => None,
        })?;
        let Some(command) = order else { return Ok(()) };
        // Release: partner of the acquire in `Follower::start`.
        taken.fetch_add(1, Ordering::Release);
        follow(command)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine::find(0).unwrap()
    }

    #[test]
    fn every_command_is_followed_in_order() {
        let gone = AtomicBool::new(false);
        let mut seen = Vec::new();
        let led = duo(
            &machine(),
            &gone,
            |follower| {
                for n in 0..100 {
                    follower.start(n)?;
                }
                Ok("led")
            },
            |n| {
                seen.push(n);
                Ok(())
            },
        );
        assert_eq!(led.unwrap(), "led");
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn the_cause_is_told_not_its_consequence() {
        let gone = AtomicBool::new(false);
        let led: Result<()> = duo(
            &machine(),
            &gone,
            |follower| {
                loop {
                    follower.start(())?;
                }
            },
            |()| Err(anyhow!("the cause")),
        );
        assert_eq!(led.unwrap_err().to_string(), "the cause");
    }
}
