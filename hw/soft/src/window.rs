//! Memory windows: keys to parts of regions, which queue pairs bind and invalidate by work requests. Called
//! under the device's lock and outside of any section, because invalidation waits until all sections have
//! been left.

use super::control::Control;
use super::hca::Hca;
use super::lists::MAX_MESSAGE;
use super::mr::{MAX_MR, Opening, of_qp};
use crate::error::Error;
use crate::pinned::room_in;
use bellwire_core::access::AccessFlags;
use bellwire_core::wqe::{BindMwInfo, Umr};
use bellwire_core::wr::MwType;

/// The low bits of a key, which a window's user chooses.
const VARIANT: u32 = 0xff;

/// A window, as protected by the device's lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Its current key.
    key: u32,
    pd: u32,
    kind: MwType,
    bound: Option<Bound>,
}

/// What a window is bound to.
#[derive(Clone, Copy, Debug)]
struct Bound {
    /// Key of the region.
    lkey: u32,
    /// The queue pair that bound it.
    qpn: u32,
}

impl Hca {
    /// Allocates a window and returns its key, which gives no access yet.
    pub fn alloc_mw(&self, pd: u32, kind: MwType) -> Result<u32, Error> {
        let mut control = self.control();
        control.alive()?;
        room_in(&mut control.windows)?;
        let index = control.take_key()?;
        let random = control.random();
        let key = self.mrs.reserve(index, random);
        let window = Window {
            key,
            pd,
            kind,
            bound: None,
        };
        control.windows.insert(key & !VARIANT, window);
        Ok(key)
    }

    /// Frees the window to which a key belongs, bound or not.
    pub fn dealloc_mw(&self, key: u32) {
        let mut control = self.control();
        let Some(window) = control.windows.remove(&(key & !VARIANT)) else {
            return;
        };
        if window.bound.is_some() {
            self.shut_key(&control, window.key);
        }
        control.give_key(self.mrs.index(window.key));
    }

    /// Number of windows that are bound to a region.
    fn windows_of(control: &Control, lkey: u32) -> usize {
        let of = |window: &&Window| window.bound.is_some_and(|bound| bound.lkey == lkey);
        control.windows.values().filter(of).count()
    }

    /// Revokes a region's key, unless windows are bound to it: the error then says how many.
    pub fn deregister_unbound(&self, key: u32) -> Result<(), Error> {
        let control = self.control();
        match Self::windows_of(&control, key) {
            0 => self.revoke_mr(control, key),
            windows => Err(Error::WindowsBound { windows }),
        }
    }

    /// Unbinds all windows of a region.
    pub(super) fn unbind_all(&self, control: &mut Control, lkey: u32) {
        self.unbind_those(control, |_, bound| bound.lkey == lkey);
    }

    /// Unbinds the type 2 windows that a queue pair has bound: no other queue pair could.
    pub(super) fn unbind_of(&self, control: &mut Control, qpn: u32) {
        self.unbind_those(control, |kind, bound| {
            kind == MwType::Type2 && bound.qpn == qpn
        });
    }

    fn unbind_those(&self, control: &mut Control, those: impl Fn(MwType, Bound) -> bool) {
        let mut keys = Vec::new();
        for window in control.windows.values_mut() {
            if window.bound.is_some_and(|bound| those(window.kind, bound)) {
                window.bound = None;
                keys.push(window.key);
            }
        }
        self.shut_keys(control, &keys);
    }

    /// Revokes a window's key, and waits for the sections that may still use its memory. Other processes do
    /// not access the memory of windows directly.
    fn shut_key(&self, control: &Control, key: u32) {
        self.shut_keys(control, &[key]);
    }

    /// As [`shut_key`](Self::shut_key), with one barrier for all.
    fn shut_keys(&self, control: &Control, keys: &[u32]) {
        // The windows are bound, so the table has their keys.
        let revoked = (keys.iter()).filter(|key| self.mrs.revoke(**key).is_ok());
        if revoked.count() != 0 {
            self.drain(control);
        }
    }

