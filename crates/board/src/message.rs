//! Messages from the shim to the launcher, through a pipe.
//!
//! A message is shorter than `PIPE_BUF` and written by one call. So messages of several processes
//! never mix, and a killed process leaves no partial message.

use crate::path::LONGEST;

/// Bytes before the name: its length, and the kind.
const PREFIX: usize = 3;

/// A message from the shim to the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShimMessage<'a> {
    /// The program opened this file, and the file has no copy.
    Want(&'a [u8]),
    /// A copy was dropped; the board says which.
    Dropped,
}

impl ShimMessage<'_> {
    const WANT: u8 = 1;
    const DROPPED: u8 = 2;

    /// Encodes the message; None if the name is too long.
    pub fn encode<'b>(&self, buffer: &'b mut [u8; LONGEST]) -> Option<&'b [u8]> {
        let (kind, name) = match self {
            Self::Want(name) => (Self::WANT, *name),
            Self::Dropped => (Self::DROPPED, &b""[..]),
        };
        let end = PREFIX + name.len();
        let length = u16::try_from(name.len()).ok()?.to_le_bytes();
        let into = buffer.get_mut(..end)?;
        into[..2].copy_from_slice(&length);
        into[2] = kind;
        into[PREFIX..].copy_from_slice(name);
        Some(into)
    }

    /// Decodes the message that `bytes` begin with, and returns its length. Returns None if it is
    /// not complete.
    pub fn decode(bytes: &[u8]) -> Option<(ShimMessage<'_>, usize)> {
        let (prefix, rest) = bytes.split_at_checked(PREFIX)?;
        let name = rest.get(..usize::from(u16::from_le_bytes([prefix[0], prefix[1]])))?;
        let message = match prefix[2] {
            Self::WANT => ShimMessage::Want(name),
            _ => ShimMessage::Dropped,
        };
        Some((message, PREFIX + name.len()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn encoded_messages_are_decoded_in_order(names in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..9)) {
            let mut pipe = vec![];
            for name in &names {
                pipe.extend_from_slice(ShimMessage::Want(name).encode(&mut [0; LONGEST]).unwrap());
                pipe.extend_from_slice(ShimMessage::Dropped.encode(&mut [0; LONGEST]).unwrap());
            }
            let mut rest = &pipe[..];
            for name in &names {
                for wanted in [ShimMessage::Want(name), ShimMessage::Dropped] {
                    let (message, length) = ShimMessage::decode(rest).unwrap();
                    prop_assert_eq!(message, wanted);
                    rest = &rest[length..];
                }
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn decoding_any_bytes_stays_within_them(bytes in prop::collection::vec(any::<u8>(), 0..50)) {
            if let Some((_, length)) = ShimMessage::decode(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }

    #[test]
    fn a_partial_or_too_long_message_is_none() {
        let mut buffer = [0; LONGEST];
        let whole = ShimMessage::Want(b"train/a.jpg").encode(&mut buffer).unwrap();
        assert_eq!(ShimMessage::decode(&whole[..whole.len() - 1]), None);
        assert_eq!(ShimMessage::Want(&[0; LONGEST]).encode(&mut [0; LONGEST]), None);
    }
}
