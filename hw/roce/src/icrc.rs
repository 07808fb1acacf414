//! The invariant CRC at the end of each packet (IBTA volume 1, annex A17, "ICRC").
//!
//! It is the CRC-32 of Ethernet over eight bytes of ones, the IP and UDP headers, and the packet. What routers may
//! change counts as ones: traffic class, hop limit, flow label, checksums, and a byte of the base transport header.
//!
//! A UDP socket does not show the header that a packet came with. All of it is known but the identification of an IPv4
//! header, of which Linux' own RoCE counts up. The CRC is linear, so at most one of the 65,536 identifications fits a
//! packet: [`check`] solves for it, and 16 bits of protection remain.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};
use crc32fast::Hasher;

/// Bytes of the checksum.
pub const SIZE: usize = 4;

/// Where the byte of the base transport header is that counts as ones.
const RESERVED: usize = 4;

/// The addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// IPv4: source and destination.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6: source and destination.
    V6(Ipv6Addr, Ipv6Addr),
}

/// What the IP and UDP headers of a packet say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The addresses.
    pub addresses: Addresses,
    /// The sender's UDP port.
    pub source_port: u16,
    /// The receiver's UDP port.
    pub destination_port: u16,
}

/// A checksum is wrong, or there is none: the packet was damaged, or is not one of RoCE v2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongIcrc;

impl fmt::Display for WrongIcrc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the packet's checksum is wrong")
    }
}

impl core::error::Error for WrongIcrc {}

/// The field of an IPv4 header that has the flags: don't fragment, or nothing.
const FLAGS: [u16; 2] = [0x4000, 0];

/// Writes the checksum into the last four bytes of a datagram's payload.
///
/// `identification` is the field of the IPv4 header, whose flags say "don't fragment". Linux writes 0 for a socket that is
/// not connected and discovers the path MTU. In segment k of a datagram that it segments (`UDP_SEGMENT`), it writes k.
///
/// # Panics
/// If the payload is shorter than the base transport header and the checksum, or longer than UDP takes.
pub fn seal(flow: &Flow, identification: u16, datagram: &mut [u8]) {
    let (packet, icrc) = datagram.split_at_mut(datagram.len() - SIZE);
    let mut hasher = Hasher::new();
    before_identification(flow, packet.len(), &mut hasher);
    if matches!(flow.addresses, Addresses::V4(..)) {
        hasher.update(&identification.to_be_bytes());
    }
    after_identification(flow, FLAGS[0], packet, &mut hasher);
    icrc.copy_from_slice(&hasher.finalize().to_le_bytes());
}

/// A packet whose checksum is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intact<'a> {
    /// The packet, without its checksum.
    pub packet: &'a [u8],
    /// The identification that its IPv4 header must have had. A caller that knows which ones a sender uses has the
    /// whole protection back if it drops a packet with another.
    pub identification: Option<u16>,
}

/// Checks the last four bytes of a datagram's payload.
///
/// # Errors
/// The checksum is wrong.
pub fn check<'a>(flow: &Flow, datagram: &'a [u8]) -> Result<Intact<'a>, WrongIcrc> {
    let (packet, icrc) = datagram.split_last_chunk::<SIZE>().ok_or(WrongIcrc)?;
    if packet.len() <= RESERVED || packet.len() > MAX_PACKET {
        return Err(WrongIcrc);
    }
    let icrc = u32::from_le_bytes(*icrc);
    let mut hasher = Hasher::new();
    before_identification(flow, packet.len(), &mut hasher);
    let identification = match flow.addresses {
        Addresses::V4(..) => {
            let before = !hasher.finalize();
            let found = FLAGS.into_iter().find_map(|flags| {
                // From a register of zero: the rest of the packet without what came before.
                let mut hasher = Hasher::new_with_initial(u32::MAX);
                after_identification(flow, flags, packet, &mut hasher);
                let length = IPV4_REST + UDP + packet.len();
                identification(before, unshift(!icrc ^ !hasher.finalize(), length))
            });
            Some(u16::from_be_bytes(found.ok_or(WrongIcrc)?))
        }
        Addresses::V6(..) => {
            after_identification(flow, FLAGS[0], packet, &mut hasher);
            if hasher.finalize() != icrc {
                return Err(WrongIcrc);
            }
            None
        }
    };
    Ok(Intact {
        packet,
        identification,
    })
}

/// Bytes of a UDP header.
const UDP: usize = 8;

/// Bytes of an IPv4 header behind its identification.
const IPV4_REST: usize = 14;

/// The longest packet: IP counts its bytes in 16 bits.
const MAX_PACKET: usize = u16::MAX as usize - 20 - UDP - SIZE;

