//! How a set-up call fails: a code, and a text that is kept for `bw_last_error`.

use crate::code::*;
use bellwire_provider::thread::Uncancelled;
use hw::connect::tcp::TcpError;
use hw::memory::MemoryError;
use hw::queue::PostError;
use hw::state::ModifyError;
use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes kept of a text, including its NUL: it may hold the reason for each of several devices.
const TEXT: usize = 2048;

thread_local! {
    /// Has no destructor, so that it can be read for as long as the thread runs.
    static LAST: UnsafeCell<[u8; TEXT]> = const { UnsafeCell::new([0; TEXT]) };
}

/// Why a set-up call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    code: bw_error,
    text: String,
}

impl Failure {
    pub fn new(code: bw_error, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }

    /// The argument of this name is NULL.
    pub fn null(what: &str) -> Self {
        Self::new(BW_ENULL, format!("{what} is NULL"))
    }
}

/// The port is taken, or the address cannot be reached.
fn is_unreachable(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{AddrInUse, AddrNotAvailable, HostUnreachable, NetworkUnreachable};
    let kind = error.kind();
    [
        AddrInUse,
        AddrNotAvailable,
        HostUnreachable,
        NetworkUnreachable,
    ]
    .contains(&kind)
}

/// The process, or the host, has no descriptor left.
fn lacks_descriptors(error: &std::io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

/// Of addresses that were tried in vain.
fn address_code(tried: &[hw::address::Tried]) -> bw_error {
    let errors = (tried.iter()).map(|of| of.errno.map(std::io::Error::from_raw_os_error));
    let mut others = errors.filter(|error| !error.as_ref().is_some_and(is_unreachable));
    match others.next() {
        None => BW_ECONN,
        // The address is incomplete, or of another family than the source.
        Some(None) => BW_EINVAL,
        Some(Some(error)) if error.kind() == ErrorKind::OutOfMemory => BW_EMEMORY,
        Some(Some(_)) => BW_EOTHER,
    }
}

impl From<hw::Error> for Failure {
    fn from(error: hw::Error) -> Self {
        use hw::Error;
        let code = match &error {
            Error::UnknownDevice { .. } => BW_ENODEV,
            Error::Busy { .. }
            | Error::WindowsBound { .. }
            | Error::XrcdOfFile { exists: true } => BW_EBUSY,
            Error::Exhausted { .. } => BW_EEXHAUSTED,
            Error::TooLarge { given: 1.., .. } | Error::PrivateData { .. } => BW_ELIMIT,
            Error::TooLarge { given: 0, .. }
            | Error::Memory(
                MemoryError::ZeroLength | MemoryError::BadName | MemoryError::NoSuchNode { .. },
            )
            | Error::BadRegion { .. }
            | Error::AccessWithoutLocalWrite
            | Error::NotExclusive { .. }
            | Error::OutOfRange { .. }
            | Error::FabricName { .. }
            | Error::FabricClock
            | Error::XrcSrq { .. }
            | Error::XrcdOfFile { exists: false }
            | Error::UnknownQp { .. }
            | Error::MwType { .. }
            | Error::NotADatagram
            | Error::WayBack { .. }
            | Error::NotMulticast { .. }
            | Error::NotAttached { .. }
            | Error::NoChannel { .. }
            | Error::NotDeferred { .. }
            | Error::FaultWithoutRequest { .. }
            | Error::FaultWithoutModify { .. }
            | Error::SuccessAsFault
            | Error::CmEventAsFault { .. }
            | Error::NoJournal
            | Error::ZeroBasedRegion
            | Error::WrongElement { .. }
            | Error::UnknownElement { .. }
            | Error::NoBlock(_)
            | Error::Slab(_) => BW_EINVAL,
            Error::Unsupported { .. } => BW_EUNSUPPORTED,
            Error::WouldBlock => BW_EAGAIN,
            Error::Interrupted => BW_EINTR,
            Error::Woken => BW_EWOKEN,
            Error::DeviceFatal => BW_EFATAL,
            Error::Foreign { .. } => BW_EFOREIGN,
            Error::ResetByModify
            | Error::ResetOfOpened { .. }
            | Error::NotReset
            | Error::CmStep { .. } => BW_ESTATE,
            Error::CmSpace => BW_ETRANSPORT,
            Error::CmNoQp { .. } => BW_ENULL,
            Error::OtherFabric { .. } => BW_ECONN,
            Error::Io { error, .. } if is_unreachable(error) => BW_ECONN,
            Error::Io { error, .. } if error.kind() == ErrorKind::OutOfMemory => BW_EMEMORY,
            Error::Address { tried, .. } => address_code(tried),
            Error::Attach(_) => BW_ECQROOM,
            Error::Modify(
                ModifyError::IllegalTransition(_)
                | ModifyError::CurStateMismatch { .. }
                | ModifyError::NotDrained,
            ) => BW_ESTATE,
            Error::Modify(_) => BW_EINVAL,
            Error::Memory(MemoryError::NoAccess { .. }) => BW_EFAULT,
            Error::Memory(_) => BW_EMEMORY,
            Error::Post(error) => post_code(*error),
            _ => BW_EOTHER,
        };
        Self::new(code, error.to_string())
    }
}

impl From<TcpError> for Failure {
    fn from(error: TcpError) -> Self {
        let code = match &error {
            TcpError::TimedOut { .. } => BW_ETIMEDOUT,
            // As for `bw_listener_create`.
            TcpError::Listen { error, .. } if lacks_descriptors(error) => BW_EOTHER,
            TcpError::UnknownHost { .. }
            | TcpError::Listen { .. }
            | TcpError::Connect { .. }
            | TcpError::Closed { .. } => BW_ECONN,
            TcpError::Format(_) => BW_EPROTO,
            TcpError::Interrupted => BW_EINTR,
            TcpError::Woken => BW_EWOKEN,
            _ => BW_EOTHER,
        };
        Self::new(code, error.to_string())
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        hw::Error::from(error).into()
    }
}

/// Runs a set-up call, and returns its result or the code of its failure. The text of the failure, or
/// of a panic, is kept for `bw_last_error`. Cancellation of the thread is deferred until it returns.
pub(crate) fn guard<R: Answer>(call: impl FnOnce() -> Result<R, Failure>) -> c_int {
    let _whole = Uncancelled::new();
    guard_poll(call)
}

/// As [`guard`], for polls of links, which are on the data path: they defer cancellation where they have to.
#[inline]
pub(crate) fn guard_poll<R: Answer>(call: impl FnOnce() -> Result<R, Failure>) -> c_int {
    // The objects of a call that panicked can only be destroyed by the caller, and are made of parts
    // that tolerate a panic (see the header's conventions on BW_EINTERNAL).
    let failure = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(answer)) => return answer.number(),
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::new(BW_EINTERNAL, panic_text(&*panic)),
    };
    keep(&failure.text);
    failure.code as c_int
}

