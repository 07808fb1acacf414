//! The messages that the program's calls send: requests, responses, and the end of a connection.

use super::super::{ConnParam, EventKind};
use super::entry::{BY_PROGRAM, NO_SERVICE, SIDR_REJECTED, Stage};
use super::id::{Id, step};
use super::message::{Kind, Message};
use super::multicast;
use super::params::Params;
use super::private::Private;
use crate::error::Error;
use crate::pinned::boxed;
use bellwire_core::fault::CmEvent;

impl Id {
    pub fn connect(&self, qp_num: u32, srq: bool, param: &ConnParam) -> Result<(), Error> {
        let private = Private::given(&param.private_data)?;
        let home = self.home().clone();
        let ours = Params::ours(home.device(), (qp_num, self.psn()?), srq, param);
        self.ask(Kind::Req, ours, private, "connect")
    }

    /// The PSN of the first packet that this end's queue pair sends.
    fn psn(&self) -> Result<u32, Error> {
        self.change(|entry, _| Ok(entry.psn))
    }

    pub fn lookup(&self, private_data: &[u8]) -> Result<(), Error> {
        let private = Private::given(private_data)?;
        self.ask(
            Kind::SidrReq,
            Params::default(),
            private,
            "look for a service",
        )
    }

    fn ask(
        &self,
        kind: Kind,
        params: Params,
        private: Private,
        what: &'static str,
    ) -> Result<(), Error> {
        let home = self.home().clone();
        home.device().hca.check_alive()?;
        if self.stage()? != Stage::RouteResolved {
            return step(what);
        }
        let managers = &home.hca().managers;
        let fault = [
            CmEvent::ConnectError,
            CmEvent::Unreachable,
            CmEvent::Rejected,
        ]
        .into_iter()
        .find(|event| managers.take(*event));
        self.become_of(|entry, home| {
            if entry.stage != Stage::RouteResolved {
                return step(what);
            }
            let status = -libc::ETIMEDOUT;
            match fault {
                Some(CmEvent::ConnectError) => {
                    let status = -libc::ECONNABORTED;
                    return Ok(entry.end(EventKind::ConnectError { status }));
                }
                Some(CmEvent::Rejected) => return Ok(entry.refused(NO_SERVICE, Vec::new())),
                Some(_) => return Ok(entry.end(EventKind::Unreachable { status })),
                None => {}
            }
            let message = boxed(Message {
                params,
                source: entry.local,
                target: entry.peer,
                private,
                ..Message::new(kind)
            })?;
            entry.ours = Some(params);
            entry.knock(message);
            Ok(home.hub.knock(entry, self.key, home.scope()))
        })
    }

    pub fn establish(&self) -> Result<(), Error> {
        self.change(|entry, _| {
            if entry.stage != Stage::Answered {
                return step("establish a connection");
            }
            entry.say(&Message::new(Kind::Rtu));
            entry.settle(Stage::Established);
            Ok(())
        })
    }

    pub fn accept(&self, qp_num: u32, srq: bool, param: &ConnParam) -> Result<(), Error> {
        let private = Private::given(&param.private_data)?;
        let home = self.home().clone();
        let params = Params::ours(home.device(), (qp_num, self.psn()?), srq, param);
        self.change(|entry, _| {
            if entry.stage != Stage::Requested {
                return step("accept a request");
            }
            entry.say(&Message {
                params,
                private,
                ..Message::new(Kind::Rep)
            });
            entry.await_answer(Stage::Accepted);
            Ok(())
        })
    }

    pub fn answer(&self, qp_num: u32, private_data: &[u8]) -> Result<(), Error> {
        let private = Private::given(private_data)?;
        let home = self.home().clone();
        let params = Params {
            qkey: multicast::qkey(self.space),
            ..Params::ours(home.device(), (qp_num, 0), false, &ConnParam::default())
        };
        self.finish(
            "answer a lookup",
            &Message {
                params,
                private,
                ..Message::new(Kind::SidrRep)
            },
        )
    }

    pub fn reject(&self, private_data: &[u8]) -> Result<(), Error> {
        let private = Private::given(private_data)?;
        let (kind, status) = match self.space.is_datagram() {
            true => (Kind::SidrRep, SIDR_REJECTED),
            false => (Kind::Rej, BY_PROGRAM),
        };
        self.finish(
            "reject a request",
            &Message {
                status,
                private,
                ..Message::new(kind)
            },
        )
    }

    /// Sends the last message to a peer whose request, or response, has been received.
    fn finish(&self, what: &'static str, message: &Message) -> Result<(), Error> {
        self.change(|entry, _| {
            if !matches!(entry.stage, Stage::Requested | Stage::Answered) {
                return step(what);
            }
            entry.say(message);
            entry.settle(Stage::Ended);
            entry.hang_up();
            entry.remote_qp = None;
            Ok(())
        })
    }

    pub fn disconnect(&self) -> Result<(), Error> {
        self.change(|entry, _| {
            match entry.stage {
                Stage::Answered | Stage::Accepted | Stage::Established => {
                    entry.say(&Message::new(Kind::Dreq));
                    entry.await_answer(Stage::Ending);
                }
                // The peer, or this end, has disconnected already.
                Stage::Ending | Stage::Timewait => {}
                Stage::Ended if entry.theirs.is_some() => {}
                _ => return step("disconnect"),
            }
            entry.let_go = true;
            entry.forget_peer();
            Ok(())
        })
    }
}
