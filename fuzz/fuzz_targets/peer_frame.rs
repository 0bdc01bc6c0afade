//! Frames between nodes: whatever the bytes are, reading them ends, nothing is larger than the limits,
//! and what was read is what would be written.
//!
//! Fuzzers do not guess checksums. So the first byte chooses whether the rest is a frame as it is, or
//! gets its checksums first.

#![no_main]

use belady_peer::tcp::frame::{self, HEAD, Head, Kind, Writer};
use belady_peer::tcp::Address;
use belady_peer::{Answer, Notice, Push};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else { return };
    if let Some(address) = Address::from_bytes(rest) {
        assert_eq!(address.to_bytes(), rest);
    }
    let mut bytes = rest.to_vec();
    if choice & 1 == 1 && bytes.len() >= HEAD {
        complete(&mut bytes);
    }
    let Some((head, body)) = bytes.split_first_chunk() else { return };
    let Ok(head) = Head::decode(head) else { return };
    assert!(head.body as usize <= frame::BODY);
    let Some(body) = body.get(..head.body as usize) else { return };
    if head.check(body).is_ok() {
        read(&head, body, &bytes);
    }
});

/// Gives a frame the length and the checksums that it should have.
fn complete(bytes: &mut [u8]) {
    let (head, body) = bytes.split_at_mut(HEAD);
    head[16..20].copy_from_slice(&(body.len() as u32).to_le_bytes());
    head[20..24].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    let own = crc32c::crc32c(&head[..HEAD - 4]);
    head[HEAD - 4..].copy_from_slice(&own.to_le_bytes());
}

/// Reads the body in every way, and as what it says that it is writes it again.
fn read(head: &Head, body: &[u8], bytes: &[u8]) {
    let (mut asks, mut taken, mut writer) = (vec![], vec![], Writer::default());
    writer.begin();
    let mut again = None;
    if frame::asks(head, body, &mut asks).is_ok() {
        assert!(!asks.is_empty() && asks.len() <= frame::ASKS);
        if head.kind == Kind::Get {
            asks.iter().for_each(|&ask| writer.ask(ask));
            again = Some(Kind::Get);
        }
    }
    if let Ok(count) = frame::replies(head, body, frame::ASKS) {
        for at in 0..count {
            if let Ok((length, answer)) = frame::reply(body, at) {
                assert!(length == 0 || matches!(answer, Answer::Here { .. }));
            }
        }
    }
    if let Ok((coming, sum)) = frame::pushes(head, body) {
        assert!(coming.len() <= frame::PUSHES);
        assert_eq!(sum, coming.iter().map(|push| push.length).sum::<u64>());
        if head.kind == Kind::Put && sum < 1 << 20 {
            let zeros = vec![0; sum as usize];
            for push in &coming {
                let frame::Coming { sample, tier, digest, version, .. } = *push;
                let (epoch, bytes) = (head.epoch, &zeros[..push.length as usize]);
                writer.push(&Push { sample, tier, epoch, digest, version, bytes });
            }
            again = Some(Kind::Put);
        }
    }
    if frame::taken(head, body, head.count as usize, &mut taken).is_ok() && head.kind == Kind::Taken {
        taken.iter().for_each(|&taken| writer.taken(taken));
        again = Some(Kind::Taken);
    }
    if let Ok(notice) = frame::notice(head, body) {
        if let Notice::Released { samples, .. } = &notice {
            assert!(samples.len() <= frame::NAMES);
        }
        if head.kind == Kind::Tell {
            writer.notice(&notice);
            again = Some(Kind::Tell);
        }
    }
    if let Some(kind) = again {
        let written = writer.end(kind, head.channel, head.epoch);
        assert_eq!(written, &bytes[..written.len()]);
    }
}
