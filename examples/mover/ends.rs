//! The two ends' work: from a file into blocks, and from blocks into a file.

use super::blocks::{Incoming, Outgoing};
use super::notice::{Notice, Trailer};
use anyhow::{Context, Result, anyhow};
use bellwire_examples::{PeerGone, Progress, Wait};
use std::io::{ErrorKind, Read, Write};
use twox_hash::XxHash3_128;

/// Sends all of `from`.
///
/// # Errors
/// Reading, a request that failed, a receiver that stopped. The receiver is told.
pub fn send(
    out: &mut Outgoing,
    from: &mut impl Read,
    wait: Wait<'_>,
    progress: &Progress,
) -> Result<Trailer> {
    let sent = send_blocks(out, from, wait, progress);
    // When this fails as well, the first reason is the one to tell.
    let told = out.finish(sent.as_ref().ok().copied());
    let trailer = sent?;
    told?;
    wait.until(|| flip(out.all_told().map(|all| all.then_some(()))))??;
    Ok(trailer)
}

/// What a look that can fail found: nothing, or something, or why it failed.
fn flip<T>(found: Result<Option<T>>) -> Option<Result<T>> {
    found.transpose()
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
        let mut block = wait.until(|| flip(out.take()))??;
        let size = out.block_size();
        let bytes = &mut block.as_mut_slice()[..size];
        let filled = fill(from, bytes).context("reading the file")?;
        if filled == 0 {
            out.put_back(block);
            let checksum = hash.finish_128();
            return Ok(Trailer { length, checksum });
        }
        hash.write(&bytes[..filled]);
        wait.until(|| flip(out.may_send().map(|may| may.then_some(()))))??;
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
/// Writing, a receive that failed, a sender that stopped, a checksum that differs. The sender is
/// told.
pub fn receive(incoming: &mut Incoming, to: &mut impl Write, wait: Wait<'_>) -> Result<Trailer> {
    let received = receive_blocks(incoming, to, wait);
    if received.is_err() {
        // When this fails as well, the first reason is the one to tell.
        let _ = incoming.stop();
    }
    received
}

fn receive_blocks(incoming: &mut Incoming, to: &mut impl Write, wait: Wait<'_>) -> Result<Trailer> {
    let mut hash = XxHash3_128::new();
    let mut length = 0;
    let mut buffer = vec![0; incoming.block_size()];
    loop {
        match wait.until(|| flip(incoming.next()))?? {
            Notice::Data(filled) => {
                let bytes = &mut buffer[..filled as usize];
                incoming.read(bytes);
                incoming.done()?;
                hash.write(bytes);
                to.write_all(bytes).context("writing the output")?;
                length += u64::from(filled);
            }
            Notice::Failed => return Err(PeerGone.into()),
            Notice::End => break,
        }
    }
    let checksum = hash.finish_128();
    let ours = Trailer { length, checksum };
    let theirs = incoming.trailer();
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
    use super::super::threads::connected;
    use super::*;
    use bellwire::Device;
    use bellwire_examples::Alarm;
    use std::io::{self, Cursor};
    use std::sync::atomic::AtomicBool;

    const SHAPE: Shape = Shape {
        count: 3,
        size: 100,
    };

    fn moved(from: &mut (impl Read + Send), to: &mut (impl Write + Send)) -> [Result<Trailer>; 2] {
        let pd = Device::open("auto").unwrap().alloc_pd();
        let (mut out, mut incoming) = connected(&pd, SHAPE).unwrap();
        let gone = &AtomicBool::new(false);
        let wait = Wait {
            crowded: true,
            gone,
        };
        let progress = &Progress::new(0, "");
        std::thread::scope(|scope| {
            let sender = scope.spawn(move || {
                let alarm = Alarm::new(gone);
                let sent = send(&mut out, from, wait, progress);
                alarm.disarm();
                sent
            });
            let received = receive(&mut incoming, to, wait);
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
}
