//! Memory that is lent to a peer for one exchange.

use crate::world::{BLOCK, World, init};
use bellwire::fault::outcome::{Doubt, Outcome, Replay};
use bellwire::link::{Cancel, CancelError, Grant, GrantError, LinkError, LinkInit, LinkState};
use bellwire::memory::Mapping;
use bellwire::queue::PostError;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wqe::{RdmaRead, RdmaWrite, Send, SendWithInv};
use bellwire::wr::{Remote, SendFlags, WcStatus};
use bellwire::{AccessFlags, Block, ClassLayout, Pd, Region, Slab};
use bellwire_tests::fixture::SIGNALED;
use std::sync::Arc;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const BOTH: AccessFlags = AccessFlags::REMOTE_READ.union(AccessFlags::REMOTE_WRITE);
/// The answer of the peer that has nothing to do with the memory.
const ANSWER: u64 = 70;

/// A message for which there is no receive waits for ever.
fn patient() -> LinkInit {
    let mut init = init();
    init.connect.rnr_retry = 7;
    init.connect.access = BOTH;
    init
}

pub fn lender(pd: &Pd) -> Slab {
    let layout = [ClassLayout {
        size: BLOCK,
        count: 32,
    }];
    let mapping = Mapping::anonymous(Slab::bytes(&layout).unwrap());
    let region = Region::new(pd, mapping.build().unwrap(), AccessFlags::LOCAL_WRITE).unwrap();
    Slab::with_grants(region, &layout).unwrap()
}

/// Two links, and blocks that the first lends.
struct Lending {
    world: World,
    slab: Slab,
}

impl Lending {
    fn with(init: &LinkInit) -> Self {
        let world = World::with(init);
        let slab = lender(world.a.link.pd().unwrap());
        Self { world, slab }
    }

    fn new() -> Self {
        Self::with(&patient())
    }

    fn grant(&self, access: AccessFlags) -> Grant {
        let mut block = self.slab.take(BLOCK).unwrap();
        block.as_mut_slice().fill(0x11);
        self.slab.grant(block, BLOCK, access).unwrap()
    }

    /// The first end lends a block to the other.
    fn lend(&mut self, wr_id: u64, access: AccessFlags) -> Remote {
        let grant = self.grant(access);
        let mut at = Remote::default();
        let link = &mut self.world.a.link;
        link.post_grant(
            wr_id,
            grant,
            Send {},
            |remote| {
                at = remote;
                [0; 12]
            },
            SendFlags::empty(),
        )
        .unwrap();
        link.ring();
        self.world.a.posted += 1;
        at
    }

    /// As [`lend`](Self::lend); the peer gets the request.
    fn lent(&mut self, wr_id: u64, access: AccessFlags) -> Remote {
        self.world.b.receive([wr_id]);
        let at = self.lend(wr_id, access);
        self.world.poll();
        assert_eq!(self.world.a.sends().last().map(|(id, _)| *id), None);
        at
    }

    /// What becomes of a WRITE of the peer.
    fn write(&mut self, wr_id: u64, remote: Remote) -> Outcome {
        self.world
            .b
            .go(wr_id, RdmaWrite { remote }, Replay::Surface);
        self.world.settle();
        let sends = self.world.b.sends();
        sends.iter().rfind(|(id, _)| *id == wr_id).unwrap().1
    }

    /// The peer answers, and gives the memory back.
    fn answer(&mut self, wr_id: u64, rkey: u32) {
        self.world.a.receive([ANSWER]);
        self.world
            .b
            .go(wr_id, SendWithInv { rkey }, Replay::Surface);
        self.world.settle();
    }

    /// The key is dead.
    fn is_shut(&mut self, remote: Remote) {
        let before: Vec<_> = self.slab_bytes();
        let denied = Outcome::Failed(WcStatus::RemAccessErr);
        assert_eq!(self.write(5000, remote), denied);
        self.world.settle();
        assert_eq!(self.slab_bytes(), before);
    }

