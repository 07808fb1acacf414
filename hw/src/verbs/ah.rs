//! Address handles, found by the number that an entry bears.
//!
//! A request names its handle from when it is posted until it completes, and the program may drop
//! the handle before. So one that was dropped stays for a while: it goes when [`KEPT`] others were
//! dropped after it. A request that is still older names nobody, and fails.

use super::context::Context;
use super::memory::Pd;
use super::sys;
use crate::ah::GRH_BYTES;
use crate::error::Error;
use bellwire_core::cqe::Source;
use bellwire_core::qp::AhAttr;
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Handles of a chunk, and chunks: as many handles as there can be at once.
const CHUNK: usize = 1 << 10;
const CHUNKS: usize = 1 << 8;

/// Handles that were dropped, and stay.
const KEPT: usize = 1 << 10;

/// A handle that the program has.
#[derive(Debug)]
pub(crate) struct Ah {
    number: u32,
    pd: Arc<Pd>,
}

impl Ah {
    pub fn new(pd: &Arc<Pd>, attr: &AhAttr) -> Result<Self, Error> {
        Ok(Self {
            number: pd.context().ahs.create(pd.handle(), attr)?,
            pd: pd.clone(),
        })
    }

    /// By which entries name it.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The vector that stands in entries of the device's own rings.
    #[cfg(feature = "mlx5")]
    pub fn vector(&self) -> Result<bellwire_core::wqe::AddressVector, Error> {
        let handle = self.pd.context().ahs.get(self.number);
        let handle = NonNull::new(handle).ok_or(Error::DeviceFatal)?;
        // SAFETY: alive as long as this is.
        unsafe { crate::mlx5::address_vector(handle) }
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        let pd = &self.pd;
        pd.context().ahs.dropped(self.number, pd.handle());
    }
}

impl Context {
    /// The way back to a datagram's sender (`ibv_init_ah_from_wc`), whichever header came with it.
    pub(crate) fn way_back(
        &self,
        source: &Source,
        grh: &[u8; GRH_BYTES],
        port_num: u8,
    ) -> Result<AhAttr, Error> {
        // SAFETY: numbers, which zeroes are values of.
        let (mut wc, mut attr): (sys::ibv_wc, sys::ibv_ah_attr) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        wc.src_qp = source.qpn;
        wc.slid = source.slid;
        wc.sl = source.sl;
        wc.dlid_path_bits = source.dlid_path_bits;
        if source.grh {
            wc.wc_flags = sys::ibv_wc_flags::IBV_WC_GRH.0;
        }
        let mut grh = *grh;
        // SAFETY: open; the header has its 40 bytes, the attributes can be written.
        sys::check(unsafe {
            sys::ibv_init_ah_from_wc(
                self.handle().as_ptr(),
                port_num,
                &raw mut wc,
                grh.as_mut_ptr().cast(),
                &raw mut attr,
            )
        })
        .or_else(|_| {
            // It checks a checksum that rxe leaves out of what it sends to itself.
            self.way_back_by_ipv4(&grh, port_num, &mut attr)
                .ok_or(Error::NotADatagram)
        })?;
        Ok(super::attr::ah_from_verbs(&attr))
    }

    /// The way back by an IPv4 header, which is the last 20 bytes of the 40.
    fn way_back_by_ipv4(
        &self,
        grh: &[u8; GRH_BYTES],
        port_num: u8,
        attr: &mut sys::ibv_ah_attr,
    ) -> Option<()> {
        const VERSION_AND_LENGTH: u8 = 0x45;
        let header = &grh[20..];
        let mapped = |at: usize| {
            let octets: [u8; 4] = header[at..at + 4].try_into().ok()?;
            Some(Ipv4Addr::from(octets).to_ipv6_mapped().octets())
        };
        if header[0] != VERSION_AND_LENGTH {
            return None;
        }
        let (from, to) = (mapped(12)?, mapped(16)?);
        let length = self.query_port(port_num).ok()?.gid_tbl_len;
        let ours = |&index: &u8| {
            self.query_gid(port_num, index.into())
                .is_ok_and(|gid| gid == to)
        };
        let length = u8::try_from(length).unwrap_or(u8::MAX);
        attr.is_global = 1;
        attr.port_num = port_num;
        attr.grh.dgid.raw = from;
        attr.grh.sgid_index = (0..length).find(ours)?;
        attr.grh.hop_limit = u8::MAX;
        attr.grh.traffic_class = header[1];
        Some(())
    }
}

