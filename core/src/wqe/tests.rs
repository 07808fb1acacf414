//! What recorded WQEs cannot show: every length across the end of the ring, and how views decode
//! both what was written and garbage. Under Miri any access outside a ring is an error.

mod decode;

use super::*;
use crate::be::Be32;
use crate::random::Random;
use crate::wr::{MwType, Remote, Sge};
use core::ptr::NonNull;
use std::{boxed::Box, vec, vec::Vec};

impl Random {
    fn sge(&mut self) -> Sge {
        Sge {
            addr: self.next(),
            length: 1 + self.next() as u32 % 0x7fff_ffff,
            lkey: self.next() as u32 | 0x200,
        }
    }
}

#[derive(Clone, Copy)]
#[repr(align(64))]
struct Block([u8; 64]);

const GUARD: Block = Block([0xcc; 64]);

/// Ring memory between two guard blocks.
struct Memory(Box<[Block]>);

impl Memory {
    fn new(blocks: usize) -> Self {
        Self(vec![GUARD; blocks + 2].into_boxed_slice())
    }

    fn ring(&mut self) -> NonNull<u8> {
        NonNull::from(&mut self.0[1]).cast()
    }

    /// The whole ring, by a pointer that is valid for all of the ring and nothing else.
    fn blocks(&mut self) -> (NonNull<u8>, u32) {
        let last = self.0.len() - 1;
        let ring = &mut self.0[1..last];
        let blocks = ring.len() as u32;
        (NonNull::from(ring).cast(), blocks)
    }

    fn send(&mut self) -> SendRing<'_> {
        let (base, blocks) = self.blocks();
        // SAFETY: borrowed from `self` for as long as the ring lives.
        unsafe { SendRing::new(base, blocks) }.expect("a power of two")
    }

    fn guarded(&self) -> bool {
        let ends = [&self.0[0], &self.0[self.0.len() - 1]];
        ends.iter().all(|block| block.0 == GUARD.0)
    }
}

const REMOTE: Remote = Remote {
    addr: 0x1122_3344_5566_7788,
    rkey: 0x99aa_bbcc,
};

fn inline_of(wqe: SendWqe<'_>, offset: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for data in wqe.data(offset) {
        match data {
            Data::Inline(head, tail) => bytes.extend([head, tail].concat()),
            Data::Pointer(sge) => panic!("a pointer: {sge:?}"),
        }
    }
    bytes
}

#[test]
fn inline_data_of_every_length_survives_the_end_of_the_ring() {
    const BLOCKS: usize = 16;
    let data: Vec<u8> = (0..924).map(|i| (i % 251) as u8 + 1).collect();
    let step = if cfg!(miri) { 37 } else { 1 };
    for counter in [0, 0xffff, 1 << 20 | 9, 0xffff_fff3] {
        for len in (0..=data.len()).step_by(step) {
            let mut memory = Memory::new(BLOCKS);
            let ring = memory.send();
            let payload = Inline(&data[..len]);
            let write = RdmaWrite { remote: REMOTE };
            // SAFETY: this is the only poster; nothing is in flight.
            let ds = unsafe { build::<Rc, _, _>(&ring, counter, 7, 0, (), write, payload) };
            let room = if len == 0 { 0 } else { (len + 4).div_ceil(16) };
            assert_eq!(ds as usize, 2 + room);
            // SAFETY: posted, and not written again.
            let wqe = unsafe { SendWqe::read(ring, counter) };
            assert_eq!((wqe.ds(), wqe.index()), (ds, counter as u16));
            assert_eq!(wqe.remote(16), REMOTE);
            assert!(
                inline_of(wqe, 32) == data[..len],
                "{len} bytes at {counter}"
            );
            // The same in several pieces.
            let (a, b) = data[..len].split_at(len / 3);
            let pieces = [a, &[], b];
            let payload = InlineList(&pieces);
            let write = RdmaWrite { remote: REMOTE };
            // SAFETY: this is the only poster; nothing is in flight.
            let again = unsafe { build::<Rc, _, _>(&ring, counter, 7, 0, (), write, payload) };
            // SAFETY: posted, and not written again.
            let wqe = unsafe { SendWqe::read(ring, counter) };
            assert!(again == ds && inline_of(wqe, 32) == data[..len]);
            assert!(memory.guarded());
        }
    }
}

