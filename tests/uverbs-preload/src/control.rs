//! Faults to order, for tests of the software above: [`uverbs_preload_control`].

use crate::engine;
use crate::object::errno;
use bellwire::cqe::Syndrome;
use bellwire::event::{Element, EventType};
use bellwire::rings::Cq;
use bellwire::soft::{Fault, Script, Trigger};
use bellwire::wr::WcStatus;
use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_int};
use std::str::SplitWhitespace;
use std::time::Duration;

/// Has something go wrong on the process's device, which starts if it has not yet. Gives zero, or an
/// error number: `EINVAL` for what is not understood.
///
/// A command is one of these:
///
/// - `clear` takes away what was ordered and has not struck;
/// - `settle` returns when what was rung before it has been executed, as far as it goes;
/// - `reset` puts another device in the place of one that broke, for contexts that are opened from
///   then on;
/// - `pause` has the device look at no ring until `resume`;
/// - or when and what:
///
/// ```text
/// now                      drop-request         cq-overrun CQ
/// after MICROSECONDS       drop-ack             qp-fatal QPN
/// entry N                  delay MICROSECONDS   srq-err SRQN
/// packet N                 remote-access        device-fatal
/// entry-of QPN N           rnr                  port-down
/// packet-of QPN N          status NAME          port-up
/// modify N                 status-after NAME    raise EVENT [NUMBER | CQ]
///                          send-cq-overrun
///                          recv-cq-overrun
///                          refuse-modify
/// ```
///
/// They are those of `bellwire::soft::Fault` and `Trigger`; names of statuses and events those of the
/// verbs without `IBV_WC_` and `IBV_EVENT_`. What befalls a request needs a trigger that counts them.
/// `entry 3 status REM_OP_ERR` is one. CQ is a number, `send-cq QPN` or `recv-cq QPN`. A status that no
/// syndrome says is `EOPNOTSUPP`: no ConnectX device reports it.
///
/// # Safety
/// `command` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uverbs_preload_control(command: *const c_char) -> c_int {
    let run = || {
        if command.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: not null, so the caller guarantees a string that ends with a zero byte.
        let text = unsafe { CStr::from_ptr(command) };
        order(text.to_str().map_err(|_| Errno::INVAL)?)
    };
    match crate::hook::guarded(run) {
        Ok(()) => 0,
        Err(error) => error.raw_os_error(),
    }
}

fn order(text: &str) -> Result<(), Errno> {
    let device = engine::device().map_err(errno)?;
    let soft = device.as_soft().ok_or(Errno::OPNOTSUPP)?;
    let mut words = text.split_whitespace();
    let first = words.next().ok_or(Errno::INVAL)?;
    match first {
        "clear" => soft.clear_faults(),
        "settle" => engine::settle(),
        "reset" => engine::reset().map_err(errno)?,
        "pause" => engine::pause(true),
        "resume" => engine::pause(false),
        _ => {
            let trigger = trigger(first, &mut words)?;
            let fault = fault(&mut words)?;
            soft.inject(&Script::default().with(trigger, fault))
                .map_err(errno)?;
        }
    }
    match words.next() {
        None => Ok(()),
        Some(_) => Err(Errno::INVAL),
    }
}

fn number<T: std::str::FromStr>(words: &mut SplitWhitespace<'_>) -> Result<T, Errno> {
    let word = words.next().ok_or(Errno::INVAL)?;
    word.parse().map_err(|_| Errno::INVAL)
}

fn micros(words: &mut SplitWhitespace<'_>) -> Result<Duration, Errno> {
    number(words).map(Duration::from_micros)
}

fn trigger(first: &str, words: &mut SplitWhitespace<'_>) -> Result<Trigger, Errno> {
    Ok(match first {
        "now" => Trigger::After(Duration::ZERO),
        "after" => Trigger::After(micros(words)?),
        "entry" => Trigger::Entry(number(words)?),
        "packet" => Trigger::Packet(number(words)?),
        "entry-of" => Trigger::EntryOf {
            qp_num: number(words)?,
            nth: number(words)?,
        },
        "packet-of" => Trigger::PacketOf {
            qp_num: number(words)?,
            nth: number(words)?,
        },
        "modify" => Trigger::Modify(number(words)?),
        _ => return Err(Errno::INVAL),
    })
}

fn fault(words: &mut SplitWhitespace<'_>) -> Result<Fault, Errno> {
    Ok(match words.next().ok_or(Errno::INVAL)? {
        "drop-request" => Fault::DropRequest,
        "drop-ack" => Fault::DropAck,
        "delay" => Fault::Delay(micros(words)?),
        "remote-access" => Fault::RemoteAccess,
        "rnr" => Fault::Rnr,
        "status" => Fault::Status(status(words)?),
        "status-after" => Fault::StatusAfter(status(words)?),
        "send-cq-overrun" => Fault::SendCqOverrun,
        "recv-cq-overrun" => Fault::RecvCqOverrun,
        "refuse-modify" => Fault::RefuseModify,
        "cq-overrun" => Fault::CqOverrun(cq(words)?),
        "qp-fatal" => Fault::QpFatal(number(words)?),
        "srq-err" => Fault::SrqErr(number(words)?),
        "device-fatal" => Fault::DeviceFatal,
        "port-down" => Fault::PortDown,
        "port-up" => Fault::PortUp,
        "raise" => raise(words)?,
        _ => return Err(Errno::INVAL),
    })
}

fn status(words: &mut SplitWhitespace<'_>) -> Result<WcStatus, Errno> {
    let name = words.next().ok_or(Errno::INVAL)?;
    let found = WcStatus::ALL.iter().find(|status| status.name() == name);
    let status = *found.ok_or(Errno::INVAL)?;
    // A syndrome without a name is a general error.
    if Syndrome::of(status).is_none() && status != WcStatus::GeneralErr {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(status)
}

/// The number of a completion queue.
fn cq(words: &mut SplitWhitespace<'_>) -> Result<u32, Errno> {
    let word = words.next().ok_or(Errno::INVAL)?;
    let side: fn((&Cq, &Cq)) -> u32 = match word {
        "send-cq" => |(send, _)| send.cqn(),
        "recv-cq" => |(_, recv)| recv.cqn(),
        _ => return word.parse().map_err(|_| Errno::INVAL),
    };
    let qp = engine::qp(number(words)?).ok_or(Errno::INVAL)?;
    qp.cqs().map(side).ok_or(Errno::INVAL)
}

fn raise(words: &mut SplitWhitespace<'_>) -> Result<Fault, Errno> {
    use bellwire::event::ElementKind as Kind;
    let name = words.next().ok_or(Errno::INVAL)?;
    let found = EventType::ALL.iter().find(|event| event.name() == name);
    let event = *found.ok_or(Errno::INVAL)?;
    let element = match event.element_kind() {
        Kind::Cq => Element::Cq(cq(words)?),
        Kind::Qp => Element::Qp(number(words)?),
        Kind::Srq => Element::Srq(number(words)?),
        Kind::Wq => return Err(Errno::OPNOTSUPP),
        Kind::Port => Element::Port(1),
        Kind::Device => Element::Device,
    };
    Ok(Fault::Raise(event, element))
}
