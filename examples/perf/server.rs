//! A server that sends each message back. The links of all its clients are in one set, which one thread polls.

use super::links::{AT_ONCE, DEPTH, Links};
use anyhow::{Context, Result};
use bellwire::Block;
use bellwire::Device;
use bellwire::connect::cm::{Listener, Retry};
use bellwire::fault::outcome::Outcome;
use bellwire::link::{LinkId, LinkState, Wait};
use bellwire_examples::start;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Polls between two looks at the listener, which takes longer than a poll.
const LISTEN_EVERY: u32 = 64;

/// How long to poll for the next message before sleeping until it comes.
const SPIN: Duration = Duration::from_millis(1);

/// The longest wait, after which the caller's wish to end is looked at.
const SLEEP: Duration = Duration::from_millis(100);

/// Sets its flag when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        // Relaxed: a flag on its own.
        self.0.store(true, Ordering::Relaxed);
    }
}

pub struct Server {
    listener: Listener,
    links: Links,
    /// Messages of one poll, to be answered: from whom, and how long.
    messages: Vec<(LinkId, Block<'static>, u32)>,
    /// Links that want another receive in the place of one that brought nothing.
    empty: Vec<LinkId>,
    turns: u32,
}

impl Server {
    /// For so many clients at a time, whose messages have up to `size` bytes.
    pub fn new(device: &Device, at: SocketAddr, links: u32, size: u32) -> Result<Self> {
        let listener = Listener::bind(device, at, links, Retry::default());
        Ok(Self {
            listener: listener.with_context(|| format!("listening on {at}"))?,
            links: Links::new(&device.alloc_pd(), links, size)?,
            messages: Vec::with_capacity(AT_ONCE),
            empty: Vec::new(),
            turns: 0,
        })
    }

    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// Serves in another thread, while `run` runs here.
    pub fn serve_while<R>(&mut self, run: impl FnOnce() -> R) -> Result<R> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let serving = start(scope, || self.serve(&over))?;
            // Also when `run` panics.
            let end = Over(&over);
            let result = run();
            drop(end);
            serving.join().expect("the server's thread")?;
            Ok(result)
        })
    }

    /// Serves until `over`.
    pub fn serve(&mut self, over: &AtomicBool) -> Result<()> {
        // Relaxed: a flag on its own.
        while !over.load(Ordering::Relaxed) {
            self.turn()?;
        }
        Ok(())
    }

    /// Waits for messages, and answers them.
    fn turn(&mut self) -> Result<()> {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(LISTEN_EVERY) {
            self.accept()?;
        }
        let (links, messages, empty) = (&mut self.links, &mut self.messages, &mut self.empty);
        let others = [self.listener.as_fd()];
        let wait = Wait {
            spin: SPIN,
            timeout: Some(SLEEP),
            others: &others,
        };
        let found = links.set.wait(AT_ONCE, &wait, |id, completion| {
            if !completion.is_recv() {
                return;
            }
            let bytes = completion.success.and_then(|success| success.byte_len());
            match (completion.outcome, completion.block, bytes) {
                (Outcome::Done, Some(block), Some(bytes)) => messages.push((id, block, bytes)),
                _ => empty.push(id),
            }
        })?;
        for id in self.empty.drain(..) {
            links.expect(id, 0)?;
        }
        for (id, block, bytes) in self.messages.drain(..) {
            // The next receive comes first: the next message may come as soon as the answer is there.
            links.expect(id, 0)?;
            // A client that does not take its answers gets no more of them.
            let _refused = links.send(id, block, bytes);
        }
        while let Some((id, state)) = links.set.next_change() {
            if matches!(state, LinkState::Ended(_)) {
                links.set.remove(id)?;
            }
        }
        if found == 0 {
            // The process that waited for the listener gets the reason.
            self.accept()?;
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<()> {
        let links = &mut self.links;
        while links.set.len() < links.set.capacity()
            && let Some(incoming) = self.listener.accept()?
        {
            let id = links.set.join(links.init(), incoming)?;
            for _ in 0..DEPTH {
                links.expect(id, 0)?;
            }
        }
        Ok(())
    }
}
