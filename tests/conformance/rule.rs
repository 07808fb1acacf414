//! What a rule is, and how it is put to a provider.

use crate::provider::{Feature, Provider};
use std::any::Any;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// How long one rule may take with one provider. Every wait within it gives up earlier.
const LIMIT: Duration = Duration::from_secs(600);

/// What a rule does: panics when the provider breaks it.
pub type Check = dyn Fn(&Provider) + Send + Sync;

/// One thing that every provider has to do.
pub struct Rule {
    /// In words, behind the name of its group.
    pub name: String,
    /// Where it is written.
    pub source: &'static str,
    /// What it says.
    pub says: String,
    /// What the provider has to have for it to mean anything.
    pub needs: Vec<Feature>,
    check: Arc<Check>,
}

/// Rules of one subject.
pub struct Group {
    /// What its rules' names begin with.
    pub name: &'static str,
    /// The subject.
    pub about: &'static str,
    /// In the order of the tables.
    pub rules: Vec<Rule>,
}

impl Rule {
    /// A rule of the group `group`.
    pub fn new(
        group: &str,
        name: &str,
        source: &'static str,
        says: impl Into<String>,
        needs: &[Feature],
        check: impl Fn(&Provider) + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: format!("{group}::{name}"),
            source,
            says: says.into(),
            needs: needs.to_vec(),
            check: Arc::new(check),
        }
    }

    /// Its name within its group.
    pub fn within(&self, group: &Group) -> &str {
        let name = self.name.strip_prefix(group.name).unwrap_or(&self.name);
        name.trim_start_matches("::")
    }

    /// What the rule needs and the provider lacks.
    pub fn lacking(&self, provider: &Provider) -> Option<Feature> {
        provider
            .lacking()
            .find(|feature| self.needs.contains(feature))
    }

    /// Puts the rule to a provider, on a thread of its own: one that hangs is left behind.
    ///
    /// # Errors
    /// What is broken.
    pub fn judge(&self, provider: &'static Provider) -> Result<(), String> {
        let check = self.check.clone();
        let (done, outcome) = mpsc::channel();
        let thread = thread::Builder::new()
            .name(format!("{} [{}]", self.name, provider.name))
            .spawn(move || {
                check(provider);
                // Nobody listens any more when it took too long.
                let _ = done.send(());
            })
            .map_err(|error| format!("no thread for it: {error}"))?;
        match outcome.recv_timeout(LIMIT) {
            Ok(()) => Ok(()),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(format!("hangs: not done in {LIMIT:?}")),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(match thread.join() {
                Ok(()) => "ended without a word".to_owned(),
                Err(panic) => words(&*panic),
            }),
        }
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied())
        .unwrap_or("panicked")
        .to_owned()
}

/// Declares a group of rules. Each rule has a line here, and a function of the same name that checks it.
///
/// ```text
/// rules! {
///     "rc", "what it is about", needs [Rc];
///     a_rule: "IBTA vol. 1, 9.7", "What it says.";
///     another_one [Nop]: "ibv_poll_cq(3)", "What it says.";
/// }
/// ```
macro_rules! rules {
    ($group:literal, $about:literal, needs $needs:tt;
     $($name:ident $([$($more:ident),+])?: $source:literal, $says:literal;)*) => {
        pub fn group() -> $crate::rule::Group {
            use $crate::provider::Feature::{self, *};
            let always: &[Feature] = &$needs;
            $crate::rule::Group {
                name: $group,
                about: $about,
                rules: vec![$($crate::rule::Rule::new(
                    $group,
                    stringify!($name),
                    $source,
                    $says,
                    &[always, &[$($($more),+)?]].concat(),
                    $name,
                )),*],
            }
        }
    };
}
pub(crate) use rules;
