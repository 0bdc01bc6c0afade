//! What is said on a connection, as bytes. Pure: it knows neither sockets nor jobs.
//!
//! A frame is a head of fixed size, a body of entries that the head counts, and, for frames that carry
//! samples, their bytes one after another, of the lengths that the entries say. Head and body have a
//! checksum each, so what decides how much is read next is never taken on trust; samples travel with
//! their digest, which is for their user to check. Numbers are little-endian. Everything is bounded:
//! whoever says more than these limits is not one of us.

use crate::transport::{Answer, Ask, Notice, Push, Taken};

/// Bytes of a head.
pub const HEAD: usize = 28;
/// Samples that one request names. More are asked for in several.
pub const ASKS: usize = 8 << 10;
/// Samples that one frame of pushes has.
pub const PUSHES: usize = 4 << 10;
/// Bytes of the pushes of one frame together; a larger one has a frame of its own.
pub const TOGETHER: usize = 1 << 20;
/// Samples that one notice names.
pub const NAMES: usize = 16 << 10;
/// No body is longer: that of as many replies as a request has asks.
pub const BODY: usize = ASKS * ENTRY;
/// Bytes of an entry of a reply.
const ENTRY: usize = 25;
/// Bytes of an entry of pushes.
const PUSH: usize = 29;
/// Bytes of an entry of a request.
const ASK: usize = 5;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Get = 1,
    Put = 2,
    Tell = 3,
    Replies = 4,
    Taken = 5,
    Heard = 6,
    /// The first frame of the one who listens: go ahead.
    Welcome = 7,
    /// Or: there are too many connections of yours.
    Full = 8,
}

impl Kind {
    const ALL: [Self; 8] = [
        Self::Get,
        Self::Put,
        Self::Tell,
        Self::Replies,
        Self::Taken,
        Self::Heard,
        Self::Welcome,
        Self::Full,
    ];
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("the head of a frame does not match its checksum")]
    Head,
    #[error("the body of a frame does not match its checksum")]
    Body,
    #[error("a frame of kind {0}, which there is not")]
    Kind(u8),
    #[error("a frame of {0} bytes, which is more than {BODY}")]
    TooLong(usize),
    #[error("a frame whose {0} entries do not fill its {1} bytes, or are too many")]
    Count(usize, usize),
    #[error("{0} pushes of {1} bytes in one frame, which together may have {TOGETHER}")]
    Together(usize, u64),
    #[error("an entry that means nothing")]
    Entry,
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub kind: Kind,
    pub channel: u32,
    pub epoch: u32,
    /// Entries of the body.
    pub count: u32,
    /// Bytes of the body.
    pub body: u32,
    /// What the body adds up to.
    pub checksum: u32,
}

impl Head {
    pub fn decode(bytes: &[u8; HEAD]) -> Result<Self, FrameError> {
        let words: [u32; 7] = std::array::from_fn(|at| word(bytes, 4 * at));
        let [kind, channel, epoch, count, body, checksum, own] = words;
        if crc32c::crc32c(&bytes[..HEAD - 4]) != own {
            return Err(FrameError::Head);
        }
        let known = Kind::ALL.into_iter().find(|&known| known as u32 == kind);
        let kind = known.ok_or(FrameError::Kind(kind as u8))?;
        if body as usize > BODY {
            return Err(FrameError::TooLong(body as usize));
        }
        Ok(Self { kind, channel, epoch, count, body, checksum })
    }

    /// Whether this is its body.
    pub fn check(&self, body: &[u8]) -> Result<(), FrameError> {
        if crc32c::crc32c(body) == self.checksum { Ok(()) } else { Err(FrameError::Body) }
    }

    /// How many entries of so many bytes fill the body, of which there may be `most`.
    fn entries(&self, body: &[u8], bytes: usize, most: usize) -> Result<usize, FrameError> {
        let count = self.count as usize;
        if count == 0 || count > most || count * bytes != body.len() {
            return Err(FrameError::Count(count, body.len()));
        }
        Ok(count)
    }
}

/// Writes a frame anew, up to where the bytes of samples follow.
#[derive(Debug, Default)]
pub struct Writer {
    frame: Vec<u8>,
    count: u32,
}

