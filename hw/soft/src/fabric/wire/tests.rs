//! Tests of the wire: two ends over memory of this process.

use super::super::segment::SEGMENT;
use super::super::window::Window;
use super::*;

/// Both ends of a wire, over memory of this process.
fn wire() -> (Window, Window, Writer, Reader) {
    let window = || Window::reserve(SEGMENT).unwrap();
    let (ours, theirs) = (window(), window());
    let writer = Writer::new(Segments::new(&ours, &theirs));
    let reader = Reader::new(Segments::new(&theirs, &ours));
    turn(&writer).restart(1, true);
    (ours, theirs, writer, reader)
}

fn turn(writer: &Writer) -> Sending<'_> {
    let turn = writer.turn().try_take(Thread::current());
    writer.with(turn.expect("one thread sends"))
}

fn header(msn: u16) -> Header {
    Header {
        ack: (!msn.is_multiple_of(3)).then_some(Number::new(msn, !msn)),
        flags: msn as u8,
        short: msn as u8 & 0x7f,
        ..Header::of(
            Name::request(0x12_3456, 0xab_0000 | u32::from(msn)),
            Number::new(0x8765, msn),
        )
    }
}

/// The contents of the packet of this number.
fn bytes(msn: u16) -> Vec<u8> {
    let len = match msn % 8 {
        0 => MAX_PACKET - usize::from(msn % 100),
        _ => usize::from(msn % 97),
    };
    (0..len).map(|at| (at as u16 ^ msn) as u8).collect()
}

fn send(writer: &Writer, msn: u16) -> Result<(), Send> {
    let bytes = bytes(msn);
    let (head, tail) = bytes.split_at(bytes.len() / 3);
    let pieces = [head, tail].map(|part| (part.as_ptr(), part.len()));
    // SAFETY: the bytes of a vector.
    unsafe { turn(writer).send(1, bytes.len(), |_| header(msn), 0, &pieces) }
}

/// A packet of one line.
fn send_one(writer: &Writer, incarnation: u64, msn: u16) -> Result<(), Send> {
    turn(writer).send_line(incarnation, 0, |_| header(msn))
}

fn assert_next(reader: &Reader, msn: u16) -> bool {
    let mut copy = [0; MAX_PACKET];
    let Some(packet) = reader.next(&mut copy).unwrap() else {
        return false;
    };
    assert_peeked(reader, msn);
    let expected = header(msn);
    assert_eq!(packet.bytes, bytes(msn), "{msn}");
    assert_eq!(packet.kind, Kind::Request);
    assert_eq!(packet.header.name, expected.name);
    assert_eq!(packet.header.number, expected.number);
    assert_eq!(packet.header.ack, expected.ack);
    assert_eq!(packet.header.flags, expected.flags);
    assert_eq!(packet.header.short, expected.short);
    let len = packet.bytes.len();
    reader.done(len, msn.is_multiple_of(5));
    true
}

/// The same by its first line, and where it is.
fn assert_peeked(reader: &Reader, msn: u16) {
    let line = reader.next_line().expect("just seen");
    let (expected, bytes) = (header(msn), bytes(msn));
    let of_line = (line.name(), line.number(), line.ack());
    assert_eq!(of_line, (expected.name, expected.number, expected.ack));
    assert_eq!(line.whole_name(), expected.name);
    let size = line.size();
    let of_size = (size.flags(), size.len(), size.short());
    let short = usize::from(expected.short);
    assert_eq!(of_size, (expected.flags, bytes.len(), short));
    for (at, pair) in bytes.as_chunks().0.iter().enumerate().take(5) {
        assert_eq!(line.wide(at * 8), u64::from_ne_bytes(*pair), "{msn} {at}");
    }
    for (at, pair) in bytes.as_chunks().0.iter().enumerate() {
        assert_eq!(
            line.wide_in(at * 8),
            u64::from_ne_bytes(*pair),
            "{msn} {at}"
        );
    }
    for at in [0, 20, bytes.len() / 2] {
        let at = at.min(bytes.len());
        let parts = reader.place(at, bytes.len() - at).expect("not too long");
        // SAFETY: the packet has not been released, so its writer does not write.
        let there = parts.map(|(from, len)| unsafe { std::slice::from_raw_parts(from, len) });
        assert_eq!(there.concat(), bytes[at..], "{msn}");
    }
    assert!(reader.place(0, MAX_PACKET + 1).is_none());
}

