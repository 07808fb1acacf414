//! The stand-in for the kernel (`tests/uverbs-preload`), as a test sets what is to go wrong and asks it
//! what its device executed.

use bellwire::event::Element;
use bellwire::soft::{Fault, RecvReport, Script, Trigger};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;

type Control = unsafe extern "C" fn(*const c_char) -> c_int;
type Each = unsafe extern "C" fn(*mut c_void, u32, u32, u64, u32);
type Journal = unsafe extern "C" fn(Option<Each>, *mut c_void) -> c_int;

/// A request that a device executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Number of the queue pair that posted it.
    pub qp_num: u32,
    /// Its opcode in the entry.
    pub opcode: u8,
    /// Bytes of its message or result.
    pub bytes: u64,
    /// The receive that it took.
    pub receive: RecvReport,
}

/// The stand-in that this process runs on.
#[derive(Clone, Copy, Debug)]
pub struct StandIn {
    control: Control,
    journal: Journal,
}

/// A function of the process's, by its name.
pub fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a string; looked for in what is loaded already.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

fn check(number: c_int) -> io::Result<()> {
    match number {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}

impl StandIn {
    /// The one that was preloaded.
    pub fn find() -> Option<Self> {
        let control = symbol(c"uverbs_preload_control")?;
        let journal = symbol(c"uverbs_preload_journal")?;
        // SAFETY: what the library says of them.
        unsafe {
            Some(Self {
                control: std::mem::transmute::<*mut c_void, Control>(control),
                journal: std::mem::transmute::<*mut c_void, Journal>(journal),
            })
        }
    }

    /// Carries out a command of `uverbs_preload_control`.
    ///
    /// # Errors
    /// As there.
    pub fn order(&self, command: &str) -> io::Result<()> {
        let command = CString::new(command)?;
        // SAFETY: a string.
        check(unsafe { (self.control)(command.as_ptr()) })
    }

    /// Orders a script. `cq_of`: the queue pair whose receives complete on the completion queue that the
    /// program calls so, for the stand-in has other numbers.
    ///
    /// # Errors
    /// What it does not take.
    pub fn inject(&self, script: &Script, cq_of: impl Fn(u32) -> Option<u32>) -> io::Result<()> {
        for &(trigger, fault) in script.steps() {
            self.order(&step(trigger, fault, &cq_of)?)?;
        }
        Ok(())
    }

    /// Takes what was executed since this was last asked for, oldest first.
    ///
    /// # Errors
    /// It keeps no journal: that wants `UVERBS_PRELOAD_JOURNAL=1`.
    pub fn journal(&self) -> io::Result<Vec<Executed>> {
        let mut entries: Vec<Executed> = Vec::new();
        let of = std::ptr::from_mut(&mut entries).cast();
        // SAFETY: `note` takes what `of` is, which nobody else has meanwhile.
        check(unsafe { (self.journal)(Some(note), of) })?;
        Ok(entries)
    }
}

/// # Safety
/// `to` is a list, which nobody else has.
unsafe extern "C" fn note(to: *mut c_void, qp_num: u32, opcode: u32, bytes: u64, receive: u32) {
    // SAFETY: the caller guarantees that `to` is a list of this type, which nobody else uses.
    let entries = unsafe { &mut *to.cast::<Vec<Executed>>() };
    entries.push(Executed {
        qp_num,
        opcode: opcode as u8,
        bytes,
        receive: match receive {
            0 => RecvReport::NotTaken,
            1 => RecvReport::Written,
            _ => RecvReport::Lost,
        },
    });
}

/// A step of a script, as a command.
fn step(trigger: Trigger, fault: Fault, cq_of: impl Fn(u32) -> Option<u32>) -> io::Result<String> {
    let cq = |cqn: u32| {
        let of = cq_of(cqn).ok_or(io::ErrorKind::NotFound)?;
        Ok::<_, io::Error>(format!("recv-cq {of}"))
    };
    let when = match trigger {
        Trigger::After(time) => format!("after {}", time.as_micros()),
        Trigger::Entry(nth) => format!("entry {nth}"),
        Trigger::Packet(nth) => format!("packet {nth}"),
        Trigger::EntryOf { qp_num, nth } => format!("entry-of {qp_num} {nth}"),
        Trigger::PacketOf { qp_num, nth } => format!("packet-of {qp_num} {nth}"),
        Trigger::Modify(nth) => format!("modify {nth}"),
    };
    let what = match fault {
        Fault::DropRequest => "drop-request".to_owned(),
        Fault::DropAck => "drop-ack".to_owned(),
        Fault::Delay(time) => format!("delay {}", time.as_micros()),
        Fault::RemoteAccess => "remote-access".to_owned(),
        Fault::Rnr => "rnr".to_owned(),
        Fault::Status(status) => format!("status {}", status.name()),
        Fault::StatusAfter(status) => format!("status-after {}", status.name()),
        Fault::SendCqOverrun => "send-cq-overrun".to_owned(),
        Fault::RecvCqOverrun => "recv-cq-overrun".to_owned(),
        Fault::RefuseModify => "refuse-modify".to_owned(),
        Fault::CqOverrun(cqn) => format!("cq-overrun {}", cq(cqn)?),
        Fault::QpFatal(qp_num) => format!("qp-fatal {qp_num}"),
        Fault::SrqErr(number) => format!("srq-err {number}"),
        Fault::DeviceFatal => "device-fatal".to_owned(),
        Fault::PortDown => "port-down".to_owned(),
        Fault::PortUp => "port-up".to_owned(),
        Fault::Raise(event, element) => {
            let of = match element {
                Element::Cq(cqn) => cq(cqn)?,
                Element::Qp(number) | Element::Srq(number) => number.to_string(),
                _ => String::new(),
            };
            format!("raise {} {of}", event.name())
        }
        _ => return Err(io::ErrorKind::Unsupported.into()),
    };
    Ok(format!("{when} {what}"))
}