impl Writer {
    /// Forgets the last frame.
    pub fn begin(&mut self) {
        self.frame.clear();
        self.frame.resize(HEAD, 0);
        self.count = 0;
    }

    pub fn ask(&mut self, ask: Ask) {
        self.frame.extend(ask.sample.to_le_bytes());
        self.frame.push(ask.last_use.into());
        self.count += 1;
    }

    pub fn reply(&mut self, length: u64, answer: Answer) {
        let (kind, digest, version) = match answer {
            Answer::Here { digest, version } => (0, digest, version),
            Answer::NotHere => (1, 0, 0),
            Answer::NotYet => (2, 0, 0),
            Answer::Busy => (3, 0, 0),
        };
        self.frame.push(kind);
        self.frame.extend(length.to_le_bytes());
        self.frame.extend(digest.to_le_bytes());
        self.frame.extend(version.to_le_bytes());
        self.count += 1;
    }

    pub fn push(&mut self, push: &Push<'_>) {
        self.frame.extend(push.sample.to_le_bytes());
        self.frame.push(push.tier);
        self.frame.extend((push.bytes.len() as u64).to_le_bytes());
        self.frame.extend(push.digest.to_le_bytes());
        self.frame.extend(push.version.to_le_bytes());
        self.count += 1;
    }

    pub fn taken(&mut self, taken: Taken) {
        self.frame.push(match taken {
            Taken::Stored => 0,
            Taken::NoRoom => 1,
            Taken::Refused => 2,
        });
        self.count += 1;
    }

    /// A notice, of at most [`NAMES`] samples.
    pub fn notice(&mut self, notice: &Notice) {
        let (kind, numbers) = match notice {
            Notice::EpochDone { epoch } => (0, vec![*epoch]),
            Notice::Released { epoch, samples } => {
                (1, [std::slice::from_ref(epoch), samples].concat())
            }
            Notice::Loaded { steps } => (2, vec![*steps as u32, (*steps >> 32) as u32]),
            // An entry at least, as in every frame.
            Notice::Left => (3, vec![0]),
        };
        self.frame.push(kind);
        self.frame.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        self.count = numbers.len() as u32;
    }

    /// The frame, complete.
    pub fn end(&mut self, kind: Kind, channel: u32, epoch: u32) -> &[u8] {
        let (head, body) = self.frame.split_at_mut(HEAD);
        let checksum = crc32c::crc32c(body);
        let words = [kind as u32, channel, epoch, self.count, body.len() as u32, checksum];
        for (place, word) in head.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let own = crc32c::crc32c(&head[..HEAD - 4]);
        head[HEAD - 4..].copy_from_slice(&own.to_le_bytes());
        &self.frame
    }
}

/// The samples that a request names.
pub fn asks(head: &Head, body: &[u8], into: &mut Vec<Ask>) -> Result<(), FrameError> {
    head.entries(body, ASK, ASKS)?;
    into.clear();
    for entry in body.chunks_exact(ASK) {
        let last_use = flag(entry[4])?;
        into.push(Ask { sample: word(entry, 0), last_use });
    }
    Ok(())
}

/// How many samples a frame answers, when so many are still to be answered.
pub fn replies(head: &Head, body: &[u8], open: usize) -> Result<usize, FrameError> {
    head.entries(body, ENTRY, open)
}

/// The `at`th reply of a frame, and how many bytes it has.
pub fn reply(body: &[u8], at: usize) -> Result<(u64, Answer), FrameError> {
    let entry = &body[at * ENTRY..][..ENTRY];
    let (length, digest, version) = (long(entry, 1), long(entry, 9), long(entry, 17).cast_signed());
    let answer = match entry[0] {
        0 => Answer::Here { digest, version },
        1 => Answer::NotHere,
        2 => Answer::NotYet,
        3 => Answer::Busy,
        _ => return Err(FrameError::Entry),
    };
    if length > 0 && !matches!(answer, Answer::Here { .. }) {
        return Err(FrameError::Entry);
    }
    Ok((length, answer))
}

/// A push whose bytes are still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coming {
    pub sample: u32,
    pub tier: u8,
    pub length: u64,
    pub digest: u64,
    pub version: i64,
}

