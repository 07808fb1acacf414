//! One side's queue pairs, with all that they need.

use super::args::{Game, Kind};
use super::content::Content;
use super::dest::Dest;
use super::device;
use super::memory::Memory;
use super::service::{QKEY, Service};
use anyhow::{Context, Result, bail};
use bellwire::event::CompChannel;
use bellwire::queue::Completion;
use bellwire::state::{AhAttr, GlobalRoute, QpAttr, QpState, RNR_RETRY_INFINITE, transition};
use bellwire::wqe::Send;
use bellwire::wr::SendFlags;
use bellwire::{Cq, CqInit, Pd, ProviderKind, Qp, QpInit, Srq, SrqInit};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

/// A side. An object is dropped after its users.
pub struct End<T: Service> {
    qps: Vec<Qp<T>>,
    /// What requests name, of each queue pair's peer.
    peers: Vec<T::Peer>,
    srq: Option<Srq>,
    pub cq: Cq,
    pub channel: Option<CompChannel>,
    memory: Memory,
    /// Slots that are in no receive; one for each receive that could be posted.
    free: Vec<usize>,
    ours: Vec<Dest>,
    pd: Pd,
    game: Game,
}

/// Which request it was that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A send.
    Send,
    /// A receive into this slot.
    Receive(usize),
}

/// Behind any slot.
const SEND: u64 = u64::MAX;

impl Request {
    pub fn of(completion: &Completion<'_>) -> Self {
        match completion.wr_id {
            SEND => Self::Send,
            slot => Self::Receive(slot as usize),
        }
    }
}

/// 24 bits that a stale packet will not have.
fn random_psn(n: usize) -> u32 {
    RandomState::new().hash_one(n) as u32 & 0xff_ffff
}

impl<T: Service> End<T> {
    /// A side in INIT, with all its receives posted.
    ///
    /// # Errors
    /// Those of set-up, with what to do.
    pub fn new(game: &Game) -> Result<Self> {
        let device = device::open(game)?;
        let (lid, gid) = device::addresses(&device, game)?;
        let pd = device.alloc_pd();
        let depth = game.rx_depth as usize;
        let shared = game.kind == Kind::Srq;
        let slots = if shared { depth } else { 1 };
        let memory = Memory::new(&pd, game, slots)?;
        let channel = match game.events {
            true => Some(device.create_comp_channel()?),
            false => None,
        };
        let srq_init = SrqInit {
            max_wr: game.rx_depth,
            ..SrqInit::default()
        };
        let init = QpInit {
            max_send_wr: 1,
            max_recv_wr: game.rx_depth,
            max_inline_data: 0,
            ..QpInit::default()
        };
        let (sends, own) = init.cq_entries_of::<T>();
        let receives = if shared { srq_init.cq_entries() } else { own };
        let entries = sends * game.num_qp as u32 + receives;
        let mut cq = device.create_cq_with(&CqInit {
            channel: channel.as_ref(),
            ..CqInit::new(entries)
        })?;
        let srq = match shared {
            true => Some(pd.create_srq(&srq_init)?),
            false => None,
        };
        let create = |_| match &srq {
            Some(srq) => pd.create_qp_on_srq(&mut cq, srq, &init),
            None => pd.create_qp_of(&mut cq, &init),
        };
        let qps = (0..game.num_qp)
            .map(create)
            .collect::<Result<Vec<_>, _>>()?;
        let dest = |(n, qp): (usize, &Qp<T>)| Dest {
            lid,
            qpn: qp.qp_num(),
            psn: random_psn(n),
            gid,
        };
        let mut end = Self {
            ours: qps.iter().enumerate().map(dest).collect(),
            qps,
            peers: Vec::new(),
            srq,
            cq,
            channel,
            memory,
            free: (0..depth).map(|receive| receive % slots).collect(),
            pd,
            game: game.clone(),
        };
        end.init()?;
        end.post_receives()?;
        Ok(end)
    }

    /// Where its queue pairs are.
    pub fn ours(&self) -> &[Dest] {
        &self.ours
    }

    fn step(&mut self, n: usize, from: QpState, attr: &QpAttr) -> Result<()> {
        let to = attr.qp_state;
        let step = transition(T::TYPE, from, to).context("no such change of state")?;
        let changed = self.qps[n].modify(attr, step.required);
        changed.with_context(|| format!("taking queue pair {n} to {to}"))
    }

