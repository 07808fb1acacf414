//! A recorded request, and posting it on a queue of its transport.

use bellwire_core::be::Be32;
use bellwire_core::queue::{BlueFlame, PostError, SendQueue};
use bellwire_core::wqe::*;
use bellwire_core::wr::{Remote, SendFlags, Sge};
use bellwire_tests::vectors::{Result, Row};

/// A send queue of the tests.
pub type Queue<T> = SendQueue<'static, T, BlueFlame<'static>>;

#[derive(Debug)]
enum Carried {
    Sges(Vec<Sge>),
    Inline(Vec<Vec<u8>>),
}

#[derive(Debug)]
pub struct Request {
    op: String,
    wr_id: u64,
    flags: SendFlags,
    carried: Carried,
    remote: Remote,
    imm: Be32,
    inv_rkey: u32,
    atomic: (u64, u64),
    bind: Option<BindMw>,
    unbind: UnbindMw,
    av: AddressVector,
    remote_qpn: u32,
    remote_qkey: u32,
    dc_key: u64,
    xrc_srqn: u32,
}

/// An address vector as it lies in memory.
pub fn address_vector(bytes: [u8; 48]) -> AddressVector {
    // SAFETY: 48 bytes without padding, of which every bit pattern is valid.
    unsafe { std::mem::transmute::<[u8; 48], AddressVector>(bytes) }
}

/// A field that requests of other kinds do not have.
fn or_zero<T: TryFrom<i128> + Default>(row: &Row, field: &str) -> Result<T> {
    if row.has(field) {
        row.int(field)
    } else {
        Ok(T::default())
    }
}

impl Request {
    /// The request in `row`; `vectors` are the address vectors by number.
    pub fn parse(row: &Row, vectors: &[[u8; 48]]) -> Result<Self> {
        let mut flags = SendFlags::empty();
        for flag in row.value()["flags"].as_array().into_iter().flatten() {
            let name = flag.as_str().unwrap_or_default();
            flags |= SendFlags::from_name(name).unwrap_or_else(|| panic!("flag {name:?}"));
        }
        let carried = if row.has("inline") {
            Carried::Inline(row.hexes("inline")?)
        } else {
            let count = row.value()["sge"].as_array().map_or(0, Vec::len);
            let sge = |at: usize| {
                Ok(Sge {
                    addr: row.int(&format!("sge.{at}.0"))?,
                    length: row.int(&format!("sge.{at}.1"))?,
                    lkey: row.int(&format!("sge.{at}.2"))?,
                })
            };
            Carried::Sges((0..count).map(sge).collect::<Result<_>>()?)
        };
        let imm = match row.has("imm_be") {
            true => row.bytes("imm_be")?,
            false => [0; 4],
        };
        let swap_add = or_zero(row, if row.has("add") { "add" } else { "swap" })?;
        let info = BindMwInfo {
            lkey: or_zero(row, "mr_lkey")?,
            addr: or_zero(row, "bind_addr")?,
            length: or_zero(row, "bind_len")?,
            access: or_zero(row, "bind_access")?,
        };
        let (mw_rkey, new_rkey) = (or_zero(row, "mw_rkey")?, or_zero(row, "new_rkey")?);
        Ok(Self {
            op: row.str("op")?.to_owned(),
            wr_id: row.int("wr_id")?,
            flags,
            carried,
            remote: Remote {
                addr: or_zero(row, "raddr")?,
                rkey: or_zero(row, "rkey")?,
            },
            imm: Be32::from_bytes(imm),
            inv_rkey: or_zero(row, "inv_rkey")?,
            atomic: (or_zero(row, "compare")?, swap_add),
            // To the verbs a length of zero is the unbinding.
            bind: (info.length != 0).then_some(BindMw {
                mw_rkey,
                new_rkey,
                info,
            }),
            unbind: UnbindMw { mw_rkey, new_rkey },
            av: match row.has("ah") {
                true => address_vector(vectors[row.int::<usize>("ah")?]),
                false => AddressVector::default(),
            },
            remote_qpn: or_zero(row, "remote_qpn")?,
            remote_qkey: or_zero(row, "remote_qkey")?,
            dc_key: or_zero(row, "dc_key")?,
            xrc_srqn: or_zero(row, "xrc_srqn")?,
        })
    }

    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    pub fn is_atomic(&self) -> bool {
        matches!(&self.op[..], "CAS" | "FAA")
    }

    /// No operation at all, to see the driver refuse it.
    pub fn is_bad(&self) -> bool {
        self.op == "BAD"
    }

    /// Bytes that travel within the entry.
    pub fn inline_len(&self) -> usize {
        match &self.carried {
            Carried::Inline(strings) => strings.iter().map(Vec::len).sum(),
            Carried::Sges(_) => 0,
        }
    }

    fn post<T: Transport + Supports<O>, O: Operation>(
        &self,
        queue: &mut Queue<T>,
        address: Address<'_, T>,
        operation: O,
    ) -> core::result::Result<(), PostError> {
        // SAFETY: no device reads the entry.
        unsafe {
            match &self.carried {
                Carried::Sges(sges) => match &sges[..] {
                    [] => queue.post(self.wr_id, address, operation, NoPayload, self.flags),
                    &[sge] => queue.post(self.wr_id, address, operation, sge, self.flags),
                    sges => queue.post(self.wr_id, address, operation, sges, self.flags),
                },
                Carried::Inline(strings) => match &strings[..] {
                    [bytes] => queue.post_inline(self.wr_id, address, operation, bytes, self.flags),
                    strings => {
                        let strings: Vec<&[u8]> = strings.iter().map(|s| &s[..]).collect();
                        let list = InlineList(&strings);
                        queue.post(self.wr_id, address, operation, list, self.flags)
                    }
                },
            }
        }
    }
}

