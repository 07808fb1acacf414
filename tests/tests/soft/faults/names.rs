//! Names and numbers.

use bellwire::fault::{CmEvent, Errno, EventType, WcStatus};
use std::fs;

/// `enum rdma_cm_event_type` of rdma-core 44's rdma_cma.h, less RDMA_CM_EVENT_.
const CM_EVENTS: [&str; 16] = [
    "ADDR_RESOLVED",
    "ADDR_ERROR",
    "ROUTE_RESOLVED",
    "ROUTE_ERROR",
    "CONNECT_REQUEST",
    "CONNECT_RESPONSE",
    "CONNECT_ERROR",
    "UNREACHABLE",
    "REJECTED",
    "ESTABLISHED",
    "DISCONNECTED",
    "DEVICE_REMOVAL",
    "MULTICAST_JOIN",
    "MULTICAST_ERROR",
    "ADDR_CHANGE",
    "TIMEWAIT_EXIT",
];

/// `enum ibv_wc_status` of its verbs.h, less IBV_WC_.
const STATUSES: [&str; 24] = [
    "SUCCESS",
    "LOC_LEN_ERR",
    "LOC_QP_OP_ERR",
    "LOC_EEC_OP_ERR",
    "LOC_PROT_ERR",
    "WR_FLUSH_ERR",
    "MW_BIND_ERR",
    "BAD_RESP_ERR",
    "LOC_ACCESS_ERR",
    "REM_INV_REQ_ERR",
    "REM_ACCESS_ERR",
    "REM_OP_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "LOC_RDD_VIOL_ERR",
    "REM_INV_RD_REQ_ERR",
    "REM_ABORT_ERR",
    "INV_EECN_ERR",
    "INV_EEC_STATE_ERR",
    "FATAL_ERR",
    "RESP_TIMEOUT_ERR",
    "GENERAL_ERR",
    "TM_ERR",
    "TM_RNDV_INCOMPLETE",
];

/// `enum ibv_event_type` of its verbs.h, less IBV_EVENT_.
const EVENTS: [&str; 20] = [
    "CQ_ERR",
    "QP_FATAL",
    "QP_REQ_ERR",
    "QP_ACCESS_ERR",
    "COMM_EST",
    "SQ_DRAINED",
    "PATH_MIG",
    "PATH_MIG_ERR",
    "DEVICE_FATAL",
    "PORT_ACTIVE",
    "PORT_ERR",
    "LID_CHANGE",
    "PKEY_CHANGE",
    "SM_CHANGE",
    "SRQ_ERR",
    "SRQ_LIMIT_REACHED",
    "QP_LAST_WQE_REACHED",
    "CLIENT_REREGISTER",
    "GID_CHANGE",
    "WQ_FATAL",
];

/// The names of an enum whose values count from zero, less their prefix.
fn names_in(header: &str, kind: &str, prefix: &str) -> Vec<String> {
    let start = format!("enum {kind} {{");
    let (_, rest) = header.split_once(&start).expect(kind);
    let (body, _) = rest.split_once('}').expect("the enum's end");
    let lines = body.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let name = line.trim_end_matches(',');
            name.strip_prefix(prefix).expect(line).to_owned()
        })
        .collect()
}

/// Older and newer headers may have fewer or more of them, in the same places.
fn compare(path: &str, kind: &str, prefix: &str, ours: &[&str]) {
    let Ok(header) = fs::read_to_string(path) else {
        println!("left out: {path} is not installed, and {kind} compared with the list only");
        return;
    };
    let theirs = names_in(&header, kind, prefix);
    assert!(theirs.len() > 15, "{path}: {theirs:?}");
    for (number, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        assert_eq!(ours, theirs, "{kind} {number}");
    }
}

#[test]
fn names_are_those_of_rdma_core() {
    macro_rules! names {
        ($family:ident, $list:ident) => {{
            let names: Vec<_> = (0..)
                .map_while($family::from_number)
                .map($family::name)
                .collect();
            assert_eq!(names, $list);
            assert_eq!($family::ALL.len(), $list.len());
            names
        }};
    }
    const VERBS: &str = "/usr/include/infiniband/verbs.h";
    const CMA: &str = "/usr/include/rdma/rdma_cma.h";
    let statuses = names!(WcStatus, STATUSES);
    compare(VERBS, "ibv_wc_status", "IBV_WC_", &statuses);
    let events = names!(EventType, EVENTS);
    compare(VERBS, "ibv_event_type", "IBV_EVENT_", &events);
    let cm = names!(CmEvent, CM_EVENTS);
    compare(CMA, "rdma_cm_event_type", "RDMA_CM_EVENT_", &cm);
}

#[test]
fn error_numbers_are_this_systems() {
    macro_rules! system {
        ($($name:ident)*) => { [$((stringify!($name), libc::$name)),*] };
    }
    let system = system! {
        EPERM ENOENT EINTR EIO ENXIO EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY ENODEV EINVAL ENFILE EMFILE ENOSPC
        ENOSYS ENODATA EOPNOTSUPP EADDRINUSE EADDRNOTAVAIL ENETDOWN ENETUNREACH ECONNRESET EISCONN
        ENOTCONN ETIMEDOUT ECONNREFUSED EHOSTUNREACH EREMOTEIO
    };
    let ours = Errno::ALL
        .iter()
        .map(|errno| (errno.name(), i32::from(errno.number())));
    assert!(ours.eq(system), "{system:?}");
}
