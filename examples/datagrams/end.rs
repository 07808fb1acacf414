//! A queue pair for datagrams, and its memory.

use anyhow::{Context as _, Result, bail, ensure};
use bellwire::be::Be32;
use bellwire::connect::cm::Id;
use bellwire::queue::{Completion, Imm, Success};
use bellwire::state::AhAttr;
use bellwire::wqe::{SendWithImm, Ud};
use bellwire::wr::SendFlags;
use bellwire::{AccessFlags, Ah, Cq, GRH_BYTES, Qp, QpInit, Region};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Sends; receives are named by their place in the memory, which is behind that.
const SENT: u64 = 0;

/// A completion; of a receive, where.
pub type Received = (u64, Success);

/// Where to send to.
pub struct To {
    ah: Ah,
    qp_num: u32,
    qkey: u32,
}

impl To {
    pub fn new(end: &End, attr: &AhAttr, qp_num: u32, qkey: u32) -> Result<Self> {
        let ah = end.qp.pd().create_ah(attr)?;
        Ok(Self { ah, qp_num, qkey })
    }
}

pub struct End {
    // The queue pair stops before its memory goes.
    qp: Qp<Ud>,
    cq: Cq,
    /// Datagrams sent, then datagrams received: each behind its route.
    region: Region,
    /// Received before it was asked for.
    early: VecDeque<Received>,
    count: u32,
    size: u32,
    timeout: Duration,
}

impl End {
    /// On the id's device, with as many receives posted as datagrams are to come.
    pub fn new(id: &Id, count: u32, size: u32, timeout: Duration) -> Result<Self> {
        let device = id.device()?.context("the id is bound to no device")?;
        let mtu = device.query_port(1)?.active_mtu.bytes();
        ensure!(
            size <= mtu,
            "a datagram is a packet: {mtu} bytes at the most"
        );
        let pd = device.alloc_pd();
        let init = QpInit {
            max_send_wr: count.max(1),
            max_recv_wr: count.max(1),
            ..QpInit::default()
        };
        let (sends, receives) = init.cq_entries_of::<Ud>();
        let mut cq = device.create_cq(sends + receives)?;
        let mut qp = pd.create_qp_of::<Ud>(&mut cq, &init)?;
        let slot = size as usize + GRH_BYTES;
        let mapping = device.mapping(slot * (count as usize + 1)).build()?;
        let region = Region::new(&pd, mapping, AccessFlags::LOCAL_WRITE)?;
        id.start_qp(&mut qp)?;
        for number in 0..count as usize {
            let at = (number + 1) * slot;
            // SAFETY: the region outlives the queue pair, and is only copied from.
            unsafe {
                let mut rq = qp.rq();
                rq.post(at as u64, &[region.sge(at, slot as u32)])?;
            }
        }
        qp.rq().ring();
        Ok(Self {
            qp,
            cq,
            region,
            early: VecDeque::new(),
            count,
            size,
            timeout,
        })
    }

    pub fn qp(&self) -> &Qp<Ud> {
        &self.qp
    }

    /// Sends all of them, each with this queue pair's number, and sees them off.
    pub fn send(&mut self, to: &To) -> Result<()> {
        let imm = Be32::new(self.qp.qp_num());
        let sge = self.region.sge(0, self.size);
        for _ in 0..self.count {
            let address = to.ah.to(to.qp_num, to.qkey);
            // SAFETY: the region outlives the queue pair, and is not written to here.
            unsafe {
                let mut sq = self.qp.sq();
                sq.post(SENT, address, SendWithImm { imm }, sge, SendFlags::SIGNALED)?;
            }
        }
        self.qp.sq().ring();
        let mut sent = 0;
        while sent < self.count {
            match self.next()? {
                (SENT, _) => sent += 1,
                // The peer is quick.
                received => self.early.push_back(received),
            }
        }
        Ok(())
    }

    /// Receives all of them; gives the last.
    pub fn receive(&mut self) -> Result<Option<Received>> {
        let mut last = None;
        for _ in 0..self.count {
            last = Some(match self.early.pop_front() {
                Some(received) => received,
                None => self.next()?,
            });
        }
        Ok(last)
    }

    /// The sender says its number by the immediate.
    pub fn way_back(&self, (at, success): &Received) -> Result<To> {
        let mut grh = [0; GRH_BYTES];
        self.region.read(*at as usize, &mut grh);
        let Imm::Data(imm) = success.imm() else {
            bail!("a datagram without an immediate");
        };
        Ok(To {
            ah: self.qp.pd().create_ah_from_wc(success, &grh, 1)?,
            qp_num: imm.get() & 0xff_ffff,
            qkey: self.qp.query().qkey,
        })
    }

    /// What completes next.
    fn next(&mut self) -> Result<Received> {
        let deadline = Instant::now() + self.timeout;
        loop {
            if let Some(Completion { wr_id, result, .. }) = self.cq.poll_one() {
                match result {
                    Ok(success) => return Ok((wr_id, success)),
                    Err(failure) => bail!("a request failed: {:?}", failure.status),
                }
            }
            if Instant::now() >= deadline {
                bail!("nothing has come for {:?}", self.timeout);
            }
        }
    }
}