    fn slab_bytes(&self) -> Vec<u8> {
        let mut blocks: Vec<Block<'static>> = Vec::new();
        while let Ok(block) = self.slab.take(BLOCK) {
            blocks.push(block);
        }
        blocks.sort_by_key(Block::addr);
        blocks
            .iter()
            .flat_map(|block| block.as_slice().to_vec())
            .collect()
    }

    fn fails(&mut self, fault: Fault) {
        let script = Script::default().with(Trigger::After(Duration::ZERO), fault);
        let soft = self.world.device.as_soft().unwrap();
        soft.inject(&script).unwrap();
        soft.advance(Duration::from_nanos(1));
        self.world.settle();
    }

    /// Everything is reported, and every block is back.
    fn over(&self, receives: [u32; 2]) {
        self.world.all_reported(receives);
        assert_eq!(self.slab.outstanding(), 0);
    }
}

#[test]
fn a_peer_gives_it_back_with_its_answer() {
    let mut lending = Lending::new();
    let mut keys = Vec::new();
    for round in 1..=300 {
        let remote = lending.lent(1, BOTH);
        keys.push(remote.rkey);
        lending
            .world
            .b
            .go(round + 1000, RdmaWrite { remote }, Replay::Surface);
        lending.answer(round, remote.rkey);
        let log = std::mem::take(&mut lending.world.a.log);
        // The answer, then the request with the block that the peer wrote to.
        let lines: Vec<_> = log.iter().map(|line| (line.wr_id, line.outcome)).collect();
        assert_eq!(lines, [(ANSWER, Outcome::Done), (1, Outcome::Done)]);
        assert_eq!(log[1].word, Some(round + 1000));
        assert_eq!(log.iter().map(|line| line.retired).sum::<u32>(), 2);
        lending.world.a.posted -= 2;
    }
    keys.dedup();
    assert_eq!(keys.len(), 300, "each grant has another key");
    assert_eq!(lending.world.a.link.epoch(), 1);
    lending.over([0, 0]);
    let last = *keys.last().unwrap();
    let addr = lending.slab.mr().addr();
    lending.is_shut(Remote { addr, rkey: last });
}

#[test]
fn the_program_takes_it_back_when_it_has_the_answer() {
    let mut lending = Lending::new();
    let remote = lending.lent(1, AccessFlags::REMOTE_READ);
    lending.world.b.go(2, RdmaRead { remote }, Replay::Surface);
    lending.world.poll();
    assert_eq!(lending.world.b.sends(), [(2, Outcome::Done)]);
    assert_eq!(
        lending.world.b.log.last().unwrap().word,
        Some(0x1111_1111_1111_1111)
    );
    let link = &mut lending.world.a.link;
    assert_eq!(link.end_grant(2), Err(CancelError::NotFound));
    assert_eq!(link.end_grant(1), Ok(Cancel::Requested));
    assert_eq!(link.end_grant(1), Ok(Cancel::Repeated));
    assert_eq!(link.cancel(1), Ok(Cancel::Repeated));
    lending.world.poll();
    assert_eq!(lending.world.a.sends(), [(1, Outcome::Done)]);
    assert_eq!(
        lending.world.a.link.end_grant(1),
        Err(CancelError::NotFound)
    );
    assert_eq!(lending.world.a.link.epoch(), 1);
    lending.over([0, 0]);
    lending.is_shut(remote);
}

/// A right that was not given is none.
#[test]
fn only_the_rights_of_the_grant_are_given() {
    let mut lending = Lending::new();
    let remote = lending.lent(1, AccessFlags::REMOTE_READ);
    assert_eq!(
        lending.write(2, remote),
        Outcome::Failed(WcStatus::RemAccessErr)
    );
    // The link has recovered, so the grant is over.
    let lost = (1, Outcome::InDoubt(Doubt::NoAnswer));
    assert_eq!(lending.world.a.sends(), [lost]);
    lending.over([0, 0]);
}

