//! Steps of a connection by the communication manager.

use anyhow::{Context as _, Result, bail};
use bellwire::connect::cm::{Event, EventChannel, Id, Peer, PortSpace};
use bellwire::fault::CmEvent;
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
    let fault = event.fault();
    if event.kind().event() != expected {
        bail!("{fault} (status {}): {}", event.status(), fault.text());
    }
    Ok(event)
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
    // What is asked for is told in time, one way or the other.
    expect(channel, CmEvent::AddrResolved, 2 * RESOLVE)
        .with_context(|| peer.to_string())?
        .ack();
    id.resolve_route(RESOLVE)?;
    expect(channel, CmEvent::RouteResolved, 2 * RESOLVE)
        .with_context(|| peer.to_string())?
        .ack();
    Ok(id)
}
