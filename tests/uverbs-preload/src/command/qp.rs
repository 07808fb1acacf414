//! Queue pairs.

use super::cq::place;
use super::{NONE, Request, qp_attr};
use crate::abi::{
    CreateMlx5Qp, CreateMlx5QpResp, CreateQp, CreateQpResp, Destroy, ExCreateQp, ExResp, Handle,
    Mcast, ModifyQp, OpenQp, QueryQp, qp_flag,
};
use crate::context::{Context, QpObject, State};
use crate::engine;
use crate::object::errno;
use crate::places::{self, Place, Places};
use bellwire::event::Element;
use bellwire::port::DoorbellRecord;
use bellwire::rings::{Qp, QpInit, Receives, Ring};
use bellwire::state::{QpCap, QpState};
use bellwire::wr::QpType;
use rustix::io::Errno;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

const BLOCK: u64 = 64;

/// The rings of a queue pair: receives first, then sends.
struct Rings {
    sends: Option<Ring>,
    receives: Option<(Ring, u32)>,
}

impl Rings {
    fn of(driver: &CreateMlx5Qp) -> Result<Self, Errno> {
        let (sends, receives) = (driver.sq_wqe_count, driver.rq_wqe_count);
        if sends > 1 << 15 || receives > 1 << 15 || driver.rq_wqe_shift > 11 {
            return Err(Errno::INVAL);
        }
        if driver.sq_buf_addr != 0 {
            // Of queue pairs for raw packets.
            return Err(Errno::OPNOTSUPP);
        }
        let stride = 1 << driver.rq_wqe_shift;
        let first = u64::from(receives) * u64::from(stride);
        let length = first + u64::from(sends) * BLOCK;
        if length == 0 {
            return Ok(Self {
                sends: None,
                receives: None,
            });
        }
        let start: NonNull<u8> = place(driver.buf_addr, length, BLOCK)?;
        // SAFETY: within what was found to be there.
        let behind = unsafe { start.add(first as usize) };
        let sends = (sends != 0).then_some(Ring {
            start: behind,
            count: sends,
        });
        let count = receives;
        let receives = (count != 0).then_some((Ring { start, count }, stride));
        Ok(Self { sends, receives })
    }
}

pub fn create(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let asked: CreateQp = request.take()?;
    if request.extended {
        let more: ExCreateQp = request.take()?;
        if more.comp_mask != 0 || more.create_flags != 0 || more.source_qpn != 0 {
            return Err(Errno::OPNOTSUPP);
        }
    }
    let driver: CreateMlx5Qp = request.take_driver();
    request.check_room::<CreateQpResp>()?;
    let transport = match QpType::from_number(asked.qp_type) {
        Some(
            transport @ (QpType::Rc | QpType::Uc | QpType::Ud | QpType::XrcSend | QpType::XrcRecv),
        ) => transport,
        _ => return Err(Errno::OPNOTSUPP),
    };
    let lacking = qp_flag::SIGNATURE | qp_flag::DC | qp_flag::UAR_PAGE_INDEX;
    if driver.flags & lacking != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    let attr = context.device().attr();
    // As the kernel: limits of receives mean nothing without a receive queue of its own.
    let own_receives = asked.is_srq == 0 && !matches!(transport, QpType::XrcSend | QpType::XrcRecv);
    let (max_recv_wr, max_recv_sge) = match own_receives {
        true => (asked.max_recv_wr, asked.max_recv_sge),
        false => (0, 0),
    };
    if asked.max_send_sge > attr.max_sge || max_recv_sge > attr.max_sge {
        return Err(Errno::INVAL);
    }
    let mut state = context.state();
    let rings = Rings::of(&driver)?;
    let records = place(driver.db_addr, 8, 8)?;
    let (qp, holds, mut places) = make(&state, transport, &asked, (&rings, records, driver.uidx))?;
    let (page, register) = if driver.flags & qp_flag::BFREG_INDEX != 0 {
        let page = context.uars().dynamic_page_of(driver.bfreg_index);
        (page.ok_or(Errno::INVAL)?, None)
    } else {
        let register = state.take_register();
        (context.uars().page_of(register), Some(register))
    };
    let qp = Arc::new(qp);
    let qpn = qp.qp_num();
    let on = (context, page);
    places[0] = (rings.sends).map(|ring| Place::of_sends(ring, records, on, driver.uidx));
    places::add(qpn, places);
    let page = context.page(page);
    context.events().name(Element::Qp(qpn), asked.user_handle);
    engine::add_qp(&page, &qp);
    if transport == QpType::XrcRecv {
        admit(&state, asked.pd_handle, &qp)?;
    }
    let cap = QpCap {
        max_send_wr: asked.max_send_wr,
        max_recv_wr,
        max_send_sge: asked.max_send_sge,
        max_recv_sge,
        max_inline_data: asked.max_inline_data,
    };
    let object = QpObject {
        qp,
        cap,
        sq_sig_all: asked.sq_sig_all != 0,
        user_handle: asked.user_handle,
        page: Some(page),
        register,
        holds,
    };
    let own = CreateQpResp {
        qp_handle: state.qps.insert(object),
        qpn,
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
        reserved: 0,
    };
    let driver = CreateMlx5QpResp {
        bfreg_index: register.unwrap_or(driver.bfreg_index),
        ..CreateMlx5QpResp::default()
    };
    if !request.extended {
        return request.answer(&own, &driver);
    }
    let ex = ExResp {
        comp_mask: 0,
        response_length: (size_of::<CreateQpResp>() + size_of::<ExResp>()) as u32,
    };
    request.answer(&qp_attr::Both(own, ex), &driver)
}

