//! What programs see of the software HCA. One program, because each would compile the generic data path
//! again. What limits or counts something of its process, or starts it once more, has a program of its own
//! beside this one.

mod bad_input;
mod cm;
mod determinism;
mod fabric_acks;
mod fabric_batches;
mod fabric_datagrams;
mod fabric_faults;
mod fabric_messages;
mod fabric_polls;
mod fabric_requesters;
mod fabric_shared;
mod faults;
mod journal;
mod large_fabric;
mod lifetimes;
mod many_qps;
mod meeting;
mod operations;
mod panics;
mod paths;
mod psns;
mod recorder;
mod retries;
mod srq;
mod states;
mod station;
