//! Nonsense for the sockets at which nodes listen.

use bellwire_tests::fixture::Random;
use std::io::Write;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::thread::JoinHandle;

/// The nodes that are there: two victims.
const SLOTS: u64 = 3;
/// Connections that are made and given up.
const MANY: u64 = 2000;
/// Nonsense that is said.
const WORDS: u64 = 60;

/// What a node says first, as it is written in the product: with an older one, nothing behind it would be looked at.
fn magic() -> u64 {
    let source = include_str!("../../hw/soft/src/fabric/hello.rs");
    let (_, from) = source.split_once("(*b\"").expect("a constant of bytes");
    let bytes = from.as_bytes().first_chunk().expect("eight of them");
    assert!(bytes.starts_with(b"bellwr"), "{bytes:?}");
    u64::from_le_bytes(*bytes)
}

fn connect(fabric: &str, slot: u64) -> Option<UnixStream> {
    // SAFETY: a plain system call.
    let user = unsafe { libc::getuid() };
    let address = SocketAddr::from_abstract_name(format!("bellwire/{user}/{fabric}/{slot}"));
    UnixStream::connect_addr(&address.expect("a short name")).ok()
}

/// A memfd of a length, with seals or none.
fn memory(len: u64, sealed: bool) -> OwnedFd {
    // SAFETY: plain system calls, on a descriptor that is ours.
    unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        let fd = libc::memfd_create(c"nonsense".as_ptr(), flags);
        assert!(fd >= 0);
        assert_eq!(libc::ftruncate(fd, len as i64), 0);
        if sealed {
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
            assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
        }
        OwnedFd::from_raw_fd(fd)
    }
}

/// Says bytes, and passes descriptors.
fn pass(stream: &UnixStream, bytes: &[u8], files: &[OwnedFd]) {
    let raw: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let length = size_of_val(&raw[..]) as u32;
    let mut space = [0u64; 16];
    let mut bytes = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: the message points to what outlives the call, and its space holds four descriptors.
    unsafe {
        let mut message: libc::msghdr = zeroed();
        message.msg_iov = &raw mut bytes;
        message.msg_iovlen = 1;
        if !raw.is_empty() {
            message.msg_control = space.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(length) as usize;
            let control = libc::CMSG_FIRSTHDR(&raw const message);
            (*control).cmsg_level = libc::SOL_SOCKET;
            (*control).cmsg_type = libc::SCM_RIGHTS;
            (*control).cmsg_len = libc::CMSG_LEN(length) as usize;
            let to = libc::CMSG_DATA(control).cast::<i32>();
            to.copy_from_nonoverlapping(raw.as_ptr(), raw.len());
        }
        // A peer that does not listen any more need not get it.
        let _sent = libc::sendmsg(stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL);
    }
}

fn hello(random: &mut Random) -> Vec<u8> {
    let magic = if random.below(4) == 0 {
        random.number()
    } else {
        magic()
    };
    // Places where nobody is, or that are none.
    let slot = [7, 63, 64, u64::MAX][random.below(4) as usize];
    let mut bytes = Vec::new();
    for word in [magic, slot, random.number()].into_iter().chain([0; 8]) {
        bytes.extend(word.to_le_bytes());
    }
    let cut = random.below(100) as usize;
    bytes.truncate(cut.max(1));
    bytes
}

fn files(random: &mut Random) -> Vec<OwnedFd> {
    let one = |random: &mut Random| -> OwnedFd {
        match random.below(5) {
            0 => memory(random.below(1 << 22), true),
            1 => memory(random.below(1 << 22), false),
            2 => std::fs::File::open("/dev/zero").expect("there").into(),
            3 => UnixStream::pair().expect("two").0.into(),
            _ => std::io::pipe().expect("two").1.into(),
        }
    };
    (0..random.below(5)).map(|_| one(random)).collect()
}

/// Says that it is in another node's place, with memory as it should be.
fn pose(stream: &UnixStream, random: &mut Random, slot: u64, sizes: &[u64]) {
    let mut bytes = Vec::new();
    for word in [magic(), slot, random.number()].into_iter().chain([0; 8]) {
        bytes.extend(word.to_le_bytes());
    }
    let files: Vec<OwnedFd> = sizes.iter().map(|size| memory(*size, true)).collect();
    pass(stream, &bytes, &files);
}

/// Talks nonsense to every node; gives how often somebody listened.
fn talk(fabric: &str, seed: u64, sizes: &[u64]) -> u64 {
    let mut random = Random::new(seed ^ 0xabcd);
    let mut listened = 0;
    let mut silent = Vec::new();
    for round in 0..WORDS + MANY {
        let slot = random.below(SLOTS);
        let Some(mut stream) = connect(fabric, slot) else {
            continue;
        };
        listened += 1;
        match random.below(5) {
            _ if round >= WORDS => {}
            0 => {
                let count = random.below(100) as usize;
                let _gone = stream.write_all(&random.bytes(count));
            }
            // Says nothing for as long as we are there.
            1 if silent.len() < 3 => silent.push(stream),
            2 => {
                let whose = random.below(SLOTS);
                pose(&stream, &mut random, whose, sizes);
            }
            _ => pass(&stream, &hello(&mut random), &files(&mut random)),
        }
    }
    listened
}

/// On a thread of its own: who is not answered waits. `sizes`: of what a node that is in order passes.
pub fn start(fabric: &str, seed: u64, sizes: Vec<u64>) -> JoinHandle<u64> {
    let fabric = fabric.to_owned();
    std::thread::spawn(move || talk(&fabric, seed, &sizes))
}