#[test]
fn requests_that_are_cancelled_or_late() {
    // Not delivered.
    let mut lending = Lending::new();
    let remote = lending.lend(1, BOTH);
    assert_eq!(lending.world.a.link.cancel(1), Ok(Cancel::Requested));
    lending.world.settle();
    assert_eq!(lending.world.a.sends(), [(1, Outcome::NotExecuted)]);
    lending.over([0, 0]);
    lending.is_shut(remote);

    // Delivered, and not answered: nothing has to recover.
    let mut lending = Lending::new();
    let remote = lending.lent(1, BOTH);
    assert_eq!(lending.world.a.link.cancel(1), Ok(Cancel::Requested));
    lending.world.poll();
    let cancelled = (1, Outcome::InDoubt(Doubt::Cancelled));
    assert_eq!(lending.world.a.sends(), [cancelled]);
    assert_eq!(lending.world.a.link.epoch(), 1);
    assert_eq!(lending.world.a.link.counters().unwrap().cancelled, 1);
    lending.over([0, 0]);
    lending.is_shut(remote);

    // The deadline is set before the peer has it, or after.
    for delivered in [false, true] {
        let mut lending = Lending::new();
        lending.world.b.receive([1]);
        let remote = lending.lend(1, BOTH);
        if delivered {
            lending.world.poll();
        }
        let within = lending.world.a.link.cancel_after(1, 10 * MS);
        assert_eq!(within, Ok(Cancel::Requested));
        lending.world.poll();
        let soft = lending.world.device.as_soft().unwrap();
        soft.advance(9 * MS);
        lending.world.poll();
        assert_eq!(lending.world.a.sends(), []);
        assert!(lending.world.a.link.deadline().is_some());
        lending.world.device.as_soft().unwrap().advance(MS);
        lending.world.poll();
        let late = (1, Outcome::InDoubt(Doubt::DeadlinePassed));
        assert_eq!(lending.world.a.sends(), [late]);
        assert_eq!(lending.world.a.link.epoch(), 1);
        assert_eq!(lending.world.a.link.counters().unwrap().deadlines_passed, 1);
        lending.over([0, 0]);
        // Its answer comes too late: the key is dead, and both links recover.
        lending.world.a.receive([ANSWER]);
        lending
            .world
            .b
            .go(3, SendWithInv { rkey: remote.rkey }, Replay::Surface);
        lending.world.settle();
        let refused = (3, Outcome::Failed(WcStatus::RemInvReqErr));
        assert_eq!(lending.world.b.sends(), [refused]);
        lending.over([0, 0]);
    }
}

/// Whatever ends the connection ends the grants: reported, and shut.
#[test]
fn a_recovery_ends_grants() {
    for rebuilt in [false, true] {
        for at_b in [false, true] {
            let mut lending = Lending::new();
            let remote = lending.lent(1, BOTH);
            let held = lending.lend(2, BOTH);
            let link = match at_b {
                true => &lending.world.b.link,
                false => &lending.world.a.link,
            };
            let fault = match rebuilt {
                true => Fault::CqOverrun(link.cqn().unwrap()),
                false => Fault::QpFatal(link.qp_num().unwrap()),
            };
            lending.fails(fault);
            assert_eq!(lending.world.states(), [LinkState::Ready; 2]);
            let outcomes = lending.world.a.sends();
            let expected = [
                (1, Outcome::InDoubt(Doubt::NoAnswer)),
                (2, Outcome::NotExecuted),
            ];
            let mut sorted = outcomes.clone();
            sorted.sort_by_key(|(wr_id, _)| *wr_id);
            assert_eq!(sorted, expected, "{rebuilt} {at_b}");
            lending.over([0, 0]);
            lending.is_shut(remote);
            lending.is_shut(held);
            // Others follow.
            lending.world.b.receive([3]);
            let remote = lending.lend(3, BOTH);
            lending.answer(4, remote.rkey);
            assert_eq!(lending.world.a.sends().last(), Some(&(3, Outcome::Done)));
            lending.over([0, 0]);
        }
    }
}

