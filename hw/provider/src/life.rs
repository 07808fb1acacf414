//! Lives of a queue pair: the time from one RESET to the next.

/// The values that distinguish one life of a queue pair from the next: the first counter, and the user
/// indices of its completions.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// Counter of the first send WQE.
    pub send_start: u32,
    /// User index in completions of sends.
    pub send_user_index: u32,
    /// User index in completions of receives.
    pub recv_user_index: u32,
}
