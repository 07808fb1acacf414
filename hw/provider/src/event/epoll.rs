//! Waiting on an epoll(7) descriptor.

use rustix::event::epoll::Event;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Bytes of the kernel's signal mask.
const MASK: usize = 8;

// The kernel writes its own structure.
const _: () = assert!(size_of::<Event>() == size_of::<libc::epoll_event>());

/// Waits until a descriptor of `epoll` is ready, and returns the first that are. Waits `within` this time, in whole
/// milliseconds rounded up; `None`: without a limit.
///
/// rustix's `epoll::wait` leaves the last argument of the system call, the size of the mask, undefined. memcheck reports
/// that in each program. Not a cancellation point.
///
/// # Errors
/// Those of epoll_wait(2); `Interrupted` after a signal.
pub fn epoll_wait<'a>(
    epoll: BorrowedFd<'_>,
    ready: &'a mut [MaybeUninit<Event>],
    within: Option<Duration>,
) -> io::Result<&'a mut [Event]> {
    let milliseconds = within.map_or(-1, |within| {
        i32::try_from(within.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    });
    let most = i32::try_from(ready.len()).unwrap_or(i32::MAX);
    // SAFETY: the descriptor is open, the events are a valid place for `most` of them, and there is no mask.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait,
            epoll.as_raw_fd(),
            ready.as_mut_ptr(),
            most,
            milliseconds,
            std::ptr::null::<libc::sigset_t>(),
            MASK,
        )
    };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has written so many.
    Ok(unsafe { std::slice::from_raw_parts_mut(ready.as_mut_ptr().cast(), count) })
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, epoll, eventfd};
    use std::os::fd::AsFd;

    #[test]
    fn ready_descriptors_are_returned_up_to_the_room() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut room = [const { MaybeUninit::uninit() }; 2];
        let at_once = Some(Duration::ZERO);
        assert_eq!(
            epoll_wait(epoll.as_fd(), &mut room, at_once).unwrap().len(),
            0
        );
        let bells = [7, 8, 9].map(|key| {
            let bell = eventfd(1, EventfdFlags::CLOEXEC).unwrap();
            let data = epoll::EventData::new_u64(key);
            epoll::add(&epoll, &bell, data, epoll::EventFlags::IN).unwrap();
            bell
        });
        let ready = epoll_wait(epoll.as_fd(), &mut room, None).unwrap();
        let keys: Vec<_> = ready.iter().map(|event| event.data.u64()).collect();
        assert_eq!(keys, [7, 8]);
        let flags = ready[0].flags;
        assert_eq!(flags, epoll::EventFlags::IN);
        drop(bells);
    }

    #[test]
    fn a_limit_is_rounded_up_and_errors_are_reported() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut room = [const { MaybeUninit::uninit() }; 1];
        let start = std::time::Instant::now();
        let within = Duration::from_micros(1500);
        assert!(
            epoll_wait(epoll.as_fd(), &mut room, Some(within))
                .unwrap()
                .is_empty()
        );
        assert!(start.elapsed() >= within);
        let no_epoll = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let waited = epoll_wait(no_epoll.as_fd(), &mut room, None).map(drop);
        let error = waited.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }
}
