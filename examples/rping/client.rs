//! The client.

use crate::Args;
use crate::end::{End, param};
use crate::message::{Info, shown, text};
use anyhow::{Result, bail, ensure};
use bellwire::Region;
use bellwire::connect::cm::{EventChannel, PortSpace};
use bellwire::fault::CmEvent;
use bellwire_examples::{expect, route};

pub fn run(args: &Args) -> Result<()> {
    let channel = EventChannel::open(&args.provider)?;
    let source = args.source.map(|source| (source, 0).into());
    let id = route(&channel, PortSpace::Tcp, source, &args.peer())?;
    let mut end = End::new(&channel, &id, args.timeout())?;
    id.connect(&end.qp, &param())?;
    expect(&channel, CmEvent::ConnectResponse, args.timeout())?.ack();
    id.establish(&mut end.qp)?;
    let mut ping = 0;
    let mut ended = false;
    while !ended && (args.count == 0 || ping < args.count) {
        ended = !play(&mut end, ping, args)?;
        ping += 1;
    }
    end.disconnect(ended)
}

/// One ping; `false`: the server has ended the connection.
fn play(end: &mut End, ping: u64, args: &Args) -> Result<bool> {
    let size = args.size;
    let sent = text(ping, size);
    end.text.write(0, &sent);
    let place = |region: &Region| Info {
        remote: region.remote(0),
        size,
    };
    for info in [place(&end.text), place(&end.data)] {
        end.send(info)?;
        if end.hear()?.is_none() {
            bail!("the server has ended the connection in the middle of ping {ping}");
        }
    }
    let mut came = vec![0; size as usize];
    end.data.read(0, &mut came);
    ensure!(
        !args.validate || came == sent,
        "ping {ping} came back changed"
    );
    if args.verbose {
        println!("ping data: {}", shown(&came));
    }
    Ok(true)
}
