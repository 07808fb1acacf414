//! libibverbs' side: posting and polling as libmlx5 does it, by `ibv_post_send` and `ibv_poll_cq`, or by
//! `ibv_wr_*` and `ibv_start_poll`.

use crate::Check;
use crate::request::{Arena, Op, Request};
use bellwire::state::AhAttr;
use bellwire::wr::{QpType, SendFlags, Sge};
use rdma_sys::*;
use std::ffi::{CStr, c_int, c_void};
use std::mem::{offset_of, zeroed};
use std::ptr::{NonNull, null_mut};

/// How libmlx5 is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    Legacy,
    Extended,
}

/// What a queue pair is to be able to do, on either side.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub max_send_wr: u32,
    pub max_send_sge: u32,
    pub max_inline: u32,
    pub max_recv_wr: u32,
    pub max_recv_sge: u32,
    pub sig_all: bool,
    pub srq: bool,
    /// Entries of the completion queue.
    pub cqes: u32,
}

/// The device, and what requests name of it.
pub struct Library {
    context: NonNull<ibv_context>,
    pd: NonNull<ibv_pd>,
    mr: NonNull<ibv_mr>,
    windows: Vec<NonNull<ibv_mw>>,
    ahs: Vec<NonNull<ibv_ah>>,
}

fn made<T>(what: &str, object: *mut T) -> Check<NonNull<T>> {
    let error = std::io::Error::last_os_error();
    NonNull::new(object).ok_or_else(|| format!("{what}: {error}").into())
}

fn done(what: &str, answer: c_int) -> Check {
    match answer {
        0 => Ok(()),
        error => Err(format!("{what}: {error}").into()),
    }
}

/// A call of the table in front of the context, which `rdma-sys` does not find. In an unsafe block: the
/// context is open, and the last part of a table, for libibverbs is no older than that.
macro_rules! newer {
    ($context:expr, $verb:ident) => {{
        let offset = offset_of!(verbs_context, context);
        let table: *mut verbs_context = $context.as_ptr().byte_sub(offset).cast();
        (*table).$verb.ok_or(concat!("no ", stringify!($verb)))?
    }};
}

impl Library {
    /// Opens the device of this name.
    pub fn open(name: &str, addresses: &[AhAttr], windows: usize) -> Check<Self> {
        // SAFETY: the list is there until it is freed, which it never is; the calls are libibverbs'.
        unsafe {
            let list = ibv_get_device_list(null_mut());
            let mut at = list;
            while !at.is_null() && !(*at).is_null() {
                if CStr::from_ptr(ibv_get_device_name(*at)).to_bytes() == name.as_bytes() {
                    break;
                }
                at = at.add(1);
            }
            if at.is_null() || (*at).is_null() {
                return Err(format!("no device {name}").into());
            }
            let context = made("ibv_open_device", ibv_open_device(*at))?;
            let pd = made("ibv_alloc_pd", ibv_alloc_pd(context.as_ptr()))?;
            let memory = Box::leak(Box::new([0_u8; 4096])).as_mut_ptr();
            let access =
                ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_MW_BIND;
            let mr = ibv_reg_mr(pd.as_ptr(), memory.cast(), 4096, access.0 as c_int);
            let mr = made("ibv_reg_mr", mr)?;
            let window = |_| {
                let made_one = ibv_alloc_mw(pd.as_ptr(), ibv_mw_type::IBV_MW_TYPE_2);
                made("ibv_alloc_mw", made_one.unwrap_or(null_mut()))
            };
            let handle = |attr: &AhAttr| {
                let mut attr = address(attr);
                made("ibv_create_ah", ibv_create_ah(pd.as_ptr(), &raw mut attr))
            };
            Ok(Self {
                context,
                pd,
                mr,
                windows: (0..windows).map(window).collect::<Check<_>>()?,
                ahs: addresses.iter().map(handle).collect::<Check<_>>()?,
            })
        }
    }

    /// Key of the memory that windows are bound to.
    pub fn lkey(&self) -> u32 {
        // SAFETY: alive.
        unsafe { self.mr.as_ref().lkey }
    }

