//! The rules that any transport beside RC has to follow, put to each.

mod completion;
pub mod ends;
mod kind;
mod states;
mod transitions;

use crate::rule::Group;

/// Every group, in the order of the page.
pub fn groups() -> Vec<Group> {
    let mut groups = Vec::from(states::groups());
    groups.extend(transitions::groups());
    groups.extend(completion::groups());
    groups
}
