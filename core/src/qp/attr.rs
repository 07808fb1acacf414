//! The attributes of a queue pair, with the names and units of the verbs.

use super::QpState;
use crate::access::AccessFlags;
use bitflags::bitflags;
use core::fmt;
use core::time::Duration;

bitflags! {
    /// Which fields of a [`QpAttr`] are valid (`ibv_qp_attr_mask`, the same bits).
    ///
    /// Displayed as the names, separated by commas.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QpAttrMask: u32 {
        /// `qp_state`: the target state. Without this bit the state does not change.
        const STATE = 1 << 0;
        /// `cur_qp_state`: the state in which the caller assumes the queue pair to be.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `qp_access_flags`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port_num`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `ah_attr`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_ah_attr`, `alt_pkey_index`, `alt_port_num` and `alt_timeout`.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`.
        const CAP = 1 << 19;
        /// `dest_qp_num`.
        const DEST_QPN = 1 << 20;
        /// `rate_limit`.
        const RATE_LIMIT = 1 << 25;
    }
}

impl fmt::Display for QpAttrMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, _) in self.iter_names() {
            write!(f, "{separator}{name}")?;
            separator = ", ";
        }
        match self.bits() & !Self::all().bits() {
            0 if self.is_empty() => f.write_str("nothing"),
            0 => Ok(()),
            unknown => write!(f, "{separator}unknown bits {unknown:#x}"),
        }
    }
}

/// A path MTU: the largest payload of one packet (`ibv_mtu`, the same numbers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes, which every port supports.
    #[default]
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// The MTU with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Mtu::Mtu256,
            2 => Mtu::Mtu512,
            3 => Mtu::Mtu1024,
            4 => Mtu::Mtu2048,
            5 => Mtu::Mtu4096,
            _ => return None,
        })
    }

    /// Its number in the verbs.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Bytes of payload.
    #[inline]
    pub const fn bytes(self) -> u32 {
        128 << self as u8
    }
}

/// The state of automatic path migration (`ibv_mig_state`, the same numbers).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MigState {
    /// Migrated to the alternate path, or migration was never armed.
    #[default]
    Migrated = 0,
    /// Being armed, together with the peer.
    Rearm = 1,
    /// Armed: ready to migrate.
    Armed = 2,
}

impl MigState {
    /// The state with this number.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => MigState::Migrated,
            1 => MigState::Rearm,
            2 => MigState::Armed,
            _ => return None,
        })
    }

    /// Its number in the verbs.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// The global part of an address (`ibv_global_route`), from which the GRH, or RoCE's IP header, is
/// built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GlobalRoute {
    /// Destination GID, in network byte order.
    pub dgid: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Index of the source GID in the port's table.
    pub sgid_index: u8,
    /// Number of routers that the packet may pass.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

/// An address vector (`ibv_ah_attr`): the path to the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AhAttr {
    /// Valid when `is_global`, which RoCE requires.
    pub grh: GlobalRoute,
    /// Destination LID (InfiniBand).
    pub dlid: u16,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Source path bits, 7 bits: selects the source LID among those of the port.
    pub src_path_bits: u8,
    /// Upper bound of the rate (`ibv_rate`; 0 is the rate of the port).
    pub static_rate: u8,
    /// Whether `grh` is used.
    pub is_global: bool,
    /// Physical port, from 1.
    pub port_num: u8,
}

/// The capacities of a queue pair (`ibv_qp_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Most outstanding send requests.
    pub max_send_wr: u32,
    /// Most outstanding receive requests.
    pub max_recv_wr: u32,
    /// Most scatter/gather elements in a send request.
    pub max_send_sge: u32,
    /// Most scatter/gather elements in a receive request.
    pub max_recv_sge: u32,
    /// Most bytes of inline payload in a send request.
    pub max_inline_data: u32,
}

