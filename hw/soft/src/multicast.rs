//! Multicast groups: which queue pairs receive a copy of what is sent to a group.

use super::hca::Hca;
use crate::error::Error;
use std::collections::HashMap;

/// Maximum number of queue pairs that are attached to one group.
pub(super) const MAX_MEMBERS: usize = 1 << 10;

/// The groups of a device, by MGID and MLID.
#[derive(Debug, Default)]
pub(super) struct Groups(HashMap<([u8; 16], u16), Vec<u32>>);

impl Groups {
    /// Attaches a queue pair; it receives one copy even if it is attached twice. `false`: the group is full.
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

    /// The queue pairs that receive a copy of what is sent to a group.
    pub fn members(&self, gid: &[u8; 16], lid: u16) -> Vec<u32> {
        self.0.get(&(*gid, lid)).cloned().unwrap_or_default()
    }
}

impl Hca {
    /// Attaches a queue pair to a multicast group.
    pub fn attach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        // Whoever sends to the group needs a link with this node.
        self.call_everybody();
        let mut control = self.control();
        control.record(qpn).ok_or(Error::UnknownQp { qpn })?;
        let room = control.groups.attach(gid, lid, qpn);
        room.then_some(()).ok_or(Error::Exhausted {
            what: "members of the multicast group",
            max: MAX_MEMBERS,
        })
    }

    /// Detaches a queue pair from a multicast group.
    pub fn detach_mcast(&self, qpn: u32, gid: [u8; 16], lid: u16) -> Result<(), Error> {
        let found = self.control().groups.detach(gid, lid, qpn);
        found.then_some(()).ok_or(Error::NotAttached { qpn })
    }
}
