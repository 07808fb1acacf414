//! Shared receive queues.

use super::cq::place;
use super::{NONE, Request, check_unused};
use crate::abi::{
    CreateMlx5Srq, CreateMlx5SrqResp, CreateSrq, CreateSrqResp, CreateXsrq, Destroy, Handle,
    ModifySrq, QuerySrqResp,
};
use crate::context::{Context, SrqObject, State};
use crate::object::errno;
use crate::places::Place;
use bellwire::event::Element;
use bellwire::rings::{Cq, Srq, SrqInit};
use bellwire::{Pd, Xrcd};
use rustix::io::Errno;
use std::sync::Arc;

const SEGMENT: u32 = 16;

/// What both commands ask for.
struct Asked<'a> {
    pd: &'a Pd,
    user_handle: u64,
    max_wr: u32,
    max_sge: u32,
    limit: u32,
    xrc: Option<(&'a Xrcd, &'a Cq)>,
}

impl Asked<'_> {
    fn make(&self, context: &Context, driver: &CreateMlx5Srq) -> Result<(Srq, Place), Errno> {
        let attr = context.device().attr();
        if driver.flags != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if self.max_wr > attr.max_srq_wr || self.max_sge > attr.max_srq_sge {
            return Err(Errno::INVAL);
        }
        let limit = u16::try_from(self.limit).map_err(|_| Errno::INVAL)?;
        // As driver and library both reckon.
        let count = (self.max_wr + 1).next_power_of_two();
        let stride = ((self.max_sge + 1) * SEGMENT)
            .next_power_of_two()
            .max(2 * SEGMENT);
        let init = SrqInit {
            ring: place(driver.buf_addr, u64::from(count) * u64::from(stride), 64)?,
            count,
            stride,
            record: place(driver.db_addr, 4, 4)?,
            limit,
            xrc: self.xrc.map(|(xrcd, cq)| (xrcd, cq, driver.uidx)),
        };
        // SAFETY: the memory is there now; libmlx5 keeps it until the queue is destroyed, which is
        // not before the queue pairs on it.
        let srq = unsafe { Srq::new(self.pd, &init) }.map_err(errno)?;
        context
            .events()
            .name(Element::Srq(srq.srq_num()), self.user_handle);
        let place = Place::of(init.ring, count, stride, init.record);
        Ok((srq, place))
    }
}

fn answer(request: &Request<'_>, state: &mut State, object: SrqObject) -> Result<(), Errno> {
    let srqn = object.srq.srq_num();
    let (max_wr, max_sge) = (object.srq.count() - 1, object.max_sge);
    let own = CreateSrqResp {
        srq_handle: state.srqs.insert(object),
        max_wr,
        max_sge,
        srqn,
    };
    request.answer(&own, &CreateMlx5SrqResp { srqn, reserved: 0 })
}

pub fn create(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let asked: CreateSrq = request.take()?;
    let driver: CreateMlx5Srq = request.take_driver();
    request.check_room::<CreateSrqResp>()?;
    let mut state = context.state();
    let pd = state.pds.get(asked.pd_handle)?;
    let wanted = Asked {
        pd: &pd.of,
        user_handle: asked.user_handle,
        max_wr: asked.max_wr,
        max_sge: asked.max_sge,
        limit: asked.srq_limit,
        xrc: None,
    };
    let (srq, place) = wanted.make(context, &driver)?;
    let object = SrqObject {
        srq,
        place,
        users: Arc::default(),
        max_sge: asked.max_sge,
        holds: vec![pd.users.clone()],
    };
    answer(request, &mut state, object)
}

pub fn create_xsrq(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    /// `ib_srq_type`.
    const BASIC: u32 = 0;
    const XRC: u32 = 1;
    let asked: CreateXsrq = request.take()?;
    let driver: CreateMlx5Srq = request.take_driver();
    request.check_room::<CreateSrqResp>()?;
    let mut state = context.state();
    let pd = state.pds.get(asked.pd_handle)?;
    let mut holds = vec![pd.users.clone()];
    let xrc = match asked.srq_type {
        BASIC => None,
        XRC => {
            let (xrcd, cq) = (
                state.xrcds.get(asked.xrcd_handle)?,
                state.cqs.get(asked.cq_handle)?,
            );
            holds.extend([xrcd.users.clone(), cq.users.clone()]);
            Some((&xrcd.of.xrcd, &cq.cq))
        }
        _ => return Err(Errno::OPNOTSUPP),
    };
    let wanted = Asked {
        pd: &pd.of,
        user_handle: asked.user_handle,
        max_wr: asked.max_wr,
        max_sge: asked.max_sge,
        limit: asked.srq_limit,
        xrc,
    };
    let (srq, place) = wanted.make(context, &driver)?;
    let object = SrqObject {
        srq,
        place,
        users: Arc::default(),
        max_sge: asked.max_sge,
        holds,
    };
    answer(request, &mut state, object)
}

pub fn modify(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    /// `ib_srq_attr_mask`.
    const LIMIT: u32 = 1 << 1;
    let asked: ModifySrq = request.take()?;
    let state = context.state();
    let srq = &state.srqs.get(asked.srq_handle)?.srq;
    if asked.attr_mask & !LIMIT != 0 {
        // The ring is not to be resized.
        return Err(Errno::INVAL);
    }
    if asked.attr_mask & LIMIT != 0 {
        let limit = u16::try_from(asked.srq_limit).map_err(|_| Errno::INVAL)?;
        if u32::from(limit) >= srq.count() {
            return Err(Errno::INVAL);
        }
        srq.set_limit(limit);
    }
    Ok(())
}

pub fn query(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let Destroy { handle, .. } = request.take()?;
    let state = context.state();
    let object = state.srqs.get(handle)?;
    let own = QuerySrqResp {
        max_wr: object.srq.count() - 1,
        max_sge: object.max_sge,
        srq_limit: object.srq.limit().into(),
        reserved: 0,
    };
    request.answer(&own, &NONE)
}

pub fn destroy(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let Destroy { handle, .. } = request.take()?;
    request.check_room::<Handle>()?;
    let mut state = context.state();
    check_unused(&state.srqs.get(handle)?.users)?;
    let reported = context.end_srq(state.srqs.remove(handle)?);
    request.answer(&Handle { handle: reported }, &NONE)
}