/// The attributes of a queue pair (`ibv_qp_attr`). A [`QpAttrMask`] says which fields are valid.
///
/// The default is the zeroed struct of C, with the smallest `path_mtu`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// The target state.
    pub qp_state: QpState,
    /// The state in which the caller assumes the queue pair to be.
    pub cur_qp_state: QpState,
    /// Path MTU (connected transports).
    pub path_mtu: Mtu,
    /// Path migration state.
    pub path_mig_state: MigState,
    /// Q_Key (UD).
    pub qkey: u32,
    /// First PSN expected, 24 bits (connected transports).
    pub rq_psn: u32,
    /// First PSN sent, 24 bits.
    pub sq_psn: u32,
    /// The peer's queue pair number, 24 bits (connected transports).
    pub dest_qp_num: u32,
    /// The access that the peer has (connected transports).
    pub qp_access_flags: AccessFlags,
    /// Capacities, as queried. No transition of these transports sets them.
    pub cap: QpCap,
    /// Primary path (connected transports).
    pub ah_attr: AhAttr,
    /// Alternate path (connected transports).
    pub alt_ah_attr: AhAttr,
    /// Index of the P_Key in the table of the port.
    pub pkey_index: u16,
    /// Index of the alternate path's P_Key.
    pub alt_pkey_index: u16,
    /// Raise `IBV_EVENT_SQ_DRAINED` when the send queue has drained.
    pub en_sqd_async_notify: bool,
    /// As queried in SQD: not all started sends have finished yet. Ignored when modifying.
    pub sq_draining: bool,
    /// Most RDMA READs and atomics in flight as requester (RC, XRC initiator).
    pub max_rd_atomic: u8,
    /// Most RDMA READs and atomics in flight as responder (RC, XRC target).
    pub max_dest_rd_atomic: u8,
    /// The time in an RNR NAK, for which the peer waits before it retries: a 5-bit code, see
    /// [`rnr_timer`] (RC, XRC target).
    pub min_rnr_timer: u8,
    /// Physical port, from 1.
    pub port_num: u8,
    /// How long to wait for an acknowledgement: a 5-bit code, see [`ack_timeout`] (reliable
    /// transports).
    pub timeout: u8,
    /// Retries after a missing acknowledgement or a sequence error, 3 bits (RC, XRC initiator).
    pub retry_cnt: u8,
    /// RNR retries, while the peer has no receive posted, 3 bits; [`RNR_RETRY_INFINITE`] retries
    /// for ever (RC, XRC initiator).
    pub rnr_retry: u8,
    /// Physical port of the alternate path, from 1.
    pub alt_port_num: u8,
    /// `timeout` of the alternate path.
    pub alt_timeout: u8,
    /// Rate limit in kbit/s. No transition of these transports sets it.
    pub rate_limit: u32,
    /// UDP source port of RoCE v2 packets, as queried, where one was set. The verbs have no such
    /// attribute; ignored when modifying.
    pub udp_sport: Option<u16>,
}

impl QpAttr {
    /// Copies from `other` the attributes selected by `mask`.
    pub fn update(&mut self, other: &QpAttr, mask: QpAttrMask) {
        macro_rules! take {
            ($($bit:ident: $($field:ident),*;)*) => {$(
                if mask.contains(QpAttrMask::$bit) {
                    $(self.$field = other.$field;)*
                }
            )*};
        }
        take! {
            STATE: qp_state;
            CUR_STATE: cur_qp_state;
            EN_SQD_ASYNC_NOTIFY: en_sqd_async_notify;
            ACCESS_FLAGS: qp_access_flags;
            PKEY_INDEX: pkey_index;
            PORT: port_num;
            QKEY: qkey;
            AV: ah_attr;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_CNT: retry_cnt;
            RNR_RETRY: rnr_retry;
            RQ_PSN: rq_psn;
            MAX_QP_RD_ATOMIC: max_rd_atomic;
            ALT_PATH: alt_ah_attr, alt_port_num, alt_pkey_index, alt_timeout;
            MIN_RNR_TIMER: min_rnr_timer;
            SQ_PSN: sq_psn;
            MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            PATH_MIG_STATE: path_mig_state;
            CAP: cap;
            DEST_QPN: dest_qp_num;
            RATE_LIMIT: rate_limit;
        }
    }
}

/// The `rnr_retry` that means infinite retries.
pub const RNR_RETRY_INFINITE: u8 = 7;

/// How long a requester waits for an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckTimeout {
    /// For ever.
    Infinite,
    /// At least this long; devices may take up to four times as long.
    After(Duration),
}

/// The time of a `timeout` or `alt_timeout` code: code 0 is infinite, code t is 4.096 µs · 2^t
/// (IBTA volume 1, chapter 9, Local ACK Timeout). `None` above 31, the largest code.
pub const fn ack_timeout(code: u8) -> Option<AckTimeout> {
    match code {
        0 => Some(AckTimeout::Infinite),
        1..=31 => Some(AckTimeout::After(Duration::from_nanos(4096 << code))),
        _ => None,
    }
}

