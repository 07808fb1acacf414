//! The handshake message of two nodes: the identity of each, and the descriptors of the memory that it
//! writes.

use super::export::EXPORT;
use super::segment::SEGMENT;
use bellwire_memory::set_length;
use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, memfd_create,
};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Version of all formats that two processes share.
const MAGIC: u64 = u64::from_le_bytes(*b"bellwr07");

/// Size of a hello message in bytes.
const BYTES: usize = 8 + 8 + 8 + 16 + 8 + 8 + 16 + 16;

/// The identity of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Its place in the fabric.
    pub slot: usize,
    /// A number that no other node has; never zero.
    pub incarnation: u64,
    pub gid: [u8; 16],
    /// Start time of its process.
    pub began: u64,
    /// Why the link is refused.
    pub refusal: Option<Refusal>,
    /// Of a caller: a secret, by which the node that it calls can prove that it got this message. Zero: none.
    pub token: u128,
    /// The token that the peer sent when it called this node; zero: none.
    pub proof: u128,
    /// What [`Barriers::reach_everywhere`](bellwire_provider::quiesce::Barriers::reach_everywhere) says there:
    /// it decides about the barriers of the link.
    pub reaches: bool,
}

/// Why a link is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// There is one already, or the node that is called is calling itself.
    Again,
    /// The caller's user is not the fabric's owner any more: the node that it called will call it instead, and
    /// prove by the caller's token who it is.
    CallsBack,
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        let slot = self.slot as u64 | u64::from(self.reaches) << 63;
        bytes[8..16].copy_from_slice(&slot.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.incarnation.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.gid);
        bytes[40..48].copy_from_slice(&self.began.to_le_bytes());
        let refusal: u64 = match self.refusal {
            None => 0,
            Some(Refusal::Again) => 1,
            Some(Refusal::CallsBack) => 2,
        };
        bytes[48..56].copy_from_slice(&refusal.to_le_bytes());
        bytes[56..72].copy_from_slice(&self.token.to_le_bytes());
        bytes[72..].copy_from_slice(&self.proof.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; BYTES]) -> Option<Self> {
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[24..40]);
        let wide = |at: usize| bytes[at..at + 16].try_into().map(u128::from_le_bytes).ok();
        let refusal = match word(48)? {
            0 => None,
            1 => Some(Refusal::Again),
            2 => Some(Refusal::CallsBack),
            _ => return None,
        };
        let reaches = word(8)? >> 63 != 0;
        let slot = usize::try_from(word(8)? & u64::MAX >> 1).ok()?;
        (word(0)? == MAGIC && slot < super::MAX_NODES).then_some(Self {
            slot,
            incarnation: word(16)?,
            gid,
            began: word(40)?,
            refusal,
            token: wide(56)?,
            proof: wide(72)?,
            reaches,
        })
    }
}

/// A file that only this process can write, once it is mapped and sealed: see [`seal`].
pub(super) fn file(name: &str, len: usize) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    set_length(fd.as_fd(), len).map_err(io::Error::other)?;
    Ok(fd)
}

/// Seals: the length is fixed, and only existing mappings can write.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::FUTURE_WRITE);

/// Makes a file that is passed to peers read-only for them.
pub(super) fn seal(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_add_seals(fd, SEALS)?)
}

/// Whether a peer's file can be mapped safely: its length is fixed and its holes read as zeroes. Accessing a
/// hole of a huge-page file raises a signal when no huge pages are left.
fn is_safe(fd: BorrowedFd<'_>, len: usize) -> io::Result<bool> {
    let fixed = SealFlags::SHRINK | SealFlags::GROW;
    // Checks the seals first, which only memfds have: querying other files might have to wait for another
    // process.
    Ok(fcntl_get_seals(fd)?.contains(fixed)
        && fstatfs(fd)?.f_type != libc::HUGETLBFS_MAGIC
        && fstat(fd)?.st_size == len as i64)
}

