//! A log in files of two replicas, which goes on when one of them is killed, and brings it up to date when it returns.
//!
//! ```text
//! log replica FABRIC PORT FILE       keeps the records, one a line
//! log primary FABRIC PORT PORT       each line of the standard input is a record
//! ```

use bellwire::connect::cm::{Connector, Listener, Retry};
use bellwire::fault::outcome::{Outcome, Replay};
use bellwire::link::{Link, LinkInit, LinkSet, LinkSetInit, LinkSetSrq, LinkState, Wait};
use bellwire::wqe::Send;
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, Block, ClassLayout, Device, Pd, Region, Slab};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write, stdin};
use std::os::fd::AsFd;
use std::sync::mpsc::{TryRecvError, channel};

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Bytes of a message: the record's number, and the record.
const MESSAGE: u32 = 512;
/// Records that a replica has not acknowledged, at most.
const WINDOW: u64 = 32;

fn main() -> Result {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["replica", fabric, port, file] => replica(fabric, port.parse()?, file),
        ["primary", fabric, one, two] => primary(fabric, [one.parse()?, two.parse()?]),
        _ => Err("usage: log replica FABRIC PORT FILE | log primary FABRIC PORT PORT".into()),
    }
}

fn slab(pd: &Pd, count: u32) -> Result<Slab> {
    let layout = [ClassLayout {
        size: MESSAGE,
        count,
    }];
    let mapping = pd.device().mapping(Slab::bytes(&layout)?).build()?;
    let region = Region::new(pd, mapping, AccessFlags::LOCAL_WRITE)?;
    Ok(Slab::new(region, &layout)?)
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |first| u64::from_le_bytes(*first))
}

// ANCHOR: replica
fn replica(fabric: &str, port: u16, path: &str) -> Result {
    let device = Device::open(fabric)?;
    let pd = device.alloc_pd();
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .read(true)
        .open(path)?;
    let mut count = BufReader::new(&file).lines().count() as u64;
    let mut listener = Listener::bind(&device, ("127.0.0.1", port), 16, Retry::default())?;
    let srq = LinkSetSrq {
        slab: slab(&pd, 256)?,
        length: MESSAGE,
        max_held: None,
    };
    let init = LinkSetInit {
        links: 4,
        srq: Some(srq),
        waitable: true,
        ..LinkSetInit::default()
    };
    let mut set = LinkSet::new(&pd, init)?;
    println!("replica: {count} records, port {}", listener.port());
    loop {
        while let Some(incoming) = listener.accept()? {
            set.join(LinkInit::default(), incoming)?;
        }
        let wait = Wait {
            others: &[listener.as_fd()],
            ..Wait::default()
        };
        let (mut new, mut answer) = (Vec::new(), Vec::new());
        set.wait(64, &wait, |id, completion| {
            let (Some(block), Some(success)) = (&completion.block, &completion.success) else {
                return;
            };
            if completion.is_recv() {
                let message = &block.as_slice()[..success.byte_len().unwrap_or(0) as usize];
                // A record that comes twice, or behind one that is missing, changes nothing.
                if number(message) == count {
                    new.extend_from_slice(&message[8..]);
                    new.push(b'\n');
                    count += 1;
                }
                answer.push(id);
            }
        })?;
        file.write_all(&new)?;
        file.sync_data()?;
        while let Some((id, state)) = set.next_change() {
            match state {
                LinkState::Ready => answer.push(id),
                LinkState::Ended(_) => set.remove(id)?,
                _ => {}
            }
        }
        answer.dedup();
        for id in answer {
            // A link that has ended needs no answer: the primary connects again.
            if let Ok(mut link) = set.link(id) {
                let count = count.to_le_bytes();
                let _ended =
                    link.post_inline(0, Send {}, &count, SendFlags::SIGNALED, Replay::IfSafe);
                link.ring();
            }
        }
    }
}
// ANCHOR_END: replica

