//! A server of many clients, on one thread: it sleeps until a client wants something.

use super::{DEPTH, MESSAGE, init, slab, sleep};
use anyhow::Result;
use bellwire::connect::cm::{Conn, ConnParam, Event, EventChannel, EventKind, Id, Peer, PortSpace};
use bellwire::event::CompChannel;
use bellwire::queue::Completion;
use bellwire::wqe::Send;
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, Cq, CqInit, Device, Pd, Qp, Slab};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// In a request's identifier: it is a send. The rest is the connection's place.
const SEND: u64 = 1 << 32;

/// How long a client has to go on once it was accepted, where nothing else is said. One that has gone
/// without a word would be asked for a minute else.
const GOES_ON: Duration = Duration::from_secs(5);

/// Events, and completions, that are seen to before anything else is.
const AT_A_TIME: usize = 64;

/// What a server has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Clients that were connected.
    pub clients: u64,
    /// Clients whose connection was accepted and never made, and clients that were refused.
    pub vanished: u64,
    /// Messages that were sent back.
    pub messages: u64,
    /// Requests that were posted.
    pub posted: u64,
    /// Those of them that were reported.
    pub reported: u64,
}

/// An echo server.
#[derive(Debug)]
pub struct Server {
    // In the order in which they go.
    connections: Vec<Option<Connection>>,
    /// The objects on a device, once there is a client on one.
    desk: Option<Desk>,
    listener: Id,
    events: EventChannel,
    goes_on: Duration,
    served: Served,
}

/// What the connections on a device share.
#[derive(Debug)]
struct Desk {
    cq: Cq,
    completions: CompChannel,
    slab: Slab,
    pd: Pd,
}

/// A client.
#[derive(Debug)]
struct Connection {
    id: Id,
    qp: Qp,
    /// Requests that were posted and not reported.
    outstanding: u32,
    established: bool,
    /// When it was accepted.
    since: Instant,
    /// It ends as soon as everything is reported.
    over: bool,
}

impl Server {
    /// A server that takes up to `most` clients at a time, at an address or a name.
    ///
    /// # Errors
    /// It cannot listen there.
    pub fn new(events: EventChannel, at: impl Into<Peer>, most: u32) -> Result<Self> {
        let listener = events.id(PortSpace::Tcp)?;
        listener.bind(at)?;
        listener.listen(most)?;
        Ok(Self {
            connections: (0..most).map(|_| None).collect(),
            desk: None,
            listener,
            events,
            goes_on: GOES_ON,
            served: Served::default(),
        })
    }

    /// How long a client has to go on once it was accepted: 5 s if nothing is said.
    pub fn wait_for_clients(&mut self, at_most: Duration) {
        self.goes_on = at_most;
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.listener.port()
    }

    /// What it has done.
    pub fn served(&self) -> Served {
        self.served
    }

    /// Clients that are connected, or about to be.
    pub fn open(&self) -> usize {
        self.connections.iter().flatten().count()
    }

    /// Blocks that are with some request.
    pub fn blocks_out(&self) -> usize {
        (self.desk.as_ref()).map_or(0, |desk| desk.slab.outstanding())
    }

    /// Does what there is to do; when there is nothing it sleeps, until there is or the time is over.
    ///
    /// # Errors
    /// Failures that concern more than one client.
    pub fn turn(&mut self, bound: Duration) -> Result<()> {
        if let Some(desk) = &mut self.desk {
            while let Ok(event) = desk.completions.get_cq_event() {
                event.ack();
            }
            // Before it is polled: an entry that was there before raises nothing.
            desk.cq.req_notify(false)?;
        }
        // Some of each at a time: a new client does not keep others waiting.
        let mut idle = true;
        for _ in 0..AT_A_TIME {
            let Some(event) = self.events.try_get()? else {
                break;
            };
            self.handle(event)?;
            idle = false;
        }
        for _ in 0..AT_A_TIME {
            let completion = self.desk.as_mut().and_then(|desk| desk.cq.poll_one());
            let Some(completion) = completion else {
                break;
            };
            self.complete(completion);
            idle = false;
        }
        self.sweep();
        if !idle {
            return Ok(());
        }
        let events = self.events.as_fd();
        match &self.desk {
            Some(desk) => sleep(&[events, desk.completions.as_fd()], bound),
            None => sleep(&[events], bound),
        }
    }

    /// Any event of an id is got once, and acknowledged when it is dropped here.
    fn handle(&mut self, event: Event) -> Result<()> {
        if let EventKind::ConnectRequest { id, conn } = event.kind() {
            if !self.accept(id, conn)? {
                self.served.vanished += 1;
            }
            return Ok(());
        }
        let found =
            (self.connections.iter_mut().flatten()).find(|connection| connection.id == *event.id());
        let Some(connection) = found else {
            return Ok(());
        };
        match event.kind() {
            EventKind::Established => {
                connection.established = true;
                self.served.clients += 1;
            }
            EventKind::Disconnected
            | EventKind::Rejected { .. }
            | EventKind::Unreachable { .. }
            | EventKind::ConnectError { .. }
            | EventKind::DeviceRemoval => connection.end(),
            _ => {}
        }
        Ok(())
    }

