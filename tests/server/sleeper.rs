//! Links in one epoll: what a program does that sleeps where none of them has anything.

use crate::client::monotonic;
use crate::message::{BYTES, Message};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{Exchange, Link, LinkEnd, LinkInit, LinkState};
use bellwire::memory::Mapping;
use bellwire::wqe::Send;
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, ClassLayout, Pd, QpInit, Region, Slab};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Receives of a link.
const RECEIVES: u64 = 4;

/// Sends of a link, of which the last is signalled.
const SENDS: u64 = 4;

/// Links by numbers of their own, and the epoll that has the descriptor of each.
pub struct Sleeper {
    epoll: OwnedFd,
    links: HashMap<u64, Sleeping>,
    next: u64,
    slab: Slab,
    pub wakes: u64,
}

struct Sleeping {
    link: Link,
    /// What is to be said when the link takes it.
    unsaid: VecDeque<Message>,
    sent: u64,
    ready: bool,
}

/// What one link has met.
pub enum News {
    Ready,
    Message(Message),
    Ended(LinkEnd),
}

fn init() -> LinkInit {
    LinkInit {
        qp: QpInit {
            max_send_wr: 8,
            max_recv_wr: RECEIVES as u32,
            max_inline_data: BYTES as u32,
            ..QpInit::default()
        },
        waitable: true,
        ..LinkInit::default()
    }
}

impl Sleeper {
    /// For so many links at the most.
    pub fn new(pd: &Pd, links: u64) -> Self {
        // SAFETY: takes a number.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        let layout = [ClassLayout {
            size: 64,
            count: (links * RECEIVES) as u32,
        }];
        let bytes = Slab::bytes(&layout).expect("a layout");
        let mapping = Mapping::anonymous(bytes).build().expect("memory");
        let region = Region::new(pd, mapping, AccessFlags::LOCAL_WRITE).expect("a region");
        Self {
            // SAFETY: just made, and nobody else's.
            epoll: unsafe { OwnedFd::from_raw_fd(fd) },
            links: HashMap::new(),
            next: 0,
            slab: Slab::new(region, &layout).expect("a slab"),
            wakes: 0,
        }
    }

    /// Another link, by its number.
    pub fn add(&mut self, pd: &Pd, exchange: impl Exchange + 'static) -> u64 {
        let mut link = Link::new(pd, init(), exchange).expect("a link");
        for wr_id in 0..RECEIVES {
            let block = self.slab.take(BYTES as u32).expect("a block");
            link.post_recv_block(wr_id, block).expect("room");
        }
        link.ring_recv();
        let number = self.next;
        self.next += 1;
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: number,
        };
        let fd = link.fd().expect("asked for").as_raw_fd();
        // SAFETY: open descriptors, and one entry.
        let added =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        let error = std::io::Error::last_os_error();
        assert_eq!(added, 0, "link {number}: {error}");
        let sleeping = Sleeping {
            link,
            unsaid: VecDeque::new(),
            sent: 0,
            ready: false,
        };
        self.links.insert(number, sleeping);
        // Before the program sleeps for the first time.
        self.see_to(number, &mut |_, _| None);
        number
    }

    pub fn count(&self) -> usize {
        self.links.len()
    }

    /// Sleeps until some links want to be polled, and polls these. `heard` is given what they have met,
    /// and returns the answer to send, if there is one.
    pub fn turn(&mut self, timeout: Duration, mut heard: impl FnMut(u64, News) -> Option<Message>) {
        const AT_ONCE: usize = 64;
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; AT_ONCE];
        // SAFETY: as many entries.
        let count = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                events.as_mut_ptr(),
                AT_ONCE as i32,
                timeout.as_millis() as i32,
            )
        };
        for event in &events[..count.max(0) as usize] {
            self.wakes += 1;
            self.see_to(event.u64, &mut heard);
        }
    }

    /// Arms a link, and polls it until it finds nothing.
    fn see_to(&mut self, number: u64, heard: &mut dyn FnMut(u64, News) -> Option<Message>) {
        let Some(sleeping) = self.links.get_mut(&number) else {
            return;
        };
        sleeping.link.arm().expect("armed");
        let mut received = Vec::new();
        loop {
            let found = sleeping.link.poll(16, |completion| {
                assert_eq!(
                    completion.outcome == Outcome::Done,
                    completion.success.is_some()
                );
                if completion.is_recv() && completion.outcome == Outcome::Done {
                    received.push((completion.wr_id, completion.block.expect("posted with one")));
                }
            });
            for (wr_id, block) in received.drain(..) {
                let message = Message::of(block.as_slice());
                if sleeping.link.post_recv_block(wr_id, block).is_ok() {
                    sleeping.link.ring_recv();
                }
                let answer = heard(number, News::Message(message));
                sleeping.unsaid.extend(answer);
            }
            if found == 0 {
                break;
            }
        }
        match sleeping.link.state() {
            LinkState::Ready if !sleeping.ready => {
                sleeping.ready = true;
                let first = heard(number, News::Ready);
                sleeping.unsaid.extend(first);
            }
            LinkState::Ended(end) => {
                self.links.remove(&number);
                heard(number, News::Ended(end));
                return;
            }
            _ => {}
        }
        sleeping.say_all();
    }

    /// Says something on each link that works.
    pub fn say(&mut self, mut what: impl FnMut(u64) -> Message) {
        for (number, sleeping) in &mut self.links {
            sleeping.unsaid.push_back(what(*number));
            sleeping.say_all();
        }
    }

    /// Closes the first `count` links, each when it has reported everything. Gives their numbers, and when
    /// it began.
    pub fn close(&mut self, count: usize, mut closed: impl FnMut(u64, u64)) {
        let mut numbers: Vec<u64> = self.links.keys().copied().collect();
        numbers.sort_unstable();
        for number in numbers.into_iter().take(count) {
            let mut sleeping = self.links.remove(&number).expect("listed");
            closed(number, monotonic());
            sleeping.link.drain(Duration::from_secs(5), drop);
        }
    }
}

impl Sleeping {
    fn say_all(&mut self) {
        while let Some(message) = self.unsaid.front() {
            let flags = match self.sent % SENDS {
                last if last == SENDS - 1 => SendFlags::SIGNALED,
                _ => SendFlags::empty(),
            };
            let said = (self.link).post_inline(
                self.sent,
                Send {},
                &message.to_bytes(),
                flags,
                Replay::IfSafe,
            );
            // What is not taken now waits: the link notifies when it works again, or has room.
            if said.is_err() {
                break;
            }
            self.unsaid.pop_front();
            self.sent += 1;
        }
        self.link.ring();
    }
}
