//! An open device, and the objects that a program has made on it.

use crate::abi::UcontextResp;
use crate::engine::{self, Page};
use crate::events::Events;
use crate::object::{Table, errno};
use crate::places::{self, Place};
use crate::uar::{self, Uars};
use bellwire::event::Element;
use bellwire::rings::{Cq, Qp, Srq};
use bellwire::{Device, Mr, Mw, Pd, Xrcd};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// What a descriptor of the device leads to: nothing until the program gets a context.
#[derive(Debug, Default)]
pub struct File {
    context: OnceLock<Context>,
}

impl File {
    /// The context, if there is one.
    pub fn context(&self) -> Option<&Context> {
        self.context.get()
    }

    /// Makes the context of this file.
    ///
    /// # Errors
    /// `EINVAL`: it has one.
    pub fn set_context(&self, context: Context) -> Result<(), Errno> {
        self.context.set(context).map_err(|_| Errno::INVAL)
    }
}

/// An open device.
#[derive(Debug)]
pub struct Context {
    device: Device,
    uars: Arc<Uars>,
    events: Arc<Events>,
    state: Mutex<State>,
}

/// A completion queue, and how many queues are on it.
#[derive(Debug)]
pub struct CqObject {
    pub cq: Cq,
    pub place: Place,
    pub users: Arc<()>,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct SrqObject {
    pub srq: Srq,
    pub place: Place,
    pub users: Arc<()>,
    pub max_sge: u32,
    /// Keeps what it is on from going.
    #[expect(dead_code, reason = "only to be kept")]
    pub holds: Vec<Arc<()>>,
}

/// A queue pair.
#[derive(Debug)]
pub struct QpObject {
    pub qp: Arc<Qp>,
    pub cap: bellwire::state::QpCap,
    pub sq_sig_all: bool,
    /// How the program's events call it.
    pub user_handle: u64,
    /// None of an XRC target that was opened.
    pub page: Option<Page>,
    /// The register that it was given of those at the start.
    pub register: Option<u32>,
    /// Keeps what it is on from going.
    #[expect(dead_code, reason = "only to be kept")]
    pub holds: Vec<Arc<()>>,
}

/// Something that others are in, which is not to go before them.
#[derive(Debug)]
pub struct Domain<T> {
    pub of: T,
    pub users: Arc<()>,
}

impl<T> Domain<T> {
    pub fn new(of: T) -> Self {
        Self {
            of,
            users: Arc::default(),
        }
    }
}

/// An XRC domain, and the targets in it by number.
#[derive(Debug)]
pub struct XrcDomain {
    pub xrcd: Xrcd,
    pub targets: Mutex<HashMap<u32, Weak<Qp>>>,
}

impl XrcDomain {
    pub fn targets(&self) -> MutexGuard<'_, HashMap<u32, Weak<Qp>>> {
        self.targets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The objects of a context.
#[derive(Debug)]
pub struct State {
    pub pds: Table<Domain<Pd>>,
    /// Shared by those that name the same file.
    pub xrcds: Table<Domain<Arc<XrcDomain>>>,
    pub mrs: Table<(Mr, Arc<()>)>,
    pub mws: Table<(Mw, Arc<()>)>,
    pub cqs: Table<CqObject>,
    pub srqs: Table<SrqObject>,
    pub qps: Table<QpObject>,
    /// Of the domain that is behind XRC targets, which have none.
    pub no_pd: Pd,
    registers: Registers,
}

/// The registers given at the start, and how many queue pairs use each.
#[derive(Debug)]
struct Registers {
    users: Vec<u32>,
    /// So many of them, the last ones, are for one queue pair each.
    dedicated: usize,
}

impl Context {
    /// A context with so many registers, of which so many are for one queue pair each. Both are
    /// bounded here.
    ///
    /// # Errors
    /// What keeps the device from being opened.
    pub fn open(registers: u32, dedicated: u32) -> Result<Self, Errno> {
        let device = engine::open().map_err(|error| {
            // A number does not say what to do.
            eprintln!("uverbs-preload: cannot start the device: {error}");
            errno(error)
        })?;
        let pages = registers.div_ceil(uar::USED).clamp(1, uar::MAX_STATIC);
        let registers = (pages * uar::USED) as usize;
        Ok(Self {
            uars: Arc::new(Uars::new(pages)?),
            events: Arc::new(Events::new(device.clone())),
            state: Mutex::new(State {
                pds: Table::default(),
                xrcds: Table::default(),
                mrs: Table::default(),
                mws: Table::default(),
                cqs: Table::default(),
                srqs: Table::default(),
                qps: Table::default(),
                no_pd: device.alloc_pd(),
                registers: Registers {
                    users: vec![0; registers],
                    dedicated: (dedicated as usize).min(registers - 1),
                },
            }),
            device,
        })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn uars(&self) -> &Arc<Uars> {
        &self.uars
    }

    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// The objects. For the length of a command.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What libmlx5 learns of the device.
    pub fn describe(&self) -> UcontextResp {
        let attr = self.device.attr();
        UcontextResp {
            qp_tab_size: 1 << 16,
            bf_reg_size: uar::REGISTER,
            tot_bfregs: self.state().registers.users.len() as u32,
            cache_line_size: 64,
            // 63 segments of 16 bytes; and receives of as many as the device has.
            max_sq_desc_sz: 1008,
            max_rq_desc_sz: 512,
            max_send_wqebb: 1 << 15,
            max_recv_wr: attr.max_qp_wr,
            max_srq_recv_wr: attr.max_srq_wr,
            num_ports: attr.phys_port_cnt.into(),
            flow_action_flags: 0,
            comp_mask: 0,
            response_length: size_of::<UcontextResp>() as u32,
            // Entries name queues by the program's index.
            cqe_version: 1,
            // A longer answer to the query of the device.
            cmds_supp_uhw: 1,
            eth_min_inline: 0,
            clock_info_versions: 0,
            hca_core_clock_offset: 0,
            log_uar_size: uar::LOG_PAGE,
            num_uars_per_page: 1,
            num_dyn_bfregs: uar::DYNAMIC * uar::USED,
            dump_fill_mkey: 0,
        }
    }

    /// A page of its registers.
    pub fn page(&self, page: u32) -> Page {
        Page {
            uars: self.uars.clone(),
            page,
        }
    }
}

impl State {
    /// A register for a new queue pair, by libmlx5's index.
    pub fn take_register(&mut self) -> u32 {
        let Registers { users, dedicated } = &mut self.registers;
        let shared = users.len() - *dedicated;
        // As the driver does: one of its own while there is one, else one that the fewest share; the
        // first is for those that copy no entry into it, and last.
        let own = (shared..users.len()).find(|&at| users[at] == 0);
        let least = || (1..shared).min_by_key(|&at| users[at]);
        let at = own.or_else(least).unwrap_or(0);
        users[at] += 1;
        at as u32 / uar::USED * uar::COUNTED + at as u32 % uar::USED
    }

