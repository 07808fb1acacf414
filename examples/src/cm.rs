//! Steps of a connection by the communication manager.

use anyhow::{Context as _, Result, bail};
use bellwire::connect::cm::{Event, EventChannel, Id, Peer, PortSpace};
use bellwire::fault::{CmEvent, classify};
use std::net::SocketAddr;
use std::time::Duration;

/// For resolving an address, and a route.
const RESOLVE: Duration = Duration::from_secs(2);

/// The next event, which has to be this one.
///
/// # Errors
/// Another one, with what it means; none within this time.
pub fn expect(channel: &EventChannel, expected: CmEvent, within: Duration) -> Result<Event> {
    let event = channel.get(within)?;
    let event = event.with_context(|| format!("no {expected:?} within {within:?}"))?;
    check(event, expected)
}

/// Whether an event is the one that was waited for.
///
/// # Errors
/// It is not; says what it means.
pub fn check(event: Event, expected: CmEvent) -> Result<Event> {
    if event.kind().event() != expected {
        bail!("{}", explained(&event));
    }
    Ok(event)
}

/// What an event means, in the peer's words too if it has said any, and what to look at.
pub fn explained(event: &Event) -> String {
    let fault = event.fault();
    let class = classify(fault);
    // Perhaps with zeroes behind them, and not to be trusted.
    let words = event.private_data().split(|&byte| byte == 0).next();
    let words = match words.unwrap_or_default() {
        [] => String::new(),
        words => format!(" The peer says \"{}\".", words.escape_ascii()),
    };
    format!(
        "{fault} (status {}): {}{words} {} Look at: {}",
        event.status(),
        fault.text(),
        class.cause,
        class.advice
    )
}

/// An id with the route to a peer.
///
/// # Errors
/// There is none.
pub fn route(
    channel: &EventChannel,
    space: PortSpace,
    source: Option<SocketAddr>,
    peer: &Peer,
) -> Result<Id> {
    let id = channel.id(space)?;
    id.resolve_addr(source, peer.clone(), RESOLVE)?;
    // Each step's result is reported in time, one way or the other.
    expect(channel, CmEvent::AddrResolved, 2 * RESOLVE)
        .with_context(|| peer.to_string())?
        .ack();
    id.resolve_route(RESOLVE)?;
    expect(channel, CmEvent::RouteResolved, 2 * RESOLVE)
        .with_context(|| peer.to_string())?
        .ack();
    Ok(id)
}
