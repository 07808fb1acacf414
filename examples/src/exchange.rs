//! The exchange of two links in two processes: a Unix socket beside the one by which they have met.

use bellwire::link::{Exchange, ExchangeError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

/// Brings messages over a Unix socket, each behind its length in two bytes.
#[derive(Debug)]
pub struct UnixExchange {
    stream: UnixStream,
    /// What came, and is no whole message yet.
    incoming: Vec<u8>,
}

impl UnixExchange {
    /// Both ends of the stream have to be one.
    ///
    /// # Errors
    /// What fcntl(2) answers.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            incoming: Vec::new(),
        })
    }

    /// Takes the first message, if it is whole.
    fn message(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        let Some((length, rest)) = self.incoming.split_first_chunk() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes(*length));
        let place = into.get_mut(..length).ok_or(ExchangeError::TooLong)?;
        let Some(message) = rest.get(..length) else {
            return Ok(None);
        };
        place.copy_from_slice(message);
        self.incoming.drain(..2 + length);
        Ok(Some(length))
    }
}

impl Exchange for UnixExchange {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        let length = u16::try_from(message.len()).map_err(|_| ExchangeError::TooLong)?;
        let mut bytes = length.to_be_bytes().to_vec();
        bytes.extend_from_slice(message);
        // The system has room for hundreds of them: a peer that lets it fill up is as good as gone.
        self.stream.write_all(&bytes).map_err(ExchangeError::Io)
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        if let Some(length) = self.message(into)? {
            return Ok(Some(length));
        }
        let mut bytes = [0; 1024];
        match self.stream.read(&mut bytes) {
            Ok(0) => Err(ExchangeError::Closed),
            Ok(count) => {
                self.incoming.extend_from_slice(&bytes[..count]);
                self.message(into)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
                ErrorKind::ConnectionReset => Err(ExchangeError::Closed),
                _ => Err(ExchangeError::Io(error)),
            },
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_and_in_order_and_then_the_end() {
        let (a, mut raw) = UnixStream::pair().unwrap();
        let mut a = UnixExchange::new(a).unwrap();
        let mut bytes = [0; 8];
        assert_eq!(a.receive(&mut bytes).unwrap(), None);
        raw.write_all(b"\0\x03one\0\x05se").unwrap();
        assert_eq!(a.receive(&mut bytes).unwrap(), Some(3));
        assert_eq!(&bytes[..3], b"one");
        assert_eq!(a.receive(&mut bytes).unwrap(), None);
        raw.write_all(b"ven").unwrap();
        assert_eq!(a.receive(&mut bytes).unwrap(), Some(5));
        assert_eq!(&bytes[..5], b"seven");
        let mut b = UnixExchange::new(raw).unwrap();
        a.send(b"back").unwrap();
        drop(a);
        assert_eq!(b.receive(&mut bytes).unwrap(), Some(4));
        let end = b.receive(&mut bytes);
        assert!(matches!(end, Err(ExchangeError::Closed)), "{end:?}");
    }

    #[test]
    fn a_message_that_is_too_long_is_refused() {
        let (a, mut raw) = UnixStream::pair().unwrap();
        let mut a = UnixExchange::new(a).unwrap();
        raw.write_all(&[0, 9]).unwrap();
        assert!(matches!(
            a.receive(&mut [0; 8]),
            Err(ExchangeError::TooLong)
        ));
        assert!(a.send(&[0; 1 << 16]).is_err());
    }
}
