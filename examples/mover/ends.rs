//! The two ends' work: from a file into blocks, and from blocks into a file.

use super::faults::strike_due;
use super::incoming::Incoming;
use super::notice::{Notice, Trailer};
use super::outgoing::Outgoing;
use anyhow::{Context, Result, anyhow};
use bellwire_examples::{Progress, Wait};
use std::io::{ErrorKind, Read, Write};
use std::thread::sleep;
use std::time::Duration;
use twox_hash::XxHash3_128;

/// Sends all of `from`.
///
/// # Errors
/// Reading, a request that failed, a receiver that stopped. The connection ends with it, which notifies
/// the receiver.
pub fn send(
    mut out: Outgoing,
    from: &mut impl Read,
    wait: Wait<'_>,
    progress: &Progress,
) -> Result<Trailer> {
    let trailer = send_blocks(&mut out, from, wait, progress)?;
    let notice = Notice::End(trailer);
    wait.until(|| flip(out.finish(notice)))??;
    wait.until(|| flip(out.all_reported()))??;
    out.close();
    Ok(trailer)
}

/// What a look that can fail found: nothing, or that it is so, or why it failed.
fn flip(found: Result<bool>) -> Option<Result<()>> {
    found.map(|found| found.then_some(())).transpose()
}

/// What a look found. After one that found nothing it rests: the other end is busy with its file, perhaps on
/// this processor, for several times as long, and blocks in flight bridge a late wake-up.
fn rested<T>(found: Option<T>) -> Option<T> {
    if found.is_none() {
        sleep(Duration::from_micros(20));
    }
    found
}

fn send_blocks(
    out: &mut Outgoing,
    from: &mut impl Read,
    wait: Wait<'_>,
    progress: &Progress,
) -> Result<Trailer> {
    let mut hash = XxHash3_128::new();
    let mut length = 0;
    loop {
        strike_due(out, length, wait)?;
        let mut block = wait.until(|| rested(out.take().transpose()))??;
        let size = out.block_size();
        let bytes = &mut block.as_mut_slice()[..size];
        let filled = fill(from, bytes).context("reading the file")?;
        if filled == 0 {
            out.put_back(block);
            let checksum = hash.finish_128();
            return Ok(Trailer { length, checksum });
        }
        hash.write(&bytes[..filled]);
        wait.until(|| rested(flip(out.may_send())))??;
        // Blocks are shorter than 4 GiB.
        out.send(block, filled as u32)?;
        length += filled as u64;
        progress.add(filled as u64);
    }
}

