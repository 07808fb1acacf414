//! What polling the queues leaves to the rest of the poll.

use super::super::active_queues::done;
use super::super::completion::LinkCompletion;
use super::super::member::Delivery;
use super::LinkId;
use super::held::Held;
use super::slots::Joined;
use super::srq::Filling;
use crate::error::Error;
use crate::pinned::collected;
use crate::srq::SrqInit;
use bellwire_core::queue::Completion;

#[derive(Debug)]
pub(super) struct Noted {
    /// Failed completions, and those of links that recover, until the poll ends; each with its slot.
    pub aside: Vec<(u32, Completion<'static>)>,
    /// There is something to do apart from polling the queues.
    pub busy: bool,
    /// How full each shared receive queue is kept.
    pub fillings: Vec<Filling>,
    /// Whose messages hold the buffers, if that is limited.
    pub held: Option<Held>,
}

impl Noted {
    /// # Errors
    /// There is not enough memory.
    pub fn new(srq: Option<&SrqInit>, queues: u32, held: Option<Held>) -> Result<Self, Error> {
        let fillings = srq.map(|init| collected((0..queues).map(|_| Filling::new(init))));
        Ok(Self {
            aside: Vec::new(),
            busy: false,
            fillings: fillings.transpose()?.unwrap_or_default(),
            held,
        })
    }

    /// Takes in a completion that does not go to the program as it is. Returns whether it was passed to the
    /// program. Not inlined: so completions that do go there as they are pay nothing for the others.
    #[inline(never)]
    pub fn take(
        &mut self,
        id: LinkId,
        joined: &mut Joined,
        completion: Completion<'static>,
        each: &mut dyn FnMut(LinkId, LinkCompletion),
    ) -> bool {
        match completion.result {
            Ok(success) if joined.member.delivery == Delivery::DirectOnSrq => {
                let mut report = done(completion, success);
                if success.opcode.is_recv() {
                    joined.member.received += 1;
                    report.retired = 0;
                    self.received(id, joined, &report);
                }
                each(id, report);
                true
            }
            _ => {
                self.busy = true;
                self.aside.push((id.index(), completion));
                false
            }
        }
    }

    /// A message was received into a buffer of the shared receive queue.
    #[inline(always)]
    fn received(&mut self, id: LinkId, joined: &mut Joined, report: &LinkCompletion) {
        if let Some(filling) = self.fillings.get_mut(joined.queue) {
            self.busy |= filling.count();
        }
        if let (Some(held), Some(block)) = (&mut self.held, &report.block) {
            self.busy |= held.give(id, &mut joined.held, block.addr());
        }
    }
}
