//! The smallest complete program: two connected queue pairs, one WRITE, one SEND.

use bellwire::memory::Mapping;
use bellwire::wqe::{RdmaWrite, Send};
use bellwire::{AccessFlags, ConnectAttr, Device, QpInit, Region, wr::SendFlags};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open("auto")?;
    let pd = device.alloc_pd();

    // Memory that the peer may write to, and a completion queue for both queue pairs.
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let region = Region::new(&pd, Mapping::anonymous(4096).build()?, access)?;
    let init = QpInit::default();
    let (sends, receives) = init.cq_entries();
    let mut cq = device.create_cq(2 * (sends + receives))?;

    let mut alice = pd.create_qp(&mut cq, &init)?;
    let mut bob = pd.create_qp(&mut cq, &init)?;
    let connect = ConnectAttr::default();
    alice.init(&connect)?;
    bob.init(&connect)?;
    alice.connect(&bob.endpoint(), &connect)?;
    bob.connect(&alice.endpoint(), &connect)?;

    // SAFETY: the region outlives the queue pairs, and no other code touches this part of it meanwhile.
    unsafe { bob.rq().post(1, &[region.sge(2048, 64)])? };
    bob.rq().ring();

    // The WRITE lands in Bob's memory unnoticed; the SEND behind it takes his receive.
    let remote = region.remote(0);
    let greeting = b"hello from Alice";
    let (none, signaled) = (SendFlags::empty(), SendFlags::SIGNALED);
    alice
        .sq()
        .post_inline(2, (), RdmaWrite { remote }, greeting, none)?;
    alice
        .sq()
        .post_inline(3, (), Send {}, b"it is there", signaled)?;
    alice.sq().ring();

    let mut polled = 0;
    while polled < 2 {
        let Some(completion) = cq.poll_one() else {
            continue;
        };
        let (id, done) = (completion.wr_id, completion.result?);
        match done.byte_len() {
            Some(bytes) => println!("request {id}: {}, {bytes} bytes came", done.opcode),
            None => println!("request {id}: {}", done.opcode),
        }
        polled += 1;
    }
    let mut text = [0; 16];
    region.read(0, &mut text);
    println!("Bob's memory says: {}", String::from_utf8_lossy(&text));
    Ok(())
}
