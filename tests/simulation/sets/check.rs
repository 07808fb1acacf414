//! What has to be true at the end of a schedule.

use super::{Met, Place, Side, World};
use bellwire::fault::outcome::Outcome;

impl World {
    /// Everything that was reported is true.
    pub(super) fn check(&mut self, met: &mut Met) {
        for side in 0..2 {
            for at in 0..self.sides[side].ends.len() {
                let counters = {
                    let Side { set, ends, .. } = &mut self.sides[side];
                    match (&ends[at].place, set) {
                        (Place::Plain(link), _) => (link.counters(), link.unreported()),
                        (Place::InSet(id), Some(set)) => {
                            let link = set.link(*id).expect("in the set");
                            (link.counters(), link.unreported())
                        }
                        _ => unreachable!(),
                    }
                };
                let (Some(counters), unreported) = counters else {
                    unreachable!("nothing is in a thread")
                };
                let bound = self.limits.max_duration();
                assert!(counters.longest <= bound, "{:?}", counters.longest);
                met.recovered += counters.recovered;
                let (end, peer) = (&self.sides[side].ends[at], &self.sides[1 - side].ends[at]);
                let (mut done, mut in_doubt) = (0, 0);
                for (number, (outcome, signaled)) in end.sends.iter().zip(&end.signaled).enumerate()
                {
                    let came = peer.came.contains(&(number as u64));
                    let right = match outcome {
                        Some(Outcome::Done) => came || self.completions_lost,
                        Some(Outcome::NotExecuted | Outcome::Failed(_)) => !came,
                        Some(Outcome::InDoubt(_)) => true,
                        None => !signaled && (came || self.completions_lost),
                    };
                    assert!(right, "{side}.{at}: {number} is {outcome:?}, came: {came}");
                    // What is not reported was executed, and is retired by a later one.
                    done += u64::from(matches!(outcome, Some(Outcome::Done) | None));
                    in_doubt += u64::from(matches!(outcome, Some(Outcome::InDoubt(_))));
                }
                met.done += done;
                met.in_doubt += in_doubt;
                met.unseen += u64::from(self.unseen);
                if !self.unseen {
                    let executed = end.executed;
                    let right = (done..=done + in_doubt).contains(&executed);
                    assert!(
                        right,
                        "{side}.{at}: {executed} executed, {done} to {done} + {in_doubt}"
                    );
                }
                assert!(
                    end.receives.iter().all(Option::is_some),
                    "{side}.{at}: a receive"
                );
                let posted = (end.sends.len() + end.receives.len()) as u64;
                assert_eq!(end.retired + u64::from(unreported), posted, "{side}.{at}");
            }
            let Side { set, gone, .. } = &mut self.sides[side];
            if let Some(set) = set {
                assert!(gone.iter().all(|id| set.link(*id).is_err()));
            }
        }
        assert_eq!(self.slab.outstanding(), 0, "blocks were lost");
        for Side { set, srq, .. } in &mut self.sides {
            let (Some(mut set), Some(slab)) = (set.take(), srq) else {
                continue;
            };
            if !self.fatal {
                assert_eq!(set.receives_posted() as usize, slab.capacity());
            }
            drop(set);
            assert_eq!(slab.outstanding(), 0, "buffers were lost");
        }
    }
}
