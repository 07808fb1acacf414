//! The rules, a file for each group.

mod attributes;
mod channels;
mod completion;
mod errors;
mod events;
mod faults;
mod gone;
mod lives;
mod memory;
mod multicast;
mod objects;
mod operations;
mod ordering;
mod outcome;
mod packets;
mod recorder;
mod srq;
mod states;
mod statuses;
mod timers;
mod transitions;
mod transports;
mod uc;
mod ud;
mod windows;
mod xrc;
mod xrc_domains;

use crate::rule::Group;

/// Every group, in the order of the page.
pub fn groups() -> Vec<Group> {
    let mut groups = vec![
        states::group(),
        transitions::group(),
        attributes::group(),
        lives::group(),
        packets::group(),
        operations::group(),
        memory::group(),
        ordering::group(),
        completion::group(),
        outcome::group(),
        recorder::group(),
        channels::arming::group(),
        channels::waiting::group(),
        events::caused::group(),
        events::raised::group(),
        events::waiting::group(),
        faults::request::group(),
        faults::device::group(),
        faults::scripts::group(),
        errors::group(),
        statuses::group(),
        timers::group(),
        objects::group(),
    ];
    groups.extend(windows::groups());
    groups.extend(transports::groups());
    groups.extend([
        uc::group(),
        packets::uc::group(),
        ud::group(),
        multicast::group(),
        srq::group(),
        xrc::group(),
        xrc_domains::group(),
        packets::xrc::group(),
        gone::group(),
    ]);
    groups
}