#[test]
fn packets_arrive_whole_and_in_order() {
    let (_ours, _theirs, writer, reader) = wire();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for msn in 0..u16::MAX {
                while send(&writer, msn) == Err(Send::Full) {
                    std::thread::yield_now();
                }
            }
        });
        for msn in 0..u16::MAX {
            while !assert_next(&reader, msn) {
                reader.publish();
                std::thread::yield_now();
            }
        }
    });
    reader.publish();
    assert!(!reader.ready() && writer.all_read());
}

/// Of what is in front of the data only the first line is the sender's to write; the data is behind all of it, wherever
/// the ring's end is.
#[test]
fn data_is_where_it_belongs_at_each_place_of_the_ring() {
    let (_ours, _theirs, writer, reader) = wire();
    let mut copy = [0; MAX_PACKET];
    for round in 0..2 * LINES as u16 {
        // Of one to four lines, so that packets end at each line.
        let data: Vec<u8> = (0..round % 149).map(|at| (at ^ round) as u8).collect();
        let at = [16, 20, 32, 36, 48][usize::from(round % 5)];
        let words = IN_LINE.min(at) / 4;
        let first = |front: Front| {
            (0..words).for_each(|word| front.set_word(word, word as u32 + u32::from(round)));
            header(round)
        };
        // In one piece, or in three, of which some are empty.
        let (one, rest) = data.split_at(data.len() / 3);
        let (two, three) = rest.split_at(rest.len() / 2);
        let pieces = [&data, one, two, three].map(|piece| (piece.as_ptr(), piece.len()));
        let pieces = match round % 3 {
            0 => &pieces[..1],
            _ => &pieces[1..],
        };
        let len = at + data.len();
        // SAFETY: the bytes of a vector.
        assert!(unsafe { turn(&writer).send(1, len, first, at, pieces) }.is_ok());
        let packet = reader.next(&mut copy).unwrap().expect("just sent");
        assert_eq!(packet.bytes[at..], data, "{round}");
        for (word, bytes) in packet.bytes.as_chunks().0[..words].iter().enumerate() {
            assert_eq!(u32::from_ne_bytes(*bytes), word as u32 + u32::from(round));
        }
        reader.done(len, true);
    }
    assert!(writer.all_read());
}

#[test]
fn requests_leave_room_for_answers() {
    let (_ours, _theirs, writer, reader) = wire();
    let mut sent = 0;
    while send(&writer, 1).is_ok() {
        sent += 1;
    }
    assert!(sent > 1000);
    let answer = || {
        let header = Header::of(Name::new(Kind::Answer, 7), Number::NONE);
        turn(&writer).answer_line(1, |_| (0, header))
    };
    let acks = || {
        let header = Header::of(Name::new(Kind::Acks, 0), Number::NONE);
        turn(&writer).answer_line(1, |front| {
            front.set(0, 1);
            front.set(1, 2);
            (16, header)
        })
    };
    for _ in 0..FOR_ANSWERS / 2 {
        assert_eq!((answer(), acks()), (Ok(()), Ok(())));
    }
    assert_eq!((answer(), acks()), (Err(Send::Full), Err(Send::Full)));
    assert!(!writer.all_read());
    let mut copy = [0; MAX_PACKET];
    while let Some(packet) = reader.next(&mut copy).unwrap() {
        if packet.kind == Kind::Acks {
            let both = packet.bytes.as_chunks().0.iter();
            assert!(both.map(|bits| u64::from_ne_bytes(*bits)).eq([1, 2]));
        }
        let len = packet.bytes.len();
        reader.done(len, true);
    }
    assert_eq!(send(&writer, 1), Ok(()));
}

#[test]
fn another_link_gets_nothing() {
    let (_ours, _theirs, writer, reader) = wire();
    let send = |incarnation| send_one(&writer, incarnation, 0);
    assert_eq!(send(2), Err(Send::Gone));
    turn(&writer).restart(0, true);
    assert_eq!(send(0), Err(Send::Gone));
    assert!(!reader.ready());
}

