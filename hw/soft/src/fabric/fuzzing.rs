//! Parsers of a peer's bytes, for the fuzz targets.

use super::hello::Hello;
use super::segment::{HEADER, SEGMENT, Segments};
use super::window::Window;
use super::wire::{MAX_PACKET, Reader};
use std::cell::OnceCell;

/// A handshake.
pub fn hello(bytes: &[u8]) {
    if let Some(bytes) = bytes.first_chunk()
        && let Some(hello) = Hello::decode(bytes)
    {
        assert_eq!(Hello::decode(&hello.encode()), Some(hello));
    }
}

thread_local! {
    static WINDOWS: OnceCell<[Window; 2]> = const { OnceCell::new() };
}

/// A ring of packets that a peer wrote, read as far as it has packets.
pub fn wire(bytes: &[u8]) {
    WINDOWS.with(|windows| {
        let window = || Window::reserve(SEGMENT).expect("address space");
        let [ours, theirs] = windows.get_or_init(|| [window(), window()]);
        let room = &bytes[..bytes.len().min(SEGMENT - HEADER)];
        // SAFETY: the window has `SEGMENT` bytes, and only this thread uses it.
        unsafe {
            let lines = theirs.start().add(HEADER).as_ptr();
            lines.copy_from_nonoverlapping(room.as_ptr(), room.len());
        }
        let reader = Reader::new(Segments::new(ours, theirs));
        let mut packet = [0; MAX_PACKET];
        while let Ok(Some(packet)) = reader.next(&mut packet) {
            reader.done(packet.bytes.len(), true);
        }
        // SAFETY: as above. What this input has written is not there for the next.
        unsafe {
            let lines = theirs.start().add(HEADER).as_ptr();
            lines.write_bytes(0, room.len());
        }
    });
}
