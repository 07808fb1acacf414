//! Which processors there are, and staying on one.

use anyhow::{Context, Result};
use std::io;

/// The processors that this process may run on, in the order of their numbers.
///
/// # Errors
/// What sched_getaffinity(2) answers.
pub fn allowed() -> Result<Vec<usize>> {
    // SAFETY: a set is plain bits, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is a valid place for the answer, of the size given.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    if result != 0 {
        return Err(io::Error::last_os_error()).context("asking for the processors allowed");
    }
    let count = libc::CPU_SETSIZE as usize;
    // SAFETY: the numbers are below CPU_SETSIZE.
    Ok((0..count)
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) })
        .collect())
}

/// Two of `allowed` for two threads that talk to each other: two cores of one package where there
/// are, rather than two hardware threads of one core. The same one twice when there is only one.
pub fn pick(allowed: &[usize]) -> (usize, usize) {
    let first = allowed.first().copied().unwrap_or(0);
    let topology = |cpu: usize, what: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{what}");
        std::fs::read_to_string(path).unwrap_or_default()
    };
    let same = |cpu: usize, what: &str| topology(cpu, what) == topology(first, what);
    let others = || allowed.iter().copied().skip(1);
    let neighbour = others()
        .find(|&cpu| same(cpu, "physical_package_id") && !same(cpu, "thread_siblings"))
        .or_else(|| others().next());
    (first, neighbour.unwrap_or(first))
}

/// Keeps the calling thread on one processor.
///
/// # Errors
/// What sched_setaffinity(2) answers.
pub fn pin(cpu: usize) -> Result<()> {
    // SAFETY: as in `allowed`.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the number comes from `allowed`, so it is below CPU_SETSIZE.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is valid, of the size given.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
    if result != 0 {
        return Err(io::Error::last_os_error()).context(format!("pinning a thread to core {cpu}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_has_one_processor() {
        std::thread::spawn(|| {
            let last = *allowed().unwrap().last().unwrap();
            pin(last).unwrap();
            assert_eq!(allowed().unwrap(), [last]);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn two_are_picked_where_there_are_two() {
        assert_eq!(pick(&[3]), (3, 3));
        let (a, b) = pick(&[0, 1]);
        assert_ne!(a, b);
    }
}
