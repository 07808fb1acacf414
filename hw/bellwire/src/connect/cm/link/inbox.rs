//! Messages for the link of an end.

use crate::connect::{Message, RecoveryInfo};
use crate::link::ExchangeError;

/// The peer's latest messages, until the link receives them. However many messages a peer sends, no more
/// than these are kept.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    info: Option<RecoveryInfo>,
    ready: Option<u64>,
    /// The last message.
    parting: Option<Message>,
}

impl Inbox {
    /// A message that says more replaces earlier messages.
    pub fn put(&mut self, message: Message) {
        match message {
            Message::Info(info) => {
                self.info = Some(info);
                self.ready = None;
            }
            Message::Ready { epoch } => self.ready = Some(epoch),
            Message::Closing | Message::GaveUp(_) => self.parting = Some(message),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.info.is_none() && self.ready.is_none() && self.parting.is_none()
    }

    fn take(&mut self) -> Option<Message> {
        if let Some(info) = self.info.take() {
            return Some(Message::Info(info));
        }
        if let Some(epoch) = self.ready.take() {
            return Some(Message::Ready { epoch });
        }
        self.parting.take()
    }

    /// Passes the next message to a link.
    pub fn give(&mut self, into: &mut [u8]) -> Result<Option<usize>, ExchangeError> {
        let Some(message) = self.take() else {
            return Ok(None);
        };
        let bytes = message.to_bytes();
        let room = into.get_mut(..bytes.len()).ok_or(ExchangeError::TooLong)?;
        room.copy_from_slice(&bytes);
        Ok(Some(bytes.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(epoch: u64) -> Message {
        Message::Info(RecoveryInfo {
            epoch,
            ..RecoveryInfo::default()
        })
    }

    fn heard(inbox: &mut Inbox) -> Vec<Message> {
        std::iter::from_fn(|| inbox.take()).collect()
    }

    #[test]
    fn the_last_that_was_said_is_heard_in_order() {
        let mut inbox = Inbox::default();
        for epoch in 1..1000 {
            inbox.put(info(epoch));
            inbox.put(Message::Ready { epoch });
        }
        assert_eq!(
            heard(&mut inbox),
            [info(999), Message::Ready { epoch: 999 }]
        );
        assert!(inbox.is_empty());
        inbox.put(Message::Ready { epoch: 1 });
        inbox.put(info(2));
        inbox.put(Message::Closing);
        assert_eq!(heard(&mut inbox), [info(2), Message::Closing]);
    }
}