    /// Keys of the windows.
    pub fn windows(&self) -> Vec<u32> {
        // SAFETY: alive.
        let key = |window: &NonNull<ibv_mw>| unsafe { window.as_ref().rkey };
        self.windows.iter().map(key).collect()
    }
}

fn address(attr: &AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: attr.grh.dgid },
            flow_label: attr.grh.flow_label,
            sgid_index: attr.grh.sgid_index,
            hop_limit: attr.grh.hop_limit,
            traffic_class: attr.grh.traffic_class,
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global.into(),
        port_num: attr.port_num,
    }
}

/// What was polled, as libibverbs has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate data as it lies in memory, or the key that was invalidated.
    pub imm: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub flags: u32,
    /// Of `ibv_poll_cq` only.
    pub pkey_index: u16,
    pub slid: u32,
    pub sl: u8,
    pub path_bits: u8,
}

/// What a field holds that was not written.
pub const UNSET: u32 = 0xa5a5_a5a5;

/// What a poll found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    Nothing,
    /// An error of the call itself.
    Failed(c_int),
    Told(Wc),
}

/// A queue pair and its queues.
pub struct Theirs<'l> {
    library: &'l Library,
    way: Way,
    qp: NonNull<ibv_qp>,
    cq: NonNull<ibv_cq>,
    srq: Option<NonNull<ibv_srq>>,
}

fn verbs_type(transport: QpType) -> u32 {
    match transport {
        QpType::Rc => ibv_qp_type::IBV_QPT_RC,
        QpType::Uc => ibv_qp_type::IBV_QPT_UC,
        _ => ibv_qp_type::IBV_QPT_UD,
    }
}

/// All that the transport has, of `ibv_wr_*`.
fn operations(transport: QpType) -> u64 {
    use ibv_qp_create_send_ops_flags as F;
    let mut all = F::IBV_QP_EX_WITH_SEND | F::IBV_QP_EX_WITH_SEND_WITH_IMM;
    if transport != QpType::Ud {
        all |= F::IBV_QP_EX_WITH_RDMA_WRITE
            | F::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | F::IBV_QP_EX_WITH_SEND_WITH_INV
            | F::IBV_QP_EX_WITH_LOCAL_INV
            | F::IBV_QP_EX_WITH_BIND_MW;
    }
    if transport == QpType::Rc {
        all |= F::IBV_QP_EX_WITH_RDMA_READ
            | F::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
            | F::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    }
    all.0.into()
}

fn sge(of: &Sge) -> ibv_sge {
    ibv_sge {
        addr: of.addr,
        length: of.length,
        lkey: of.lkey,
    }
}

impl<'l> Theirs<'l> {
    pub fn new(library: &'l Library, transport: QpType, shape: &Shape, way: Way) -> Check<Self> {
        let Library { context, pd, .. } = *library;
        // SAFETY: all are alive; zeroes are values of the attributes.
        unsafe {
            let cqe = (shape.cqes - 1).max(1);
            let cq = match way {
                Way::Legacy => {
                    ibv_create_cq(context.as_ptr(), cqe as c_int, null_mut(), null_mut(), 0)
                }
                Way::Extended => {
                    let mut attr: ibv_cq_init_attr_ex = zeroed();
                    attr.cqe = cqe;
                    use ibv_create_cq_wc_flags as F;
                    attr.wc_flags = (F::IBV_WC_EX_WITH_BYTE_LEN
                        | F::IBV_WC_EX_WITH_IMM
                        | F::IBV_WC_EX_WITH_QP_NUM
                        | F::IBV_WC_EX_WITH_SRC_QP
                        | F::IBV_WC_EX_WITH_SLID
                        | F::IBV_WC_EX_WITH_SL
                        | F::IBV_WC_EX_WITH_DLID_PATH_BITS)
                        .0
                        .into();
                    newer!(context, create_cq_ex)(context.as_ptr(), &raw mut attr).cast()
                }
            };
            let cq = made("create a completion queue", cq)?;
            let srq = match shape.srq {
                true => {
                    let mut attr: ibv_srq_init_attr = zeroed();
                    attr.attr.max_wr = shape.max_recv_wr;
                    attr.attr.max_sge = shape.max_recv_sge;
                    Some(made(
                        "ibv_create_srq",
                        ibv_create_srq(pd.as_ptr(), &raw mut attr),
                    )?)
                }
                false => None,
            };
            let mut attr: ibv_qp_init_attr_ex = zeroed();
            attr.send_cq = cq.as_ptr();
            attr.recv_cq = cq.as_ptr();
            attr.srq = srq.map_or(null_mut(), NonNull::as_ptr);
            attr.cap = ibv_qp_cap {
                max_send_wr: shape.max_send_wr,
                max_recv_wr: if shape.srq { 0 } else { shape.max_recv_wr },
                max_send_sge: shape.max_send_sge,
                max_recv_sge: shape.max_recv_sge,
                max_inline_data: shape.max_inline,
            };
            attr.qp_type = verbs_type(transport);
            attr.sq_sig_all = shape.sig_all.into();
            attr.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
            attr.pd = pd.as_ptr();
            if way == Way::Extended {
                attr.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
                attr.send_ops_flags = operations(transport);
            }
            let qp = newer!(context, create_qp_ex)(context.as_ptr(), &raw mut attr);
            let theirs = Self {
                library,
                way,
                qp: made("ibv_create_qp_ex", qp)?,
                cq,
                srq,
            };
            theirs.ready(transport)?;
            Ok(theirs)
        }
    }