type Chunk = Box<[AtomicPtr<sys::ibv_ah>]>;

/// The handles of a context by number. Zero is none.
#[derive(Debug)]
pub(super) struct AhTable {
    chunks: Box<[OnceLock<Chunk>]>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Numbers given out so far.
    used: u32,
    free: Vec<u32>,
    dropped: VecDeque<(u32, NonNull<sys::ibv_pd>)>,
}

// SAFETY: the pointers in it are only compared, and the handles may be used from any thread.
unsafe impl Send for State {}

impl Default for AhTable {
    fn default() -> Self {
        Self {
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            state: Mutex::default(),
        }
    }
}

impl AhTable {
    fn slot(&self, number: u32) -> Option<&AtomicPtr<sys::ibv_ah>> {
        let number = number as usize;
        self.chunks.get(number / CHUNK)?.get()?.get(number % CHUNK)
    }

    /// The handle of this number; null: there is none (any more).
    #[inline(always)]
    pub fn get(&self, number: u32) -> *mut sys::ibv_ah {
        // Acquire: partner of the release in `create`.
        let handle = self.slot(number).map(|slot| slot.load(Ordering::Acquire));
        handle.unwrap_or(std::ptr::null_mut())
    }

    /// Creates a handle, and gives its number.
    pub fn create(&self, pd: NonNull<sys::ibv_pd>, attr: &AhAttr) -> Result<u32, Error> {
        let mut attr = super::attr::ah_to_verbs(attr);
        // SAFETY: the domain is alive.
        let handle = sys::made(unsafe { sys::ibv_create_ah(pd.as_ptr(), &raw mut attr) })
            .map_err(|error| Error::io("create an address handle", error))?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let number = match state.free.pop() {
            Some(number) => number,
            None if (state.used as usize) < CHUNK * CHUNKS - 1 => {
                state.used += 1;
                state.used
            }
            None => {
                // SAFETY: just made, and known to nobody.
                let _ = unsafe { sys::ibv_destroy_ah(handle.as_ptr()) };
                return Err(Error::Exhausted {
                    what: "address handles",
                    max: CHUNK * CHUNKS - 1,
                });
            }
        };
        let chunk = self.chunks[number as usize / CHUNK]
            .get_or_init(|| (0..CHUNK).map(|_| AtomicPtr::default()).collect());
        // Release: partner of the acquire in `get`.
        chunk[number as usize % CHUNK].store(handle.as_ptr(), Ordering::Release);
        Ok(number)
    }

    /// The program has dropped the handle.
    pub fn dropped(&self, number: u32, pd: NonNull<sys::ibv_pd>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.dropped.push_back((number, pd));
        if state.dropped.len() > KEPT
            && let Some((oldest, _)) = state.dropped.pop_front()
        {
            self.destroy(&mut state, oldest);
        }
    }

    /// The domain goes: its handles that stayed go before it.
    pub fn forget(&self, pd: NonNull<sys::ibv_pd>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (of_it, others) = state.dropped.drain(..).partition(|&(_, of)| of == pd);
        state.dropped = others;
        let of_it: VecDeque<_> = of_it;
        for (number, _) in of_it {
            self.destroy(&mut state, number);
        }
    }

    fn destroy(&self, state: &mut State, number: u32) {
        let Some(slot) = self.slot(number) else {
            return;
        };
        // AcqRel: whoever finds it from here on finds null.
        let handle = slot.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !handle.is_null() {
            // SAFETY: out of the table. Requests with it have completed, or are older than the table
            // promises to look after: devices find the handles of those by number, and refuse.
            let _ = unsafe { sys::ibv_destroy_ah(handle) };
            state.free.push(number);
        }
    }
}
