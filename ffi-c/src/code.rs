//! The numbered results.

use std::ffi::{CStr, c_char, c_int};

/// Why a call failed. Numbers are never used again for something else; a later version may have
/// more of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum bw_error {
    /// It did not fail.
    BW_OK = 0,
    /// A pointer is NULL that must not be.
    BW_ENULL = -1,
    /// The `size` of a struct: smaller than its first version, or larger than this library knows and
    /// with something other than zero in the part it does not know.
    BW_ESIZE = -2,
    /// An argument or a field has a value that it cannot have.
    BW_EINVAL = -3,
    /// The program was compiled with the header of another version.
    BW_EVERSION = -4,
    /// There is no such device.
    BW_ENODEV = -5,
    /// The object is in use by others, which have to be destroyed first.
    BW_EBUSY = -6,
    /// More than the device is capable of.
    BW_ELIMIT = -7,
    /// All that the device has of something are in use.
    BW_EEXHAUSTED = -8,
    /// Memory cannot be had: no huge pages, a limit, a NUMA node that does not exist.
    BW_EMEMORY = -9,
    /// Objects of different devices or protection domains, or a block of another slab.
    BW_EFOREIGN = -10,
    /// The completion queue has no room for all that the queue pair could have in flight.
    BW_ECQROOM = -11,
    /// The queue pair's state does not allow it: receives are posted from INIT on, sends from RTS
    /// on.
    BW_ESTATE = -12,
    /// The queue is full: poll its completion queue, then post again.
    BW_EFULL = -13,
    /// More scatter/gather elements than the queue holds a request: ask for more when creating the
    /// queue pair.
    BW_ETOOMANYSGE = -14,
    /// More inline bytes than the queue holds a request: post from registered memory, or ask for
    /// more when creating the queue pair.
    BW_EINLINE = -15,
    /// A scatter/gather element of 2 GiB or more: use several.
    BW_ESGELENGTH = -16,
    /// The opcode is not one that can be posted here.
    BW_EOPCODE = -17,
    /// The clock is the real one, and cannot be moved.
    BW_ECLOCK = -18,
    /// A failure that has no number of its own; `bw_last_error` tells more.
    BW_EOTHER = -19,
    /// A fault within the library. The objects of the call should be destroyed.
    BW_EINTERNAL = -20,
    /// The queue pair's transport does not have this.
    BW_ETRANSPORT = -21,
    /// The queue pair has no receive queue of its own: it receives from a shared one, or not at all.
    BW_ENORQ = -22,
    /// There is no event, or nobody has come, and the call was not to wait, or no longer.
    BW_EAGAIN = -23,
    /// The device has failed (BW_EVENT_DEVICE_FATAL), and does nothing any more.
    BW_EFATAL = -24,
    /// The time given was up before the peer, or the name service, had answered.
    BW_ETIMEDOUT = -25,
    /// No connection: nobody listens there, the port is taken, the host is not known, or the peer has
    /// closed it.
    BW_ECONN = -26,
    /// The peer sent what makes no sense, or is of another version.
    BW_EPROTO = -27,
    /// The device, or its driver, does not have this.
    BW_EUNSUPPORTED = -28,
    /// The link is not connected yet, or it recovers: poll it until it is BW_LINK_READY, then call
    /// again.
    BW_ERECOVERING = -29,
    /// The link was closed, or given up: `bw_link_query` tells why.
    BW_EENDED = -30,
    /// Two threads are in one queue at once. Only a build of the library with debug assertions finds
    /// that out; in others the behaviour is undefined.
    BW_ETHREADS = -31,
    /// All blocks of that length are out: poll for completions, after which some can be returned, or
    /// create the slab with more.
    BW_ENOBLOCK = -32,
    /// The block was returned before.
    BW_ERETURNED = -33,
}

pub(crate) use bw_error::*;

