//! NUMA nodes: which are online, memory bound to a node, and the node of a page.

use super::error::MemoryError;
use super::region::Region;
use libc::c_ulong;
use std::{fs, io, ptr};

/// More nodes than any kernel is built for (`CONFIG_NODES_SHIFT` is at most 10).
const MAX_NODES: usize = 1024;
const WORD_BITS: usize = c_ulong::BITS as usize;

/// The NUMA nodes that are online, ascending. On a kernel without NUMA, node 0 alone.
///
/// # Errors
///
/// [`MemoryError::File`] if `/sys/devices/system/node/online` cannot be read or understood.
pub fn online_nodes() -> Result<Vec<u32>, MemoryError> {
    let path = "/sys/devices/system/node/online";
    let failed = |source| MemoryError::File {
        path: path.into(),
        source,
    };
    match fs::read_to_string(path) {
        Ok(text) => parse_list(&text)
            .ok_or_else(|| failed(io::Error::other(format!("not a list of nodes: {text:?}")))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(vec![0]),
        Err(e) => Err(failed(e)),
    }
}

/// The kernel's list format: `0-1,4`.
fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut nodes = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let last: u32 = last.parse().ok().filter(|&n| (n as usize) < MAX_NODES)?;
        nodes.extend(first.parse::<u32>().ok()?..=last);
    }
    Some(nodes)
}

/// Returns an error unless the node is online.
pub(super) fn check_node(node: u32) -> Result<(), MemoryError> {
    let online = online_nodes()?;
    if online.contains(&node) {
        Ok(())
    } else {
        Err(MemoryError::NoSuchNode { node, online })
    }
}

/// Binds the region to `node`, which is online: its pages, none of which may be populated yet, are then taken
/// from that node only (mbind(2), `MPOL_BIND`).
pub(super) fn bind(region: &Region, node: u32) -> Result<(), MemoryError> {
    let mut mask: [c_ulong; MAX_NODES / WORD_BITS] = [0; _];
    let bit = node as usize;
    // parse_list accepts no node beyond the mask.
    mask[bit / WORD_BITS] |= 1 << (bit % WORD_BITS);
    // SAFETY: the mask is MAX_NODES bits long, and the kernel reads one bit less than `maxnode` (`--maxnode`
    // in get_nodes of mm/mempolicy.c). The policy does not change the contents of the range.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            region.start().as_ptr(),
            region.len(),
            libc::MPOL_BIND,
            mask.as_ptr(),
            MAX_NODES + 1,
            0,
        )
    };
    if result == 0 {
        return Ok(());
    }
    Err(MemoryError::Os {
        doing: format!(
            "bind the region to NUMA node {node} (has it memory, and may this process use it: \
             Mems_allowed_list in /proc/self/status?)"
        ),
        source: io::Error::last_os_error(),
    })
}

/// The NUMA node that holds the page at `addr`. A page that is not populated yet is populated.
///
/// # Errors
///
/// That of get_mempolicy(2): `EFAULT` if nothing is mapped at `addr`, `ENOSYS` on a kernel without
/// NUMA, `EPERM` where a sandbox forbids the call.
pub fn numa_node_of(addr: *const u8) -> io::Result<u32> {
    // linux/mempolicy.h: return the node of the page at an address.
    const MPOL_F_NODE: c_ulong = 1;
    const MPOL_F_ADDR: c_ulong = 2;
    let mut node: libc::c_int = -1;
    // SAFETY: the kernel writes the result to `node` and no mask. It looks `addr` up in the page tables of
    // this process without dereferencing it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut node,
            ptr::null_mut::<c_ulong>(),
            0 as c_ulong,
            addr.addr(),
            MPOL_F_NODE | MPOL_F_ADDR,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    u32::try_from(node).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapping, Pages};

    /// Whether the kernel permits the NUMA calls; a sandbox may not.
    fn numa_works() -> bool {
        let here = 0u8;
        match numa_node_of(&here) {
            Ok(_) => true,
            Err(e) => {
                println!("skipped: get_mempolicy: {e}");
                false
            }
        }
    }

    /// The policy of the memory area that starts at `at`, such as `bind:0`. Source: numa(7).
    fn policy_at(at: *const u8) -> Option<String> {
        let text = fs::read_to_string("/proc/self/numa_maps").ok()?;
        let start = format!("{:08x} ", at.addr());
        let line = text.lines().find_map(|line| line.strip_prefix(&start))?;
        line.split(' ').next().map(str::to_owned)
    }

    #[test]
    fn lists_of_nodes() {
        assert_eq!(parse_list("0\n"), Some(vec![0]));
        assert_eq!(parse_list("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        for bad in ["", "a", "0-", "0-99999999", "-1"] {
            assert_eq!(parse_list(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn memory_is_on_the_node_to_which_it_is_bound() {
        if !numa_works() {
            return;
        }
        for node in online_nodes().unwrap() {
            for builder in [
                Mapping::anonymous(1 << 20),
                Mapping::shared("numa", 1 << 20),
            ] {
                let region = match builder.pages(Pages::Base).numa_node(node).build() {
                    Ok(region) => region,
                    // The node has no memory.
                    Err(e @ MemoryError::Os { .. }) if node != 0 => {
                        println!("skipped: node {node}: {e}");
                        continue;
                    }
                    Err(e) => panic!("node {node}: {e}"),
                };
                assert_eq!(region.numa_node(), Some(node));
                // On a machine with one node, only the policy shows that the region is bound.
                let policy = policy_at(region.as_ptr());
                assert_eq!(policy, Some(format!("bind:{node}")));
                for offset in (0..region.len()).step_by(256 << 10) {
                    let at = region.as_ptr().wrapping_add(offset);
                    assert_eq!(numa_node_of(at).unwrap(), node);
                }
            }
        }
    }

    #[test]
    fn a_node_that_is_not_there_is_named_with_those_that_are() {
        let online = online_nodes().unwrap();
        for node in [1023, 4096, u32::MAX] {
            let error = Mapping::anonymous(4096)
                .numa_node(node)
                .build()
                .unwrap_err();
            assert!(
                matches!(&error, MemoryError::NoSuchNode { node: n, online: o } if *n == node && *o == online),
                "{error}"
            );
            let text = error.to_string();
            assert!(text.contains(&node.to_string()), "{text}");
            assert!(text.contains(&online[0].to_string()), "{text}");
        }
    }

    #[test]
    fn an_address_that_is_not_mapped_is_on_no_node() {
        if !numa_works() {
            return;
        }
        let error = numa_node_of(ptr::null()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
