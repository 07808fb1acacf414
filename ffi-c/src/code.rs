//! The result codes.

use std::ffi::{CStr, c_char, c_int};

/// The result of a call. A number is never reused for another meaning; later versions may add numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_error {
    /// Success.
    BW_OK = 0,
    /// A required pointer is NULL.
    BW_ENULL = -1,
    /// The `size` field of a struct is not the size of any version of that struct up to this library's.
    BW_ESIZE = -2,
    /// An argument or a field has an invalid value, or a reserved field is not 0.
    BW_EINVAL = -3,
    /// The program was compiled with the header of a version that this library cannot serve.
    BW_EVERSION = -4,
    /// There is no such device.
    BW_ENODEV = -5,
    /// The object is in use by other objects, which have to be destroyed first.
    BW_EBUSY = -6,
    /// More than the device supports, or than a buffer or private data can hold.
    BW_ELIMIT = -7,
    /// All objects of this kind that the device has are in use.
    BW_EEXHAUSTED = -8,
    /// Memory cannot be allocated: no huge pages, a limit is reached, or the NUMA node does not exist.
    BW_EMEMORY = -9,
    /// Objects of different devices or protection domains, or a block of another slab.
    BW_EFOREIGN = -10,
    /// The completion queue has too few entries for all requests that the queue pair can have in
    /// flight.
    BW_ECQROOM = -11,
    /// The queue pair's state does not allow it: receives may be posted from INIT on, sends from RTS
    /// on.
    BW_ESTATE = -12,
    /// The queue is full: poll its completion queue, then post again.
    BW_EFULL = -13,
    /// More scatter/gather elements than a request of this queue can have: create the queue pair with
    /// more.
    BW_ETOOMANYSGE = -14,
    /// More inline bytes than a request of this queue can have: post from registered memory, or create
    /// the queue pair with more.
    BW_EINLINE = -15,
    /// A scatter/gather element of 2 GiB or more: use several.
    BW_ESGELENGTH = -16,
    /// This opcode cannot be posted here.
    BW_EOPCODE = -17,
    /// The device runs on the real clock, which cannot be moved.
    BW_ECLOCK = -18,
    /// A failure that has no code of its own: `bw_last_error` says more.
    BW_EOTHER = -19,
    /// An internal fault of the library. The objects of the call should be destroyed.
    BW_EINTERNAL = -20,
    /// The queue pair's transport does not support this.
    BW_ETRANSPORT = -21,
    /// The queue pair has no receive queue of its own: it uses a shared receive queue, or does not
    /// receive.
    BW_ENORQ = -22,
    /// No event or peer has arrived, and the call does not block, or its timeout has expired.
    BW_EAGAIN = -23,
    /// The device has failed (BW_EVENT_DEVICE_FATAL) and no longer works.
    BW_EFATAL = -24,
    /// The timeout expired before the peer, or the name service, replied.
    BW_ETIMEDOUT = -25,
    /// No connection: nothing listens at the address, the port is taken, the host is unknown, or the
    /// peer has closed the connection.
    BW_ECONN = -26,
    /// The peer sent invalid data, or runs another version.
    BW_EPROTO = -27,
    /// The device or its driver does not support this.
    BW_EUNSUPPORTED = -28,
    /// The link is not connected yet (receives may be posted all the same), or it is recovering.
    /// Poll it until it is BW_LINK_READY, then call again.
    BW_ERECOVERING = -29,
    /// The link was closed or given up: `bw_link_query` gives the reason.
    BW_EENDED = -30,
    /// Two threads are in one queue at the same time. Only a build of the library with debug assertions
    /// detects this; in other builds the behaviour is undefined.
    BW_ECONCURRENT = -31,
    /// All blocks of this length are taken: poll for completions so that some can be returned, or
    /// create the slab with more.
    BW_ENOBLOCK = -32,
    /// The block has already been returned.
    BW_ERETURNED = -33,
    /// The handle is of no link in the set: the link was removed.
    BW_ENOLINK = -34,
    /// Memory to be registered cannot be accessed: `bw_last_error` names the first page (EFAULT of
    /// `ibv_reg_mr`).
    BW_EFAULT = -35,
    /// The handle belongs to the process that this one was forked from: a child opens the device again,
    /// and makes objects of its own.
    BW_EFORK = -36,
    /// A signal handler of the program has interrupted a call that waits without a limit. Call it again, unless
    /// the program is to end.
    BW_EINTR = -37,
    /// The waits for the object were ended, by the function whose name ends with _wake.
    BW_EWOKEN = -38,
    /// The queue is full, and its completion queue has failed (BW_EVENT_CQ_ERR): no poll reports the
    /// requests in flight. Destroy the queue pairs on it, which reports the rest, and create it again.
    BW_ECQFAILED = -39,
    /// The link has no request with this `wr_id`: none was posted, or it was reported or retired.
    BW_ENOREQUEST = -40,
}

pub(crate) use bw_error::*;

macro_rules! all {
    ($($code:ident)*) => {
        /// All codes, in the order of their numbers.
        pub(crate) const ALL: &[Self] = &[$($code),*];

        fn name(self) -> &'static CStr {
            match self {
                $($code => const {
                    let name = concat!(stringify!($code), "\0");
                    match CStr::from_bytes_with_nul(name.as_bytes()) {
                        Ok(name) => name,
                        Err(_) => unreachable!(),
                    }
                },)*
            }
        }
    };
}