/// A transport that the file has requests of.
pub trait Recorded: Transport + Supports<Nop> + Sized + 'static {
    /// The address of a request.
    fn address(request: &Request) -> Address<'_, Self>;

    /// Posts a request.
    fn post(queue: &mut Queue<Self>, request: &Request) -> core::result::Result<(), PostError>;

    /// Posts an entry of two blocks that the next one has to wait for. False where there is none.
    fn post_fencing(queue: &mut Queue<Self>, address: Address<'_, Self>) -> bool;
}

macro_rules! recorded {
    ($($transport:ident, |$request:ident| $address:expr, $fencing:tt, $($name:literal => $operation:expr),*;)*) => {$(
        impl Recorded for $transport {
            fn address($request: &Request) -> Address<'_, Self> {
                $address
            }

            fn post(queue: &mut Queue<Self>, $request: &Request) -> core::result::Result<(), PostError> {
                let address = Self::address($request);
                match &$request.op[..] {
                    $($name => $request.post(queue, address, $operation),)*
                    other => recorded!(@others $fencing $request, queue, address, other),
                }
            }

            fn post_fencing(queue: &mut Queue<Self>, address: Address<'_, Self>) -> bool {
                recorded!(@fence $fencing queue, address)
            }
        }
    )*};
    (@others fencing $request:ident, $queue:ident, $address:ident, $other:ident) => {
        match $other {
            "LOCAL_INV" => {
                let operation = LocalInv { rkey: $request.inv_rkey };
                $queue.post_empty($request.wr_id, $address, operation, $request.flags)
            }
            "BIND_MW" => match $request.bind {
                Some(bind) => $queue.post_empty($request.wr_id, $address, bind, $request.flags),
                None => {
                    $queue.post_empty($request.wr_id, $address, $request.unbind, $request.flags)
                }
            },
            other => panic!("operation {other:?}"),
        }
    };
    (@others none $request:ident, $queue:ident, $address:ident, $other:ident) => {
        panic!("operation {:?}", $other)
    };
    (@fence fencing $queue:ident, $address:ident) => {
        $queue.post_empty(0, $address, LocalInv { rkey: 0 }, SendFlags::SIGNALED).is_ok()
    };
    (@fence none $queue:ident, $address:ident) => {{
        let _ = ($queue, $address);
        false
    }};
}

recorded! {
    Rc, |r| { let _ = r; }, fencing,
        "SEND" => Send {}, "SEND_IMM" => SendWithImm { imm: r.imm },
        "SEND_INV" => SendWithInv { rkey: r.inv_rkey },
        "WRITE" => RdmaWrite { remote: r.remote },
        "WRITE_IMM" => RdmaWriteWithImm { remote: r.remote, imm: r.imm },
        "READ" => RdmaRead { remote: r.remote },
        "CAS" => AtomicCmpAndSwp { remote: r.remote, compare: r.atomic.0, swap: r.atomic.1 },
        "FAA" => AtomicFetchAndAdd { remote: r.remote, add: r.atomic.1 };
    Xrc, |r| r.xrc_srqn, fencing,
        "SEND" => Send {}, "SEND_IMM" => SendWithImm { imm: r.imm },
        "SEND_INV" => SendWithInv { rkey: r.inv_rkey },
        "WRITE" => RdmaWrite { remote: r.remote },
        "WRITE_IMM" => RdmaWriteWithImm { remote: r.remote, imm: r.imm },
        "READ" => RdmaRead { remote: r.remote },
        "CAS" => AtomicCmpAndSwp { remote: r.remote, compare: r.atomic.0, swap: r.atomic.1 },
        "FAA" => AtomicFetchAndAdd { remote: r.remote, add: r.atomic.1 };
    Dci, |r| DcAddress { av: &r.av, dctn: r.remote_qpn, dc_key: r.dc_key }, none,
        "SEND" => Send {}, "SEND_IMM" => SendWithImm { imm: r.imm },
        "SEND_INV" => SendWithInv { rkey: r.inv_rkey },
        "WRITE" => RdmaWrite { remote: r.remote },
        "WRITE_IMM" => RdmaWriteWithImm { remote: r.remote, imm: r.imm },
        "READ" => RdmaRead { remote: r.remote },
        "CAS" => AtomicCmpAndSwp { remote: r.remote, compare: r.atomic.0, swap: r.atomic.1 },
        "FAA" => AtomicFetchAndAdd { remote: r.remote, add: r.atomic.1 };
    Uc, |r| { let _ = r; }, fencing,
        "SEND" => Send {}, "SEND_IMM" => SendWithImm { imm: r.imm },
        "SEND_INV" => SendWithInv { rkey: r.inv_rkey },
        "WRITE" => RdmaWrite { remote: r.remote },
        "WRITE_IMM" => RdmaWriteWithImm { remote: r.remote, imm: r.imm };
    Ud, |r| UdAddress { av: &r.av, remote_qpn: r.remote_qpn, remote_qkey: r.remote_qkey }, none,
        "SEND" => Send {}, "SEND_IMM" => SendWithImm { imm: r.imm };
}
