//! The states of a queue pair, and what it does in each.

use crate::wr::QpType;
use core::fmt;

/// The state of a queue pair (`ibv_qp_state`, the same numbers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// As created: nothing may be posted.
    #[default]
    Reset = 0,
    /// Receives may be posted; none is used yet.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send: the working state.
    Rts = 3,
    /// Send queue drain: started sends finish, later ones wait. Whether the started ones have
    /// finished is a fact beside the state (`sq_draining` of ibv_query_qp(3)).
    Sqd = 4,
    /// Send queue error (UC and UD only): a send failed, receiving goes on.
    Sqe = 5,
    /// Error: everything outstanding completes as flushed.
    Err = 6,
}

impl QpState {
    /// Every state, in the order of their numbers.
    pub const ALL: [QpState; 7] = [
        QpState::Reset,
        QpState::Init,
        QpState::Rtr,
        QpState::Rts,
        QpState::Sqd,
        QpState::Sqe,
        QpState::Err,
    ];

    /// The state with this number; `None` for others, `IBV_QPS_UNKNOWN` (7) among them.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::Rtr,
            3 => QpState::Rts,
            4 => QpState::Sqd,
            5 => QpState::Sqe,
            6 => QpState::Err,
            _ => return None,
        })
    }

    /// The number that the verbs give it.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Its name in the verbs, without the prefix.
    pub const fn name(self) -> &'static str {
        match self {
            QpState::Reset => "RESET",
            QpState::Init => "INIT",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Sqd => "SQD",
            QpState::Sqe => "SQE",
            QpState::Err => "ERR",
        }
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What becomes of an attempt to post a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// Refused at once; the request has no outcome to wait for.
    Refused,
    /// Taken. [`Processing`] tells what becomes of it.
    Allowed,
}

/// What becomes of the requests that a queue holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processing {
    /// They wait.
    None,
    /// They are executed.
    All,
    /// Those already started are finished; the others wait.
    StartedOnly,
    /// They complete with `WR_FLUSH_ERR`, unexecuted, those posted from now on too.
    Flush,
}

/// What becomes of packets that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// Dropped, without an answer.
    Dropped,
    /// Handled.
    Handled,
}

/// Which packets leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// None.
    None,
    /// Answers to the peer only: acknowledgements, READ and atomic responses.
    Responses,
    /// Answers, and what is left of the requests already started.
    ResponsesAndStarted,
    /// Answers and requests.
    All,
}

/// What a queue pair does in one state: the specification's six answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// May receives be posted?
    pub post_recv: Post,
    /// May sends be posted?
    pub post_send: Post,
    /// What becomes of posted receives?
    pub recv_processing: Processing,
    /// What becomes of posted sends?
    pub send_processing: Processing,
    /// What becomes of arriving packets?
    pub incoming: Incoming,
    /// Which packets leave?
    pub outgoing: Outgoing,
}

/// What a queue pair does in `state` (IBTA volume 1, section 10.3.1).
///
/// Speaks of the queues the transport has: an XRC initiator has no receive queue, an XRC target has
/// neither, so posting there fails in every state.
#[inline]
pub const fn behaviour(state: QpState) -> Behaviour {
    use Post::*;
    let ready = Behaviour {
        post_recv: Allowed,
        post_send: Allowed,
        recv_processing: Processing::All,
        send_processing: Processing::All,
        incoming: Incoming::Handled,
        outgoing: Outgoing::All,
    };
    let silent = Behaviour {
        post_recv: Refused,
        post_send: Refused,
        recv_processing: Processing::None,
        send_processing: Processing::None,
        incoming: Incoming::Dropped,
        outgoing: Outgoing::None,
    };
    match state {
        QpState::Reset => silent,
        QpState::Init => Behaviour {
            post_recv: Allowed,
            ..silent
        },
        QpState::Rtr => Behaviour {
            post_send: Refused,
            send_processing: Processing::None,
            outgoing: Outgoing::Responses,
            ..ready
        },
        QpState::Rts => ready,
        QpState::Sqd => Behaviour {
            send_processing: Processing::StartedOnly,
            outgoing: Outgoing::ResponsesAndStarted,
            ..ready
        },
        QpState::Sqe => Behaviour {
            send_processing: Processing::Flush,
            outgoing: Outgoing::Responses,
            ..ready
        },
        QpState::Err => Behaviour {
            post_recv: Allowed,
            post_send: Allowed,
            recv_processing: Processing::Flush,
            send_processing: Processing::Flush,
            ..silent
        },
    }
}

/// The state a send that completes in error leaves its queue pair in: SQE for UC and UD, ERR for
/// the reliable transports, which cannot skip a lost message.
pub const fn state_after_send_error(transport: QpType) -> QpState {
    match transport {
        QpType::Uc | QpType::Ud => QpState::Sqe,
        QpType::Rc | QpType::XrcSend | QpType::XrcRecv | QpType::Dci => QpState::Err,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{format, vec::Vec};

    #[test]
    fn numbers_are_those_of_the_verbs() {
        let names = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
        for (number, name) in (0u8..).zip(names) {
            let state = QpState::from_number(number).unwrap();
            assert_eq!((state.number(), state.name()), (number, name));
            assert_eq!(QpState::ALL[usize::from(number)], state);
        }
        for number in 7..=u8::MAX {
            assert_eq!(QpState::from_number(number), None);
        }
    }

    #[test]
    fn behaviour_is_the_specification_table() {
        // state, post receive, post send, receives, sends, incoming, outgoing
        let table = "
            RESET Refused Refused None  None        Dropped None
            INIT  Allowed Refused None  None        Dropped None
            RTR   Allowed Refused All   None        Handled Responses
            RTS   Allowed Allowed All   All         Handled All
            SQD   Allowed Allowed All   StartedOnly Handled ResponsesAndStarted
            SQE   Allowed Allowed All   Flush       Handled Responses
            ERR   Allowed Allowed Flush Flush       Dropped None";
        let rows: Vec<Vec<&str>> = table
            .lines()
            .map(|line| line.split_whitespace().collect())
            .filter(|row: &Vec<&str>| !row.is_empty())
            .collect();
        assert_eq!(rows.len(), QpState::ALL.len());
        for (state, row) in QpState::ALL.into_iter().zip(rows) {
            let b = behaviour(state);
            let actual = format!(
                "{state} {:?} {:?} {:?} {:?} {:?} {:?}",
                b.post_recv,
                b.post_send,
                b.recv_processing,
                b.send_processing,
                b.incoming,
                b.outgoing
            );
            assert_eq!(actual, row.join(" "));
        }
    }

    #[test]
    fn only_unreliable_transports_stop_at_sqe() {
        assert_eq!(state_after_send_error(QpType::Rc), QpState::Err);
        assert_eq!(state_after_send_error(QpType::XrcSend), QpState::Err);
        assert_eq!(state_after_send_error(QpType::XrcRecv), QpState::Err);
        assert_eq!(state_after_send_error(QpType::Uc), QpState::Sqe);
        assert_eq!(state_after_send_error(QpType::Ud), QpState::Sqe);
    }
}