    pub fn qp_num(&self) -> u32 {
        // SAFETY: alive.
        unsafe { self.qp.as_ref().qp_num }
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: ibv_qp_attr_mask) -> Check {
        // SAFETY: alive.
        let answer = unsafe { ibv_modify_qp(self.qp.as_ptr(), attr, mask.0 as c_int) };
        done("ibv_modify_qp", answer)
    }

    /// From RESET to RTS, connected with itself.
    fn ready(&self, transport: QpType) -> Check {
        use ibv_qp_attr_mask as M;
        // SAFETY: zeroes are values of it.
        let mut attr: ibv_qp_attr = unsafe { zeroed() };
        let datagrams = transport == QpType::Ud;
        attr.qp_state = ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qkey = 0x1111_1111;
        attr.qp_access_flags = (ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)
            .0;
        let init = M::IBV_QP_STATE | M::IBV_QP_PKEY_INDEX | M::IBV_QP_PORT;
        let more = if datagrams {
            M::IBV_QP_QKEY
        } else {
            M::IBV_QP_ACCESS_FLAGS
        };
        if transport == QpType::Uc {
            attr.qp_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        }
        self.modify(&mut attr, init | more)?;
        attr.qp_state = ibv_qp_state::IBV_QPS_RTR;
        attr.path_mtu = ibv_mtu::IBV_MTU_1024;
        attr.dest_qp_num = self.qp_num();
        attr.ah_attr.dlid = 1;
        attr.ah_attr.port_num = 1;
        attr.max_rd_atomic = 1;
        attr.max_dest_rd_atomic = 1;
        let path = M::IBV_QP_AV | M::IBV_QP_PATH_MTU | M::IBV_QP_DEST_QPN | M::IBV_QP_RQ_PSN;
        let depth = M::IBV_QP_MAX_DEST_RD_ATOMIC | M::IBV_QP_MIN_RNR_TIMER;
        let state = M::IBV_QP_STATE;
        self.modify(
            &mut attr,
            match transport {
                QpType::Ud => state,
                QpType::Uc => state | path,
                _ => state | path | depth,
            },
        )?;
        attr.qp_state = ibv_qp_state::IBV_QPS_RTS;
        attr.timeout = 14;
        attr.retry_cnt = 7;
        let retries = M::IBV_QP_TIMEOUT | M::IBV_QP_RETRY_CNT | M::IBV_QP_RNR_RETRY;
        self.modify(
            &mut attr,
            match transport {
                QpType::Rc => state | retries | M::IBV_QP_SQ_PSN | M::IBV_QP_MAX_QP_RD_ATOMIC,
                _ => state | M::IBV_QP_SQ_PSN,
            },
        )
    }