/// The answer has come, and the link fails before it is polled.
#[test]
fn an_answer_counts_in_a_recovery() {
    let mut lending = Lending::new();
    lending.world.b.receive([1]);
    lending.world.a.receive([ANSWER]);
    let remote = lending.lend(1, BOTH);
    let answer = SendWithInv { rkey: remote.rkey };
    lending.world.b.go(2, answer, Replay::Surface);
    let qp_num = lending.world.a.link.qp_num().unwrap();
    lending.fails(Fault::QpFatal(qp_num));
    assert_eq!(lending.world.a.sends(), [(1, Outcome::Done)]);
    lending.over([0, 0]);
}

#[test]
fn a_link_that_ends_gives_everything_back() {
    // Closed with one that waits for its answer, and one that is not delivered.
    let mut lending = Lending::new();
    lending.lent(1, BOTH);
    lending.lend(2, BOTH);
    lending.world.a.link.close(Duration::ZERO);
    lending.world.settle();
    let mut outcomes = lending.world.a.sends();
    outcomes.sort_by_key(|(wr_id, _)| *wr_id);
    assert!(
        matches!(outcomes[0], (1, Outcome::InDoubt(_))),
        "{outcomes:?}"
    );
    assert_eq!(outcomes.len(), 2);
    lending.over([0, 0]);

    // Dropped.
    let mut lending = Lending::new();
    lending.lent(1, BOTH);
    lending.lend(2, BOTH);
    let Lending { world, slab } = lending;
    drop(world);
    assert_eq!(slab.outstanding(), 0);
}

/// The link's own entries are neither reported nor counted, whatever the program posts among them.
#[test]
fn own_entries_are_not_counted() {
    let mut lending = Lending::new();
    let memory = lending.world.b.memory();
    let unsignalled = SendFlags::empty();
    let stage = |lending: &mut Lending, wr_id| {
        let end = &mut lending.world.a;
        end.stage(
            wr_id,
            RdmaWrite { remote: memory },
            unsignalled,
            Replay::Surface,
        );
    };
    stage(&mut lending, 10);
    let first = lending.lent(1, BOTH);
    stage(&mut lending, 11);
    stage(&mut lending, 12);
    assert_eq!(lending.world.a.link.end_grant(1), Ok(Cancel::Requested));
    stage(&mut lending, 13);
    lending.world.b.receive([2]);
    let second = lending.lend(2, BOTH);
    lending.world.poll();
    lending.answer(5, second.rkey);
    assert_ne!(first.rkey, second.rkey);
    let done = |wr_id| (wr_id, Outcome::Done);
    assert_eq!(lending.world.a.sends(), [done(1), done(2)]);
    lending.over([0, 0]);
    // Completions go to the program as they are, again.
    lending.world.talk();
}

