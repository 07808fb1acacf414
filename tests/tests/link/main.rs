//! Links recover from every fault: traffic flows again, each request is reported exactly once, and all
//! blocks come back.
//!
//! They recover also from a second fault after each step of the recovery from the first. In the guest
//! the tests run on Soft-RoCE, too, with each status that a request can be made to fail with there,
//! overruns, a cut cable and changed addresses; on the stand-in for the kernel they run on the rings of
//! a ConnectX device.

mod busy;
mod cancel;
mod device;
mod early;
mod ends;
mod event_hook;
mod faults;
mod grant;
mod hostile;
mod input;
mod modes;
mod monitor;
mod panics;
mod set;
mod sleep;
mod text;
mod twice;
mod waiting;
mod watch;
mod windows;
mod world;
