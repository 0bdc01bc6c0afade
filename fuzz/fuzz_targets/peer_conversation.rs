//! The side of a connection that listens: whatever is said to it, the conversation ends, and its answers
//! are whole frames in the order of the requests. Who has not the key gets first words at most.
//!
//! The first byte chooses: the handshake; requests as they are; or pieces of the input as frames with
//! right checksums.

#![no_main]

use std::io::{self, Read, Write};
use std::sync::{Arc, Weak};

use belady_data::memory::Memory;
use belady_peer::auth::{Role, prove};
use belady_peer::tcp::frame::{self, HEAD, Head, Kind};
use belady_peer::{
    Channel, Desk, Key, NodeId, Notice, Payload, Push, Reply, Request, Serve, Taken,
};
use libfuzzer_sys::fuzz_target;

/// What is said, and what is answered.
struct Tape<'a>(&'a [u8], &'a mut Vec<u8>);

impl Read for Tape<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Write for Tape<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Every kind of answer.
struct Job;

impl Serve for Job {
    fn get(&self, _: NodeId, request: &Request<'_>, limit: usize, replies: &mut Vec<Reply>) {
        let mut bytes = 0;
        for ask in request.asks {
            if bytes > limit {
                return;
            }
            let length = (ask.sample % 300) as usize;
            bytes += length;
            replies.push(match ask.sample % 5 {
                0 => Reply::NotHere,
                1 => Reply::NotYet,
                2 => Reply::Busy,
                _ => {
                    let bytes = Payload::Copied(Memory::zeroed(length));
                    Reply::Here { bytes, digest: 7, version: 8 }
                }
            });
        }
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<Taken>) {
        taken.extend(pushes.iter().map(|push| match push.bytes.len() % 3 {
            0 => Taken::Stored,
            1 => Taken::NoRoom,
            _ => Taken::Refused,
        }));
    }

    fn told(&self, _: NodeId, _: &Notice) {}
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else { return };
    let mut answers = vec![];
    match choice % 3 {
        0 => handshake(rest, &mut answers),
        1 => talk(rest, &mut answers),
        _ => talk(&frames(rest), &mut answers),
    }
});

fn handshake(said: &[u8], answers: &mut Vec<u8>) {
    let key = Key::from_text(&"5a".repeat(32)).expect("a key");
    // Nobody can prove that he has the key, since the number in the proof is fresh.
    assert!(prove(&mut Tape(said, answers), &key, Role::Listens, b"secret").is_err());
    assert!(answers.len() <= 43, "no more than first words and a no");
}

fn talk(said: &[u8], answers: &mut Vec<u8>) {
    let desk = Arc::new(Desk::default());
    let job: Arc<dyn Serve> = Arc::new(Job);
    let weak: Weak<dyn Serve> = Arc::downgrade(&job);
    let _serving = desk.open(Channel(0), weak);
    let _ = belady_peer::tcp::serve(Tape(said, answers), 1, &desk);
    check(answers);
}

/// Pieces of 64 bytes and less as frames, whatever they begin with.
fn frames(input: &[u8]) -> Vec<u8> {
    let mut said = vec![];
    for piece in input.chunks(64) {
        let (&[kind, count, samples, ..], Some(body)) = (piece, piece.get(3..)) else { break };
        let mut head = vec![];
        for word in [u32::from(kind % 9), 0, 0, count.into(), body.len() as u32] {
            head.extend(word.to_le_bytes());
        }
        head.extend(crc32c::crc32c(body).to_le_bytes());
        head.extend(crc32c::crc32c(&head).to_le_bytes());
        said.extend(head);
        said.extend(body);
        // What may be the bytes of pushes.
        said.extend(vec![7; samples as usize]);
    }
    said
}

/// All answers are whole.
fn check(mut answers: &[u8]) {
    while !answers.is_empty() {
        let (head, rest) = answers.split_first_chunk::<HEAD>().expect("a whole head");
        let head = Head::decode(head).expect("a right head");
        let (body, rest) = rest.split_at(head.body as usize);
        head.check(body).expect("a right body");
        let samples = match head.kind {
            Kind::Replies => {
                let count = frame::replies(&head, body, frame::ASKS).expect("replies");
                (0..count).map(|at| frame::reply(body, at).expect("a reply").0).sum()
            }
            Kind::Taken | Kind::Heard => 0,
            kind => panic!("{kind:?} is no answer"),
        };
        answers = &rest[samples as usize..];
    }
}