/// The pushes of a frame, and how many bytes they have together.
pub fn pushes(head: &Head, body: &[u8]) -> Result<(Vec<Coming>, u64), FrameError> {
    head.entries(body, PUSH, PUSHES)?;
    let coming = body.chunks_exact(PUSH).map(|entry| Coming {
        sample: word(entry, 0),
        tier: entry[4],
        length: long(entry, 5),
        digest: long(entry, 13),
        version: long(entry, 21).cast_signed(),
    });
    let coming: Vec<_> = coming.collect();
    let sum = |sum: u64, push: &Coming| sum.checked_add(push.length);
    let bytes = coming.iter().try_fold(0, sum).ok_or(FrameError::Entry)?;
    if coming.len() > 1 && bytes > TOGETHER as u64 {
        return Err(FrameError::Together(coming.len(), bytes));
    }
    Ok((coming, bytes))
}

/// What became of pushes, of which there were so many.
pub fn taken(
    head: &Head,
    body: &[u8],
    pushes: usize,
    into: &mut Vec<Taken>,
) -> Result<(), FrameError> {
    if head.entries(body, 1, PUSHES)? != pushes {
        return Err(FrameError::Count(head.count as usize, body.len()));
    }
    for &entry in body {
        into.push(match entry {
            0 => Taken::Stored,
            1 => Taken::NoRoom,
            2 => Taken::Refused,
            _ => return Err(FrameError::Entry),
        });
    }
    Ok(())
}

pub fn notice(head: &Head, body: &[u8]) -> Result<Notice, FrameError> {
    let (&kind, numbers) = body.split_first().ok_or(FrameError::Entry)?;
    let count = head.entries(numbers, 4, NAMES + 1)?;
    match (kind, count) {
        (0, 1) => Ok(Notice::EpochDone { epoch: word(numbers, 0) }),
        (1, _) => {
            let samples = numbers.chunks_exact(4).skip(1).map(|number| word(number, 0)).collect();
            Ok(Notice::Released { epoch: word(numbers, 0), samples })
        }
        (2, 2) => Ok(Notice::Loaded { steps: long(numbers, 0) }),
        (3, 1) => Ok(Notice::Left),
        _ => Err(FrameError::Entry),
    }
}