    /// Gives a register back.
    pub fn give_register(&mut self, register: u32) {
        let at = register / uar::COUNTED * uar::USED + register % uar::COUNTED;
        if let Some(users) = self.registers.users.get_mut(at as usize) {
            *users = users.saturating_sub(1);
        }
    }
}

impl Context {
    /// Ends a queue pair; gives how many of its events were reported. An XRC target goes on while others
    /// have it: its events are those of `other` then.
    pub fn end_qp(&self, object: QpObject, other: Option<u64>) -> u32 {
        if object.page.is_some() {
            engine::remove_qp(&object.qp);
        }
        places::remove(object.qp.qp_num());
        let element = Element::Qp(object.qp.qp_num());
        drop(object);
        let reported = self.events.forget(element).async_events;
        if let Some(user_handle) = other {
            self.events.name(element, user_handle);
        }
        reported
    }

    /// Ends a completion queue; gives how many of its events were reported.
    pub fn end_cq(&self, object: CqObject) -> crate::events::Named {
        engine::remove_cq(&self.uars, &object.cq);
        let element = Element::Cq(object.cq.cqn());
        drop(object);
        self.events.forget(element)
    }

    /// Ends a shared receive queue; gives how many of its events were reported.
    pub fn end_srq(&self, object: SrqObject) -> u32 {
        let element = Element::Srq(object.srq.srq_num());
        drop(object);
        self.events.forget(element).async_events
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // What the program has left, in an order that each may go in.
        let (qps, srqs, cqs) = {
            let mut state = self.state();
            let (qps, srqs) = (state.qps.take_all(), state.srqs.take_all());
            (qps, srqs, state.cqs.take_all())
        };
        qps.into_iter().for_each(|qp| {
            self.end_qp(qp, None);
        });
        srqs.into_iter().for_each(|srq| {
            self.end_srq(srq);
        });
        cqs.into_iter().for_each(|cq| {
            self.end_cq(cq);
        });
    }
}