/// The time of a `min_rnr_timer` code (IBTA volume 1, chapter 9, RNR NAK timer): from 0.01 ms (code
/// 1) to 491.52 ms (code 31), and 655.36 ms for code 0. `None` above 31, the largest code.
pub const fn rnr_timer(code: u8) -> Option<Duration> {
    // Hundredths of a millisecond.
    const TABLE: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    if code > 31 {
        return None;
    }
    Some(Duration::from_micros(10 * TABLE[code as usize]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn mask_bits_are_those_of_the_verbs() {
        let expected = [
            ("STATE", 0x1),
            ("CUR_STATE", 0x2),
            ("EN_SQD_ASYNC_NOTIFY", 0x4),
            ("ACCESS_FLAGS", 0x8),
            ("PKEY_INDEX", 0x10),
            ("PORT", 0x20),
            ("QKEY", 0x40),
            ("AV", 0x80),
            ("PATH_MTU", 0x100),
            ("TIMEOUT", 0x200),
            ("RETRY_CNT", 0x400),
            ("RNR_RETRY", 0x800),
            ("RQ_PSN", 0x1000),
            ("MAX_QP_RD_ATOMIC", 0x2000),
            ("ALT_PATH", 0x4000),
            ("MIN_RNR_TIMER", 0x8000),
            ("SQ_PSN", 0x1_0000),
            ("MAX_DEST_RD_ATOMIC", 0x2_0000),
            ("PATH_MIG_STATE", 0x4_0000),
            ("CAP", 0x8_0000),
            ("DEST_QPN", 0x10_0000),
            ("RATE_LIMIT", 0x200_0000),
        ];
        for (name, bits) in expected {
            let flag = QpAttrMask::from_name(name).unwrap();
            assert_eq!((flag.bits(), flag.to_string().as_str()), (bits, name));
        }
        assert_eq!(QpAttrMask::all().iter().count(), expected.len());
    }

    #[test]
    fn mask_display_names_everything() {
        assert_eq!(QpAttrMask::empty().to_string(), "nothing");
        let some = QpAttrMask::AV | QpAttrMask::DEST_QPN;
        assert_eq!(some.to_string(), "AV, DEST_QPN");
        let smac = QpAttrMask::from_bits_retain(1 << 21);
        assert_eq!(smac.to_string(), "unknown bits 0x200000");
        assert_eq!(
            (some | smac).to_string(),
            "AV, DEST_QPN, unknown bits 0x200000"
        );
    }

    #[test]
    fn mtu_numbers_and_bytes() {
        for (number, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            let mtu = Mtu::from_number(number).unwrap();
            assert_eq!((mtu.number(), mtu.bytes()), (number, bytes));
        }
        assert_eq!((Mtu::from_number(0), Mtu::from_number(6)), (None, None));
    }

    #[test]
    fn migration_numbers() {
        use MigState::*;
        for (number, state) in [(0, Migrated), (1, Rearm), (2, Armed)] {
            assert_eq!(MigState::from_number(number), Some(state));
            assert_eq!(state.number(), number);
        }
        assert_eq!(MigState::from_number(3), None);
    }

    #[test]
    fn ack_timeout_doubles_from_4096_ns() {
        assert_eq!(ack_timeout(0), Some(AckTimeout::Infinite));
        let mut expected = Duration::from_nanos(8192);
        for code in 1..=31 {
            assert_eq!(ack_timeout(code), Some(AckTimeout::After(expected)));
            expected *= 2;
        }
        // ibv_modify_qp's customary 14 is 67 ms; the largest is over two hours.
        let micros = |code| match ack_timeout(code) {
            Some(AckTimeout::After(time)) => time.as_micros(),
            _ => 0,
        };
        assert_eq!((micros(14), micros(31)), (67_108, 8_796_093_022));
        for code in 32..=u8::MAX {
            assert_eq!(ack_timeout(code), None);
        }
    }

    #[test]
    fn rnr_timer_is_the_specification_table() {
        // Milliseconds, as printed in the specification, codes 0 to 31.
        let table = "655.36 0.01 0.02 0.03 0.04 0.06 0.08 0.12 0.16 0.24 0.32 0.48 0.64 0.96 1.28 \
                     1.92 2.56 3.84 5.12 7.68 10.24 15.36 20.48 30.72 40.96 61.44 81.92 122.88 \
                     163.84 245.76 327.68 491.52";
        let mut codes = 0;
        for (code, text) in (0u8..).zip(table.split_whitespace()) {
            let (whole, hundredths) = text.split_once('.').unwrap();
            let (whole, hundredths): (u64, u64) =
                (whole.parse().unwrap(), hundredths.parse().unwrap());
            let expected = Duration::from_micros(whole * 1000 + hundredths * 10);
            assert_eq!(rnr_timer(code), Some(expected), "code {code}");
            codes += 1;
        }
        assert_eq!(codes, 32);
        for code in 32..=u8::MAX {
            assert_eq!(rnr_timer(code), None);
        }
    }
}
