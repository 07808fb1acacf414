//! RoCE v2's packets over a UDP socket.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::time::Duration;

use bellwire_roce::Transmit;
use bellwire_roce::icrc::{self, Addresses, Flow};
use bellwire_roce::packet::{MAX_HEADER, PORT, Packet, padding};

/// A UDP socket that speaks RoCE v2 with one peer.
pub struct Wire {
    socket: UdpSocket,
    local: IpAddr,
    out: Flow,
    peer: SocketAddr,
    bytes: Vec<u8>,
}

impl Wire {
    /// The checksum covers the IP header. Linux sends the identification 0 if the packet may not be cut and the socket
    /// is not connected.
    pub fn open(local: IpAddr, peer: IpAddr) -> std::io::Result<Self> {
        let socket = UdpSocket::bind((local, PORT))?;
        if local.is_ipv4() {
            let always = libc::IP_PMTUDISC_DO;
            // SAFETY: the socket is open, and the option's value is an int.
            let set = unsafe {
                libc::setsockopt(
                    socket.as_raw_fd(),
                    libc::IPPROTO_IP,
                    libc::IP_MTU_DISCOVER,
                    (&raw const always).cast(),
                    size_of_val(&always) as u32,
                )
            };
            if set != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        let out = Flow {
            addresses: addresses(local, peer),
            source_port: PORT,
            destination_port: PORT,
        };
        Ok(Self {
            socket,
            local,
            out,
            peer: (peer, PORT).into(),
            bytes: Vec::new(),
        })
    }

    pub fn send(&mut self, transmit: &Transmit, payload: &[u8]) -> std::io::Result<()> {
        let mut header = [0; MAX_HEADER];
        let length = transmit.header.encode(payload.len(), &mut header);
        self.bytes.clear();
        self.bytes.extend(&header[..length]);
        self.bytes.extend(payload);
        let end = self.bytes.len() + padding(payload.len()) + icrc::SIZE;
        self.bytes.resize(end, 0);
        icrc::seal(&self.out, 0, &mut self.bytes);
        self.socket.send_to(&self.bytes, self.peer).map(|_| ())
    }

    /// Waits for a packet for this time at the most. `None` if there is none in this time, or if it was damaged.
    pub fn receive<'a>(
        &self,
        wait: Duration,
        datagram: &'a mut [u8],
    ) -> std::io::Result<Option<Packet<'a>>> {
        let wait = wait.max(Duration::from_micros(1));
        self.socket.set_read_timeout(Some(wait))?;
        let (length, from) = match self.socket.recv_from(datagram) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let flow = Flow {
            addresses: addresses(from.ip(), self.local),
            source_port: from.port(),
            destination_port: PORT,
        };
        let intact = icrc::check(&flow, &datagram[..length]).ok();
        Ok(intact.and_then(|intact| Packet::decode(intact.packet).ok()))
    }
}

fn addresses(source: IpAddr, destination: IpAddr) -> Addresses {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Addresses::V4(source, destination),
        (source, destination) => {
            let six = |address| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped(),
                IpAddr::V6(address) => address,
            };
            Addresses::V6(six(source), six(destination))
        }
    }
}
