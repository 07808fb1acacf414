//! The flight recorder of a queue pair that failed.

use crate::{Result, ends};
use bellwire::Device;
use bellwire::fault::{Fault, WorkQueue, classify};
use bellwire::recorder::DumpOptions;
use bellwire::wqe::RdmaWrite;
use bellwire::wr::{QpType, Remote, SendFlags, WrOpcode};

pub fn run() -> Result {
    let pd = Device::open("soft")?.alloc_pd();
    let (mut a, _b) = ends::two(&pd)?;
    let remote = Remote { addr: 0, rkey: 1 };
    a.qp.sq()
        .post_inline(7, (), RdmaWrite { remote }, b"x", SendFlags::SIGNALED)?;
    a.qp.sq().ring();
    // ANCHOR: dump
    let completion = a.cq.poll_one().expect("executed");
    if let Err(failure) = completion.result {
        let queue = WorkQueue::Send(Some(WrOpcode::RdmaWrite));
        let fault = Fault::completion(&failure, QpType::Rc, queue);
        let class = classify(fault);
        println!("{fault}: {}", fault.text());
        println!("cause: {}", class.cause);
        println!("to recover: {}", class.recovery.text());
        println!("{}", a.qp.dump(&mut a.cq, &DumpOptions::default())?);
    }
    // ANCHOR_END: dump
    Ok(())
}