/// Reads until the bytes are full or the file ends.
fn fill(from: &mut impl Read, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match from.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(more) => filled += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Receives all that comes into `to`, and compares the checksum.
///
/// # Errors
/// Writing, something that is no notice, a sender that stopped, a checksum that differs. The connection
/// ends with it, which notifies the sender.
pub fn receive(mut incoming: Incoming, to: &mut impl Write, wait: Wait<'_>) -> Result<Trailer> {
    let received = receive_blocks(&mut incoming, to, wait)?;
    // The sender is notified that all has come for as long as this end is there.
    wait.until(|| incoming.is_over().then_some(()))?;
    Ok(received)
}

fn receive_blocks(incoming: &mut Incoming, to: &mut impl Write, wait: Wait<'_>) -> Result<Trailer> {
    let mut hash = XxHash3_128::new();
    let mut length = 0;
    let mut buffer = vec![0; incoming.block_size()];
    let theirs = loop {
        strike_due(incoming, length, wait)?;
        match wait.until(|| rested(incoming.next().transpose()))?? {
            Notice::Data(filled) => {
                let bytes = &mut buffer[..filled as usize];
                incoming.read(bytes);
                incoming.done()?;
                hash.write(bytes);
                to.write_all(bytes).context("writing the output")?;
                length += u64::from(filled);
            }
            Notice::End(trailer) => break trailer,
        }
    };
    let checksum = hash.finish_128();
    let ours = Trailer { length, checksum };
    if ours != theirs {
        return Err(anyhow!(
            "what arrived is not what was sent: {} bytes with checksum {:032x}, not {} with {:032x}",
            ours.length,
            ours.checksum,
            theirs.length,
            theirs.checksum
        ));
    }
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use super::super::blocks::Shape;
    use super::super::faults::{Faults, Injection};
    use super::super::log::Log;
    use super::*;
    use bellwire::Device;
    use bellwire::link::pair;
    use bellwire_examples::{Alarm, PeerGone};
    use std::io::{self, Cursor};
    use std::sync::atomic::AtomicBool;

    const SHAPE: Shape = Shape {
        count: 3,
        size: 100,
    };

    fn moved(from: &mut (impl Read + Send), to: &mut (impl Write + Send)) -> [Result<Trailer>; 2] {
        let order = || (Faults::default(), Log::new("end"));
        moved_with(from, to, [order(), order()])
    }

    fn moved_with(
        from: &mut (impl Read + Send),
        to: &mut (impl Write + Send),
        [sends, receives]: [(Faults, Log); 2],
    ) -> [Result<Trailer>; 2] {
        // One of its own: what strikes it strikes no other test.
        let pd = Device::soft(Default::default()).alloc_pd();
        let (here, there) = pair();
        let out = Outgoing::new(&pd, SHAPE, here, sends).unwrap();
        let incoming = Incoming::new(&pd, SHAPE, there, receives).unwrap();
        let gone = &AtomicBool::new(false);
        let wait = Wait {
            crowded: true,
            gone,
        };
        let progress = &Progress::new(0, "");
        std::thread::scope(|scope| {
            let sender = scope.spawn(move || {
                let alarm = Alarm::new(gone);
                let sent = send(out, from, wait, progress)?;
                alarm.disarm();
                Ok(sent)
            });
            let received = receive(incoming, to, wait);
            if received.is_err() {
                drop(Alarm::new(gone));
            }
            [sender.join().unwrap(), received]
        })
    }

    #[test]
    fn every_length_arrives() {
        for length in [0, 1, 99, 100, 101, 299, 300, 301, 12_345] {
            let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            let mut arrived = Vec::new();
            let [sent, received] = moved(&mut Cursor::new(&bytes), &mut arrived);
            assert_eq!(sent.unwrap(), received.unwrap());
            assert_eq!(arrived, bytes);
        }
    }

    /// Good for so many bytes, then fails.
    struct Fails(usize);

    impl Fails {
        fn take(&mut self, bytes: usize) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::Error::other("on purpose"));
            }
            let now = bytes.min(self.0);
            self.0 -= now;
            Ok(now)
        }
    }

    impl Read for Fails {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.take(bytes.len())
        }
    }

    impl Write for Fails {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.take(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_fails_stops_both_ends() {
        for good in [0, 50, 1000] {
            let [sent, received] = moved(&mut Fails(good), &mut Vec::new());
            assert!(format!("{:#}", sent.unwrap_err()).contains("on purpose"));
            assert!(received.unwrap_err().is::<PeerGone>());
        }
    }

    #[test]
    fn a_writer_that_fails_stops_both_ends() {
        let mut from = io::repeat(7);
        let [sent, received] = moved(&mut from, &mut Fails(1000));
        assert!(format!("{:#}", received.unwrap_err()).contains("on purpose"));
        assert!(sent.unwrap_err().is::<PeerGone>());
    }

    /// Many faults of each kind, at either end and at both: the bytes that arrive are the bytes sent.
    #[test]
    fn every_fault_is_survived() {
        let bytes: Vec<u8> = (0..20_000u32).map(|n| (n % 251) as u8).collect();
        let every = |kind: &str| -> Vec<Injection> {
            (0..=100)
                .step_by(10)
                .map(|percent| format!("{kind}@{percent}%").parse().unwrap())
                .collect()
        };
        for (sends, receives) in [
            ("cq-err", None),
            ("qp-fatal", None),
            ("retry-exc", None),
            ("ack-lost", None),
            ("qp-fatal", Some("cq-err")),
            ("cq-err", Some("cq-err")),
            ("ack-lost", Some("qp-fatal")),
        ] {
            let order = |kind: Option<&str>| {
                let injections = kind.map(every).unwrap_or_default();
                let faults = Faults::new(&injections, bytes.len() as u64);
                (faults, Log::new("end"))
            };
            let orders = [order(Some(sends)), order(receives)];
            let logs = orders.each_ref().map(|(_, log)| log.clone());
            let mut arrived = Vec::new();
            let [sent, received] = moved_with(&mut Cursor::new(&bytes), &mut arrived, orders);
            let what = format!("{sends} {receives:?}\n{}{}", logs[0], logs[1]);
            let sent = sent.unwrap_or_else(|error| panic!("{what}{error:#}"));
            assert_eq!(
                sent,
                received.unwrap_or_else(|error| panic!("{what}{error:#}"))
            );
            assert!(arrived == bytes, "{what}");
            assert!(what.contains("end: recovered from"), "{what}");
        }
    }
}