/// Sends our identity, and the descriptors of the memory that we write.
pub(super) fn say(stream: &UnixStream, hello: &Hello, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = hello.encode();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let sent = sendmsg(
        stream,
        &[IoSlice::new(&bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?;
    if sent == BYTES {
        Ok(())
    } else {
        Err(io::ErrorKind::WriteZero.into())
    }
}

/// The hello message of a peer.
#[derive(Debug)]
pub(super) struct Heard {
    pub hello: Hello,
    /// The memory that it writes: a segment, and its export.
    pub files: Option<[OwnedFd; 2]>,
}

/// Receives the peer's hello message; `None`: it has not arrived.
pub(super) fn hear(stream: &UnixStream) -> io::Result<Option<Heard>> {
    let mut bytes = [0; BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let into = &mut [IoSliceMut::new(&mut bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = match recvmsg(stream.as_fd(), into, &mut ancillary, flags) {
        Ok(got) => got,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // There is room for two.
    let mut files = [None, None];
    let mut free = files.iter_mut();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            free.by_ref()
                .zip(passed)
                .for_each(|(slot, file)| *slot = Some(file));
        }
    }
    let strange = || {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "the peer speaks another language",
        )
    };
    match got.bytes {
        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
        BYTES => {}
        _ => return Err(strange()),
    }
    let hello = Hello::decode(&bytes).ok_or_else(strange)?;
    let files = match files {
        [None, None] => return Ok(Some(Heard { hello, files: None })),
        [Some(first), Some(second)] => [first, second],
        // Fewer arrive than were passed if this process has reached its descriptor limit.
        _ => return Err(strange()),
    };
    if !is_safe(files[0].as_fd(), SEGMENT)? || !is_safe(files[1].as_fd(), EXPORT)? {
        return Err(strange());
    }
    let files = Some(files);
    Ok(Some(Heard { hello, files }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: Hello = Hello {
        slot: 7,
        incarnation: 0x0123_4567_89ab_cdef,
        gid: *b"0123456789abcdef",
        began: 0xfedc_ba98,
        refusal: None,
        token: 1 << 127 | 1,
        proof: 1 << 126 | 2,
        reaches: true,
    };

    fn sealed(len: usize) -> OwnedFd {
        let fd = file("bellwire-test", len).unwrap();
        seal(fd.as_fd()).unwrap();
        fd
    }

    #[test]
    fn what_is_said_is_heard() {
        let (a, b) = UnixStream::pair().unwrap();
        let files = [sealed(SEGMENT), sealed(EXPORT)];
        say(&a, &HELLO, &[files[0].as_fd(), files[1].as_fd()]).unwrap();
        let heard = hear(&b).unwrap().unwrap();
        assert_eq!(heard.hello, HELLO);
        assert!(heard.files.is_some());
        // Nothing more has arrived, and the call does not block.
        assert!(hear(&b).unwrap().is_none());
    }

    #[test]
    fn strange_peers_are_refused() {
        let refused = |hello: Hello, files: &[OwnedFd]| {
            let (a, b) = UnixStream::pair().unwrap();
            let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
            say(&a, &hello, &files).unwrap();
            hear(&b).is_err()
        };
        let good = || [sealed(SEGMENT), sealed(EXPORT)];
        assert!(!refused(HELLO, &good()));
        let open = file("bellwire-test", SEGMENT).unwrap();
        assert!(refused(HELLO, &[open, sealed(EXPORT)]));
        assert!(refused(HELLO, &[sealed(SEGMENT - 4096), sealed(EXPORT)]));
        assert!(refused(HELLO, &[sealed(SEGMENT), sealed(EXPORT - 4096)]));
        assert!(refused(HELLO, &[sealed(SEGMENT)]));
        let slot = super::super::MAX_NODES;
        assert!(refused(Hello { slot, ..HELLO }, &good()));
        let (a, b) = UnixStream::pair().unwrap();
        drop(a);
        assert!(hear(&b).is_err());
    }
}
