//! Time in tests.
//!
//! Tests run beside anything, so a thread may be without a processor for seconds. Where time is not the subject of a
//! test, only a hang may reach a time limit:
//!
//! - waiting for what has to come ends after [`DEADLINE`];
//! - connections whose peers live do not give them up: [`lasting`], [`limits`], [`retry`].
//!
//! A test whose subject is an upper limit of time adds to it a multiple of what is measured in the same run:
//! [`late`]. A lower limit needs nothing.

use bellwire::ConnectAttr;
use bellwire::connect::cm::Retry;
use bellwire::fault::plan::Limits;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up: far longer than it takes beside any load.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// Attributes of a connection whose peer answers: a lost packet is sent again after 4 s, and the peer is given up after
/// half a minute without an answer.
pub fn lasting() -> ConnectAttr {
    ConnectAttr {
        timeout: 20,
        retry_cnt: 7,
        ..ConnectAttr::default()
    }
}

/// Limits of links that connect or recover, as many as there may be.
pub fn limits() -> Limits {
    Limits {
        attempts: 100,
        recovery: 4 * DEADLINE,
        drain: DEADLINE,
        port: DEADLINE,
        exchange: 2 * DEADLINE,
        ready: DEADLINE,
        step: DEADLINE,
        ..Limits::default()
    }
}

/// Steps of a connection to a server that is there, however late it answers.
pub fn retry() -> Retry {
    Retry {
        step: DEADLINE,
        ..Retry::default()
    }
}

/// How late a thread is on this machine now: the latest of some that sleep for a moment, and that yield; at least a
/// millisecond.
pub fn late() -> Duration {
    const NAP: Duration = Duration::from_millis(1);
    let late = |at| {
        let start = Instant::now();
        if at % 2 == 0 {
            std::thread::sleep(NAP);
            return start.elapsed().saturating_sub(NAP);
        }
        std::thread::yield_now();
        start.elapsed()
    };
    (0..20).map(late).fold(NAP, Duration::max)
}

/// Asserts that something took no longer than `limit`, and a hundred times as long as a thread is [`late`] now.
///
/// # Panics
/// If it took longer.
pub fn assert_within(took: Duration, limit: Duration) {
    let late = late();
    assert!(
        took < limit + 100 * late,
        "{took:?}, where {limit:?} are the limit and threads are {late:?} late"
    );
}
