//! The side of a connection that listens: whatever is said to it, the conversation ends, and its
//! answers are whole frames in the order of the requests. A client without the key gets first words
//! at most.
//!
//! The first byte chooses: the handshake; requests as they are; or pieces of the input as frames
//! with right checksums.

#![no_main]

use std::io::{self, Read, Write};
use std::sync::{Arc, Weak};

use belady_base::memory::Memory;
use belady_peer::auth::{Role, prove};
use belady_peer::tcp::frame::{self, FrameHeader, HEADER};
use belady_peer::wire::WireMessage;
use belady_peer::{
    Channel, Dispatcher, GetReply, GetRequest, Handler, JobKey, NodeId, Notice, Payload, Push,
    PushOutcome,
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

impl Handler for Job {
    fn get(&self, _: NodeId, request: &GetRequest<'_>, limit: usize, replies: &mut Vec<GetReply>) {
        let mut bytes = 0;
        for ask in request.asks {
            if bytes > limit {
                return;
            }
            let length = (ask.sample % 300) as usize;
            bytes += length;
            replies.push(match ask.sample % 5 {
                0 => GetReply::NotHere,
                1 => GetReply::NotYet,
                2 => GetReply::Busy,
                _ => {
                    let bytes = Payload::Copied(Memory::zeroed(length));
                    GetReply::Here { bytes, digest: 7, version: 8 }
                }
            });
        }
    }

    fn put(&self, _: NodeId, pushes: &[Push<'_>], taken: &mut Vec<PushOutcome>) {
        taken.extend(pushes.iter().map(|push| match push.bytes.len() % 3 {
            0 => PushOutcome::Stored,
            1 => PushOutcome::NoSpace,
            _ => PushOutcome::Refused,
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
    let key = JobKey::from_text(&"5a".repeat(32)).expect("a key");
    // Without the key no input can pass the proof, since its challenge is fresh.
    assert!(prove(&mut Tape(said, answers), &key, Role::Listens, b"secret").is_err());
    assert!(answers.len() <= 43, "no more than first words and a no");
}

fn talk(said: &[u8], answers: &mut Vec<u8>) {
    let dispatcher = Arc::new(Dispatcher::default());
    let job: Arc<dyn Handler> = Arc::new(Job);
    let weak: Weak<dyn Handler> = Arc::downgrade(&job);
    let _serving = dispatcher.register(Channel(0), weak);
    let _ = belady_peer::tcp::serve(Tape(said, answers), 1, &dispatcher);
    check(answers);
}

/// Pieces of 64 bytes and less as frames, each with bytes after it that may be those of pushes.
fn frames(input: &[u8]) -> Vec<u8> {
    let mut said = vec![];
    for piece in input.chunks(64) {
        let Some((&samples, body)) = piece.split_first() else { break };
        let mut frame = [&[0; HEADER], body].concat();
        frame::seal(&mut frame);
        said.extend(frame);
        said.extend(vec![7; samples as usize]);
    }
    said
}

/// All answers are whole frames.
fn check(mut answers: &[u8]) {
    while !answers.is_empty() {
        let (header, rest) = answers.split_first_chunk::<HEADER>().expect("a whole header");
        let header = FrameHeader::decode(header).expect("a right header");
        let (body, rest) = rest.split_at(header.body as usize);
        let samples: u64 = match header.message(body).expect("a message") {
            WireMessage::Replies(replies) => replies.iter().map(|reply| reply.length()).sum(),
            WireMessage::Outcomes(_) | WireMessage::Heard => 0,
            message => panic!("{message:?} is no answer"),
        };
        answers = &rest[samples as usize..];
    }
}
