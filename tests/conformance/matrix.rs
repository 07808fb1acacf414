//! The matrix: rule by provider, as it came out, and the page that keeps it.

use crate::provider::Provider;
use crate::rule::Group;
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long the page waits for the rules that other threads are still at.
const PATIENCE: Duration = Duration::from_secs(1500);

/// What came of a rule with a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It ran and holds.
    Yes,
    /// The provider lacks what it needs.
    NotSupported,
    /// The provider does otherwise, and is known to.
    Otherwise,
    /// It is broken.
    No,
}

impl Verdict {
    fn text(self) -> &'static str {
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

    fn rules(&self) -> usize {
        self.groups.iter().map(|group| group.rules.len()).sum()
    }

    fn verdict(&self, provider: &Provider, rule: &str) -> Option<Verdict> {
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
    fn counts(&self, provider: &Provider) -> String {
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

    /// Waits for the verdicts of all rules, then writes the page (`bless`) or compares it.
    ///
    /// # Errors
    /// A broken rule, or a page that is stale; says what to do.
    pub fn check_page(&self, page: &Path, renew: &str, bless: bool) -> Result<(), String> {
        let all = self.rules() * self.providers.len();
        let verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = self
            .more
            .wait_timeout_while(verdicts, PATIENCE, |verdicts| verdicts.len() < all);
        let (verdicts, timeout) = wait.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return Err(format!("{} of {all} verdicts came", verdicts.len()));
        }
        let broken = verdicts.values().filter(|&&one| one == Verdict::No).count();
        drop(verdicts);
        if broken != 0 {
            return Err(format!(
                "{broken} failed, so the page is neither checked nor written: mend them first"
            ));
        }
        let text = self.page(renew);
        if bless {
            return std::fs::write(page, text).map_err(|error| format!("not written: {error}"));
        }
        if std::fs::read_to_string(page).is_ok_and(|there| there == text) {
            return Ok(());
        }
        Err(format!("{} is stale: run `{renew}`", page.display()))
    }

    fn page(&self, renew: &str) -> String {
        let mut text = format!(
            "# Conformance\n\n\
             Generated by `{renew}` from a run of `tests/conformance`; a cell says `yes` only where \
             the rule ran and passed in that run. {} rules; IBTA means the InfiniBand Architecture \
             Specification (sections as release 1.3 numbers them), ibv_… the manual pages of rdma-core.\n\n",
            self.rules()
        );
        for provider in self.providers {
            let lacks: Vec<_> = provider.lacking().map(|one| one.to_string()).collect();
            writeln!(
                text,
                "- **{}**: {}. Lacks: {}.",
                provider.name,
                provider.about,
                lacks.join(", ")
            )
            .expect("writing to a String");
            for (rules, instead) in provider.otherwise.iter().copied().flatten() {
                writeln!(text, "  - `{rules}` otherwise: {instead}").expect("writing to a String");
            }
        }
        text.push('\n');
        for provider in self.providers {
            writeln!(text, "    {}", self.counts(provider)).expect("writing to a String");
        }
        for group in &self.groups {
            self.section(group, &mut text).expect("writing to a String");
        }
        text
    }

    fn section(&self, group: &Group, text: &mut String) -> std::fmt::Result {
        write!(text, "\n## {}\n\n{}\n\n| rule |", group.name, group.about)?;
        for provider in self.providers {
            write!(text, " {} |", provider.name)?;
        }
        write!(text, " what it says | source |\n|---|---|---|")?;
        text.push_str(&"---|".repeat(self.providers.len()));
        for rule in &group.rules {
            let name = rule.name.strip_prefix(group.name).unwrap_or(&rule.name);
            write!(text, "\n| `{}` |", name.trim_start_matches("::"))?;
            for provider in self.providers {
                let verdict = self.verdict(provider, &rule.name);
                write!(text, " {} |", verdict.map_or("-", Verdict::text))?;
            }
            write!(text, " {} | {} |", rule.says, rule.source)?;
        }
        text.push('\n');
        Ok(())
    }
}