// ANCHOR: follower
/// A replica, as the primary sees it.
struct Follower {
    connector: Connector,
    link: Link,
    slab: Slab,
    /// Records that it has; `None`: it has not said so since it was connected.
    has: Option<u64>,
    /// Records that were sent.
    sent: u64,
}

impl Follower {
    fn new(device: &Device, pd: &Pd, port: u16) -> Result<Self> {
        let connector = Connector::new(device, ("127.0.0.1", port), Retry::default());
        let slab = slab(pd, 4 * WINDOW as u32)?;
        let link = connect(pd, &connector, &slab)?;
        Ok(Self {
            connector,
            link,
            slab,
            has: None,
            sent: 0,
        })
    }

    fn turn(&mut self, pd: &Pd, log: &[String]) -> Result {
        let (mut heard, mut back): (Vec<Block<'static>>, bool) = (Vec::new(), false);
        self.link.poll(64, |completion| {
            match (completion.is_recv(), completion.outcome, completion.block) {
                (true, Outcome::Done, Some(block)) => heard.push(block),
                (false, Outcome::Done, _) | (true, ..) => {}
                // Not executed, or in doubt: the replica says where to go on.
                (false, ..) => back = true,
            }
        });
        for block in heard {
            self.has = Some(number(block.as_slice()));
            let _ended = self.link.post_recv_block(0, block);
        }
        self.link.ring_recv();
        if let LinkState::Ended(why) = self.link.state() {
            println!("primary: a replica is away: {why}");
            self.link = connect(pd, &self.connector, &self.slab)?;
            self.has = None;
        }
        let Some(has) = self.has else {
            self.sent = 0;
            return Ok(());
        };
        self.sent = if back { has } else { self.sent.max(has) };
        while self.sent < log.len() as u64 && self.sent < has + WINDOW {
            let mut block = self.slab.take(MESSAGE)?;
            let record = log[self.sent as usize].as_bytes();
            let length = 8 + record.len();
            block.as_mut_slice()[..8].copy_from_slice(&self.sent.to_le_bytes());
            block.as_mut_slice()[8..length].copy_from_slice(record);
            let (flags, replay) = (SendFlags::SIGNALED, Replay::IfSafe);
            if self
                .link
                .post_block(0, Send {}, block, length as u32, flags, replay)
                .is_err()
            {
                // Full, or not connected at present: later.
                break;
            }
            self.sent += 1;
        }
        self.link.ring();
        Ok(())
    }
}

fn connect(pd: &Pd, connector: &Connector, slab: &Slab) -> Result<Link> {
    let mut link = Link::new(pd, LinkInit::default(), connector.exchange()?)?;
    for _ in 0..2 * WINDOW {
        link.post_recv_block(0, slab.take(MESSAGE)?)
            .map_err(|refused| refused.error)?;
    }
    link.ring_recv();
    Ok(link)
}
// ANCHOR_END: follower

fn primary(fabric: &str, ports: [u16; 2]) -> Result {
    let device = Device::open(fabric)?;
    let pd = device.alloc_pd();
    let [one, two] = ports.map(|port| Follower::new(&device, &pd, port));
    let mut followers = [one?, two?];
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in stdin().lines().map_while(|line| line.ok()) {
            let _ended = sender.send(line);
        }
    });
    let (mut log, mut more, mut committed) = (Vec::new(), true, 0);
    loop {
        match lines.try_recv() {
            Ok(line) if line.len() as u32 > MESSAGE - 8 => {
                return Err("a record is too long".into());
            }
            Ok(line) => log.push(line),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => more = false,
        }
        for follower in &mut followers {
            follower.turn(&pd, &log)?;
        }
        // The primary and one replica are two of three.
        let has = followers.iter().filter_map(|follower| follower.has);
        let most = has.clone().max().unwrap_or(0);
        if most > committed {
            committed = most;
            println!("primary: {committed} committed");
        }
        if !more && has.filter(|&has| has == log.len() as u64).count() == 2 {
            println!("primary: both have {committed}");
            return Ok(());
        }
        std::thread::yield_now();
    }
}
