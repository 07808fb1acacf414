//! Packets as they are on the cable.

use bellwire_tests::fixture::DEADLINE;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};

/// The port of RoCE v2.
const ROCE: u16 = 4791;

/// The length of an Ethernet header.
pub const ETHERNET: usize = 14;

/// Frames at one end of the cable, from the Ethernet header on.
pub struct Cable(File);

impl Cable {
    pub fn at(interface: &str) -> Self {
        let protocol = (libc::ETH_P_IP as u16).to_be();
        // SAFETY: no memory is named.
        let fd = unsafe {
            libc::socket(
                libc::AF_PACKET,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                protocol.into(),
            )
        };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: just opened, and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        let index = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"));
        // SAFETY: numbers, which zeroes are values of.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index.expect("an interface").trim().parse().expect("one");
        // SAFETY: the address is readable, and as long as is said.
        let bound = unsafe {
            libc::bind(
                file.as_raw_fd(),
                (&raw const address).cast(),
                size_of_val(&address) as u32,
            )
        };
        assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
        Self(file)
    }

    /// The next packet of RoCE that comes in.
    pub fn next(&mut self) -> Vec<u8> {
        let start = Instant::now();
        let mut frame = [0; 2048];
        loop {
            assert!(start.elapsed() < DEADLINE, "no packet came");
            let Ok(length) = self.0.read(&mut frame) else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let Some((header, udp)) = frame[ETHERNET..length].split_first_chunk::<20>() else {
                continue;
            };
            let is_udp = header[0] == 0x45 && header[9] == libc::IPPROTO_UDP as u8;
            if is_udp && udp[2..4] == ROCE.to_be_bytes() {
                return frame[..length].to_vec();
            }
        }
    }

    /// Sends a frame as it is. It comes in at the other end.
    pub fn send(&mut self, frame: &[u8]) {
        let sent = self.0.write(frame).expect("a frame that fits");
        assert_eq!(sent, frame.len());
    }
}
