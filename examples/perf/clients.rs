//! Clients of a server: each sends a message, and the next one when it is answered.

use super::links::{AT_ONCE, Links, patience};
use super::stats::{Percentiles, Samples};
use anyhow::{Result, bail, ensure};
use bellwire::Device;
use bellwire::connect::cm::{Connector, Retry};
use bellwire::fault::outcome::Outcome;
use bellwire::link::{LinkId, LinkState};
use bellwire_examples::Progress;
use serde::Serialize;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// How long an answer may take.
const TO_ANSWER: Duration = Duration::from_secs(20);

/// After this time the bar of a measurement goes on.
pub const STEP: Duration = Duration::from_millis(100);

/// What so many clients measured.
#[derive(Clone, Debug, Serialize)]
pub struct OfClients {
    /// How many there were.
    pub clients: u32,
    /// Answers of a second, to all of them.
    pub per_second: f64,
    /// From sending a message to its answer, nanoseconds.
    pub single: Percentiles,
}

/// Clients that are connected with a server.
pub struct Clients {
    links: Links,
    ids: Vec<LinkId>,
}

impl Clients {
    /// Connects so many, whose messages have `size` bytes, and has each answered once.
    pub fn connect(
        device: &Device,
        server: SocketAddr,
        count: u32,
        size: u32,
        progress: &Progress,
    ) -> Result<Self> {
        progress.say("connecting".to_owned());
        let mut links = Links::new(&device.alloc_pd(), count, size)?;
        // Many connect one after the other, and one finds at once that there is no server.
        let retry = Retry {
            attempts: 1 + count / 100,
            ..Retry::default()
        };
        let connector = Connector::new(device, server, retry);
        let mut ids = Vec::new();
        for index in 0..count {
            let id = links.set.join(links.init(), connector.exchange()?)?;
            links.expect(id, index.into())?;
            ids.push(id);
        }
        let (start, mut ready) = (Instant::now(), 0);
        while ready < ids.len() {
            links.set.poll(AT_ONCE, |_, _| ());
            while let Some((id, state)) = links.set.next_change() {
                match state {
                    LinkState::Ready => {
                        ready += 1;
                        progress.add(1);
                        let peer = links.set.link(id)?.peer_memory();
                        let room = peer.map_or(0, |memory| memory.length);
                        ensure!(
                            u64::from(size) <= room,
                            "the server takes messages of up to {room} bytes: give a smaller --size, or \
                             start it with --size {size}"
                        );
                    }
                    LinkState::Ended(end) => bail!(
                        "{ready} of {count} clients are connected to {server}, and one is not: {end}; see \
                         whether `perf serve` runs there, on the same device, with room for all (--links)"
                    ),
                    _ => ready -= 1,
                }
            }
            ensure!(
                start.elapsed() < patience(count),
                "{ready} of {count} clients are connected to {server}, which has no room for more: give it \
                 more (--links), or end other clients"
            );
        }
        let mut clients = Self { links, ids };
        // The first message of a link takes longer.
        clients.measure(count, Duration::ZERO, progress)?;
        Ok(clients)
    }

