//! Sleeping until a link has to be polled.
//!
//! The software HCA's completions ring the link's bell. An asynchronous event rings the bells of the links
//! that it concerns: when it is raised (`Mailboxes`) or, if it is the kernel's, when the thread that waits
//! for the context's descriptor takes it (`Watcher`). A listener of the communication manager has such a
//! thread for its links, too. A poll that changes what was armed, or leaves something to do, rings the
//! link's own bell.
//!
//! A link sleeps on one epoll of descriptors that are its own: its bell (an eventfd), its exchange's descriptor, a
//! timer, and a kernel's completion channel. Descriptors that several links share are in none, because Linux limits
//! how many epolls may wait for one. The waker publishes first, then rings; the sleeper silences the bell first,
//! then looks. So no wake-up is lost.

use super::exchange::Exchange;
use crate::cq::Cq;
use crate::device::Device;
use crate::error::Error;
use crate::event::{Bell, CompChannel, Timer};
use rustix::event::epoll;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

/// What wakes a program that sleeps on a link, as kept with the link's state.
#[derive(Clone, Debug)]
pub(super) struct Wake {
    /// All completion queues of the link are created on it.
    pub channel: CompChannel,
    /// Rung by the software HCA's completions and events, by the link or thread that takes an event or a
    /// message for this link, by the end of a recovery in a thread, and by polls that leave something to
    /// do.
    pub bell: Arc<Bell>,
}

/// Whether the program has armed the link, and the bell that wakes it then.
#[derive(Debug)]
pub(super) struct Armed {
    bell: Arc<Bell>,
    armed: bool,
}

impl Armed {
    fn new(bell: Arc<Bell>) -> Self {
        let armed = false;
        Self { bell, armed }
    }

    /// Called before the program polls for the last time: any ring from here on wakes it.
    fn arm(&mut self) {
        self.armed = true;
        self.bell.silence();
    }

    /// Called after a poll, or after another change by the program. `changed`: the completion queue may
    /// not be the one that was armed, the link's state has changed, or there is more to do. A program
    /// that has armed the link, and may be about to sleep, then has to poll it again.
    fn polled(&self, changed: bool) {
        if self.armed && changed {
            self.bell.ring();
        }
    }
}

/// The descriptor that the program sleeps on: an epoll of the bell, and of the descriptors that belong to
/// this link alone: a kernel's completion channel, the exchange's, and a timer while a deadline is
/// pending.
///
/// Descriptors that several links share are not included: the device's events and a listener's ring the
/// bells of the links that they concern.
#[derive(Debug)]
pub(super) struct Sleep {
    all: OwnedFd,
    pub wake: Wake,
    armed: Armed,
    /// Set while a deadline is pending.
    timer: Option<Timer>,
}

impl Sleep {
    /// # Errors
    /// [`Error::Io`] when the system has no descriptor left.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let bell = Arc::new(Bell::new()?);
        let channel = device.create_comp_channel_ringing(&bell)?;
        channel.set_nonblocking(true)?;
        let all = epoll::create(epoll::CreateFlags::CLOEXEC);
        let all = all.map_err(|error| Error::io("make an epoll descriptor", error.into()))?;
        watch(&all, bell.as_fd(), 0)?;
        if !channel.rings(&bell) {
            watch(&all, channel.as_fd(), 0)?;
        }
        Ok(Self {
            all,
            armed: Armed::new(bell.clone()),
            wake: Wake { channel, bell },
            timer: None,
        })
    }

    /// Wakes for messages of the exchange, too.
    pub fn listen(&self, exchange: &mut dyn Exchange) -> Result<(), Error> {
        match exchange.set_waker(Waker::from(self.wake.bell.clone()))? {
            true => Ok(()),
            false => exchange.fd().map_or(Ok(()), |fd| self.watch(fd)),
        }
    }

    /// Wakes for a descriptor, too.
    pub fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), Error> {
        watch(&self.all, fd, 0)
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }

    /// Clears the wakeups so far, and requests notification of the next completion of each queue.
    pub fn arm<'a>(&mut self, cqs: impl IntoIterator<Item = &'a mut Cq>) -> Result<(), Error> {
        self.armed.arm();
        self.timer.iter().for_each(Timer::silence);
        while let Some(event) = self.wake.channel.next()? {
            event.ack();
        }
        cqs.into_iter().try_for_each(|cq| cq.req_notify(false))
    }

    pub fn is_armed(&self) -> bool {
        self.armed.armed
    }

    /// Wakes a program that has armed the link and may be about to sleep, to poll it again.
    pub fn poll_again(&self) {
        self.armed.polled(true);
    }

    /// Sets the time at which a program that has armed the link has to poll it; `None`: no time.
    pub fn wake_at(&mut self, at: Option<Instant>) {
        if !self.is_armed() || at.is_none() {
            self.timer = None;
            return;
        }
        if self.timer.is_none() {
            self.timer = Timer::new()
                .ok()
                .filter(|timer| watch(&self.all, timer.as_fd(), 0).is_ok());
        }
        match &self.timer {
            Some(timer) => timer.set(at),
            // The system has no descriptor: wake at once rather than sleep too long.
            None => self.wake.bell.ring(),
        }
    }
}