/// The queue pair, and what is not to go before it.
fn make(
    state: &State,
    transport: QpType,
    asked: &CreateQp,
    (rings, records, user_index): (&Rings, NonNull<[DoorbellRecord; 2]>, u32),
) -> Result<(Qp, Vec<Arc<()>>, Places), Errno> {
    let mut places = Places::default();
    let mut init = QpInit {
        transport,
        sends: rings.sends,
        receives: Receives::None,
        records,
        cqs: None,
        user_index,
    };
    let mut holds = Vec::new();
    let pd = if transport == QpType::XrcRecv {
        let xrcd = state.xrcds.get(asked.pd_handle)?;
        holds.push(xrcd.users.clone());
        init.receives = Receives::Xrc(&xrcd.of.xrcd);
        &state.no_pd
    } else {
        let send = state.cqs.get(asked.send_cq_handle)?;
        holds.push(send.users.clone());
        let recv = match transport {
            QpType::XrcSend => send,
            _ => state.cqs.get(asked.recv_cq_handle)?,
        };
        holds.push(recv.users.clone());
        init.cqs = Some((&send.cq, &recv.cq));
        (places[3], places[4]) = (Some(send.place), Some(recv.place));
        if asked.is_srq != 0 && transport != QpType::XrcSend {
            let srq = state.srqs.get(asked.srq_handle)?;
            holds.push(srq.users.clone());
            init.receives = Receives::Shared(&srq.srq);
            places[2] = Some(srq.place);
        } else if let Some((ring, stride)) = rings.receives {
            init.receives = Receives::Own(ring, stride);
            places[1] = Some(Place::of(ring.start, ring.count, stride, records));
        }
        let pd = state.pds.get(asked.pd_handle)?;
        holds.push(pd.users.clone());
        &pd.of
    };
    // SAFETY: the memory is there now; libmlx5 keeps it until the queue pair is destroyed.
    let qp = unsafe { Qp::new(pd, &init) }.map_err(errno)?;
    Ok((qp, holds, places))
}

/// From here on an XRC target can be opened by those who have its domain.
fn admit(state: &State, xrcd: u32, qp: &Arc<Qp>) -> Result<(), Errno> {
    let mut targets = state.xrcds.get(xrcd)?.of.targets();
    targets.retain(|_, target| target.strong_count() != 0);
    targets.insert(qp.qp_num(), Arc::downgrade(qp));
    Ok(())
}

/// Opens an XRC target that somebody created.
pub fn open(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let asked: OpenQp = request.take()?;
    request.check_room::<CreateQpResp>()?;
    if QpType::from_number(asked.qp_type) != Some(QpType::XrcRecv) {
        return Err(Errno::INVAL);
    }
    let mut state = context.state();
    let xrcd = state.xrcds.get(asked.xrcd_handle)?;
    let found = xrcd.of.targets().get(&asked.qpn).and_then(Weak::upgrade);
    let (qp, hold) = (found.ok_or(Errno::INVAL)?, xrcd.users.clone());
    if !state.qps.all().any(|other| Arc::ptr_eq(&other.qp, &qp)) {
        context
            .events()
            .name(Element::Qp(asked.qpn), asked.user_handle);
    }
    let object = QpObject {
        qp,
        cap: QpCap::default(),
        sq_sig_all: false,
        user_handle: asked.user_handle,
        page: None,
        register: None,
        holds: vec![hold],
    };
    let own = CreateQpResp {
        qp_handle: state.qps.insert(object),
        qpn: asked.qpn,
        ..CreateQpResp::default()
    };
    request.answer(&own, &NONE)
}

pub fn modify(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let asked: ModifyQp = request.take()?;
    let (attr, mask) = qp_attr::read(&asked)?;
    let state = context.state();
    let object = state.qps.get(asked.qp_handle)?;
    let now = object.qp.modify(&attr, mask).map_err(errno)?;
    if let (QpState::Reset, Some(page)) = (now, &object.page) {
        engine::begin_anew(page);
    }
    Ok(())
}

pub fn query(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let asked: QueryQp = request.take()?;
    let state = context.state();
    let object = state.qps.get(asked.qp_handle)?;
    let attr = object.qp.query().map_err(errno)?;
    request.answer(&qp_attr::write(&attr, object), &NONE)
}

pub fn destroy(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let Destroy { handle, .. } = request.take()?;
    request.check_room::<Handle>()?;
    let mut state = context.state();
    let object = state.qps.remove(handle)?;
    if let Some(register) = object.register {
        state.give_register(register);
    }
    let mut all = state.qps.all();
    let other = all.find(|other| Arc::ptr_eq(&other.qp, &object.qp));
    let other = other.map(|other| other.user_handle);
    let reported = context.end_qp(object, other);
    request.answer(&Handle { handle: reported }, &NONE)
}

pub fn attach_mcast(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let asked: Mcast = request.take()?;
    let state = context.state();
    let qp = &state.qps.get(asked.qp_handle)?.qp;
    qp.attach_mcast(asked.gid, asked.mlid).map_err(errno)
}

pub fn detach_mcast(context: &Context, request: &mut Request<'_>) -> Result<(), Errno> {
    let asked: Mcast = request.take()?;
    let state = context.state();
    let qp = &state.qps.get(asked.qp_handle)?.qp;
    qp.detach_mcast(asked.gid, asked.mlid).map_err(errno)
}