/// All before the identification of an IPv4 header, or all of an IPv6 header before its addresses.
fn before_identification(flow: &Flow, packet: usize, hasher: &mut Hasher) {
    let udp = udp_length(packet);
    let mut bytes = [0xff; 16];
    match flow.addresses {
        Addresses::V4(..) => {
            bytes[8] = 0x45;
            bytes[10..12].copy_from_slice(&(20 + udp).to_be_bytes());
            hasher.update(&bytes[..12]);
        }
        Addresses::V6(..) => {
            bytes[8] = 0x6f;
            bytes[12..14].copy_from_slice(&udp.to_be_bytes());
            bytes[14] = IPPROTO_UDP;
            hasher.update(&bytes);
        }
    }
}

/// UDP among the protocols of IP.
const IPPROTO_UDP: u8 = 17;

/// The rest of the IP header, the UDP header and the packet.
fn after_identification(flow: &Flow, flags: u16, packet: &[u8], hasher: &mut Hasher) {
    match flow.addresses {
        Addresses::V4(source, destination) => {
            let [high, low] = flags.to_be_bytes();
            hasher.update(&[high, low, 0xff, IPPROTO_UDP, 0xff, 0xff]);
            hasher.update(&source.octets());
            hasher.update(&destination.octets());
        }
        Addresses::V6(source, destination) => {
            hasher.update(&source.octets());
            hasher.update(&destination.octets());
        }
    }
    let mut udp = [0xff; UDP];
    udp[..2].copy_from_slice(&flow.source_port.to_be_bytes());
    udp[2..4].copy_from_slice(&flow.destination_port.to_be_bytes());
    udp[4..6].copy_from_slice(&udp_length(packet.len()).to_be_bytes());
    hasher.update(&udp);
    hasher.update(&packet[..RESERVED]);
    hasher.update(&[0xff]);
    hasher.update(&packet[RESERVED + 1..]);
}

/// The length in the UDP header of a packet.
fn udp_length(packet: usize) -> u16 {
    assert!(packet <= MAX_PACKET, "a packet fits a datagram");
    (UDP + packet + SIZE) as u16
}

/// The polynomial of Ethernet's CRC-32, its lowest coefficient in the highest bit.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// The register after a byte, for each lowest byte of a register of 8 bits.
const BYTE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            register = times_x(register);
            bit += 1;
        }
        table[byte] = register;
        byte += 1;
    }
    table
};

/// The lowest byte that [`BYTE`] has for each highest byte of a result: these differ.
const UNDO: [u8; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        table[(BYTE[byte] >> 24) as usize] = byte as u8;
        byte += 1;
    }
    table
};

const fn times_x(register: u32) -> u32 {
    (register >> 1) ^ if register & 1 == 1 { POLYNOMIAL } else { 0 }
}

const fn over_x(register: u32) -> u32 {
    if register >> 31 == 1 {
        (register ^ POLYNOMIAL) << 1 | 1
    } else {
        register << 1
    }
}

/// The product of two polynomials, modulo the CRC's.
const fn product(mut a: u32, b: u32) -> u32 {
    let (mut sum, mut bit) = (0, 0);
    while bit < 32 {
        if b << bit >> 31 == 1 {
            sum ^= a;
        }
        a = times_x(a);
        bit += 1;
    }
    sum
}

/// What takes 1, 2, 4, … bytes of zeros back from a register.
const BACK: [u32; 16] = {
    let mut powers = [0; 16];
    let mut power = 1 << 31;
    let mut bit = 0;
    while bit < 8 {
        power = over_x(power);
        bit += 1;
    }
    let mut at = 0;
    while at < 16 {
        powers[at] = power;
        power = product(power, power);
        at += 1;
    }
    powers
};

/// The register before `length` bytes of zeros.
fn unshift(register: u32, length: usize) -> u32 {
    let powers = BACK.iter().enumerate();
    let set = powers.filter(|(bit, _)| length >> bit & 1 == 1);
    set.fold(register, |register, (_, power)| product(register, *power))
}

/// The two bytes that take the register `before` to `after`, if there are any.
fn identification(before: u32, after: u32) -> Option<[u8; 2]> {
    let undo = |register: u32| {
        let index = UNDO[(register >> 24) as usize];
        (index, register ^ BYTE[usize::from(index)])
    };
    // A byte shifts the register by eight bits, so two bytes leave two bytes of `before` in it.
    let (second, between) = undo(after);
    let (first, start) = undo(between << 8);
    let low = before >> 8 & 0xff ^ BYTE[usize::from(first)] & 0xff;
    let found = [first ^ before as u8, second ^ low as u8];
    (start >> 8 & 0xffff == before >> 16).then_some(found)
}

#[cfg(test)]
mod tests;