    /// Whether there is room for the client. One that has gone meanwhile is let go of.
    fn accept(&mut self, id: &Id, conn: &Conn) -> Result<bool> {
        let Some(place) = self.connections.iter().position(Option::is_none) else {
            // It says so itself, if the client has gone.
            let _gone = id.reject(b"too many clients");
            return Ok(false);
        };
        let Some(device) = id.device()? else {
            return Ok(false);
        };
        let most = self.connections.len() as u32;
        let desk = match &mut self.desk {
            Some(desk) => desk,
            none => none.insert(Desk::new(&device, most)?),
        };
        if desk.pd.device().name() != device.name() {
            let _gone = id.reject(b"on another device than the first client");
            return Ok(false);
        }
        let mut qp = desk.pd.create_qp(&mut desk.cq, &init())?;
        // librdmacm knows of a client that has withdrawn before its request was got.
        if id.init_qp(&mut qp, AccessFlags::empty()).is_err() {
            return Ok(false);
        }
        let mut connection = Connection {
            id: id.clone(),
            qp,
            outstanding: 0,
            established: false,
            since: Instant::now(),
            over: false,
        };
        for _ in 0..DEPTH {
            let block = desk.slab.take(MESSAGE)?;
            connection.qp.rq().post_block(place as u64, block)?;
            connection.outstanding += 1;
            self.served.posted += 1;
        }
        connection.qp.rq().ring();
        let param = ConnParam {
            private_data: Vec::new(),
            ..conn.param.clone()
        };
        if id.accept(&mut connection.qp, &param).is_err() {
            connection.end();
        }
        self.connections[place] = Some(connection);
        Ok(true)
    }

    /// A message has come: back with it. Or one has gone: room for the next.
    fn complete(&mut self, completion: Completion<'static>) {
        self.served.reported += 1;
        let place = (completion.wr_id & !SEND) as usize;
        // Its queue pair lives until everything is reported.
        let Some(Some(connection)) = self.connections.get_mut(place) else {
            return;
        };
        connection.outstanding -= 1;
        let (Ok(done), Some(block)) = (completion.result, completion.block) else {
            // The peer is gone; the block goes back to the slab.
            return connection.end();
        };
        if connection.over {
            return;
        }
        let posted = if completion.wr_id & SEND == 0 {
            let (length, flags) = (done.byte_len().unwrap_or(0), SendFlags::SIGNALED);
            let wr_id = place as u64 | SEND;
            let mut sq = connection.qp.sq();
            let posted = sq.post_block(wr_id, (), Send {}, block, length, flags);
            sq.ring();
            self.served.messages += 1;
            posted.is_ok()
        } else {
            let mut rq = connection.qp.rq();
            let posted = rq.post_block(place as u64, block);
            rq.ring();
            posted.is_ok()
        };
        // There is room: what has gone has left it.
        if posted {
            connection.outstanding += 1;
            self.served.posted += 1;
        } else {
            connection.end();
        }
    }

    /// Ends what takes too long. Lets go of the connections that are over, and of which everything
    /// is reported.
    fn sweep(&mut self) {
        for slot in &mut self.connections {
            if let Some(connection) = slot
                && !connection.established
                && !connection.over
                && connection.since.elapsed() > self.goes_on
            {
                connection.end();
            }
            if let Some(connection) = slot
                && connection.over
                && connection.outstanding == 0
            {
                self.served.vanished += u64::from(!connection.established);
                *slot = None;
            }
        }
    }
}

impl Connection {
    /// Ends this end: everything that is posted is flushed, and reported.
    fn end(&mut self) {
        // That there is nothing to disconnect any more does no harm.
        let _over = self.id.disconnect(&mut self.qp);
        self.over = true;
    }
}

impl Desk {
    fn new(device: &Device, most: u32) -> Result<Self> {
        let pd = device.alloc_pd();
        let completions = device.create_comp_channel()?;
        completions.set_nonblocking(true)?;
        let (sends, receives) = init().cq_entries();
        // Room of a queue pair that is gone is found free a little later.
        let qps = 2 * most;
        let cq = device.create_cq_with(&CqInit {
            channel: Some(&completions),
            qps: qps as usize,
            ..CqInit::new(qps * (sends + receives))
        })?;
        Ok(Self {
            cq,
            completions,
            slab: slab(&pd, most * DEPTH)?,
            pd,
        })
    }
}
