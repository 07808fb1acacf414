//! The turns that count, by placement.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::entrants;
use super::line::Placement;
use super::runners::Runner;

/// How far the line behind a turn may differ from the one before it.
const AGREES: f64 = 0.15;

/// A turn that counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Turn {
    /// Nanoseconds that the bare line took.
    line: f64,
    result: f64,
}

impl Turn {
    /// `None`: the line took another time behind the turn than before.
    pub fn new(before: f64, after: f64, result: f64) -> Option<Self> {
        let line = (before + after) / 2.0;
        let agrees = (before - after).abs() <= AGREES * line
            && Placement::of(before) == Placement::of(after);
        agrees.then_some(Self { line, result })
    }
}

/// The turns of each, by placement.
#[derive(Debug, Default)]
pub struct Figures(BTreeMap<(Placement, &'static str, u64), Vec<Turn>>);

impl Figures {
    pub fn add(&mut self, runner: Runner, size: u64, turn: Turn) {
        let key = (Placement::of(turn.line), runner.name, size);
        self.0.entry(key).or_default().push(turn);
    }

    /// The results of one.
    pub fn turns(&self, placement: Placement, runner: Runner, size: u64) -> Vec<f64> {
        let turns = self.0.get(&(placement, runner.name, size));
        turns
            .into_iter()
            .flatten()
            .map(|turn| turn.result)
            .collect()
    }

    /// How many turns there are of each, at the least.
    pub fn rounds(&self, placement: Placement) -> usize {
        let turns = entrants().map(|(runner, size)| self.turns(placement, runner, size).len());
        turns.min().unwrap_or(0)
    }

    /// Between which times the line was.
    pub fn lines(&self, placement: Placement) -> RangeInclusive<f64> {
        let lines = || {
            let of = self.0.iter().filter(move |((at, ..), _)| *at == placement);
            of.flat_map(|(_, turns)| turns).map(|turn| turn.line)
        };
        let least = lines().fold(f64::INFINITY, f64::min);
        least..=lines().fold(0.0, f64::max)
    }
}

pub fn median(results: &[f64]) -> f64 {
    let mut sorted = results.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn least(results: &[f64]) -> f64 {
    results.iter().copied().fold(f64::NAN, f64::min)
}

pub fn most(results: &[f64]) -> f64 {
    results.iter().copied().fold(f64::NAN, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_count_whose_lines_agree() {
        assert!(Turn::new(50.0, 55.0, 1.0).is_some());
        assert_eq!(Turn::new(50.0, 60.0, 1.0), None);
        // Close to each other, in two placements.
        assert_eq!(Turn::new(98.0, 103.0, 1.0), None);
    }

    #[test]
    fn results_are_summed_up() {
        let results = [3.0, 1.0, 2.0];
        assert_eq!(
            (least(&results), median(&results), most(&results)),
            (1.0, 2.0, 3.0)
        );
        assert!(median(&[]).is_nan() && least(&[]).is_nan());
    }
}
