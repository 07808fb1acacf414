//! Two threads on two cores: one leads and measures, the other follows.

use super::machine::Machine;
use anyhow::{Result, anyhow};
use bellwire_examples::{Alarm, PeerGone, pin, start};
use std::sync::atomic::AtomicBool;
use std::thread::ScopedJoinHandle;

/// Runs `lead` and, on another core, `follow`.
///
/// # Errors
/// That of the thread that failed first.
pub fn duo<T: Send>(
    machine: &Machine,
    gone: &AtomicBool,
    lead: impl FnOnce() -> Result<T> + Send,
    follow: impl FnOnce() -> Result<()> + Send,
) -> Result<T> {
    let (leader_cpu, follower_cpu) = machine.cpus;
    std::thread::scope(|scope| {
        let follower = start(scope, move || on_core(follower_cpu, gone, follow))?;
        let leader = match start(scope, move || on_core(leader_cpu, gone, lead)) {
            Ok(leader) => leader,
            Err(error) => {
                // The other thread would wait for it.
                drop(Alarm::new(gone));
                return Err(error);
            }
        };
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

fn on_core<T>(cpu: usize, gone: &AtomicBool, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let alarm = Alarm::new(gone);
    pin(cpu)?;
    let done = run()?;
    alarm.disarm();
    Ok(done)
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread
        .join()
        .unwrap_or_else(|_| Err(anyhow!("a measuring thread panicked")))
}

#[cfg(test)]
mod tests {
    use super::super::page::{Order, Page};
    use super::*;

    #[test]
    fn the_cause_is_reported_not_its_consequence() {
        let (machine, page) = (Machine::find((0, 0), 0).unwrap(), Page::default());
        let gone = AtomicBool::new(false);
        let wait = machine.wait(&gone);
        let led: Result<()> = duo(
            &machine,
            &gone,
            || loop {
                page.start(Order::Op(1), wait)?;
            },
            || {
                page.next(wait, || ())?;
                Err(anyhow!("the cause"))
            },
        );
        assert_eq!(led.unwrap_err().to_string(), "the cause");
    }
}
