//! Memory windows and regions, found by the keys in requests.

use super::super::context::Tables;
use super::super::request::Request;
use super::super::sys;
use super::Qp;
use bellwire_core::wqe::BindMwInfo;
use std::ptr::NonNull;

impl Qp {
    /// The rkey to invalidate, as the program gives it: refusing an outdated rkey of a window is the device's
    /// task. rxe (Linux 6.1) crashes the kernel if the window is not bound; where this is known to be so, the
    /// request is refused here.
    pub(crate) fn invalidated(&self, rkey: u32) -> Option<u32> {
        let mut tables = self.context.tables();
        let Some(window) = tables.windows.get_mut(&(rkey >> 8)) else {
            return Some(rkey);
        };
        // SAFETY: the window is in the table, so it is allocated.
        let is_its_key = unsafe { window.mw.as_ref().rkey } == rkey;
        let bound = window.bound.is_some();
        if is_its_key {
            window.bound = None;
        }
        (bound || !self.context.is_rxe).then_some(rkey)
    }

    /// The rkey to invalidate in order to unbind a window of type 2: the window's current rkey. Unbinding
    /// changed the rkey on the program's side, and not in the device. For rxe, an unbound window is refused
    /// as in `invalidated`.
    pub(crate) fn unbound(&self, rkey: u32) -> Option<u32> {
        let now = self
            .context
            .tables()
            .windows
            .get(&(rkey >> 8))
            .map(|window| {
                // SAFETY: the window is in the table, so it is allocated.
                unsafe { window.mw.as_ref().rkey }
            });
        self.invalidated(now.unwrap_or(rkey))
    }

    /// The window and the region of a bind. A bind of length zero unbinds; libibverbs requires a region for
    /// it nevertheless, and any of the window's protection domain will do. On rxe (Linux 6.1) it is refused:
    /// the kernel would dereference a null pointer.
    pub(crate) fn window(
        &self,
        rkey: u32,
        info: &BindMwInfo,
    ) -> Option<(NonNull<sys::ibv_mw>, sys::ibv_mw_bind_info)> {
        if info.length == 0 && self.context.is_rxe {
            return None;
        }
        let mut tables = self.context.tables();
        let Tables { mrs, windows, .. } = &mut *tables;
        let window = windows.get_mut(&(rkey >> 8))?;
        // SAFETY: both are in the tables, so they exist.
        let same_pd =
            |mr: &&NonNull<sys::ibv_mr>| unsafe { mr.as_ref().pd == window.mw.as_ref().pd };
        let mr = match info.length {
            0 => mrs.values().find(same_pd)?,
            _ => mrs.get(&info.lkey)?,
        };
        window.bound = (info.length != 0).then_some(info.lkey);
        Some((
            window.mw,
            sys::ibv_mw_bind_info {
                mr: mr.as_ptr(),
                addr: info.addr,
                length: info.length.into(),
                mw_access_flags: info.access,
            },
        ))
    }

    /// Binds or unbinds a window of type 1 (`ibv_bind_mw`); returns whether the device took the request.
    pub(crate) fn bind_type1(
        &self,
        mw: NonNull<sys::ibv_mw>,
        bind_info: sys::ibv_mw_bind_info,
        request: &Request<'_>,
    ) -> bool {
        let mut bind = sys::ibv_mw_bind {
            wr_id: request.wr_id,
            send_flags: request.flags,
            bind_info,
        };
        // SAFETY: queue pair, window and region are alive.
        match unsafe { sys::ibv_bind_mw(self.handle.as_ptr(), mw.as_ptr(), &raw mut bind) } {
            0 => true,
            answer => self.note_answer(answer),
        }
    }
}
