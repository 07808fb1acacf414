//! Completion queues.

use super::{NONE, Request, check_unused};
use crate::abi::{
    CreateCq, CreateCqResp, CreateMlx5Cq, CreateMlx5CqResp, Destroy, DestroyCqResp, ExCreateCq,
    ExResp, ResizeCq, ResizeCqResp, ResizeMlx5Cq,
};
use crate::context::{Context, CqObject};
use crate::descriptors::{self, Descriptor};
use crate::engine;
use crate::memory::{self, Use};
use crate::object::errno;
use crate::places::Place;
use bellwire::event::Element;
use bellwire::rings::{Cq, CqInit};
use rustix::io::Errno;
use std::ptr::NonNull;
use std::sync::Arc;

/// Memory of the program's that the device reads and writes.
///
/// # Errors
/// `EFAULT` where there is none, `EINVAL` where it is not aligned.
pub fn place<T>(address: u64, length: u64, align: u64) -> Result<NonNull<T>, Errno> {
    if !address.is_multiple_of(align) {
        return Err(Errno::INVAL);
    }
    memory::pin(address, length, Use::Write)?;
    let place = std::ptr::with_exposed_provenance_mut(address as usize);
    NonNull::new(place).ok_or(Errno::FAULT)
}

pub fn create(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let asked: CreateCq = request.take()?;
    let flags = match request.extended {
        true => request.take::<ExCreateCq>()?.flags,
        false => 0,
    };
    let driver: CreateMlx5Cq = request.take_driver();
    request.check_room::<CreateCqResp>()?;
    // Neither timestamps nor completions that may be lost, nor compression, which nobody offered.
    if flags != 0 || driver.cqe_comp_en != 0 || driver.flags != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    if asked.comp_vector != 0 || !matches!(driver.cqe_size, 64 | 128) {
        return Err(Errno::INVAL);
    }
    let count = entries(context, asked.cqe)?;
    let channel = match asked.comp_channel {
        -1 => None,
        fd => match descriptors::get(fd) {
            Some(Descriptor::Channel(channel)) => Some(channel),
            _ => return Err(Errno::BADF),
        },
    };
    let size = u64::from(driver.cqe_size);
    let init = CqInit {
        ring: place(driver.buf_addr, u64::from(count) * size, size)?,
        count,
        cqe_size: driver.cqe_size,
        records: place(driver.db_addr, 8, 8)?,
        channel: channel.as_ref().map(|channel| &channel.channel),
    };
    // SAFETY: the memory is there now; libmlx5 keeps it until the queue is destroyed, which is not
    // before all that is on it.
    let cq = unsafe { Cq::new(context.device(), &init) }.map_err(errno)?;
    let cqn = cq.cqn();
    context.events().name(Element::Cq(cqn), asked.user_handle);
    engine::add_cq(&context.page(0), &cq);
    let object = CqObject {
        cq,
        place: Place::of(init.ring, count, driver.cqe_size, init.records),
        users: Arc::default(),
    };
    let cq_handle = context.state().cqs.insert(object);
    let own = CreateCqResp {
        cq_handle,
        cqe: count - 1,
    };
    let driver = CreateMlx5CqResp { cqn, reserved: 0 };
    if !request.extended {
        return request.answer(&own, &driver);
    }
    let length = (size_of::<CreateCqResp>() + size_of::<ExResp>()) as u32;
    request.answer(&[own.cq_handle, own.cqe, 0, length], &driver)
}

pub fn resize(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let asked: ResizeCq = request.take()?;
    let driver: ResizeMlx5Cq = request.take_driver();
    request.check_room::<ResizeCqResp>()?;
    let mut state = context.state();
    let object = state.cqs.get_mut(asked.cq_handle)?;
    let cq = &object.cq;
    if u32::from(driver.cqe_size) != cq.cqe_size() {
        return Err(Errno::INVAL);
    }
    let count = entries(context, asked.cqe)?;
    let size = u64::from(driver.cqe_size);
    let ring = place(driver.buf_addr, u64::from(count) * size, size)?;
    // SAFETY: the memory is there now; libmlx5 keeps it until the queue goes or is resized, and polls
    // nothing meanwhile.
    unsafe { cq.resize(ring, count) }.map_err(errno)?;
    (object.place.ring, object.place.count) = (ring.as_ptr(), count);
    let own = ResizeCqResp {
        cqe: count - 1,
        reserved: 0,
    };
    request.answer(&own, &NONE)
}

/// Entries of the ring of a queue that is to take so many.
fn entries(context: &Context, cqe: u32) -> Result<u32, Errno> {
    let max = context.device().attr().max_cqe;
    let count = cqe.checked_add(1).filter(|&count| count <= max);
    Ok(count.ok_or(Errno::INVAL)?.next_power_of_two())
}

pub fn destroy(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let Destroy { handle, .. } = request.take()?;
    request.check_room::<DestroyCqResp>()?;
    let mut state = context.state();
    check_unused(&state.cqs.get(handle)?.users)?;
    let events = context.end_cq(state.cqs.remove(handle)?);
    let own = DestroyCqResp {
        comp_events_reported: events.completions,
        async_events_reported: events.async_events,
    };
    request.answer(&own, &NONE)
}
