//! The states of a queue pair, and its behaviour in each.

use crate::wr::QpType;
use core::fmt;

/// The state of a queue pair (`ibv_qp_state`, the same numbers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// As created: no requests may be posted.
    #[default]
    Reset = 0,
    /// Receives may be posted; none is consumed yet.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send: the normal operating state.
    Rts = 3,
    /// Send queue drain: started sends finish, later ones wait. Whether the started ones have
    /// finished is not part of the state (`sq_draining` of ibv_query_qp(3)).
    Sqd = 4,
    /// Send queue error (UC and UD only): a send failed; receives still work.
    Sqe = 5,
    /// Error: all outstanding requests are flushed.
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

    /// The state with this number; `None` for other numbers, including `IBV_QPS_UNKNOWN` (7).
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

    /// Its number in the verbs.
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

/// Whether requests may be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// Refused at once; the request has no completion.
    Refused,
    /// Accepted. [`Processing`] says how the request is processed.
    Allowed,
}

/// How the requests in a queue are processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Processing {
    /// They wait.
    None,
    /// They are executed.
    All,
    /// Those already started finish; the others wait.
    StartedOnly,
    /// They complete with `WR_FLUSH_ERR`, unexecuted, including those posted from now on.
    Flush,
}

/// How incoming packets are handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// Dropped, without a reply.
    Dropped,
    /// Processed.
    Handled,
}

/// Which packets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outgoing {
    /// None.
    None,
    /// Only responses to the peer: acknowledgements, RDMA READ and atomic responses.
    Responses,
    /// Responses, and the remaining packets of requests already started.
    ResponsesAndStarted,
    /// Responses and requests.
    All,
}

/// The behaviour of a queue pair in one state, in the specification's six categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// Whether receives may be posted.
    pub post_recv: Post,
    /// Whether sends may be posted.
    pub post_send: Post,
    /// How posted receives are processed.
    pub recv_processing: Processing,
    /// How posted sends are processed.
    pub send_processing: Processing,
    /// How incoming packets are handled.
    pub incoming: Incoming,
    /// Which packets are sent.
    pub outgoing: Outgoing,
}

/// The behaviour of a queue pair in `state` (IBTA volume 1, section 10.3.1).
///
/// Applies to the queues that the transport has: an XRC initiator has no receive queue and an XRC
/// target has neither queue, so posting to these fails in every state.
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

/// The state of a queue pair after a send completed in error: SQE for UC and UD, ERR for the
/// reliable transports, which cannot skip a lost message.
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