/// Builds a WQE from random data and reads it back.
fn round_trip<T: Transport, O: Operation>(
    random: &mut Random,
    address: Address<'_, T>,
    operation: O,
    check: impl Fn(SendWqe<'_>, usize),
) {
    let mut memory = Memory::new(1 << (4 + random.below(3)));
    let ring = memory.send();
    let counter = random.next() as u32;
    let qpn = random.next() as u32 & 0xff_ffff;
    let flags = random.next() as u8;
    let prefix = prefix::<T, O>();
    let own = if O::ADDRESSED { 16 + T::SEGMENTS } else { 16 };
    let max = (1008 - prefix) / 16;
    if random.below(2) == 0 {
        let count = random.below(max + 1);
        let mut list: Vec<Sge> = (0..count).map(|_| random.sge()).collect();
        let empty = random.below(4) == 0 && count > 0;
        if empty {
            list[0].length = 0;
        }
        // SAFETY: this is the only poster; nothing is in flight.
        let ds =
            unsafe { build::<T, O, _>(&ring, counter, qpn, flags, address, operation, &list[..]) };
        // SAFETY: posted, and not written again.
        let wqe = unsafe { SendWqe::read(ring, counter) };
        let kept = list.iter().filter(|sge| sge.length != 0);
        let kept: Vec<Data> = kept.map(|sge| Data::Pointer(*sge)).collect();
        assert_eq!(ds as usize, prefix / 16 + kept.len());
        assert!(wqe.data(prefix).eq(kept.iter().copied()));
        let total: u64 = list.iter().map(|sge| u64::from(sge.length)).sum();
        assert_eq!(wqe.data(prefix).total(), total);
        check(wqe, own);
    } else {
        let len = random.below(max * 16 - 3);
        let data = random.bytes(len);
        // SAFETY: this is the only poster; nothing is in flight.
        let ds = unsafe {
            build::<T, O, _>(
                &ring,
                counter,
                qpn,
                flags,
                address,
                operation,
                Inline(&data),
            )
        };
        // SAFETY: posted, and not written again.
        let wqe = unsafe { SendWqe::read(ring, counter) };
        assert_eq!(wqe.ds(), ds);
        assert_eq!(wqe.data(prefix).total(), len as u64);
        assert!(inline_of(wqe, prefix) == data);
        check(wqe, own);
    }
    // SAFETY: posted, and not written again.
    let wqe = unsafe { SendWqe::read(ring, counter) };
    assert_eq!((wqe.opcode(), wqe.imm()), (O::OPCODE, operation.imm()));
    let request = wqe.request(T::TYPE).expect("built for this transport");
    assert_eq!(request.operation(), O::OPERATION);
    assert_eq!(request.data_offset(), prefix);
    assert_eq!((wqe.qpn(), wqe.fm_ce_se()), (qpn, flags));
    assert_eq!(wqe.blocks(), wqe.ds().div_ceil(4));
    assert!(memory.guarded());
}

fn every_operation<T>(random: &mut Random, address: Address<'_, T>)
where
    T: Supports<Send>
        + Supports<RdmaRead>
        + Supports<RdmaWriteWithImm>
        + Supports<AtomicCmpAndSwp>
        + Supports<AtomicFetchAndAdd>
        + Supports<SendWithInv>,
{
    let imm = Be32::new(random.next() as u32);
    let remote = Remote {
        addr: random.next(),
        rkey: random.next() as u32,
    };
    let (a, b) = (random.next(), random.next());
    round_trip::<T, _>(random, address, Send {}, |_, _| {});
    round_trip::<T, _>(random, address, SendWithInv { rkey: a as u32 }, |_, _| {});
    let remote_is = move |wqe: SendWqe<'_>, at| assert_eq!(wqe.remote(at), remote);
    let write = RdmaWriteWithImm { remote, imm };
    round_trip::<T, _>(random, address, write, remote_is);
    let read = RdmaRead { remote };
    round_trip::<T, _>(random, address, read, remote_is);
    let swap = AtomicCmpAndSwp {
        remote,
        compare: a,
        swap: b,
    };
    round_trip::<T, _>(random, address, swap, move |wqe, at| {
        remote_is(wqe, at);
        assert_eq!(wqe.atomic(at + 16), (b, a));
    });
    let add = AtomicFetchAndAdd { remote, add: a };
    round_trip::<T, _>(random, address, add, move |wqe, at| {
        assert_eq!(wqe.atomic(at + 16).0, a);
    });
}

#[test]
fn a_view_reads_what_was_written() {
    let mut random = Random(1);
    for _ in 0..if cfg!(miri) { 2 } else { 400 } {
        let number = random.next() as u32 & 0xff_ffff;
        every_operation::<Rc>(&mut random, ());
        every_operation::<Xrc>(&mut random, number);
        round_trip::<Xrc, _>(&mut random, number, Send {}, |wqe, _| {
            assert_eq!(wqe.xrc_srqn(), number);
        });
        let av = AddressVector {
            hop_limit: random.next() as u8,
            ..AddressVector::default()
        };
        let address = DcAddress {
            av: &av,
            dctn: number,
            dc_key: random.next(),
        };
        every_operation::<Dci>(&mut random, address);
        let extended = number | AddressVector::EXTENDED;
        let datagram = UdAddress {
            av: &av,
            remote_qpn: number,
            remote_qkey: random.next() as u32,
        };
        round_trip::<Ud, _>(&mut random, datagram, Send {}, |wqe, _| {
            let read = wqe.address_vector();
            assert_eq!(read.dqp_dct.get(), extended);
            assert_eq!(read.qkey.get(), datagram.remote_qkey);
            assert_eq!((read.hop_limit, read.reserved.get()), (av.hop_limit, 0));
        });
        round_trip::<Dci, _>(&mut random, address, Send {}, |wqe, _| {
            let read = wqe.address_vector();
            let key = u64::from(read.qkey.get()) << 32 | u64::from(read.reserved.get());
            assert_eq!((read.dqp_dct.get(), key), (extended, address.dc_key));
        });
    }
}

/// Writes UMR work and returns what a device decodes; also decodes the same WQE with some bytes
/// changed.
fn read_umr<O: Operation>(random: &mut Random, qpn: u32, operation: O) -> Option<Umr>
where
    Rc: Supports<O>,
{
    let mut memory = Memory::new(1 << (2 + random.below(3)));
    let ring = memory.send();
    let counter = random.next() as u32;
    // SAFETY: this is the only poster; nothing is in flight.
    unsafe { build::<Rc, O, _>(&ring, counter, qpn, 0, (), operation, NoPayload) };
    // SAFETY: posted, and not written again.
    let read = unsafe { SendWqe::read(ring, counter) }.umr();
    for _ in 0..20 {
        let place = ring.block(counter.wrapping_add(random.below(3) as u32));
        // SAFETY: within a block of the ring, which nothing else accesses.
        unsafe { place.add(random.below(64)).write(random.next() as u8) };
        // SAFETY: posted, and not written while the view is used.
        let mutated = unsafe { SendWqe::read(ring, counter) }.umr();
        match mutated {
            Some(Umr::Bind {
                mw_rkey,
                new_rkey,
                info,
                ..
            }) => {
                assert_eq!(mw_rkey >> 8, new_rkey >> 8);
                assert_eq!(info.access & !0b10_1111, 0);
            }
            Some(Umr::Unbind {
                mw_rkey, new_rkey, ..
            }) => assert_eq!(mw_rkey >> 8, new_rkey >> 8),
            Some(Umr::LocalInv { .. }) | None => {}
        }
    }
    assert!(memory.guarded());
    read
}

#[test]
fn registration_work_is_read_back() {
    let mut random = Random(5);
    for _ in 0..if cfg!(miri) { 5 } else { 5000 } {
        let (mw_rkey, qpn) = (random.next() as u32, random.next() as u32 & 0xff_ffff);
        let new_rkey = mw_rkey & !0xff | (1 + random.below(255) as u32);
        let info = BindMwInfo {
            lkey: random.next() as u32,
            addr: random.next() | 1,
            length: random.next() as u32,
            access: random.next() as u32 & 0b10_1111,
        };
        let bind = BindMw {
            mw_rkey,
            new_rkey,
            info,
        };
        let bound = |mw_type| {
            Some(Umr::Bind {
                mw_type,
                mw_rkey,
                new_rkey,
                info,
            })
        };
        assert_eq!(read_umr(&mut random, qpn, bind), bound(MwType::Type2));
        let bind = BindMwType1 {
            mw_rkey,
            new_rkey,
            info,
        };
        assert_eq!(read_umr(&mut random, qpn, bind), bound(MwType::Type1));
        let unbound = |mw_type| {
            Some(Umr::Unbind {
                mw_type,
                mw_rkey,
                new_rkey,
            })
        };
        let unbind = UnbindMw { mw_rkey, new_rkey };
        assert_eq!(read_umr(&mut random, qpn, unbind), unbound(MwType::Type2));
        let unbind = UnbindMwType1 { mw_rkey, new_rkey };
        assert_eq!(read_umr(&mut random, qpn, unbind), unbound(MwType::Type1));
        let invalidated = Some(Umr::LocalInv { rkey: mw_rkey });
        let invalidate = LocalInv { rkey: mw_rkey };
        assert_eq!(read_umr(&mut random, qpn, invalidate), invalidated);
        // The WQE is the same as that of an invalidation.
        let unbind = UnbindMw {
            mw_rkey,
            new_rkey: mw_rkey & !0xff,
        };
        assert_eq!(read_umr(&mut random, qpn, unbind), invalidated);
        assert_eq!(read_umr(&mut random, qpn, Nop {}), None);
    }
}

#[test]
fn a_view_of_garbage_stays_within_the_ring() {
    let mut random = Random(2);
    for round in 0..if cfg!(miri) { 12 } else { 20_000 } {
        let blocks: usize = 1 << random.below(5);
        let mut memory = Memory::new(blocks);
        for block in &mut memory.0[1..=blocks] {
            for byte in &mut block.0 {
                // Zeros, ones and lengths with the inline bit, more often than by chance.
                *byte = match random.below(4) {
                    0 => 0x80,
                    1 => 0,
                    2 => 0xff,
                    _ => random.next() as u8,
                };
            }
        }
        let start = memory.ring().addr().get();
        let end = start + blocks * 64;
        let ring = memory.send();
        let counter = random.next() as u32;
        // SAFETY: the ring is initialised, and nothing writes to it.
        let wqe = unsafe { SendWqe::read(ring, counter) };
        assert!(wqe.ds() < 64 && wqe.blocks() <= 16);
        let mut most = 0;
        for offset in (0..1024).step_by(if cfg!(miri) { 112 } else { 16 }) {
            let mut segments = 0;
            for data in wqe.data(offset) {
                segments += 1;
                let Data::Inline(head, tail) = data else {
                    continue;
                };
                most = most.max(head.len() + tail.len());
                for piece in [head, tail].iter().filter(|piece| !piece.is_empty()) {
                    let first = piece.as_ptr().addr();
                    assert!(
                        start <= first && first + piece.len() <= end,
                        "round {round}"
                    );
                    // Reads each byte, for Miri.
                    core::hint::black_box(piece.iter().map(|b| u32::from(*b)).sum::<u32>());
                }
            }
            assert!(segments <= 63, "no end");
        }
        assert!(most <= 1008);
        let _ = (
            wqe.address_vector(),
            wqe.xrc_srqn(),
            wqe.remote(16),
            wqe.atomic(32),
            wqe.umr(),
        );
        assert!(memory.guarded());
    }
}

#[test]
fn receive_entries_are_read_back() {
    let mut random = Random(3);
    for _ in 0..if cfg!(miri) { 5 } else { 2000 } {
        let stride: usize = 16 << random.below(6);
        let count = 1 << random.below(4);
        let mut memory = Memory::new((stride * count).div_ceil(64));
        let (base, _) = memory.blocks();
        // SAFETY: borrowed from `memory`, which outlives it.
        let ring = unsafe { RecvRing::new(base, count as u32, stride as u32) }.expect("sizes");
        assert_eq!(ring.max_sge() as usize, stride / 16);
        let index = random.next() as u32;
        let len = random.below(ring.max_sge() as usize + 1);
        let mut list: Vec<Sge> = (0..len).map(|_| random.sge()).collect();
        if len > 1 {
            list[random.below(len)].length = 0;
        }
        // SAFETY: this is the only poster; the WQE is posted when it is read.
        let read: Vec<Sge> = unsafe {
            ring.write(index, &list).expect("fits");
            ring.read(index).collect()
        };
        list.retain(|sge| sge.length != 0);
        assert_eq!(read, list);
        let refused = vec![Sge::default(); ring.max_sge() as usize + 1];
        let too_long = [Sge {
            length: 1 << 31,
            ..Sge::default()
        }];
        // SAFETY: this is the only poster; nothing is written.
        unsafe {
            let (given, max) = (refused.len(), ring.max_sge());
            let error = PostError::TooManySges { given, max };
            assert_eq!(ring.write(index, &refused), Err(error));
            let error = PostError::SgeTooLong { length: 1 << 31 };
            assert_eq!(ring.write(index, &too_long), Err(error));
            assert!(ring.read(index).eq(list));
        }
        assert!(memory.guarded());
    }
}

#[test]
fn shared_receive_entries_are_read_back_and_linked() {
    let mut random = Random(4);
    for _ in 0..if cfg!(miri) { 5 } else { 2000 } {
        let stride: usize = 32 << random.below(5);
        let count = 1 << random.below(4);
        let mut memory = Memory::new((stride * count).div_ceil(64));
        let (base, _) = memory.blocks();
        // SAFETY: borrowed from `memory`, which outlives it.
        let ring = unsafe { SrqRing::new(base, count as u32, stride as u32) }.expect("sizes");
        assert_eq!(ring.max_sge() as usize, stride / 16 - 1);
        let (index, next) = (random.below(count) as u32, random.next() as u32);
        let len = random.below(ring.max_sge() as usize + 1);
        let mut list: Vec<Sge> = (0..len).map(|_| random.sge()).collect();
        if let Some(sge) = list.first_mut() {
            sge.length = 0;
        }
        // SAFETY: this is the only poster; the WQE is posted when it is read.
        unsafe {
            ring.link(index, next);
            ring.write(index, &list).expect("fits");
            // Elements of length zero are kept, and links do not lead out of the ring.
            assert!(ring.read(index).eq(list));
            assert_eq!(ring.next(index), next & 0xffff & (count as u32 - 1));
        }
        assert!(memory.guarded());
    }
}

#[test]
fn rings_refuse_sizes_that_the_device_cannot_have() {
    let mut memory = Memory::new(64);
    let (base, _) = memory.blocks();
    // SAFETY: no ring is used.
    unsafe {
        assert!(SendRing::new(base, 64).is_some() && SendRing::new(base, 1).is_some());
        assert!(SendRing::new(base, 0).is_none() && SendRing::new(base, 3).is_none());
        assert!(SendRing::new(base, 1 << 16).is_none());
        assert!(SendRing::new(base.add(16), 2).is_none());
        assert!(RecvRing::new(base.add(16), 2, 16).is_some());
        assert!(RecvRing::new(base, 2, 8).is_none() && RecvRing::new(base, 2, 4096).is_none());
        assert!(RecvRing::new(base, 2, 48).is_none() && RecvRing::new(base, 6, 16).is_none());
        assert!(RecvRing::new(base, 1 << 16, 16).is_none());
        assert!(RecvRing::new(base.add(8), 2, 16).is_none());
        assert!(SrqRing::new(base, 2, 16).is_none() && SrqRing::new(base, 2, 32).is_some());
    }
}