/// The result of a set-up call that succeeds.
pub(crate) trait Answer {
    fn number(self) -> c_int;
}

impl Answer for () {
    fn number(self) -> c_int {
        BW_OK as c_int
    }
}

impl Answer for hw::state::QpState {
    fn number(self) -> c_int {
        self.number().into()
    }
}

/// A TCP port.
impl Answer for u16 {
    fn number(self) -> c_int {
        self.into()
    }
}

/// A count, or a value that is returned as a number.
impl Answer for c_int {
    fn number(self) -> c_int {
        self
    }
}

/// A file descriptor.
impl Answer for std::os::fd::BorrowedFd<'_> {
    fn number(self) -> c_int {
        use std::os::fd::AsRawFd;
        self.as_raw_fd()
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!(
        "the library panicked: {}",
        text.unwrap_or("it said no more")
    )
}

fn keep(text: &str) {
    // When a thread exits its storage may already be gone.
    let _ = LAST.try_with(|last| {
        let mut length = text.len().min(TEXT - 1);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        // SAFETY: it belongs to this thread, and no reference to it leaves this function.
        let last = unsafe { &mut *last.get() };
        last[..length].copy_from_slice(&text.as_bytes()[..length]);
        last[length] = 0;
    });
}

/// Details of the last set-up call that failed on this thread: the request, the limit, what to do.
/// Empty when none has failed. Never NULL; valid until the next set-up call fails on this thread.
///
/// The data path does not change it: its codes say everything.
///
/// Thread: any; each has a text of its own.
#[unsafe(no_mangle)]
pub extern "C" fn bw_last_error() -> *const c_char {
    LAST.try_with(|last| last.get().cast_const().cast())
        .unwrap_or(c"".as_ptr())
}

/// The code of a refused post.
#[inline(always)]
pub(crate) fn post_code(error: PostError) -> bw_error {
    match error {
        PostError::QueueFull => BW_EFULL,
        PostError::CqFailed => BW_ECQFAILED,
        PostError::WrongState => BW_ESTATE,
        PostError::NoRecvQueue => BW_ENORQ,
        PostError::TooManySges { .. } => BW_ETOOMANYSGE,
        PostError::InlineTooLong { .. } => BW_EINLINE,
        PostError::SgeTooLong { .. } | PostError::BlockTooShort { .. } => BW_ESGELENGTH,
        // Only reposting returns this, which the C interface does not have.
        PostError::NoEntry => BW_EINVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_of_both_kinds_have_one_code_without_descriptors() {
        for number in [23, 24] {
            let lacking = || std::io::Error::from_raw_os_error(number);
            let tcp = TcpError::Listen {
                address: "127.0.0.1:1".to_owned(),
                error: lacking(),
            };
            let io = hw::Error::Io {
                what: "listen",
                error: lacking(),
            };
            assert_eq!(Failure::from(tcp).code, BW_EOTHER);
            assert_eq!(Failure::from(io).code, BW_EOTHER);
        }
    }
}
