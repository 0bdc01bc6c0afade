//! What the library tells the launcher through a pipe. A message is written at once and is shorter
//! than `PIPE_BUF`, so messages of several processes never mix, and one who is killed leaves no
//! half of one.

use crate::path::LONGEST;

/// Before the name: its length, and the kind.
const HEAD: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// This file was opened and has no copy.
    Want(&'a [u8]),
    /// A copy is no longer to be used. Which one is on the board.
    Dropped,
}

impl Message<'_> {
    const WANT: u8 = 1;
    const DROPPED: u8 = 2;

    /// None if it is too long.
    pub fn encode<'b>(&self, room: &'b mut [u8; LONGEST]) -> Option<&'b [u8]> {
        let (kind, name) = match self {
            Self::Want(name) => (Self::WANT, *name),
            Self::Dropped => (Self::DROPPED, &b""[..]),
        };
        let end = HEAD + name.len();
        let length = u16::try_from(name.len()).ok()?.to_le_bytes();
        let place = room.get_mut(..end)?;
        place[..2].copy_from_slice(&length);
        place[2] = kind;
        place[HEAD..].copy_from_slice(name);
        Some(place)
    }

    /// The message that `bytes` begin with and its length, if all of it is there. Who could
    /// write anything else is the user's own program; then nothing more is understood.
    pub fn decode(bytes: &[u8]) -> Option<(Message<'_>, usize)> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let name = rest.get(..usize::from(u16::from_le_bytes([head[0], head[1]])))?;
        let message = match head[2] {
            Self::WANT => Message::Want(name),
            _ => Message::Dropped,
        };
        Some((message, HEAD + name.len()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(names in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..9)) {
            let mut pipe = vec![];
            for name in &names {
                pipe.extend_from_slice(Message::Want(name).encode(&mut [0; LONGEST]).unwrap());
                pipe.extend_from_slice(Message::Dropped.encode(&mut [0; LONGEST]).unwrap());
            }
            let mut rest = &pipe[..];
            for name in &names {
                for wanted in [Message::Want(name), Message::Dropped] {
                    let (message, length) = Message::decode(rest).unwrap();
                    prop_assert_eq!(message, wanted);
                    rest = &rest[length..];
                }
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..50)) {
            if let Some((_, length)) = Message::decode(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }

    #[test]
    fn a_part_is_not_yet_a_message() {
        let mut room = [0; LONGEST];
        let whole = Message::Want(b"train/a.jpg").encode(&mut room).unwrap();
        assert_eq!(Message::decode(&whole[..whole.len() - 1]), None);
        assert_eq!(Message::Want(&[0; LONGEST]).encode(&mut [0; LONGEST]), None);
    }
}
