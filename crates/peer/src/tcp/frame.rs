//! Messages on a TCP connection. Pure: it knows neither sockets nor jobs.
//!
//! A frame is a header of fixed size and a body, which is one [`WireMessage`]; the bytes of samples
//! follow it. Header and body have a checksum each, so a length is checked before it decides how
//! much is read. Samples travel with their digest, which their user checks. Lengths are bounded: a
//! frame beyond a limit ends the connection.

use crate::wire::WireMessage;

/// Bytes of a header: the body's length, its checksum, and the checksum of these two.
pub const HEADER: usize = 12;
/// Samples in one request. More are asked for in several requests.
pub const ASKS: usize = 8 << 10;
/// Samples in one frame of pushes.
pub const PUSHES: usize = 4 << 10;
/// Bytes of all pushes of one frame. A larger sample has a frame to itself.
pub const TOGETHER: usize = 1 << 20;
/// Samples in one notice.
pub const NAMES: usize = 16 << 10;
/// The longest body: as many replies as a request may have asks, of at most 32 bytes each.
pub const BODY: usize = ASKS * 32;

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The header is damaged.
    #[error("a frame header that does not match its checksum")]
    Header,
    /// The body is damaged.
    #[error("a frame body that does not match its checksum")]
    Body,
    /// The body would exceed [`BODY`].
    #[error("a frame of {0} bytes, of which at most {BODY} are allowed")]
    TooLong(u32),
    /// The checksums match, but the body is not one message.
    #[error("a frame that is not a message")]
    NoMessage,
}

/// What a header says of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The body's length in bytes.
    pub body: u32,
    checksum: u32,
}

impl FrameHeader {
    /// Reads and checks a header.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, FrameError> {
        let [body, checksum, own] = std::array::from_fn(|at| {
            u32::from_le_bytes(std::array::from_fn(|byte| bytes[4 * at + byte]))
        });
        if crc32c::crc32c(&bytes[..HEADER - 4]) != own {
            return Err(FrameError::Header);
        }
        if body as usize > BODY {
            return Err(FrameError::TooLong(body));
        }
        Ok(Self { body, checksum })
    }

    /// Checks and decodes the body that follows the header.
    pub fn message(self, body: &[u8]) -> Result<WireMessage<'static>, FrameError> {
        if crc32c::crc32c(body) != self.checksum {
            return Err(FrameError::Body);
        }
        match WireMessage::decode(body) {
            Some((message, [])) => Ok(message),
            _ => Err(FrameError::NoMessage),
        }
    }
}

/// Replaces what is in `frame` by a message with its header.
pub fn write(frame: &mut Vec<u8>, message: &WireMessage<'_>) {
    frame.clear();
    frame.resize(HEADER, 0);
    message.encode(frame);
    seal(frame);
}

/// Writes the header of a frame whose body is in place.
pub fn seal(frame: &mut [u8]) {
    let (header, body) = frame.split_at_mut(HEADER);
    header[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[4..8].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    let own = crc32c::crc32c(&header[..8]);
    header[8..].copy_from_slice(&own.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::message::Channel;
    use crate::wire::tests::messages;
    use crate::wire::{PushHeader, ReplyHeader};

    fn read(frame: &[u8]) -> Result<WireMessage<'static>, FrameError> {
        let (header, body) = frame.split_first_chunk().unwrap();
        FrameHeader::decode(header)?.message(body)
    }

    proptest! {
        #[test]
        fn a_message_comes_out_of_its_frame(message in messages()) {
            let mut frame = vec![];
            write(&mut frame, &message);
            prop_assert_eq!(read(&frame), Ok(message));
        }

        #[test]
        fn a_flipped_bit_is_noticed_before_the_message_is_decoded(
            message in messages(), flip in any::<prop::sample::Index>(),
        ) {
            let mut frame = vec![];
            write(&mut frame, &message);
            let bit = flip.index(8 * frame.len());
            frame[bit / 8] ^= 1 << (bit % 8);
            let error = if bit < 8 * HEADER { FrameError::Header } else { FrameError::Body };
            prop_assert_eq!(read(&frame), Err(error));
        }
    }

    #[test]
    fn the_largest_messages_fit_into_a_frame() {
        let (length, digest, version) = (u64::MAX, u64::MAX, i64::MIN);
        let reply = ReplyHeader::Here { length, digest, version };
        let push = PushHeader {
            sample: u32::MAX,
            tier: u8::MAX,
            epoch: u32::MAX,
            length,
            digest,
            version,
        };
        let channel = Channel(u32::MAX);
        let mut frame = vec![];
        for message in [
            WireMessage::Replies(vec![reply; ASKS]),
            WireMessage::Put { channel, pushes: vec![push; PUSHES] },
        ] {
            write(&mut frame, &message);
            assert_eq!(read(&frame), Ok(message));
        }
    }

    #[test]
    fn a_header_that_announces_too_long_a_body_is_refused() {
        let mut frame = vec![0; HEADER + BODY + 1];
        seal(&mut frame);
        assert_eq!(read(&frame), Err(FrameError::TooLong(BODY as u32 + 1)));
    }
}
