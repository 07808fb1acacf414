//! The server.

use crate::Args;
use crate::end::{Came, End, param};
use crate::message::{Info, MAX_SIZE, shown, until_zero};
use anyhow::{Context as _, Result, bail, ensure};
use bellwire::connect::cm::{EventChannel, EventKind, Id, PortSpace};
use bellwire::fault::CmEvent;
use bellwire::wqe::{RdmaRead, RdmaWrite};
use bellwire::wr::Remote;
use bellwire_examples::{check, expect};
use std::time::Duration;

pub fn run(args: &Args) -> Result<()> {
    let channel = EventChannel::open(&args.provider)?;
    let listener = channel.id(PortSpace::Tcp)?;
    listener.bind(args.peer())?;
    listener.listen(3)?;
    loop {
        let event = channel.get(Duration::MAX)?.context("an event")?;
        let event = check(event, CmEvent::ConnectRequest)?;
        let EventKind::ConnectRequest { id, .. } = event.ack() else {
            bail!("a request that is none of a connection");
        };
        if !args.persistent {
            return serve(&id, args);
        }
        let args = args.clone();
        std::thread::spawn(move || {
            if let Err(error) = serve(&id, &args) {
                eprintln!("error: {error:#}");
            }
        });
    }
}

/// Serves a client, by events of its own.
fn serve(id: &Id, args: &Args) -> Result<()> {
    let device = id.device()?.context("the request is bound to no device")?;
    let channel = EventChannel::on(&device)?;
    id.migrate(&channel)?;
    let mut end = End::new(&channel, id, args.timeout())?;
    id.accept(&mut end.qp, &param())?;
    expect(&channel, CmEvent::Established, args.timeout())?.ack();
    let mut ended = false;
    while !ended {
        ended = !play(&mut end, args)?;
    }
    end.disconnect(ended)
}

/// One ping; `false`: the client has ended the connection.
fn play(end: &mut End, args: &Args) -> Result<bool> {
    let Some(source) = end.hear()? else {
        return Ok(false);
    };
    ensure!(
        (1..=MAX_SIZE).contains(&source.size),
        "the client has {} bytes to be read: 1 to {MAX_SIZE} can be",
        source.size
    );
    let remote = source.remote;
    if end.carry_out(RdmaRead { remote }, source.size)? == Came::Ended {
        bail!("the client has ended the connection in the middle of a ping");
    }
    let mut text = vec![0; source.size as usize];
    end.data.read(0, &mut text);
    if args.verbose {
        println!("server ping data: {}", shown(&text));
    }
    let go_ahead = Info {
        remote: Remote { addr: 0, rkey: 0 },
        size: 0,
    };
    end.send(go_ahead)?;
    let Some(sink) = end.hear()? else {
        return Ok(false);
    };
    // With its zero, if it has one; not beyond the sink.
    let length = until_zero(&text).len() as u32 + 1;
    let length = length.min(source.size).min(sink.size);
    let remote = sink.remote;
    if end.carry_out(RdmaWrite { remote }, length)? == Came::Ended {
        bail!("the client has ended the connection in the middle of a ping");
    }
    end.send(go_ahead)?;
    Ok(true)
}
