//! Windows and regions that requests name by their keys.

use super::super::context::Tables;
use super::super::request::Request;
use super::super::sys;
use super::Qp;
use bellwire_core::wqe::BindMwInfo;
use std::ptr::NonNull;

impl Qp {
    /// The key to invalidate, which the program names: not that of the window that it once was is for the
    /// device to refuse. rxe (Linux 6.1) brings the kernel down where a window is bound to nothing; as
    /// far as is known here, that is refused.
    pub(in crate::verbs) fn invalidated(&self, rkey: u32) -> Option<u32> {
        let mut tables = self.context.tables();
        let Some(window) = tables.windows.get_mut(&(rkey >> 8)) else {
            return Some(rkey);
        };
        // SAFETY: in the table, so it is there.
        let is_its_key = unsafe { window.mw.as_ref().rkey } == rkey;
        let bound = window.bound.is_some();
        if is_its_key {
            window.bound = None;
        }
        (bound || !self.context.is_rxe).then_some(rkey)
    }

    /// The key to invalidate where a window of type 2 is to be bound to nothing: the one that it has now.
    /// Taking it away changed the program's, and not the device's. Of rxe as above.
    pub(in crate::verbs) fn unbound(&self, rkey: u32) -> Option<u32> {
        let now = self
            .context
            .tables()
            .windows
            .get(&(rkey >> 8))
            .map(|window| {
                // SAFETY: in the table, so it is there.
                unsafe { window.mw.as_ref().rkey }
            });
        self.invalidated(now.unwrap_or(rkey))
    }

    /// The window and the region of a bind. A length of zero binds to nothing; libibverbs wants a
    /// region all the same, any of the window's domain. rxe (Linux 6.1) does not get over it: its
    /// kernel side reads through a null pointer.
    pub(in crate::verbs) fn window(
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
        // SAFETY: in the tables, so they are there.
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

    /// Binds or unbinds a window of type 1 (`ibv_bind_mw`); whether the device took it.
    pub(in crate::verbs) fn bind_type1(
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
        0 == unsafe { sys::ibv_bind_mw(self.handle.as_ptr(), mw.as_ptr(), &raw mut bind) }
    }
}
