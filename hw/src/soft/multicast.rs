//! Multicast groups: which queue pairs get a copy of what is sent to one.

use std::collections::HashMap;

/// Queue pairs that can be attached to one group.
pub(super) const MAX_MEMBERS: usize = 1 << 10;

/// The groups of a device, by MGID and MLID.
#[derive(Debug, Default)]
pub(super) struct Groups(HashMap<([u8; 16], u16), Vec<u32>>);

impl Groups {
    /// Attaches a queue pair; attached twice it still gets one copy. `false`: the group is full.
    pub fn attach(&mut self, gid: [u8; 16], lid: u16, qpn: u32) -> bool {
        let members = self.0.entry((gid, lid)).or_default();
        if members.contains(&qpn) {
            return true;
        }
        let room = members.len() < MAX_MEMBERS;
        if room {
            members.push(qpn);
        }
        room
    }

    /// Detaches a queue pair. `false`: it was not attached.
    pub fn detach(&mut self, gid: [u8; 16], lid: u16, qpn: u32) -> bool {
        let Some(members) = self.0.get_mut(&(gid, lid)) else {
            return false;
        };
        let before = members.len();
        members.retain(|member| *member != qpn);
        let found = members.len() != before;
        if members.is_empty() {
            self.0.remove(&(gid, lid));
        }
        found
    }

    /// Detaches a queue pair from all its groups.
    pub fn leave(&mut self, qpn: u32) {
        self.0.retain(|_, members| {
            members.retain(|member| *member != qpn);
            !members.is_empty()
        });
    }

    /// Who gets a copy of what is sent to a group.
    pub fn members(&self, gid: &[u8; 16], lid: u16) -> Vec<u32> {
        self.0.get(&(*gid, lid)).cloned().unwrap_or_default()
    }
}
