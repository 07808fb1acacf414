//! What happened to a queue pair on the control path: the last notes are kept.

use crate::error::Error;
use bellwire_core::event::EventType;
use bellwire_core::qp::QpState;
use serde::Serialize;
use std::collections::VecDeque;
use std::fmt;
use std::time::SystemTime;

/// Notes kept for each queue pair.
pub(crate) const NOTES: usize = 64;

/// Something that happened to a queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Note {
    /// When it happened, by the system's clock; serialized as [`micros`](Self::micros).
    #[serde(serialize_with = "super::serialize::as_micros")]
    pub at: SystemTime,
    /// What happened.
    #[serde(serialize_with = "super::serialize::as_text")]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum What {
    /// Its state was changed to this one, or its attributes were changed in it.
    State(QpState),
    /// A change of state was refused, for this reason.
    Refused(String),
    /// An asynchronous event was raised.
    Event(EventType),
    /// Something else, in the words of the program.
    Text(String),
}

impl What {
    /// The note for the result of a change of state.
    pub(crate) fn of(changed: &Result<QpState, Error>) -> Self {
        match changed {
            Ok(state) => Self::State(*state),
            Err(error) => Self::Refused(error.to_string()),
        }
    }
}

impl From<QpState> for What {
    fn from(state: QpState) -> Self {
        Self::State(state)
    }
}

impl From<EventType> for What {
    fn from(event: EventType) -> Self {
        Self::Event(event)
    }
}

impl From<String> for What {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for What {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State(state) => write!(f, "state {state}"),
            Self::Refused(why) => write!(f, "refused: {why}"),
            Self::Event(event) => write!(f, "event {}", event.name()),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl Note {
    /// The time in microseconds since 1970; zero for earlier times.
    pub fn micros(&self) -> u64 {
        micros(&self.at)
    }
}

pub(super) fn micros(at: &SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

/// The last notes of a queue pair.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(VecDeque<Note>);

impl Notes {
    pub fn push(&mut self, what: What) {
        // Without memory for another the oldest makes room, too.
        if self.0.len() == NOTES || self.0.try_reserve(1).is_err() {
            self.0.pop_front();
        }
        if self.0.len() == self.0.capacity() {
            return;
        }
        let at = SystemTime::now();
        self.0.push_back(Note { at, what });
    }

    pub fn to_vec(&self) -> Vec<Note> {
        self.0.iter().cloned().collect()
    }
}
