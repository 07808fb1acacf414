//! The matrix: the verdict of each rule for each provider.

use crate::provider::Provider;
use crate::rule::Group;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long to wait for rules that other threads still put to providers.
const PATIENCE: Duration = Duration::from_secs(1500);

/// What came of a rule with a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It ran and holds.
    Yes,
    /// The provider lacks what it needs.
    NotSupported,
    /// The provider is known to break it.
    Otherwise,
    /// It is broken.
    No,
}

impl Verdict {
    pub fn text(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::NotSupported => "not supported",
            Self::Otherwise => "otherwise",
            Self::No => "NO",
        }
    }
}

/// All rules, all providers, and the verdicts so far.
pub struct Matrix {
    pub groups: Vec<Group>,
    pub providers: &'static [Provider],
    verdicts: Mutex<HashMap<(&'static str, String), Verdict>>,
    more: Condvar,
}

impl Matrix {
    /// Without any verdict.
    ///
    /// # Panics
    /// When two rules have one name.
    pub fn new(groups: Vec<Group>, providers: &'static [Provider]) -> Self {
        let mut names: Vec<&str> = groups
            .iter()
            .flat_map(|group| &group.rules)
            .map(|rule| rule.name.as_str())
            .collect();
        names.sort_unstable();
        for two in names.windows(2) {
            assert_ne!(two[0], two[1], "two rules of one name");
        }
        Self {
            groups,
            providers,
            verdicts: Mutex::default(),
            more: Condvar::new(),
        }
    }

    /// Notes a verdict.
    pub fn note(&self, provider: &'static Provider, rule: &str, verdict: Verdict) {
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.insert((provider.name, rule.to_owned()), verdict);
        self.more.notify_all();
    }

    /// How many rules there are.
    pub fn rules(&self) -> usize {
        self.groups.iter().map(|group| group.rules.len()).sum()
    }

    /// The verdict, once there is one.
    pub fn verdict(&self, provider: &Provider, rule: &str) -> Option<Verdict> {
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.get(&(provider.name, rule.to_owned())).copied()
    }

    fn count(&self, provider: &Provider, of: Verdict) -> usize {
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts
            .iter()
            .filter(|((name, _), verdict)| *name == provider.name && **verdict == of)
            .count()
    }

    /// `soft-inline: 120 yes, 8 not supported`
    pub fn counts(&self, provider: &Provider) -> String {
        let mut text = format!(
            "{}: {} yes, {} not supported",
            provider.name,
            self.count(provider, Verdict::Yes),
            self.count(provider, Verdict::NotSupported)
        );
        match self.count(provider, Verdict::Otherwise) {
            0 => {}
            known => write!(text, ", {known} otherwise").expect("writing to a String"),
        }
        match self.count(provider, Verdict::No) {
            0 => {}
            broken => write!(text, ", {broken} NO").expect("writing to a String"),
        }
        text
    }

    /// For the end of a run: the rules that were put, and the counts.
    pub fn table(&self) -> String {
        let names = self.groups.iter().flat_map(|group| &group.rules);
        let width = names.map(|rule| rule.name.len()).max().unwrap_or(0);
        let mut text = String::from("conformance\n");
        for rule in self.groups.iter().flat_map(|group| &group.rules) {
            let cells: Vec<_> = self
                .providers
                .iter()
                .map(|provider| self.verdict(provider, &rule.name))
                .collect();
            if cells.iter().all(Option::is_none) {
                continue;
            }
            let mut line = format!("  {:width$}", rule.name);
            for (provider, cell) in self.providers.iter().zip(cells) {
                let cell = cell.map_or("-", Verdict::text);
                write!(line, "  {}: {cell:13}", provider.name).expect("writing to a String");
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        for provider in self.providers {
            writeln!(text, "{}", self.counts(provider)).expect("writing to a String");
        }
        text
    }

    /// Waits for the verdicts of all rules.
    ///
    /// # Errors
    /// Verdicts are missing, or a rule is broken.
    pub fn wait(&self) -> Result<(), String> {
        let all = self.rules() * self.providers.len();
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self
            .more
            .wait_timeout_while(verdicts, PATIENCE, |verdicts| verdicts.len() < all);
        let (verdicts, timeout) = wait.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return Err(format!("{} of {all} verdicts came", verdicts.len()));
        }
        match verdicts.values().filter(|&&one| one == Verdict::No).count() {
            0 => Ok(()),
            broken => Err(format!(
                "{broken} rules failed, so the verdicts are neither compared nor written: mend the rules first"
            )),
        }
    }
}