/// Adds a descriptor to an epoll, which names it by `data`.
pub(super) fn watch(all: &OwnedFd, fd: BorrowedFd<'_>, data: u64) -> Result<(), Error> {
    let data = epoll::EventData::new_u64(data);
    epoll::add(all, fd, data, epoll::EventFlags::IN)
        .map_err(|error| Error::io("watch a descriptor of a link", error.into()))
}

#[cfg(all(test, loom))]
mod loom_models {
    use super::*;
    use bellwire_provider::event::wait;
    use loom::sync::Mutex;
    use loom::thread;
    use std::time::Duration;

    /// A completion queue, armed the way `soft::arm` does it.
    #[derive(Default)]
    struct Queue {
        armed: bool,
        entries: u32,
    }

    /// What the owner of a link shares with other threads: messages of its peer, or the result of the
    /// thread that recovers it, after which it works; and its completion queue.
    struct World {
        bell: Arc<Bell>,
        said: Mutex<bool>,
        queue: Mutex<Queue>,
    }

    impl World {
        fn say(&self) {
            *self.said.lock().unwrap() = true;
            self.bell.ring();
        }

        fn complete(&self) {
            let mut queue = self.queue.lock().unwrap();
            queue.entries += 1;
            if std::mem::take(&mut queue.armed) {
                self.bell.ring();
            }
        }
    }

    /// A link whose program follows the documentation of `arm`.
    struct Owner {
        world: loom::sync::Arc<World>,
        armed: Armed,
        works: bool,
        polled: u32,
    }

    impl Owner {
        /// Whether the program may sleep: the bell does not ring. `changed` is how a poll maps a change
        /// of the link.
        fn turn(&mut self, changed: fn(bool) -> bool) -> bool {
            self.armed.arm();
            if self.works {
                self.world.queue.lock().unwrap().armed = true;
            }
            loop {
                let found = self.works && self.poll();
                let before = self.works;
                self.works |= *self.world.said.lock().unwrap();
                self.armed.polled(changed(before != self.works));
                if !found {
                    break;
                }
            }
            !wait(self.world.bell.as_fd(), Some(Duration::ZERO)).unwrap()
        }

        fn poll(&mut self) -> bool {
            let entries = std::mem::take(&mut self.world.queue.lock().unwrap().entries);
            self.polled += entries;
            entries != 0
        }
    }

    fn who_follows_the_text_is_woken(changed: fn(bool) -> bool) {
        loom::model(move || {
            let bell = Arc::new(Bell::new().unwrap());
            let world = loom::sync::Arc::new(World {
                bell: bell.clone(),
                said: Mutex::new(false),
                queue: Mutex::default(),
            });
            let peer = {
                let world = world.clone();
                thread::spawn(move || {
                    world.say();
                    world.complete();
                })
            };
            let armed = Armed::new(bell);
            let (works, polled) = (false, 0);
            let mut owner = Owner {
                world,
                armed,
                works,
                polled,
            };
            owner.turn(changed);
            peer.join().unwrap();
            // Everything has happened: a woken program goes on, and no program sleeps before the end.
            for _ in 0..3 {
                let rings = wait(owner.world.bell.as_fd(), Some(Duration::ZERO)).unwrap();
                if !rings || owner.turn(changed) {
                    break;
                }
            }
            assert!(owner.works && owner.polled == 1, "slept through");
        });
    }

    #[test]
    fn loom_who_arms_polls_and_sleeps_is_woken_whatever_becomes_of_the_link() {
        who_follows_the_text_is_woken(|changed| changed);
    }

    /// The model fails if a poll in which the link starts to work does not ring the bell.
    #[test]
    #[should_panic(expected = "slept through")]
    fn loom_a_change_has_to_wake() {
        who_follows_the_text_is_woken(|_| false);
    }
}
