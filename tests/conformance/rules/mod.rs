//! The rules, a file for each group.

mod completion;
mod errors;
mod lives;
mod memory;
mod objects;
mod operations;
mod ordering;
mod states;
mod timers;
mod transitions;
mod transports;
mod uc;

use crate::rule::Group;

/// Every group, in the order of the page.
pub fn groups() -> Vec<Group> {
    let mut groups = vec![
        states::group(),
        transitions::group(),
        lives::group(),
        operations::group(),
        memory::group(),
        ordering::group(),
        completion::group(),
        errors::group(),
        timers::group(),
        objects::group(),
    ];
    groups.extend(transports::groups());
    groups.push(uc::group());
    groups
}
