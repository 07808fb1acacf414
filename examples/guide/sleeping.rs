//! Sleeping until there is a completion, in an epoll of the program's own.

use crate::Result;
use bellwire::wqe::Nop;
use bellwire::wr::SendFlags;
use bellwire::{ConnectAttr, CqInit, Device, QpInit};
use rustix::event::epoll;

pub fn run() -> Result {
    let pd = Device::open("soft")?.alloc_pd();
    // ANCHOR: channel
    let channel = pd.device().create_comp_channel()?;
    channel.set_nonblocking(true)?;
    let init = QpInit::default();
    let (sends, receives) = init.cq_entries();
    let mut cq = pd.device().create_cq_with(&CqInit {
        channel: Some(&channel),
        ..CqInit::new(sends + receives)
    })?;
    // ANCHOR_END: channel
    let mut qp = pd.create_qp(&mut cq, &init)?;
    let connect = ConnectAttr::default();
    qp.init(&connect)?;
    qp.connect(&qp.endpoint(), &connect)?;

    // ANCHOR: epoll
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let data = epoll::EventData::new_u64(0);
    epoll::add(&epoll, &channel, data, epoll::EventFlags::IN)?;

    qp.sq().post_empty(7, (), Nop {}, SendFlags::SIGNALED)?;
    qp.sq().ring();

    let mut done = 0;
    while done == 0 {
        // Arm, poll until nothing is left, then sleep: a completion between the two raises the event.
        cq.req_notify(false)?;
        if cq.poll(16, |completion| done = completion.wr_id) > 0 {
            continue;
        }
        let mut ready = Vec::with_capacity(16);
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut ready), None)?;
        while let Ok(event) = channel.get_cq_event() {
            event.ack();
        }
    }
    // ANCHOR_END: epoll
    assert_eq!(done, 7);
    Ok(())
}
