//! Queue pair states: their attributes, which transitions are legal with which attributes, and what
//! a queue pair does in each state. Only rules and numbers; nothing here accesses a device.
//!
//! Sources: IBTA Architecture Specification volume 1, section 10.3.1 (states) and chapter 11
//! (Modify Queue Pair); ibv_modify_qp(3); libibverbs' verbs.h.

// Miri leaves these tests out: there is nothing for it to find.
#![forbid(unsafe_code)]

mod attr;
mod state;
#[cfg(test)]
mod tests;
mod transition;

pub use attr::{
    AckTimeout, AhAttr, GlobalRoute, MigState, Mtu, QpAttr, QpAttrMask, QpCap, RNR_RETRY_INFINITE,
    ack_timeout, rnr_timer,
};
pub use state::{
    Behaviour, Incoming, Outgoing, Post, Processing, QpState, behaviour, state_after_send_error,
};
pub use transition::{ModifyError, Step, Transition, check_modify, legal_targets, transition};
