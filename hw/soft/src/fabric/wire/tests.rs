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
    writer.restart(1);
    (ours, theirs, writer, reader)
}

fn header(msn: u16) -> Header {
    Header {
        kind: Kind::Request,
        dst: 0x12_3456,
        msn,
        life: 0x8765,
        taken: (!msn.is_multiple_of(3)).then_some((msn, !msn)),
        flags: msn as u8,
        short: msn as u8 & 0x7f,
        src: 0xab_0000 | u32::from(msn),
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
    writer.send(1, header(msn), bytes.len(), |room| {
        for part in [head, tail] {
            // SAFETY: a slice.
            unsafe { room.put(part.as_ptr(), part.len()) };
        }
    })
}

fn assert_next(reader: &Reader, msn: u16) -> bool {
    let mut copy = [0; MAX_PACKET];
    let Some(packet) = reader.next(&mut copy).unwrap() else {
        return false;
    };
    assert_peeked(reader, msn);
    let expected = header(msn);
    assert_eq!(packet.bytes, bytes(msn), "{msn}");
    assert_eq!(packet.header.msn, msn);
    assert_eq!(packet.header.dst, expected.dst);
    assert_eq!(packet.header.src, expected.src);
    assert_eq!(packet.header.life, expected.life);
    assert_eq!(packet.header.taken, expected.taken);
    assert_eq!(packet.header.flags, expected.flags);
    assert_eq!(packet.header.short, expected.short);
    let len = packet.bytes.len();
    reader.done(len, msn.is_multiple_of(5));
    true
}

/// The same by its first line, and where it is.
fn assert_peeked(reader: &Reader, msn: u16) {
    let line = reader.first().copy();
    let (expected, bytes) = (header(msn), bytes(msn));
    assert!(line.is(Kind::Request) && !line.is(Kind::Answer));
    let (number, taken) = (line.number(), line.taken());
    let of_line = (line.dst(), number.msn(), number.life(), taken);
    assert_eq!(of_line, (expected.dst, msn, expected.life, expected.taken));
    assert_eq!((line.flags(), line.len()), (expected.flags, bytes.len()));
    for (at, word) in bytes.as_chunks().0.iter().enumerate().take(10) {
        assert_eq!(line.at(at * 4), u32::from_ne_bytes(*word), "{msn} {at}");
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
        assert!(unsafe { writer.send_data::<true>(1, len, first, at, pieces) });
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
    let answer = Header {
        kind: Kind::Answer,
        ..header(0)
    };
    for _ in 0..FOR_ANSWERS {
        assert_eq!(writer.send(1, answer, 0, |_| {}), Ok(()));
    }
    assert_eq!(writer.send(1, answer, 0, |_| {}), Err(Send::Full));
    assert!(!writer.all_read());
    let mut copy = [0; MAX_PACKET];
    while let Some(packet) = reader.next(&mut copy).unwrap() {
        let len = packet.bytes.len();
        reader.done(len, true);
    }
    assert_eq!(send(&writer, 1), Ok(()));
}

#[test]
fn another_link_gets_nothing() {
    let (_ours, _theirs, writer, reader) = wire();
    assert_eq!(writer.send(2, header(0), 0, |_| {}), Err(Send::Gone));
    writer.restart(0);
    assert_eq!(writer.send(0, header(0), 0, |_| {}), Err(Send::Gone));
    assert!(!reader.ready());
}

/// Whatever a peer writes beside the two numbers, it cannot stand for another node.
#[test]
fn a_name_has_no_lid() {
    let (ours, _theirs, writer, reader) = wire();
    writer.send(1, header(7), 0, |_| {}).unwrap();
    let request = u64::from(Kind::Request as u8) << 56;
    let numbers = 0x0012_3456_00ab_0007;
    for beside in [0, 0xff00_0000, 0xbf << 56, 0xbf00_0000_ff00_0000] {
        // Relaxed: one thread.
        wide(ours.start(), line(0) + NAME).store(request | beside | numbers, Ordering::Relaxed);
        assert_eq!(reader.first().name(), request | numbers, "{beside:#x}");
    }
    // Of another kind, it is none of a request.
    wide(ours.start(), line(0) + NAME).store(0xbf << 56 | numbers, Ordering::Relaxed);
    assert_eq!(reader.first().name(), numbers);
}

#[test]
fn garbage_is_refused() {
    for (at, value) in [
        (NAME + 4, 0),
        (NAME + 4, 9 << 24),
        (SIZE, MAX_PACKET as u32 + 1),
        (SIZE, 0xffff),
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