    /// Posts all of them, and rings once.
    pub fn post(&self, requests: &[Request], arena: &Arena) -> Check {
        match self.way {
            Way::Legacy => self.post_send(requests),
            Way::Extended => self.wr(requests, arena),
        }
    }

    fn bind_info(&self, bind: &crate::request::Bind) -> ibv_mw_bind_info {
        ibv_mw_bind_info {
            mr: self.library.mr.as_ptr(),
            addr: bind.addr,
            length: bind.length.into(),
            mw_access_flags: bind.access,
        }
    }

    fn post_send(&self, requests: &[Request]) -> Check {
        let mut lists: Vec<Vec<ibv_sge>> = requests
            .iter()
            .map(|request| request.sges.iter().map(sge).collect())
            .collect();
        let mut list: Vec<ibv_send_wr> = Vec::with_capacity(requests.len());
        for (request, sges) in requests.iter().zip(&mut lists) {
            list.push(self.send_wr(request, sges));
        }
        for at in 1..list.len() {
            list[at - 1].next = &raw mut list[at];
        }
        let mut bad = null_mut();
        // SAFETY: a list of requests; nothing is executed.
        let answer = unsafe { ibv_post_send(self.qp.as_ptr(), list.as_mut_ptr(), &raw mut bad) };
        done("ibv_post_send", answer)
    }

    fn send_wr(&self, request: &Request, sges: &mut [ibv_sge]) -> ibv_send_wr {
        use ibv_wr_opcode as O;
        // SAFETY: zeroes are values of it.
        let mut wr: ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = request.wr_id;
        wr.sg_list = sges.as_mut_ptr();
        wr.num_sge = sges.len() as c_int;
        let inline = if request.inline {
            SendFlags::INLINE
        } else {
            SendFlags::empty()
        };
        wr.send_flags = (request.flags | inline).bits().into();
        let rdma = |remote: bellwire::wr::Remote| wr_t {
            rdma: rdma_t {
                remote_addr: remote.addr,
                rkey: remote.rkey,
            },
        };
        let atomic = |remote: bellwire::wr::Remote, compare_add, swap| wr_t {
            atomic: atomic_t {
                remote_addr: remote.addr,
                compare_add,
                swap,
                rkey: remote.rkey,
            },
        };
        let imm = &mut wr.imm_data_invalidated_rkey_union;
        wr.opcode = match request.op {
            Op::Send => O::IBV_WR_SEND,
            Op::SendImm(data) => {
                imm.imm_data = data;
                O::IBV_WR_SEND_WITH_IMM
            }
            Op::SendInv(rkey) => {
                imm.invalidated_rkey = rkey;
                O::IBV_WR_SEND_WITH_INV
            }
            Op::Write(remote) => {
                wr.wr = rdma(remote);
                O::IBV_WR_RDMA_WRITE
            }
            Op::WriteImm(remote, data) => {
                imm.imm_data = data;
                wr.wr = rdma(remote);
                O::IBV_WR_RDMA_WRITE_WITH_IMM
            }
            Op::Read(remote) => {
                wr.wr = rdma(remote);
                O::IBV_WR_RDMA_READ
            }
            Op::CmpSwap(remote, compare, swap) => {
                wr.wr = atomic(remote, compare, swap);
                O::IBV_WR_ATOMIC_CMP_AND_SWP
            }
            Op::FetchAdd(remote, add) => {
                wr.wr = atomic(remote, add, 0);
                O::IBV_WR_ATOMIC_FETCH_AND_ADD
            }
            Op::LocalInv(rkey) => {
                imm.invalidated_rkey = rkey;
                O::IBV_WR_LOCAL_INV
            }
            Op::Bind(bind) => {
                wr.bind_mw_tso_union.bind_mw = bind_mw_t {
                    mw: self.library.windows[bind.window].as_ptr(),
                    rkey: bind.new_rkey,
                    bind_info: self.bind_info(&bind),
                };
                O::IBV_WR_BIND_MW
            }
        };
        if let Some(ah) = self.library.ahs.get(request.to.ah)
            && self.is_ud()
        {
            wr.wr.ud = ud_t {
                ah: ah.as_ptr(),
                remote_qpn: request.to.qpn,
                remote_qkey: request.to.qkey,
            };
        }
        wr
    }

