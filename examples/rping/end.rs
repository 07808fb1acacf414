//! An end of the connection: its queue pair, its memory, and what has completed.

use crate::message::{Info, MAX_SIZE};
use anyhow::{Context as _, Result, bail, ensure};
use bellwire::connect::cm::{ConnParam, EventChannel, Id};
use bellwire::fault::CmEvent;
use bellwire::wqe::{Operation, Rc, Send, Supports};
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, Cq, Qp, QpInit, Region};
use bellwire_examples::check;
use std::time::{Duration, Instant};

const RECEIVE: u64 = 1;
const REQUEST: u64 = 2;

const REMOTE: AccessFlags = AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE);

/// What came of waiting.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    /// It is there.
    Done,
    /// The peer has ended the connection.
    Ended,
}

pub struct End {
    // The queue pair stops before its memory goes.
    pub qp: Qp,
    cq: Cq,
    /// What comes in.
    message: Region,
    /// The memory that is read from and written to.
    pub data: Region,
    /// What the peer reads.
    pub text: Region,
    pub id: Id,
    pub channel: EventChannel,
    timeout: Duration,
}

impl End {
    /// On the id's device, with a receive posted.
    pub fn new(channel: &EventChannel, id: &Id, timeout: Duration) -> Result<Self> {
        let device = id.device()?.context("the id is bound to no device")?;
        let pd = device.alloc_pd();
        let init = QpInit {
            max_send_wr: 16,
            max_recv_wr: 2,
            ..QpInit::default()
        };
        let (sends, receives) = init.cq_entries();
        let mut cq = device.create_cq(sends + receives)?;
        let mut qp = pd.create_qp(&mut cq, &init)?;
        let region = |length: u32, access| {
            let mapping = device.mapping(length as usize).build()?;
            Region::new(&pd, mapping, access | AccessFlags::LOCAL_WRITE)
        };
        id.init_qp(&mut qp, REMOTE)?;
        let mut end = Self {
            message: region(Info::BYTES as u32, AccessFlags::empty())?,
            data: region(MAX_SIZE, REMOTE)?,
            text: region(MAX_SIZE, REMOTE)?,
            qp,
            cq,
            id: id.clone(),
            channel: channel.clone(),
            timeout,
        };
        end.receive()?;
        Ok(end)
    }

    fn receive(&mut self) -> Result<()> {
        let sge = self.message.sge(0, Info::BYTES as u32);
        // SAFETY: the region outlives the queue pair, and is only copied from.
        unsafe { self.qp.rq().post(RECEIVE, &[sge])? };
        self.qp.rq().ring();
        Ok(())
    }

    /// Sends a message.
    pub fn send(&mut self, info: Info) -> Result<()> {
        let bytes = info.to_bytes();
        self.qp
            .sq()
            .post_inline(REQUEST, (), Send {}, &bytes, SendFlags::SIGNALED)?;
        self.qp.sq().ring();
        Ok(())
    }

    /// Carries a request out on the first bytes of the data, to its end.
    pub fn carry_out<O: Operation>(&mut self, operation: O, length: u32) -> Result<Came>
    where
        Rc: Supports<O>,
    {
        let sge = self.data.sge(0, length);
        // SAFETY: the region outlives the queue pair, and is only copied to and from.
        unsafe {
            let mut sq = self.qp.sq();
            sq.post(REQUEST, (), operation, sge, SendFlags::SIGNALED)?;
        }
        self.qp.sq().ring();
        self.wait_for(REQUEST)
    }

    /// The peer's next message; `None`: it has ended the connection.
    pub fn hear(&mut self) -> Result<Option<Info>> {
        if self.wait_for(RECEIVE)? == Came::Ended {
            return Ok(None);
        }
        let mut bytes = [0; Info::BYTES];
        self.message.read(0, &mut bytes);
        self.receive()?;
        Ok(Some(Info::from_bytes(&bytes)))
    }

    /// Polls until a request of this kind completes; sends complete on the way.
    fn wait_for(&mut self, wr_id: u64) -> Result<Came> {
        const POLLS: usize = 1000;
        let deadline = Instant::now() + self.timeout;
        loop {
            for _ in 0..POLLS {
                let Some(completion) = self.cq.poll_one() else {
                    continue;
                };
                match completion.result {
                    Ok(success) if completion.wr_id == RECEIVE => {
                        let length = success.byte_len();
                        ensure!(
                            length == Some(Info::BYTES as u32),
                            "a message of {length:?} bytes"
                        );
                    }
                    Ok(_) => {}
                    Err(failure) => bail!("a request failed: {:?}", failure.status),
                }
                if completion.wr_id == wr_id {
                    return Ok(Came::Done);
                }
            }
            if let Some(event) = self.channel.try_get()? {
                check(event, CmEvent::Disconnected)?.ack();
                return Ok(Came::Ended);
            }
            if Instant::now() >= deadline {
                bail!("the peer has done nothing for {:?}", self.timeout);
            }
        }
    }

    /// Ends the connection, and waits until the peer has, too.
    pub fn disconnect(mut self, ended: bool) -> Result<()> {
        self.id.disconnect(&mut self.qp)?;
        if !ended {
            let event = self.channel.get(self.timeout)?;
            let event = event.context("the peer does not end the connection")?;
            check(event, CmEvent::Disconnected)?.ack();
        }
        Ok(())
    }
}

/// As rping has them.
pub fn param() -> ConnParam {
    ConnParam {
        responder_resources: 1,
        initiator_depth: 1,
        ..ConnParam::default()
    }
}
