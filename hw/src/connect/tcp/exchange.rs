//! A connection as the way by which two [`Link`](crate::recovery::Link)s find each other again.

use super::{Connection, TcpError};
use crate::connect::Message;
use crate::recovery::{Exchange, ExchangeError};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

/// A [`Connection`] that never blocks, for a [`Link`](crate::recovery::Link).
#[derive(Debug)]
pub struct TcpExchange {
    stream: TcpStream,
    /// What the system has not taken yet.
    unsent: Vec<u8>,
    /// The message that comes in.
    incoming: [u8; Message::MAX_BYTES],
    filled: usize,
}

/// Bytes that wait for a peer which takes none, at the most: it has had hundreds of messages.
const MAX_UNSENT: usize = 1 << 16;

impl Connection {
    /// As the exchange of a [`Link`](crate::recovery::Link). Both ends have to be at the same step.
    ///
    /// # Errors
    /// [`TcpError::Io`] when the system refuses.
    pub fn into_exchange(self) -> Result<TcpExchange, TcpError> {
        self.0.set_nonblocking(true).map_err(|error| TcpError::Io {
            what: "set O_NONBLOCK",
            error,
        })?;
        Ok(TcpExchange {
            stream: self.0,
            unsent: Vec::new(),
            incoming: [0; Message::MAX_BYTES],
            filled: 0,
        })
    }
}

/// How many bytes were moved; `None`: none can be now.
fn moved(result: io::Result<usize>) -> Result<Option<usize>, ExchangeError> {
    match result {
        Ok(0) => Err(ExchangeError::Closed),
        Ok(moved) => Ok(Some(moved)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock => Ok(None),
            io::ErrorKind::Interrupted => Ok(Some(0)),
            _ => Err(ExchangeError::Io(error)),
        },
    }
}

impl TcpExchange {
    fn flush(&mut self) -> Result<(), ExchangeError> {
        while !self.unsent.is_empty() {
            let Some(sent) = moved(self.stream.write(&self.unsent))? else {
                break;
            };
            self.unsent.drain(..sent);
        }
        Ok(())
    }
}

impl Exchange for TcpExchange {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        if self.unsent.len() > MAX_UNSENT {
            return Err(ExchangeError::Closed);
        }
        self.unsent.extend_from_slice(message);
        self.flush()
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        self.flush()?;
        loop {
            let due = if self.filled < Message::HEADER_BYTES {
                Message::HEADER_BYTES
            } else {
                // Checked before anything behind it is waited for.
                Message::length(&self.incoming)?
            };
            if self.filled >= Message::HEADER_BYTES && self.filled == due {
                let whole = into.get_mut(..due).ok_or(ExchangeError::TooLong)?;
                whole.copy_from_slice(&self.incoming[..due]);
                self.filled = 0;
                return Ok(Some(due));
            }
            let room = &mut self.incoming[self.filled..due];
            match moved(self.stream.read(room))? {
                Some(got) => self.filled += got,
                None => return Ok(None),
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.stream.as_fd())
    }
}
