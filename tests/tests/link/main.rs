//! Links recover from every fault: traffic flows again, each request is told exactly once, and all
//! blocks come back.

mod device;
mod ends;
mod faults;
mod hostile;
mod input;
mod modes;
mod sleep;
mod twice;
mod windows;
mod world;