    fn is_ud(&self) -> bool {
        // SAFETY: alive.
        unsafe { self.qp.as_ref().qp_type == ibv_qp_type::IBV_QPT_UD }
    }

    fn wr(&self, requests: &[Request], arena: &Arena) -> Check {
        // SAFETY: an extended queue pair; requests that it has, between start and completion; nothing is
        // executed.
        unsafe {
            let qp = ibv_qp_to_qp_ex(self.qp.as_ptr());
            ibv_wr_start(qp);
            for request in requests {
                (*qp).wr_id = request.wr_id;
                (*qp).wr_flags = request.flags.bits().into();
                match request.op {
                    Op::Send => ibv_wr_send(qp),
                    Op::SendImm(imm) => ibv_wr_send_imm(qp, imm),
                    Op::SendInv(rkey) => ibv_wr_send_inv(qp, rkey),
                    Op::Write(to) => ibv_wr_rdma_write(qp, to.rkey, to.addr),
                    Op::WriteImm(to, imm) => ibv_wr_rdma_write_imm(qp, to.rkey, to.addr, imm),
                    Op::Read(from) => ibv_wr_rdma_read(qp, from.rkey, from.addr),
                    Op::CmpSwap(at, compare, swap) => {
                        ibv_wr_atomic_cmp_swp(qp, at.rkey, at.addr, compare, swap);
                    }
                    Op::FetchAdd(at, add) => ibv_wr_atomic_fetch_add(qp, at.rkey, at.addr, add),
                    Op::LocalInv(rkey) => {
                        ibv_wr_local_inv(qp, rkey);
                        continue;
                    }
                    Op::Bind(bind) => {
                        let window = self.library.windows[bind.window].as_ptr();
                        let info = self.bind_info(&bind);
                        ibv_wr_bind_mw(qp, window, bind.new_rkey, &raw const info);
                        continue;
                    }
                }
                if self.is_ud() {
                    let ah = self.library.ahs[request.to.ah].as_ptr();
                    ibv_wr_set_ud_addr(qp, ah, request.to.qpn, request.to.qkey);
                }
                set_data(qp, request, arena);
            }
            done("ibv_wr_complete", ibv_wr_complete(qp))
        }
    }

    /// Posts all of them to the queue pair's own receive queue, or to the shared one.
    pub fn receive(&self, receives: &[(u64, Vec<Sge>)]) -> Check {
        let mut lists: Vec<Vec<ibv_sge>> = receives
            .iter()
            .map(|(_, sges)| sges.iter().map(sge).collect())
            .collect();
        let mut list: Vec<ibv_recv_wr> = Vec::with_capacity(receives.len());
        for ((wr_id, _), sges) in receives.iter().zip(&mut lists) {
            list.push(ibv_recv_wr {
                wr_id: *wr_id,
                next: null_mut(),
                sg_list: sges.as_mut_ptr(),
                num_sge: sges.len() as c_int,
            });
        }
        for at in 1..list.len() {
            list[at - 1].next = &raw mut list[at];
        }
        let mut bad = null_mut();
        // SAFETY: a list of receives; completions write to the arena.
        let answer = unsafe {
            match self.srq {
                Some(srq) => ibv_post_srq_recv(srq.as_ptr(), list.as_mut_ptr(), &raw mut bad),
                None => ibv_post_recv(self.qp.as_ptr(), list.as_mut_ptr(), &raw mut bad),
            }
        };
        done("post receives", answer)
    }

    /// Polls one.
    pub fn poll(&self) -> Polled {
        // SAFETY: polled by this thread alone.
        unsafe {
            match self.way {
                Way::Legacy => self.poll_cq(),
                Way::Extended => self.start_poll(),
            }
        }
    }

