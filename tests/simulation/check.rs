//! What is held against the device's own journal.

use super::lent::is_of_lending;
use super::request::{Id, Kind, REQUESTS};
use super::world::World;
use bellwire::fault::outcome::{Doubt, Outcome, Replay};
use bellwire::soft::RecvReport;
use bellwire::wqe::opcode;
use bellwire_tests::stand_in::Executed;
use std::sync::atomic::Ordering;

impl World {
    /// Takes what the device executed; `by`: the end that has just been polled or rung.
    pub fn read_journal(&mut self, by: Option<usize>) {
        for Executed {
            qp_num,
            opcode,
            bytes,
            receive,
        } in self.hca.journal()
        {
            match opcode {
                // A queue pair that came and went within a poll is that end's.
                opcode::ATOMIC_FA => self.atomics[0] += 1,
                opcode::ATOMIC_CS => self.atomics[1] += 1,
                // The link's own, which only show that the queue works.
                opcode::RDMA_WRITE if bytes == 0 => {}
                opcode::UMR => {}
                _ if is_of_lending(bytes) => {}
                _ => {
                    let id = Id::of_length(bytes).expect("of a known length");
                    let of = self.qps.get(&qp_num).copied().or(by);
                    assert_eq!(of, Some(id.end), "whose is {id:?}?");
                    self.executed(id, opcode, receive);
                }
            }
        }
    }

    fn executed(&mut self, id: Id, opcode: u8, receive: RecvReport) {
        self.say(|| {
            format!(
                "{}: executed {:#x} {opcode:#x}, {receive:?}",
                id.end, id.index
            )
        });
        let memory = &mut self.memory[1 - id.end];
        let request = &mut self.ends[id.end].requests[id.index];
        assert_eq!(opcode, request.kind.opcode(), "{request:?}");
        let place = request.at..request.at + id.length();
        match request.kind {
            kind if kind.writes() => memory[place].copy_from_slice(&id.bytes()),
            Kind::Read => request.found = memory[place].to_vec(),
            _ => {}
        }
        // Atomics are not looked at here: see `read_words`.
        let outcome = request.outcome;
        assert_eq!(outcome, None, "executed after its report: {request:?}");
        request.executed += 1;
        let most = request.cancelled.map_or(u32::MAX, |before| before + 1);
        assert!(request.executed <= most, "posted again: {request:?}");
        if request.executed == 1 {
            // In the order of posting, whatever was posted again.
            let newest = self.newest[id.end].replace(id.index);
            assert!(newest < Some(id.index), "{id:?} after {newest:?}");
        }
        let again = match request.kind {
            Kind::Read => request.policy != Replay::Surface,
            Kind::Write => request.policy == Replay::Anyway,
            _ => false,
        };
        assert!(
            request.executed == 1 || again,
            "executed again: {request:?}"
        );
    }

    /// Nothing is under way any more.
    pub fn check(&mut self) {
        for at in 0..2 {
            self.read_words(at);
            self.ends[at].check_back(usize::MAX);
            self.check_end(at);
        }
        for at in 0..2 {
            // The words of atomics were looked at.
            let mut found = vec![0; self.memory[at].len()];
            self.ends[at].region.read(0, &mut found);
            let bytes = super::request::WORDS;
            assert!(
                found[..bytes] == self.memory[at][..bytes],
                "memory of {at} differs"
            );
        }
        let executed = |kind| {
            let all = self.ends.iter().flat_map(|end| &end.requests);
            all.filter(|request| request.kind == kind)
                .map(|request| u64::from(request.executed))
                .sum::<u64>()
        };
        let words = [Kind::FetchAndAdd, Kind::CompareAndSwap].map(executed);
        assert_eq!(self.atomics, words, "atomics ran more than once");
    }

    /// How often each atomic of an end was executed.
    fn read_words(&mut self, at: usize) {
        for index in 0..REQUESTS {
            let word = Id { end: at, index }.word();
            let count = self.ends[1 - at].region.word(word).load(Ordering::Acquire);
            match self.ends[at].requests.get_mut(index) {
                Some(request) if request.kind.is_atomic() => request.executed = count as u32,
                _ => assert_eq!(count, 0, "a word that nobody adds to"),
            }
        }
    }

    fn check_end(&mut self, at: usize) {
        let end = &self.ends[at];
        for request in &end.requests {
            let executed = request.executed;
            let right = match request.outcome {
                Some(Outcome::Done) => executed > 0,
                Some(Outcome::NotExecuted) => executed == 0,
                // A READ that was executed leaves nothing.
                Some(Outcome::Failed(_)) => executed == 0 || request.kind == Kind::Read,
                Some(Outcome::InDoubt(Doubt::ResultLost)) => executed > 0,
                Some(Outcome::InDoubt(Doubt::Cancelled)) => request.cancelled.is_some(),
                Some(Outcome::InDoubt(Doubt::DeadlinePassed)) => {
                    request.deadline.is_some_and(|at| at <= self.now)
                }
                Some(Outcome::InDoubt(_)) => true,
                // Reported by a later one.
                None => executed > 0 && !request.signaled(),
            };
            assert!(right, "not so: {request:?}");
            assert!(
                !request.kind.is_atomic() || executed <= 1,
                "ran twice: {request:?}"
            );
            let came = request.received || !request.kind.consumes() || executed == 0;
            assert!(came || self.completions_lost, "lost: {request:?}");
            self.tally.outcome(request);
        }
        for (number, outcome) in end.receives.iter().enumerate() {
            assert!(
                outcome.is_some(),
                "{at}: receive {number} was never reported"
            );
        }
        let posted = (end.requests.len() + end.receives.len()) as u64 + end.lending.posted;
        let retired = end.retired + u64::from(end.link.unreported());
        assert_eq!(retired, posted, "{at}: so many reported, of so many posted");
        assert_eq!(end.slab.outstanding(), 0, "{at}: blocks were lost");
        end.lending.check(&self.ends[1 - at].lending, self.now);
        self.tally.lent(&end.lending);
        let counters = end.link.counters().expect("nothing is in a thread");
        let (longest, bound) = (counters.longest, self.limits.max_duration());
        assert!(longest <= bound, "a recovery took {longest:?} of {bound:?}");
        self.tally.recovered(&counters);
    }
}