#[test]
fn what_cannot_be_lent() {
    let mut lending = Lending::new();
    let pd = lending.world.a.link.pd().unwrap().clone();
    let block = |lending: &Lending| lending.slab.take(BLOCK).unwrap();
    let refused = |result: Result<Grant, (GrantError, Block<'static>)>| result.unwrap_err().0;

    for access in [AccessFlags::empty(), BOTH | AccessFlags::LOCAL_WRITE] {
        let error = refused(lending.slab.grant(block(&lending), 1, access));
        assert!(matches!(error, GrantError::Rights { .. }), "{error}");
    }
    for length in [0, BLOCK + 1] {
        let error = refused(lending.slab.grant(block(&lending), length, BOTH));
        assert!(matches!(error, GrantError::Length { .. }), "{error}");
    }
    let other = lender(&pd);
    let error = refused(other.grant(block(&lending), 1, BOTH));
    assert!(matches!(error, GrantError::Foreign), "{error}");
    let plain = &lending.world.a.slab;
    let error = refused(plain.grant(plain.take(BLOCK).unwrap(), 1, BOTH));
    assert!(matches!(error, GrantError::NotLendable), "{error}");
    let region = |access| {
        let mapping = Mapping::anonymous(4096).build().unwrap();
        Arc::new(Region::new(&pd, mapping, access).unwrap())
    };
    let readable = region(AccessFlags::MW_BIND);
    let error = Grant::range(&readable, 0, 64, BOTH).unwrap_err();
    assert!(matches!(error, GrantError::NotLendable), "{error}");
    let error = Grant::range(&readable, 4090, 64, AccessFlags::REMOTE_READ).unwrap_err();
    assert!(matches!(error, GrantError::Length { .. }), "{error}");

    // The link refuses: the grant comes back, and nothing was staged.
    let mut post = |grant, length| {
        let link = &mut lending.world.a.link;
        let message = |_| vec![0; length];
        let refused = link
            .post_grant(1, grant, Send {}, message, SIGNALED)
            .unwrap_err();
        assert!(!refused.to_string().is_empty());
        drop(refused.grant.into_block());
        refused.error
    };
    let access = AccessFlags::REMOTE_ATOMIC;
    let error = post(
        lending
            .slab
            .grant(lending.slab.take(BLOCK).unwrap(), 8, access)
            .unwrap(),
        8,
    );
    assert!(matches!(error, GrantError::NotAllowed { .. }), "{error}");
    let foreign = lender(&lending.world.device.alloc_pd());
    let error = post(
        foreign
            .grant(foreign.take(BLOCK).unwrap(), 8, BOTH)
            .unwrap(),
        8,
    );
    assert!(matches!(error, GrantError::Foreign), "{error}");
    let grant = |slab: &Slab| slab.grant(slab.take(BLOCK).unwrap(), 8, BOTH).unwrap();
    let error = post(grant(&lending.slab), 5000);
    let too_long = matches!(
        error,
        GrantError::Link(LinkError::Post(PostError::InlineTooLong {
            given: 5000,
            ..
        }))
    );
    assert!(too_long, "{error}");

    // No receive is posted: so the queue becomes full.
    let mut open = 0;
    let full = loop {
        let link = &mut lending.world.a.link;
        let grant = grant(&lending.slab);
        match link.post_grant(open, grant, Send {}, |_| [0; 12], SIGNALED) {
            Ok(()) => open += 1,
            Err(refused) => break refused.error,
        }
    };
    assert!(
        matches!(
            full,
            GrantError::Link(LinkError::Post(PostError::QueueFull))
        ),
        "{full}"
    );
    lending.world.a.link.ring();
    lending.world.a.posted += open as u32;
    lending.world.a.link.close(Duration::ZERO);
    lending.world.settle();
    let link = &mut lending.world.a.link;
    let ended = link.post_grant(1, grant(&lending.slab), Send {}, |_| [0; 12], SIGNALED);
    let error = ended.unwrap_err().error;
    assert!(
        matches!(error, GrantError::Link(LinkError::Ended(_))),
        "{error}"
    );
    lending.over([0, 0]);
}

/// A window cannot be bound: the request fails with the bind's status.
#[test]
fn a_bind_that_fails_is_the_requests_failure() {
    let mut lending = Lending::new();
    let mr = lending.world.a.region.mr();
    // SAFETY: nothing is at that address, which the device finds out.
    let grant = unsafe { Grant::raw(mr.lkey(), mr.addr() + (1 << 30), 64, BOTH) }.unwrap();
    lending.world.b.receive([1]);
    let link = &mut lending.world.a.link;
    link.post_grant(1, grant, Send {}, |_| [0; 12], SIGNALED)
        .unwrap();
    link.ring();
    lending.world.a.posted += 1;
    lending.world.settle();
    let failed = (1, Outcome::Failed(WcStatus::MwBindErr));
    assert_eq!(lending.world.a.sends(), [failed]);
    lending.over([0, 1]);
}

/// A range of a region, which is kept until then.
#[test]
fn a_range_is_lent() {
    let mut lending = Lending::new();
    let pd = lending.world.a.link.pd().unwrap().clone();
    let mapping = Mapping::anonymous(4096).build().unwrap();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::MW_BIND;
    let region = Arc::new(Region::new(&pd, mapping, access).unwrap());
    let grant = Grant::range(&region, 1024, 512, BOTH).unwrap();
    let mut at = Remote::default();
    let message = |remote| {
        at = remote;
        [0; 12]
    };
    lending.world.b.receive([1]);
    let link = &mut lending.world.a.link;
    link.post_grant(1, grant, Send {}, message, SIGNALED)
        .unwrap();
    link.ring();
    lending.world.a.posted += 1;
    assert_eq!(Arc::strong_count(&region), 2);
    assert_eq!(lending.write(2, at), Outcome::Done);
    lending.answer(3, at.rkey);
    assert_eq!(Arc::strong_count(&region), 1);
    let mut word = [0; 8];
    region.read(1024, &mut word);
    assert_eq!(u64::from_le_bytes(word), 2);
    lending.over([0, 0]);
    lending.is_shut(at);
}

/// A link that sleeps wakes for the answer, and for the deadline of one that does not come.
#[test]
fn a_sleeper_wakes_for_it() {
    use crate::modes::{ready, until};
    use crate::sleep::{falls_asleep, sleepers, wakes};
    use crate::world::End;
    use bellwire::link::{RecoverIn, pair};
    use bellwire::soft::Mode;
    for recover_in in [RecoverIn::Poll, RecoverIn::Thread] {
        let pd = bellwire_tests::fixture::device(Mode::Inline).alloc_pd();
        let mut init = LinkInit {
            recover_in,
            check_every: 64,
            ..sleepers()
        };
        init.connect.access = BOTH;
        let slab = lender(&pd);
        let (first, second) = pair();
        let mut a = End::new(&pd, init.clone(), first);
        let mut b = End::new(&pd, init, second);
        until(&mut a, &mut b, ready);
        let lend = |a: &mut End, b: &mut End, wr_id| {
            b.receive([wr_id]);
            let grant = slab.grant(slab.take(BLOCK).unwrap(), BLOCK, BOTH).unwrap();
            let mut rkey = 0;
            let message = |remote: Remote| {
                rkey = remote.rkey;
                [0; 12]
            };
            a.link
                .post_grant(wr_id, grant, Send {}, message, SIGNALED)
                .unwrap();
            a.link.ring();
            a.posted += 1;
            while a.poll() != 0 {}
            rkey
        };
        let rkey = lend(&mut a, &mut b, 1);
        a.receive([ANSWER]);
        falls_asleep(&mut a);
        b.go(2, SendWithInv { rkey }, Replay::Surface);
        assert!(wakes(&a, 60_000));
        until(&mut a, &mut b, |a, _| a.sends() == [(1, Outcome::Done)]);

        lend(&mut a, &mut b, 3);
        falls_asleep(&mut a);
        assert_eq!(a.link.end_grant(3), Ok(Cancel::Requested));
        assert!(wakes(&a, 60_000));
        until(&mut a, &mut b, |a, _| a.sends().len() == 2);

        lend(&mut a, &mut b, 4);
        a.link.cancel_after(4, 20 * MS).unwrap();
        falls_asleep(&mut a);
        assert!(wakes(&a, 60_000));
        until(&mut a, &mut b, |a, _| a.sends().len() == 3);
        let late = (4, Outcome::InDoubt(Doubt::DeadlinePassed));
        assert_eq!(a.sends()[2], late);

        // A recovery, here or in a thread.
        lend(&mut a, &mut b, 5);
        a.link.report(bellwire::fault::Fault::DeadlineMissed);
        until(&mut a, &mut b, |a, _| a.sends().len() == 4);
        assert_eq!(a.sends()[3], (5, Outcome::InDoubt(Doubt::NoAnswer)));
        assert_eq!(slab.outstanding(), 0);
    }
}
