//! Programs for `cargo xtask race` to compare bellwire's with: messages by iceoryx2 between two processes, and both ends
//! of a message in one thread, so that Valgrind counts what it takes and no waiting.

use bellwire::memory::{Mapping, Pages};
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, ConnectAttr, Cq, Device, Qp, QpInit, Region};
use clap::{Parser, Subcommand, ValueEnum};
use iceoryx2::port::{publisher::Publisher, subscriber::Subscriber};
use iceoryx2::prelude::*;
use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

type Done<T = ()> = Result<T, Box<dyn Error>>;

/// Times and counts for a comparison.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Sends messages to itself: for Valgrind
    Count { by: By, bytes: usize, messages: u64 },
    /// Answers messages of iceoryx2, until it is ended
    Answer { name: String, bytes: usize },
    /// Measures messages of iceoryx2 that another process answers: prints nanoseconds one way, of the median block
    Ask {
        name: String,
        bytes: usize,
        #[arg(long, default_value_t = 0.2)]
        seconds: f64,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum By {
    /// A SEND of bellwire between two nodes of a fabric, with the receive posted each time
    Send,
    /// A WRITE of bellwire between two nodes of a fabric, without a completion
    Write,
    /// A sample of iceoryx2, copied in and out
    Iceoryx,
}

fn main() -> Done {
    match Args::parse().what {
        What::Count {
            by,
            bytes,
            messages,
        } => match by {
            By::Send => count_sends(bytes, messages),
            By::Write => count_writes(bytes, messages),
            By::Iceoryx => count_samples(bytes, messages),
        },
        What::Answer { name, bytes } => {
            let mut end = Samples::new(&name, ["there", "back"], bytes)?;
            loop {
                end.receive()?;
                end.send()?;
            }
        }
        What::Ask {
            name,
            bytes,
            seconds,
        } => {
            let end = Samples::new(&name, ["back", "there"], bytes)?;
            println!("{:.1}", ask(end, Duration::from_secs_f64(seconds))?);
            Ok(())
        }
    }
}

/// One end of a pair of services of iceoryx2.
struct Samples {
    publisher: Publisher<ipc::Service, [u8], ()>,
    subscriber: Subscriber<ipc::Service, [u8], ()>,
    data: Vec<u8>,
    _node: Node<ipc::Service>,
}

impl Samples {
    /// An end that receives by the first service and sends by the second.
    fn new(name: &str, [from, to]: [&str; 2], bytes: usize) -> Done<Self> {
        let node = NodeBuilder::new().create::<ipc::Service>()?;
        let open = |way: &str| -> Done<_> {
            let name = format!("{name}/{way}");
            let service = node.service_builder(&name.as_str().try_into()?);
            Ok(service.publish_subscribe::<[u8]>().open_or_create()?)
        };
        let (from, to) = (open(from)?, open(to)?);
        Ok(Self {
            publisher: (to.publisher_builder())
                .initial_max_slice_len(bytes)
                .create()?,
            subscriber: from.subscriber_builder().create()?,
            data: vec![7; bytes],
            _node: node,
        })
    }

    fn send(&self) -> Done {
        let sample = self.publisher.loan_slice_uninit(self.data.len())?;
        sample.write_from_slice(black_box(&self.data)).send()?;
        Ok(())
    }

    fn receive(&mut self) -> Done {
        loop {
            if let Some(sample) = self.subscriber.receive()? {
                self.data.copy_from_slice(sample.payload());
                return Ok(());
            }
            std::hint::spin_loop();
        }
    }
}

fn ask(mut end: Samples, time: Duration) -> Done<f64> {
    const BLOCK: u32 = 500;
    let mut trip = || {
        end.send()?;
        end.receive()
    };
    for _ in 0..BLOCK {
        trip()?;
    }
    let (start, mut blocks) = (Instant::now(), Vec::new());
    while start.elapsed() < time {
        let begin = Instant::now();
        for _ in 0..BLOCK {
            trip()?;
        }
        blocks.push(begin.elapsed().as_secs_f64() * 1e9 / f64::from(2 * BLOCK));
    }
    blocks.sort_by(f64::total_cmp);
    Ok(blocks[blocks.len() / 2])
}

fn count_samples(bytes: usize, messages: u64) -> Done {
    let name = format!("rivals-{}", std::process::id());
    let mut end = Samples::new(&name, ["loop", "loop"], bytes)?;
    for _ in 0..messages {
        end.send()?;
        end.receive()?;
    }
    Ok(())
}

/// One of two nodes.
struct End {
    cq: Cq,
    qp: Qp,
    region: Region,
}

impl End {
    fn new(fabric: &str, bytes: usize) -> Done<Self> {
        let device = Device::join(fabric, Default::default())?;
        let pd = device.alloc_pd();
        let init = QpInit::default();
        let (sends, receives) = init.cq_entries();
        let mut cq = device.create_cq(sends + receives)?;
        let qp = pd.create_qp(&mut cq, &init)?;
        let mapping = Mapping::shared("rivals", bytes.max(4096)).pages(Pages::Base);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let region = Region::new(&pd, mapping.build()?, access)?;
        Ok(Self { cq, qp, region })
    }
}

fn ends(bytes: usize) -> Done<[End; 2]> {
    let fabric = format!("rivals-{}", std::process::id());
    let mut ends = [End::new(&fabric, bytes)?, End::new(&fabric, bytes)?];
    let places = [ends[1].qp.endpoint(), ends[0].qp.endpoint()];
    for (end, peer) in ends.iter_mut().zip(&places) {
        let attr = ConnectAttr::default();
        end.qp.init(&attr)?;
        end.qp.connect(peer, &attr)?;
    }
    Ok(ends)
}

/// Signalled once in this many requests, so that the queue has room.
const SIGNALLED: u64 = 32;

/// Data of up to this many bytes is inline, as `perf` has it.
const INLINE: usize = 28;

fn flags(request: u64) -> SendFlags {
    match request % SIGNALLED {
        0 => SendFlags::SIGNALED,
        _ => SendFlags::empty(),
    }
}

/// Polls until something has completed with success.
fn completed(cq: &mut Cq, mut meanwhile: impl FnMut()) -> Done {
    loop {
        if let Some(completion) = cq.poll_one() {
            completion
                .result
                .map_err(|failure| failure.status.to_string())?;
            return Ok(());
        }
        meanwhile();
    }
}

fn count_sends(bytes: usize, messages: u64) -> Done {
    let [mut a, mut b] = ends(bytes)?;
    let data = vec![7; bytes.min(INLINE)];
    for request in 0..messages {
        // SAFETY: the regions outlive the queue pairs' use of them.
        unsafe { b.qp.rq().post(1, &[b.region.sge(0, bytes as u32)])? };
        b.qp.rq().ring();
        let mut sq = a.qp.sq();
        if bytes <= INLINE {
            sq.post_inline(0, (), Send {}, &data, flags(request))?;
        } else {
            // SAFETY: as above.
            unsafe {
                sq.post(
                    0,
                    (),
                    Send {},
                    a.region.sge(0, bytes as u32),
                    flags(request),
                )?
            };
        }
        sq.ring();
        completed(&mut b.cq, || {})?;
        if request % SIGNALLED == 0 {
            completed(&mut a.cq, || drop(b.cq.poll_one()))?;
        }
    }
    Ok(())
}

fn count_writes(bytes: usize, messages: u64) -> Done {
    let [mut a, mut b] = ends(bytes)?;
    let data = vec![7; bytes.min(INLINE)];
    for request in 0..messages {
        let write = RdmaWrite {
            remote: b.region.remote(0),
        };
        let mut sq = a.qp.sq();
        if bytes <= INLINE {
            sq.post_inline(0, (), write, &data, flags(request))?;
        } else {
            // SAFETY: the regions outlive the queue pairs' use of them.
            unsafe { sq.post(0, (), write, a.region.sge(0, bytes as u32), flags(request))? };
        }
        sq.ring();
        if request % SIGNALLED == 0 {
            completed(&mut a.cq, || drop(b.cq.poll_one()))?;
        }
    }
    Ok(())
}