/// Whatever a peer writes beside the two numbers, it cannot stand for another node.
#[test]
fn a_name_has_no_lid() {
    let (ours, _theirs, writer, reader) = wire();
    send_one(&writer, 1, 7).unwrap();
    let request = u64::from(Kind::Request as u8) << 56;
    let numbers = 0x0012_3456_00ab_0007;
    let name = || reader.next_line().expect("just sent").name();
    for beside in [0, 0xff00_0000] {
        // Relaxed: one thread.
        wide(ours.start(), line(0) + NAME).store(request | beside | numbers, Ordering::Relaxed);
        assert_eq!(name().bits(), request | numbers, "{beside:#x}");
    }
    // Of another kind, it is none of a request.
    wide(ours.start(), line(0) + NAME).store(0xbf << 56 | numbers, Ordering::Relaxed);
    assert_ne!(name().bits(), request | numbers);
}

#[test]
fn garbage_is_refused() {
    for (at, value) in [
        (NAME + 4, 0),
        (NAME + 4, 9 << 24),
        (SIZE, Size::new(MAX_PACKET + 1, 0, 0).bits()),
        (SIZE, Size::new(0xffff, 0, 0).bits()),
    ] {
        let (ours, _theirs, writer, reader) = wire();
        send(&writer, 1).unwrap();
        // Relaxed: one thread.
        word(ours.start(), line(0) + at).store(value, Ordering::Relaxed);
        assert!(
            reader.next(&mut [0; MAX_PACKET]).is_err(),
            "{at} {value:#x}"
        );
    }
}

/// Of the lines behind the last packet, none looks like the next one, whatever was there before, and however far the
/// positions have come: they wrap round, and zero is one of them.
#[test]
fn nothing_follows_the_last_packet() {
    let (ours, _theirs, writer, reader) = wire();
    for start in [START, 0_u32.wrapping_sub(3 * LINES / 2)] {
        writer.position.store(start, Ordering::Relaxed);
        reader.position.store(start, Ordering::Relaxed);
        for at in 0..2 {
            // As those before have left it.
            let behind = start.wrapping_add(at);
            word(ours.start(), line(behind)).store(behind.wrapping_sub(1), Ordering::Relaxed);
        }
        for round in 0..3 * LINES {
            // SAFETY: this thread has the turn.
            unsafe { (*writer.at.get()).end = writer.position.load(Ordering::Relaxed) };
            reader.publish();
            // Of one to three lines.
            let len = round as usize % 3 * LINE;
            assert!(!reader.ready() && reader.next_line().is_none(), "{round}");
            // SAFETY: no piece.
            unsafe { turn(&writer).send(1, len, |_| header(0), 0, &[]) }.unwrap();
            assert!(reader.ready());
            let line = reader.next_line().expect("just sent");
            assert!(!reader.is_at(line.done(len)));
        }
    }
}

/// A peer that reads nothing takes the lines of its own ring, whatever it says that it has read: the sender waits for it,
/// and for no other peer.
#[test]
fn a_peer_that_reads_nothing_has_one_ring() {
    let (_ours, theirs, silent, _) = wire();
    let (_window, _other, honest, reader) = wire();
    // Of one line each.
    let msn = |at: u32| 1 + 8 * (at % 4) as u16;
    let read = |at: u32| word(theirs.start(), 0).store(START.wrapping_add(at), Ordering::Release);
    let mut sent = 0;
    for round in 0..2 * LINES {
        match send(&silent, msn(round)) {
            Ok(()) => sent += 1,
            Err(error) => assert_eq!(error, Send::Full),
        }
        send(&honest, msn(round)).expect("it reads");
        assert!(assert_next(&reader, msn(round)));
    }
    assert!((LINES / 2..=LINES).contains(&sent), "{sent}");
    // What was never written, and what was written long ago.
    for lie in [LINES, 1 << 30, 0_u32.wrapping_sub(LINES)] {
        read(lie);
        assert_eq!(send(&silent, 1), Err(Send::Full), "{lie}");
    }
    read(sent);
    assert_eq!(send(&silent, 1), Ok(()));
}