    unsafe fn poll_cq(&self) -> Polled {
        // SAFETY: numbers; the queue is alive.
        unsafe {
            let mut wc: ibv_wc = zeroed();
            (wc.status, wc.opcode) = (UNSET, UNSET);
            match ibv_poll_cq(self.cq.as_ptr(), 1, &raw mut wc) {
                0 => Polled::Nothing,
                1 => Polled::Told(Wc {
                    wr_id: wc.wr_id,
                    status: wc.status,
                    opcode: wc.opcode,
                    vendor_err: wc.vendor_err,
                    byte_len: wc.byte_len,
                    imm: wc.imm_data_invalidated_rkey_union.imm_data,
                    qp_num: wc.qp_num,
                    src_qp: wc.src_qp,
                    flags: wc.wc_flags,
                    pkey_index: wc.pkey_index,
                    slid: wc.slid.into(),
                    sl: wc.sl,
                    path_bits: wc.dlid_path_bits,
                }),
                error => Polled::Failed(error),
            }
        }
    }

    unsafe fn start_poll(&self) -> Polled {
        let cq: *mut ibv_cq_ex = self.cq.as_ptr().cast();
        // SAFETY: an extended queue, alive, made with these fields.
        unsafe {
            (*cq).status = UNSET;
            let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
            match ibv_start_poll(cq, &raw mut attr) {
                libc::ENOENT => return Polled::Nothing,
                0 => {}
                error => return Polled::Failed(error),
            }
            let mut wc = Wc {
                wr_id: (*cq).wr_id,
                status: (*cq).status,
                ..Wc::default()
            };
            if wc.status != UNSET {
                wc.opcode = ibv_wc_read_opcode(cq);
                wc.vendor_err = ibv_wc_read_vendor_err(cq);
                wc.byte_len = ibv_wc_read_byte_len(cq);
                wc.imm = ibv_wc_read_imm_data(cq);
                wc.qp_num = ibv_wc_read_qp_num(cq);
                wc.src_qp = ibv_wc_read_src_qp(cq);
                wc.flags = ibv_wc_read_wc_flags(cq);
                wc.slid = ibv_wc_read_slid(cq);
                wc.sl = ibv_wc_read_sl(cq);
                wc.path_bits = ibv_wc_read_dlid_path_bits(cq);
            }
            ibv_end_poll(cq);
            Polled::Told(wc)
        }
    }
}

/// The data of a request of `ibv_wr_*`, by the call that a program would take.
///
/// # Safety
/// A request of this queue pair was begun.
unsafe fn set_data(qp: *mut ibv_qp_ex, request: &Request, arena: &Arena) {
    // SAFETY: the caller's promise; inline data is in the arena.
    unsafe {
        match (request.inline, &request.sges[..]) {
            (true, [sge]) => {
                let bytes: *const [u8] = arena.bytes(sge);
                ibv_wr_set_inline_data(qp, bytes.cast::<c_void>().cast_mut(), bytes.len());
            }
            (true, sges) => {
                let piece = |sge: &Sge| ibv_data_buf {
                    addr: std::ptr::from_ref(arena.bytes(sge))
                        .cast::<c_void>()
                        .cast_mut(),
                    length: sge.length as usize,
                };
                let pieces: Vec<_> = sges.iter().map(piece).collect();
                ibv_wr_set_inline_data_list(qp, pieces.len(), pieces.as_ptr());
            }
            (false, [sge]) => ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length),
            (false, sges) => {
                let list: Vec<_> = sges.iter().map(sge).collect();
                ibv_wr_set_sge_list(qp, list.len(), list.as_ptr());
            }
        }
    }
}

impl Drop for Theirs<'_> {
    fn drop(&mut self) {
        // SAFETY: alive, and used by nobody any more. In RESET nothing is flushed.
        unsafe {
            let mut attr: ibv_qp_attr = zeroed();
            attr.qp_state = ibv_qp_state::IBV_QPS_RESET;
            let _ = self.modify(&mut attr, ibv_qp_attr_mask::IBV_QP_STATE);
            let _ = ibv_destroy_qp(self.qp.as_ptr());
            if let Some(srq) = self.srq {
                let _ = ibv_destroy_srq(srq.as_ptr());
            }
            let _ = ibv_destroy_cq(self.cq.as_ptr());
        }
    }
}
