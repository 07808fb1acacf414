//! Executes requests whose data is in another process, or arrives in parts.

use super::copy::{Fault, Span, can_write, copy};
use super::hca::Hca;
use super::qp::SendWork;
use super::receive::{Fetch, Message};
use super::respond::Answer;
use super::run::{Service, Stop, answered, message};
use bellwire_core::access::AccessFlags;
use bellwire_core::cqe::{CqeOpcode, Syndrome};
use bellwire_core::wqe::{Request, SEGMENT};

/// Executes a request whose data is `length` bytes that `fetch` copies from another process. `invalidate`
/// invalidates the rkey that a SEND with invalidate names.
pub(super) fn fetched<T: Service>(
    hca: &Hca,
    work: &SendWork,
    request: &Request<'_>,
    length: u64,
    fetch: &Fetch<'_>,
    invalidate: &mut dyn FnMut(u32) -> Result<(), Syndrome>,
) -> Result<u32, Stop> {
    let wqe = request.wqe();
    let nothing = wqe.data(wqe.ds() as usize * SEGMENT);
    let receive = CqeOpcode::of_receive(request.operation());
    let mut run = || {
        let responder = T::responder(hca, work, wqe)?;
        let Some(remote) = request.remote() else {
            let message = Message {
                fetch: Some(fetch),
                ..message(wqe, receive.ok_or(Answer::Silent)?, nothing, length)
            };
            responder.receive_rest(hca, &message, || match request.invalidates() {
                Some(_) => invalidate(responder.pd()),
                None => Ok(()),
            })?;
            return Ok(0);
        };
        let access = AccessFlags::REMOTE_WRITE;
        let to = responder.reach(hca, remote, length, access)?;
        let places = [(to.expose_provenance() as u64, length)];
        let Some(kind) = receive else {
            return fetch(&places)
                .then_some(0)
                .ok_or_else(|| unfetched_by(to, length));
        };
        let message = message(wqe, kind, nothing, length);
        let mut unfetched = None;
        let received = responder.receive(hca, &message, || {
            fetch(&places).then_some(()).ok_or_else(|| {
                unfetched = Some(unfetched_by(to, length));
                Syndrome::WR_FLUSH
            })
        });
        match unfetched {
            Some(answer) => Err(answer),
            None => received.map(|()| 0),
        }
    };
    answered::<T>(run())
}

/// Places bytes at offset `at` of a message of `total` bytes, before the whole message is
/// [executed](fetched).
pub(super) fn place_part<T: Service>(
    hca: &Hca,
    work: &SendWork,
    request: &Request<'_>,
    total: u64,
    at: u64,
    bytes: Span,
) -> Result<(), Answer> {
    let responder = T::responder(hca, work, request.wqe())?;
    let Some(remote) = request.remote() else {
        return responder.receive_part(hca, total, at, bytes);
    };
    let access = AccessFlags::REMOTE_WRITE;
    let to = responder.reach(hca, remote, total, access)?;
    // SAFETY: checked just before, under the lock; the part lies within the whole.
    let copied = unsafe { copy(bytes.start(), to.add(at as usize), bytes.len()) };
    copied.map_err(|Fault| Answer::FAULT)
}

/// What comes of data that was not copied to where a WRITE says: the target cannot be written any more, or the requester
/// is gone.
#[cold]
fn unfetched_by(to: *mut u8, length: u64) -> Answer {
    match can_write(to, length as usize) {
        true => Answer::Silent,
        false => Answer::FAULT,
    }
}
