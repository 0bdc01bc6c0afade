//! Frames between nodes: whatever the bytes are, reading them ends, nothing is larger than the
//! limits, and a message that was read is read again from what it is written as.
//!
//! Fuzzers do not guess checksums. So the first byte chooses whether the rest is a frame as it is,
//! or gets its header first.

#![no_main]

use belady_peer::tcp::Address;
use belady_peer::tcp::frame::{self, FrameHeader, HEADER};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else { return };
    if let Some(address) = Address::from_bytes(rest) {
        assert_eq!(Address::from_bytes(&address.to_bytes()), Some(address));
    }
    let mut bytes = rest.to_vec();
    if choice & 1 == 1 && bytes.len() >= HEADER {
        frame::seal(&mut bytes);
    }
    let Some((header, body)) = bytes.split_first_chunk() else { return };
    let Ok(header) = FrameHeader::decode(header) else { return };
    assert!(header.body as usize <= frame::BODY);
    let Some(body) = body.get(..header.body as usize) else { return };
    let Ok(message) = header.message(body) else { return };
    let mut written = vec![];
    frame::write(&mut written, &message);
    let (header, body) = written.split_first_chunk().expect("a header");
    let header = FrameHeader::decode(header).expect("a header that is right");
    assert_eq!(header.message(body), Ok(message));
});