    /// Measures with the first `count` of them: for this time, and until the last is answered. Each [`STEP`] is a step
    /// of the bar.
    pub fn measure(
        &mut self,
        count: u32,
        time: Duration,
        progress: &Progress,
    ) -> Result<OfClients> {
        let mut steps = 0;
        let mut samples = Samples::new();
        let start = Instant::now();
        let mut asked = vec![start; count as usize];
        let mut answers: Vec<u64> = Vec::with_capacity(AT_ONCE);
        for index in 0..u64::from(count) {
            asked[index as usize] = Instant::now();
            self.ask(index)?;
        }
        let (mut waiting, mut last) = (count, start);
        while waiting != 0 {
            let mut lost = None;
            self.links.set.poll(AT_ONCE, |_, completion| {
                match (completion.is_recv(), completion.outcome) {
                    (true, Outcome::Done) => answers.push(completion.wr_id),
                    (_, Outcome::Done) => {}
                    (_, outcome) => lost = Some(outcome),
                }
            });
            while let Some((_, state)) = self.links.set.next_change() {
                if let LinkState::Ended(end) = state {
                    bail!("a client has lost the server: {end}");
                }
            }
            if let Some(lost) = lost {
                bail!("a request of a client was not done: {lost:?}");
            }
            if answers.is_empty() {
                ensure!(
                    last.elapsed() < TO_ANSWER,
                    "{waiting} clients have no answer after {} s",
                    TO_ANSWER.as_secs()
                );
                continue;
            }
            last = Instant::now();
            let now = (last.duration_since(start).min(time).as_nanos() / STEP.as_nanos()) as u64;
            if now != steps {
                progress.add(now - steps);
                steps = now;
            }
            let over = last.duration_since(start) >= time;
            for index in answers.drain(..) {
                let took = last.duration_since(asked[index as usize]);
                samples.record(took.as_nanos() as u64);
                self.links.expect(self.ids[index as usize], index)?;
                if over {
                    waiting -= 1;
                } else {
                    asked[index as usize] = Instant::now();
                    self.ask(index)?;
                }
            }
        }
        let single = samples.percentiles(1.0);
        Ok(OfClients {
            clients: count,
            per_second: single.samples as f64 / last.duration_since(start).as_secs_f64(),
            single,
        })
    }

    fn ask(&mut self, index: u64) -> Result<()> {
        let block = self.links.block()?;
        let size = self.links.size();
        self.links.send(self.ids[index as usize], block, size)
    }
}

/// The heading that belongs to [`row`].
pub fn heading() -> String {
    format!(
        "{:>8} {:>12} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "clients", "answers/s", "min", "median", "99%", "99.9%", "max"
    )
}

/// One line of the table: answers of a second, and microseconds.
pub fn row(of: &OfClients) -> String {
    let single = &of.single;
    let mut line = format!("{:>8} {:>12.0}", of.clients, of.per_second);
    let columns = [
        single.min,
        single.median,
        single.p99,
        single.p999,
        single.max,
    ];
    for ns in columns {
        line += &format!(" {:>9.1}", ns / 1e3);
    }
    line
}

/// What the columns of the table are.
pub const LEGEND: &str = "\
Times in us, from sending a message to its answer; each client has one message under way. All clients of this
process are on one thread, so with many of them a message waits for those of the others.";

#[cfg(test)]
mod tests {
    use super::super::server::Server;
    use super::*;

    const SIZE: u32 = 256;

    /// Passes a device and the address of a server for four clients, until it returns.
    fn with_server(run: impl FnOnce(&Device, SocketAddr)) {
        let device = Device::open("soft").unwrap();
        let at = "127.0.0.1:0".parse().unwrap();
        let mut server = Server::new(&device, at, 4, SIZE).unwrap();
        let at = SocketAddr::new(at.ip(), server.port());
        server.serve_while(|| run(&device, at)).unwrap();
    }

    #[test]
    fn each_is_answered() {
        with_server(|device, at| {
            let none = Progress::new(0, "");
            let mut clients = Clients::connect(device, at, 4, SIZE, &none).unwrap();
            for count in [1, 3, 4] {
                let time = Duration::from_millis(20);
                let of = clients.measure(count, time, &none).unwrap();
                assert!(of.single.samples >= count.into() && of.per_second > 0.0);
                assert_eq!(row(&of).len(), heading().len());
                // The server sleeps.
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(clients);
            // There is room again.
            Clients::connect(device, at, 4, 1, &none).unwrap();
        });
    }

    #[test]
    fn messages_have_to_fit() {
        with_server(|device, at| {
            let none = Progress::new(0, "");
            let error = Clients::connect(device, at, 1, SIZE + 1, &none);
            let error = error.err().unwrap();
            assert!(error.to_string().contains("--size 257"), "{error}");
        });
    }
}