impl bw_error {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Self; 34] = [
        BW_OK,
        BW_ENULL,
        BW_ESIZE,
        BW_EINVAL,
        BW_EVERSION,
        BW_ENODEV,
        BW_EBUSY,
        BW_ELIMIT,
        BW_EEXHAUSTED,
        BW_EMEMORY,
        BW_EFOREIGN,
        BW_ECQROOM,
        BW_ESTATE,
        BW_EFULL,
        BW_ETOOMANYSGE,
        BW_EINLINE,
        BW_ESGELENGTH,
        BW_EOPCODE,
        BW_ECLOCK,
        BW_EOTHER,
        BW_EINTERNAL,
        BW_ETRANSPORT,
        BW_ENORQ,
        BW_EAGAIN,
        BW_EFATAL,
        BW_ETIMEDOUT,
        BW_ECONN,
        BW_EPROTO,
        BW_EUNSUPPORTED,
        BW_ERECOVERING,
        BW_EENDED,
        BW_ETHREADS,
        BW_ENOBLOCK,
        BW_ERETURNED,
    ];

    fn text(self) -> &'static CStr {
        match self {
            BW_OK => c"success",
            BW_ENULL => c"a pointer is NULL that must not be",
            BW_ESIZE => c"the size field of a struct is wrong: set it to sizeof the struct",
            BW_EINVAL => c"an argument or a field has a value that it cannot have",
            BW_EVERSION => c"compiled with the header of a version that this library cannot serve",
            BW_ENODEV => c"no such device: bw_device_at tells which there are",
            BW_EBUSY => c"in use by other objects: destroy those first",
            BW_ELIMIT => c"more than the device is capable of: bw_device_query tells its limits",
            BW_EEXHAUSTED => c"all that the device has are in use: destroy some first",
            BW_EMEMORY => c"memory cannot be had: bw_last_error tells what to do",
            BW_EFOREIGN => {
                c"objects of different devices or protection domains, or a block of another slab"
            }
            BW_ECQROOM => {
                c"the completion queue has no room for all that could be in flight: \
                  create it larger"
            }
            BW_ESTATE => {
                c"the queue pair's state does not allow it: receives are posted from INIT on, \
                  sends from RTS on"
            }
            BW_EFULL => c"the queue is full: poll its completion queue, then post again",
            BW_ETOOMANYSGE => {
                c"more scatter/gather elements than the queue holds a request: \
                  ask for more when creating the queue pair"
            }
            BW_EINLINE => {
                c"more inline bytes than the queue holds a request: post from registered memory, \
                  or ask for more when creating the queue pair"
            }
            BW_ESGELENGTH => c"a scatter/gather element of 2 GiB or more: use several",
            BW_EOPCODE => c"the opcode is not one that can be posted here",
            BW_ECLOCK => c"the clock is the real one: open the device with BW_CLOCK_VIRTUAL",
            BW_EOTHER => c"failed: bw_last_error tells why",
            BW_EINTERNAL => c"a fault within the library: bw_last_error tells where",
            BW_ETRANSPORT => c"the queue pair's transport does not have this",
            BW_ENORQ => {
                c"the queue pair has no receive queue of its own: post to the shared receive queue"
            }
            BW_EAGAIN => {
                c"no event is queued: wait until the descriptor is readable, or let it block"
            }
            BW_EFATAL => c"the device has failed: destroy what is left on it, and open another",
            BW_ETIMEDOUT => c"the time was up: bw_last_error tells what was waited for",
            BW_ECONN => c"no connection with the peer: bw_last_error tells why",
            BW_EPROTO => {
                c"the peer sent what makes no sense: run both programs with the same version of \
                  bellwire"
            }
            BW_EUNSUPPORTED => {
                c"the device does not have this: bw_last_error tells what to do instead"
            }
            BW_ERECOVERING => {
                c"the link is not connected at the moment: poll it until it is BW_LINK_READY, \
                  then call again"
            }
            BW_EENDED => c"the link has ended: bw_link_query tells why; make a new one",
            BW_ETHREADS => {
                c"two threads are in one queue at once: give each queue one owner at a time"
            }
            BW_ENOBLOCK => {
                c"all blocks of that length are out: poll for completions and return some, \
                  or create the slab with more"
            }
            BW_ERETURNED => c"the block was returned before: return each once",
        }
    }
}

/// What a result code means, and what to do about it. Never NULL; the text is static.
///
/// Thread: any.
#[unsafe(no_mangle)]
pub extern "C" fn bw_strerror(code: c_int) -> *const c_char {
    bw_error::ALL
        .into_iter()
        .find(|known| *known as c_int == code)
        .map_or(c"not a code of this library", bw_error::text)
        .as_ptr()
}
