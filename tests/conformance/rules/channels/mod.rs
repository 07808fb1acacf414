//! Completion channels.

pub mod arming;
mod own;
pub mod waiting;
