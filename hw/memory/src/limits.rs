//! The limits of the process, as errors name them. Source: getrlimit(2).

use super::size::Size;
use std::{fmt, io};

/// A limit of the process that may be the cause of an error: the text is "RLIMIT_NOFILE is 30: ", and empty where there
/// is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessLimit {
    /// Descriptors.
    Descriptors,
    /// Threads and processes of the user.
    Threads,
    /// Address space.
    AddressSpace,
}

impl ProcessLimit {
    fn name(self) -> &'static str {
        match self {
            Self::Descriptors => "RLIMIT_NOFILE",
            Self::Threads => "RLIMIT_NPROC",
            Self::AddressSpace => "RLIMIT_AS",
        }
    }

    /// The soft limit; `None`: there is none.
    pub fn now(self) -> Option<u64> {
        let resource = match self {
            Self::Descriptors => libc::RLIMIT_NOFILE,
            Self::Threads => libc::RLIMIT_NPROC,
            Self::AddressSpace => libc::RLIMIT_AS,
        };
        let mut limit = libc::rlimit {
            rlim_cur: libc::RLIM_INFINITY,
            rlim_max: libc::RLIM_INFINITY,
        };
        // Where it cannot be asked for, none is named.
        // SAFETY: `limit` is writable and has the type that getrlimit fills in.
        let _infinite = unsafe { libc::getrlimit(resource, &mut limit) };
        soft(&limit)
    }
}

/// The soft limit; `None`: there is none.
#[allow(clippy::unnecessary_cast, reason = "on 32-bit processors it is a u32")]
pub(super) fn soft(limit: &libc::rlimit) -> Option<u64> {
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur as u64)
}

impl fmt::Display for ProcessLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.now()) {
            (_, None) => Ok(()),
            (Self::AddressSpace, Some(limit)) => write!(f, "{} is {}: ", self.name(), Size(limit)),
            (_, Some(limit)) => write!(f, "{} is {limit}: ", self.name()),
        }
    }
}

/// What to do when a call failed because this process may have no more memory or descriptors: the text names the limit of
/// the process. Empty for other errors.
#[derive(Clone, Copy, Debug)]
pub struct Advice(Option<i32>);

impl Advice {
    /// The advice for this error.
    pub fn of(error: &io::Error) -> Self {
        Self::of_errno(error.raw_os_error())
    }

    /// The advice for this error number.
    pub fn of_errno(errno: Option<i32>) -> Self {
        Self(errno)
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(libc::ENOMEM) => write!(
                f,
                " ({}ask for less, or look at free memory, `ulimit -v` and the cgroup's memory.max)",
                ProcessLimit::AddressSpace
            ),
            Some(libc::EMFILE) => write!(
                f,
                ": {}close descriptors, or raise it with `ulimit -n`",
                ProcessLimit::Descriptors
            ),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_with_its_value() {
        let limit = ProcessLimit::Descriptors;
        let text = limit
            .now()
            .map(|limit| format!("RLIMIT_NOFILE is {limit}: "));
        assert_eq!(limit.to_string(), text.unwrap_or_default());
    }
}
