//! Address handles: the destinations of datagrams, and the paths back to their senders.

use crate::error::Error;
use crate::pd::Pd;
use crate::provider::AhSide;
use bellwire_core::cqe::Source;
use bellwire_core::qp::{AhAttr, GlobalRoute};
use bellwire_core::queue::Success;
use bellwire_core::wqe::{AddressVector, UdAddress};
pub use bellwire_provider::attr::GRH_BYTES;

/// An address handle (`ibv_ah`): a path that was checked once, ready to be written to requests.
#[derive(Clone, Debug)]
pub struct Ah {
    av: AddressVector,
    attr: AhAttr,
    // Dropped before the domain that it belongs to.
    _handle: AhSide,
    pd: Pd,
}

impl Pd {
    /// Creates an address handle (`ibv_create_ah`).
    ///
    /// # Errors
    /// The device does not have the port or the source GID, or a field is out of range.
    pub fn create_ah(&self, attr: &AhAttr) -> Result<Ah, Error> {
        let ports = self.device().attr().phys_port_cnt;
        let port = self.device().query_port(attr.port_num);
        let gids = port.map_or(1, |port| port.gid_tbl_len.max(1));
        for (what, given, min, max) in [
            ("port_num", u32::from(attr.port_num), 1, u32::from(ports)),
            (
                "sgid_index",
                attr.grh.sgid_index.into(),
                0,
                u32::from(gids) - 1,
            ),
            ("sl", attr.sl.into(), 0, 0xf),
            ("src_path_bits", attr.src_path_bits.into(), 0, 0x7f),
            ("flow_label", attr.grh.flow_label, 0, 0xf_ffff),
        ] {
            if !(min..=max).contains(&given) {
                return Err(Error::OutOfRange {
                    what,
                    given,
                    min,
                    max,
                });
            }
        }
        let (av, handle) = self.device().hca.create_ah(self, attr)?;
        Ok(Ah {
            av,
            attr: *attr,
            _handle: handle,
            pd: self.clone(),
        })
    }

    /// Creates an address handle to reply to a datagram (`ibv_create_ah_from_wc`).
    ///
    /// # Errors
    /// Those of [`AhAttr::from_wc`](ah_attr_from_wc) and [`create_ah`](Self::create_ah).
    pub fn create_ah_from_wc(
        &self,
        wc: &Success,
        grh: &[u8; GRH_BYTES],
        port_num: u8,
    ) -> Result<Ah, Error> {
        if let Some(context) = self.device().hca.libibverbs() {
            let source = wc.source().ok_or(Error::NotADatagram)?;
            return self.create_ah(&context.way_back(&source, grh, port_num)?);
        }
        self.create_ah(&ah_attr_from_wc(wc, grh, port_num)?)
    }
}

impl Ah {
    /// The address of a queue pair that is reached by this path, for a request.
    #[inline(always)]
    pub fn to(&self, remote_qpn: u32, remote_qkey: u32) -> UdAddress<'_> {
        UdAddress {
            av: &self.av,
            remote_qpn,
            remote_qkey,
        }
    }

    /// The attributes that it was created with.
    pub fn attr(&self) -> &AhAttr {
        &self.attr
    }

    /// The protection domain.
    pub fn pd(&self) -> &Pd {
        &self.pd
    }
}

/// The path back to a datagram's sender (`ibv_init_ah_from_wc`): `wc` is the completion of its receive, `grh`
/// the first 40 bytes of the receive's memory, `port_num` the port on which it arrived.
///
/// # Errors
/// [`Error::NotADatagram`]: the completion is not that of a datagram, or the header is invalid.
pub fn ah_attr_from_wc(wc: &Success, grh: &[u8; GRH_BYTES], port_num: u8) -> Result<AhAttr, Error> {
    ah_attr_from_source(&wc.source().ok_or(Error::NotADatagram)?, grh, port_num)
}

/// The path back, like [`ah_attr_from_wc`], from the part of the completion that it needs.
///
/// # Errors
/// The header is invalid.
pub fn ah_attr_from_source(
    source: &Source,
    grh: &[u8; GRH_BYTES],
    port_num: u8,
) -> Result<AhAttr, Error> {
    let mut attr = AhAttr {
        dlid: source.slid,
        sl: source.sl,
        src_path_bits: source.dlid_path_bits,
        port_num,
        ..AhAttr::default()
    };
    if source.grh {
        attr.is_global = true;
        attr.grh = route_back(grh)?;
    }
    Ok(attr)
}

/// The route to the sender of a header (IBTA 8.3).
fn route_back(grh: &[u8; GRH_BYTES]) -> Result<GlobalRoute, Error> {
    const VERSION: u32 = 6;
    const HOP_LIMIT: u8 = 0xff;
    let first = u32::from_be_bytes([grh[0], grh[1], grh[2], grh[3]]);
    if first >> 28 != VERSION {
        return Err(Error::NotADatagram);
    }
    let mut dgid = [0; 16];
    dgid.copy_from_slice(&grh[8..24]);
    Ok(GlobalRoute {
        dgid,
        flow_label: first & 0xf_ffff,
        // The device has only one GID.
        sgid_index: 0,
        hop_limit: HOP_LIMIT,
        traffic_class: (first >> 20) as u8,
    })
}