    fn init(&mut self) -> Result<()> {
        let attr = QpAttr {
            qp_state: QpState::Init,
            port_num: self.game.ib_port,
            qkey: QKEY,
            ..QpAttr::default()
        };
        (0..self.qps.len()).try_for_each(|n| self.step(n, QpState::Reset, &attr))
    }

    fn path(&self, to: &Dest) -> Result<AhAttr> {
        let mut path = AhAttr {
            dlid: to.lid,
            sl: self.game.sl,
            port_num: self.game.ib_port,
            ..AhAttr::default()
        };
        if to.lid == 0 && !to.is_global() {
            bail!("the peer has neither LID nor GID: give -g to it");
        }
        if self.pd.device().provider() == ProviderKind::Soft && self.game.gid_idx.is_none() {
            // The peer's address; the path needs no global route.
            path.grh.dgid = to.gid;
        } else if to.is_global() {
            let Some(sgid_index) = self.game.gid_idx else {
                bail!("the peer is to be reached by its GID: give -g to this side too");
            };
            path.is_global = true;
            path.grh = GlobalRoute {
                dgid: to.gid,
                sgid_index,
                hop_limit: 64,
                ..GlobalRoute::default()
            };
        }
        Ok(path)
    }

    /// Connects each queue pair to its peer, to RTS.
    ///
    /// # Errors
    /// A peer that there is no way to; those of changing state.
    pub fn connect(&mut self, theirs: &[Dest]) -> Result<()> {
        for (n, dest) in theirs.iter().enumerate() {
            let path = self.path(dest)?;
            let mut attr = QpAttr {
                qp_state: QpState::Rtr,
                path_mtu: self.game.mtu,
                dest_qp_num: dest.qpn,
                rq_psn: dest.psn,
                sq_psn: self.ours[n].psn,
                max_dest_rd_atomic: 1,
                max_rd_atomic: 1,
                min_rnr_timer: 12,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: RNR_RETRY_INFINITE,
                ah_attr: path,
                ..QpAttr::default()
            };
            self.step(n, QpState::Init, &attr)?;
            attr.qp_state = QpState::Rts;
            self.step(n, QpState::Rtr, &attr)?;
            self.peers.push(T::peer(&self.pd, &path, dest)?);
        }
        Ok(())
    }

    /// Which of its queue pairs this is.
    pub fn find(&self, qp_num: u32) -> Option<usize> {
        self.ours.iter().position(|dest| dest.qpn == qp_num)
    }

    /// Posts a receive for every free slot.
    fn post_receives(&mut self) -> Result<()> {
        for slot in self.free.drain(..) {
            let place = [self.memory.place(slot)];
            // SAFETY: the memory goes after the queues, and is touched by copies only.
            unsafe {
                match &mut self.srq {
                    Some(srq) => srq.post(slot as u64, &place),
                    None => self.qps[0].rq().post(slot as u64, &place),
                }
            }
            .context("posting a receive")?;
        }
        match &mut self.srq {
            Some(srq) => srq.ring(),
            None => self.qps[0].rq().ring(),
        }
        Ok(())
    }

    /// The message that has come into a slot.
    pub fn take(&mut self, slot: usize) -> &[u8] {
        self.free.push(slot);
        self.memory.take(slot)
    }

    /// Posts receives again, when there are few left.
    ///
    /// # Errors
    /// Those of posting.
    pub fn refill(&mut self) -> Result<()> {
        let posted = self.game.rx_depth as usize - self.free.len();
        if posted > self.qps.len() {
            return Ok(());
        }
        self.post_receives()
    }

    /// Sends message `number` by queue pair `n`, whose last send has completed.
    ///
    /// # Errors
    /// Those of posting.
    pub fn send(&mut self, n: usize, content: &Content, number: u64) -> Result<()> {
        content.write(number, |at, part| self.memory.write(n, at, part));
        let message = self.memory.message(n);
        let address = T::address(&self.peers[n]);
        let mut sq = self.qps[n].sq();
        // SAFETY: as for receives; nobody writes to it before the send has completed.
        let posted = unsafe { sq.post(SEND, address, Send {}, message, SendFlags::SIGNALED) };
        posted.context("posting a send")?;
        sq.ring();
        Ok(())
    }
}