    /// Executes a bind or local invalidation (IBTA 10.6.7.2).
    pub(super) fn register(
        &self,
        control: &mut Control,
        pd: u32,
        qpn: u32,
        work: Umr,
    ) -> Result<(), ()> {
        let done = match work {
            Umr::LocalInv { rkey } => self.invalidate(control, pd, qpn, rkey),
            Umr::Unbind {
                mw_type,
                mw_rkey,
                new_rkey,
            } => {
                let done = self.unbind(control, mw_type, pd, qpn, mw_rkey);
                if done.is_some()
                    && let Some(window) = control.windows.get_mut(&(mw_rkey & !VARIANT))
                {
                    window.key = mw_rkey & !VARIANT | new_rkey & VARIANT;
                }
                done
            }
            Umr::Bind {
                mw_type,
                mw_rkey,
                new_rkey,
                info,
            } => {
                let keys = (mw_rkey, mw_rkey & !VARIANT | new_rkey & VARIANT);
                self.bind(control, mw_type, pd, qpn, keys, &info)
            }
        };
        done.ok_or(())
    }

    /// Unbinds a bound window; a window of type 2 only for the queue pair that bound it.
    fn unbind(
        &self,
        control: &mut Control,
        kind: MwType,
        pd: u32,
        qpn: u32,
        rkey: u32,
    ) -> Option<()> {
        let window = control.windows.get_mut(&(rkey & !VARIANT))?;
        let bound = window.bound?;
        let ours = window.key == rkey && window.pd == pd && window.kind == kind;
        if !ours || kind == MwType::Type2 && bound.qpn != qpn {
            return None;
        }
        window.bound = None;
        self.shut_key(control, rkey);
        Some(())
    }

    /// Invalidates a key for a SEND with invalidate, or for LOCAL_INV: of type 2 windows only.
    pub(super) fn invalidate(
        &self,
        control: &mut Control,
        pd: u32,
        qpn: u32,
        rkey: u32,
    ) -> Option<()> {
        self.unbind(control, MwType::Type2, pd, qpn, rkey)
    }

    fn bind(
        &self,
        control: &mut Control,
        kind: MwType,
        pd: u32,
        qpn: u32,
        (present, key): (u32, u32),
        info: &BindMwInfo,
    ) -> Option<()> {
        let window = *control.windows.get(&(key & !VARIANT))?;
        let old = window.bound.map(|_| window.key);
        let free = kind == MwType::Type1 || old.is_none();
        if window.key != present || window.pd != pd || window.kind != kind || !free {
            return None;
        }
        let region = self.mrs.opening(info.lkey)?;
        let opening = part(&region, pd, info)?;
        if let Some(old) = old {
            self.shut_key(control, old);
        }
        let owner = match kind {
            MwType::Type1 => pd,
            MwType::Type2 => of_qp(qpn),
        };
        self.mrs.open(key, Opening { owner, ..opening });
        let bound = Some(Bound {
            lkey: info.lkey,
            qpn,
        });
        let window = Window {
            key,
            bound,
            ..window
        };
        control.windows.insert(key & !VARIANT, window);
        Some(())
    }
}

/// The part of a region that a window is to give access to, if that is allowed.
fn part(region: &Opening, pd: u32, info: &BindMwInfo) -> Option<Opening> {
    let has = AccessFlags::from_bits_retain(region.access);
    let wants = AccessFlags::from_bits_retain(info.access);
    let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let allowed = region.owner == pd
        && has.contains(AccessFlags::MW_BIND)
        && (!wants.intersects(writes) || has.contains(AccessFlags::LOCAL_WRITE));
    let offset = info.addr.wrapping_sub(region.addr);
    let length = u64::from(info.length);
    let fits = (1..=MAX_MESSAGE).contains(&length);
    let within = fits && offset <= region.length && length <= region.length - offset;
    let remote = writes | AccessFlags::REMOTE_READ | AccessFlags::ZERO_BASED;
    (allowed && within).then(|| Opening {
        owner: pd,
        access: (wants & remote).bits(),
        addr: region.addr.wrapping_add(offset),
        length,
    })
}

/// Windows share the key table with the regions.
pub(super) const MAX_MW: usize = MAX_MR;