fn flag(byte: u8) -> Result<bool, FrameError> {
    if byte < 2 { Ok(byte == 1) } else { Err(FrameError::Entry) }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head_and_body(frame: &[u8]) -> (Head, &[u8]) {
        let (head, body) = frame.split_first_chunk().unwrap();
        let head = Head::decode(head).unwrap();
        assert_eq!(head.body as usize, body.len());
        head.check(body).unwrap();
        (head, body)
    }

    fn any_answer() -> impl Strategy<Value = (u64, Answer)> {
        prop_oneof![
            any::<(u64, u64, i64)>()
                .prop_map(|(length, digest, version)| (length, Answer::Here { digest, version })),
            Just((0, Answer::NotHere)),
            Just((0, Answer::NotYet)),
            Just((0, Answer::Busy)),
        ]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            numbers in any::<(u32, u32)>(),
            wanted in prop::collection::vec(any::<(u32, bool)>(), 1..50),
            answers in prop::collection::vec(any_answer(), 1..50),
            pushed in prop::collection::vec((any::<u32>(), any::<u8>(), any::<(u64, i64)>(), 0..99u64), 1..50),
            released in any::<bool>(),
        ) {
            let mut writer = Writer::default();
            writer.begin();
            let wanted: Vec<_> = wanted.into_iter()
                .map(|(sample, last_use)| Ask { sample, last_use }).collect();
            for &ask in &wanted {
                writer.ask(ask);
            }
            let (head, body) = head_and_body(writer.end(Kind::Get, numbers.0, numbers.1));
            prop_assert_eq!((head.kind, head.channel, head.epoch), (Kind::Get, numbers.0, numbers.1));
            let mut read = vec![];
            asks(&head, body, &mut read).unwrap();
            prop_assert_eq!(&read, &wanted);

            writer.begin();
            for &(length, answer) in &answers {
                writer.reply(length, answer);
            }
            let (head, body) = head_and_body(writer.end(Kind::Replies, 0, 0));
            prop_assert_eq!(replies(&head, body, answers.len()), Ok(answers.len()));
            prop_assert!(replies(&head, body, answers.len() - 1).is_err(), "more than was asked");
            for (at, answer) in answers.iter().enumerate() {
                prop_assert_eq!(reply(body, at).unwrap(), *answer);
            }

            let bytes = [1; 99];
            writer.begin();
            for &(sample, tier, (digest, version), length) in &pushed {
                // The epoch is the frame's.
                let bytes = &bytes[..length as usize];
                writer.push(&Push { sample, tier, epoch: 0, digest, version, bytes });
            }
            let (head, body) = head_and_body(writer.end(Kind::Put, 0, numbers.1));
            prop_assert_eq!(head.epoch, numbers.1, "that of all pushes of a frame");
            let (coming, sum) = pushes(&head, body).unwrap();
            prop_assert_eq!(sum, pushed.iter().map(|push| push.3).sum::<u64>());
            let seen: Vec<_> = coming.iter().map(|push| (push.sample, push.tier, (push.digest, push.version), push.length)).collect();
            prop_assert_eq!(seen, pushed);

            let told = if released {
                let epoch = numbers.1;
                Notice::Released { epoch, samples: wanted.iter().map(|ask| ask.sample).collect() }
            } else {
                Notice::EpochDone { epoch: numbers.0 }
            };
            writer.begin();
            writer.notice(&told);
            let (head, body) = head_and_body(writer.end(Kind::Tell, 0, 0));
            prop_assert_eq!(notice(&head, body).unwrap(), told);
        }

        #[test]
        fn a_flipped_bit_is_seen_before_anything_is_made_of_it(
            wanted in prop::collection::vec(any::<u32>(), 1..20),
            flip in any::<prop::sample::Index>(),
        ) {
            let mut writer = Writer::default();
            writer.begin();
            for &sample in &wanted {
                writer.ask(Ask { sample, last_use: false });
            }
            let mut frame = writer.end(Kind::Get, 1, 2).to_vec();
            let bit = flip.index(8 * frame.len());
            frame[bit / 8] ^= 1 << (bit % 8);
            let (head, body) = frame.split_first_chunk().unwrap();
            if bit < 8 * HEAD {
                prop_assert_eq!(Head::decode(head), Err(FrameError::Head));
            } else {
                prop_assert_eq!(Head::decode(head).unwrap().check(body), Err(FrameError::Body));
            }
        }
    }

    /// A sample of 5 GiB, of which only the entry is made.
    #[test]
    fn lengths_above_4_gib_are_told_whole() {
        let mut writer = Writer::default();
        writer.begin();
        let (length, digest, version) = (5u64 << 30, 9, -2i64);
        writer.reply(length, Answer::Here { digest, version });
        let (head, body) = head_and_body(writer.end(Kind::Replies, 0, 0));
        assert_eq!(replies(&head, body, 1), Ok(1));
        assert_eq!(reply(body, 0), Ok((length, Answer::Here { digest, version })));
        let entry = |length: u64| {
            let (sample, tier) = (3u32.to_le_bytes(), [1]);
            let numbers = [length.to_le_bytes(), digest.to_le_bytes(), version.to_le_bytes()];
            [&sample[..], &tier, &numbers.concat()].concat()
        };
        let head = Head { kind: Kind::Put, channel: 0, epoch: 0, count: 1, body: 29, checksum: 0 };
        let coming = Coming { sample: 3, tier: 1, length, digest, version };
        assert_eq!(pushes(&head, &entry(length)), Ok((vec![coming], length)));
        let head = Head { count: 2, body: 58, ..head };
        let body = [entry(length), entry(length)].concat();
        assert_eq!(pushes(&head, &body), Err(FrameError::Together(2, 2 * length)));
        let body = [entry(u64::MAX), entry(1)].concat();
        assert_eq!(pushes(&head, &body), Err(FrameError::Entry), "more than there can be");
    }

    #[test]
    fn all_outcomes_of_pushes_are_told_and_none_is_missing() {
        let all = [Taken::Stored, Taken::NoRoom, Taken::Refused];
        let mut writer = Writer::default();
        writer.begin();
        for taken in all {
            writer.taken(taken);
        }
        let (head, body) = head_and_body(writer.end(Kind::Taken, 0, 0));
        let mut read = vec![];
        taken(&head, body, 3, &mut read).unwrap();
        assert_eq!(read, all);
        assert_eq!(taken(&head, body, 2, &mut read), Err(FrameError::Count(3, 3)));
    }
}
