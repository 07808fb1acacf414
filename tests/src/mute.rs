//! The exchange of a link whose process dies.

use bellwire::Error;
use bellwire::connect::Message;
use bellwire::link::{Exchange, ExchangeError};
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Instant;

/// As of a process that ends: its connections go, and nothing is said.
pub struct Mute<E>(pub E);

impl<E: Exchange> Exchange for Mute<E> {
    fn send(&mut self, message: &[u8]) -> Result<(), ExchangeError> {
        match Message::from_bytes(message)? {
            Message::Closing => Ok(()),
            _ => self.0.send(message),
        }
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        self.0.receive(into)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.fd()
    }

    fn set_waker(&mut self, waker: Waker) -> Result<bool, Error> {
        self.0.set_waker(waker)
    }

    fn deadline(&self) -> Option<Instant> {
        self.0.deadline()
    }

    fn needs_new_qp(&self) -> bool {
        self.0.needs_new_qp()
    }
}