impl bw_error {
    all! {
        BW_OK
        BW_ENULL
        BW_ESIZE
        BW_EINVAL
        BW_EVERSION
        BW_ENODEV
        BW_EBUSY
        BW_ELIMIT
        BW_EEXHAUSTED
        BW_EMEMORY
        BW_EFOREIGN
        BW_ECQROOM
        BW_ESTATE
        BW_EFULL
        BW_ETOOMANYSGE
        BW_EINLINE
        BW_ESGELENGTH
        BW_EOPCODE
        BW_ECLOCK
        BW_EOTHER
        BW_EINTERNAL
        BW_ETRANSPORT
        BW_ENORQ
        BW_EAGAIN
        BW_EFATAL
        BW_ETIMEDOUT
        BW_ECONN
        BW_EPROTO
        BW_EUNSUPPORTED
        BW_ERECOVERING
        BW_EENDED
        BW_ECONCURRENT
        BW_ENOBLOCK
        BW_ERETURNED
        BW_ENOLINK
        BW_EFAULT
        BW_EFORK
        BW_EINTR
        BW_EWOKEN
        BW_ECQFAILED
        BW_ENOREQUEST
    }

    fn text(self) -> &'static CStr {
        match self {
            BW_OK => c"success",
            BW_ENULL => c"a pointer is NULL that must not be",
            BW_ESIZE => c"the size field of a struct is wrong: set it to sizeof the struct",
            BW_EINVAL => c"an argument or a field has a value that it cannot have, or a reserved field is not 0",
            BW_EVERSION => c"compiled with the header of a version that this library cannot serve",
            BW_ENODEV => c"no such device: bw_device_at lists devices, and bw_last_error says why others are not available",
            BW_EBUSY => c"in use by other objects: destroy those first",
            BW_ELIMIT => c"more than the device supports: bw_device_query returns its limits",
            BW_EEXHAUSTED => c"all objects of this kind are in use: destroy some first",
            BW_EMEMORY => c"memory cannot be allocated: bw_last_error says what to do",
            BW_EFOREIGN => {
                c"objects of different devices or protection domains, or a block of another slab"
            }
            BW_ECQROOM => {
                c"the completion queue has too few entries for all requests that can be in flight: \
                  create it larger"
            }
            BW_ESTATE => {
                c"the queue pair's state does not allow it: receives are posted from INIT on, \
                  sends from RTS on"
            }
            BW_EFULL => c"the queue is full: poll its completion queue, then post again",
            BW_ETOOMANYSGE => {
                c"more scatter/gather elements than a request of this queue can have: \
                  create the queue pair with more"
            }
            BW_EINLINE => {
                c"more inline bytes than a request of this queue can have: post from registered \
                  memory, or create the queue pair with more"
            }
            BW_ESGELENGTH => c"a scatter/gather element of 2 GiB or more: use several",
            BW_EOPCODE => c"this opcode cannot be posted here",
            BW_ECLOCK => c"the clock is the real one: open the device with BW_CLOCK_VIRTUAL",
            BW_EOTHER => c"failed: bw_last_error says why",
            BW_EINTERNAL => c"an internal fault of the library: bw_last_error says more",
            BW_ETRANSPORT => c"the queue pair's transport does not support this",
            BW_ENORQ => {
                c"the queue pair has no receive queue of its own: post to the shared receive queue"
            }
            BW_EAGAIN => {
                c"no event is queued: wait until the descriptor is readable, or let it block"
            }
            BW_EFATAL => c"the device has failed: destroy the objects left on it, and open another",
            BW_ETIMEDOUT => c"the timeout expired: bw_last_error names what the call waited for",
            BW_ECONN => c"no connection with the peer: bw_last_error says why",
            BW_EPROTO => {
                c"the peer sent invalid data: run both programs with the same version of \
                  bellwire"
            }
            BW_EUNSUPPORTED => {
                c"the device does not support this: bw_last_error says what to do instead"
            }
            BW_ERECOVERING => {
                c"the link is not connected at the moment: poll it until it is BW_LINK_READY, \
                  then call again"
            }
            BW_EENDED => c"the link has ended: bw_link_query says why; create another",
            BW_ECONCURRENT => {
                c"two threads are in one queue at the same time: give each queue one owner"
            }
            BW_ENOBLOCK => {
                c"all blocks of that length are taken: poll for completions and return some, \
                  or create the slab with more"
            }
            BW_ERETURNED => c"the block has already been returned: return each once",
            BW_EFAULT => {
                c"memory to be registered cannot be accessed: bw_last_error names the first page"
            }
            BW_ENOLINK => {
                c"the handle is of no link in this set: the link was removed, so forget its \
                  handle then"
            }
            BW_EFORK => {
                c"the handle belongs to the process that this one was forked from: open the device \
                  again here"
            }
            BW_EINTR => c"a signal has interrupted the wait: wait again, unless the program is to end",
            BW_ECQFAILED => {
                c"the queue is full, and its completion queue has failed: destroy the queue pairs on \
                  it, and create it again"
            }
            BW_ENOREQUEST => {
                c"the link has no request with this wr_id: none was posted, or it was reported"
            }
            BW_EWOKEN => {
                c"the waits for the object were ended: let them sleep again, or destroy it"
            }
        }
    }
}

/// The meaning of a result code, and what to do about it. Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_strerror(code: c_int) -> *const c_char {
    known(code)
        .map_or(c"not a code of this library", bw_error::text)
        .as_ptr()
}

/// The name of a result code, such as `BW_EFULL`: under it docs/faults.md has the code. Never NULL; the text
/// is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_error_name(code: c_int) -> *const c_char {
    known(code).map_or(c"UNKNOWN", bw_error::name).as_ptr()
}

fn known(code: c_int) -> Option<bw_error> {
    let mut all = bw_error::ALL.iter().copied();
    all.find(|known| *known as c_int == code)
}
