//! Mutual proof that two processes have the job's key, over any connection.
//!
//! The side that connects sends first, so a listening port reveals nothing to a client that does
//! not know the first bytes. Each side's proof covers fresh random numbers of both sides and what
//! both say of themselves (their *hellos*), so no part of it can be replayed or moved to another
//! connection.
//!
//! ```text
//! connects                                          listens
//!   magic, version, number  ───────────────▶
//!                           ◀───────────────  magic, version, number
//!   hello, proof            ───────────────▶  right? else says so and ends
//!                           ◀───────────────  verdict, hello, proof
//! ```
//!
//! The proof is an HMAC-SHA256. It authenticates the other end; it neither hides nor protects what
//! is sent afterwards, which needs TLS. The connection limits how long the exchange may take.

use std::io::{self, Read, Write};

use ring::hmac;

use crate::key::{JobKey, KeyError, random};

const MAGIC: &[u8; 8] = b"belady\r\n";
/// The version of everything that is sent on a connection. Every change of the wire format raises
/// it.
pub const VERSION: u16 = 4;
/// The longest hello, in bytes.
pub const HELLO: usize = 4 << 10;
const PROOF: usize = 32;
const NUMBER: usize = 32;
/// The verdict on the connecting side's proof.
const RIGHT: u8 = 1;
const WRONG: u8 = 0;

/// The side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The side that connects, and sends first.
    Connects,
    /// The side that listens.
    Listens,
}

/// Why the other side is refused. Each text is the rest of a sentence that names it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the variants mean")]
pub enum AuthError {
    #[error("it does not speak belady's protocol: another program is at the other end")]
    Stranger,
    #[error(
        "it uses protocol version {theirs} and this process version {VERSION}: run the same \
         version of belady on all ranks"
    )]
    Version { theirs: u16 },
    #[error(
        "it has another job key: it belongs to another job, or not all ranks were given the same \
         key"
    )]
    Key,
    #[error("its hello is longer than {HELLO} bytes")]
    TooLong,
    #[error("the connection ended before it proved that it has the key: {0}")]
    Io(#[from] io::Error),
    #[error("cannot make a proof: {0}")]
    Random(#[from] KeyError),
}

/// Proves to the other side that this one has the key, checks the other side's proof, and returns
/// the other side's hello, which the proof covers.
pub fn prove<S: Read + Write + ?Sized>(
    stream: &mut S,
    key: &JobKey,
    role: Role,
    mine: &[u8],
) -> Result<Vec<u8>, AuthError> {
    if mine.len() > HELLO {
        return Err(AuthError::TooLong);
    }
    let number: [u8; NUMBER] = random()?;
    match role {
        Role::Connects => connect(stream, &key.mac(), &number, mine),
        Role::Listens => listen(stream, &key.mac(), &number, mine),
    }
}

fn connect<S: Read + Write + ?Sized>(
    stream: &mut S,
    key: &hmac::Key,
    number: &[u8; NUMBER],
    mine: &[u8],
) -> Result<Vec<u8>, AuthError> {
    stream.write_all(&opening(number))?;
    stream.flush()?;
    let theirs = their_number(stream)?;
    let parts = [&b"connects"[..], number, &theirs, mine];
    stream.write_all(&statement(mine, hmac_of(key, &parts).as_ref()))?;
    stream.flush()?;
    let mut verdict = [0];
    stream.read_exact(&mut verdict)?;
    match verdict[0] {
        RIGHT => {}
        WRONG => return Err(AuthError::Key),
        _ => return Err(AuthError::Stranger),
    }
    let (hello, proof) = their_statement(stream)?;
    let said = [&b"listens"[..], number, &theirs, mine, &hello];
    if !is_proof(key, &said, &proof) {
        return Err(AuthError::Key);
    }
    Ok(hello)
}

fn listen<S: Read + Write + ?Sized>(
    stream: &mut S,
    key: &hmac::Key,
    number: &[u8; NUMBER],
    mine: &[u8],
) -> Result<Vec<u8>, AuthError> {
    let theirs = match their_number(stream) {
        Err(AuthError::Version { theirs }) => {
            // The other side learns what is wrong and closes the connection. Closing it here, with
            // bytes unread, could discard this answer.
            stream.write_all(&opening(number))?;
            stream.flush()?;
            let _ = io::copy(&mut stream.take(2 * HELLO as u64), &mut io::sink());
            return Err(AuthError::Version { theirs });
        }
        other => other?,
    };
    stream.write_all(&opening(number))?;
    stream.flush()?;
    let (hello, proof) = their_statement(stream)?;
    if !is_proof(key, &[&b"connects"[..], &theirs, number, &hello], &proof) {
        stream.write_all(&[WRONG])?;
        stream.flush()?;
        return Err(AuthError::Key);
    }
    let parts = [&b"listens"[..], &theirs, number, &hello, mine];
    let mut words = vec![RIGHT];
    words.extend(statement(mine, hmac_of(key, &parts).as_ref()));
    stream.write_all(&words)?;
    stream.flush()?;
    Ok(hello)
}

/// Returns the first bytes of each side.
fn opening(number: &[u8; NUMBER]) -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes(), number].concat()
}

fn their_number<S: Read + ?Sized>(stream: &mut S) -> Result<[u8; NUMBER], AuthError> {
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Err(AuthError::Stranger);
    }
    let mut version = [0; 2];
    stream.read_exact(&mut version)?;
    let theirs = u16::from_le_bytes(version);
    if theirs != VERSION {
        return Err(AuthError::Version { theirs });
    }
    let mut number = [0; NUMBER];
    stream.read_exact(&mut number)?;
    Ok(number)
}

/// Returns a hello and its proof as bytes.
fn statement(hello: &[u8], proof: &[u8]) -> Vec<u8> {
    [&(hello.len() as u16).to_le_bytes()[..], hello, proof].concat()
}

fn their_statement<S: Read + ?Sized>(stream: &mut S) -> Result<(Vec<u8>, [u8; PROOF]), AuthError> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let length = usize::from(u16::from_le_bytes(length));
    if length > HELLO {
        return Err(AuthError::TooLong);
    }
    let (mut hello, mut proof) = (vec![0; length], [0; PROOF]);
    stream.read_exact(&mut hello)?;
    stream.read_exact(&mut proof)?;
    Ok((hello, proof))
}

/// Returns the parts, each after its length, so that no two lists of parts give the same bytes.
fn joined(parts: &[&[u8]]) -> Vec<u8> {
    let sized = |part: &&[u8]| [&(part.len() as u64).to_le_bytes()[..], part].concat();
    parts.iter().flat_map(sized).collect()
}

fn hmac_of(key: &hmac::Key, parts: &[&[u8]]) -> hmac::Tag {
    hmac::sign(key, &joined(parts))
}

/// Checks a proof, by ring in constant time.
fn is_proof(key: &hmac::Key, parts: &[&[u8]], proof: &[u8; PROOF]) -> bool {
    hmac::verify(key, &joined(parts), proof).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;

    type Proved = Result<Vec<u8>, AuthError>;

    fn both(ours: &JobKey, theirs: &JobKey, hellos: [&[u8]; 2]) -> (Proved, Proved) {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let listens = scope.spawn(move || prove(&mut other, theirs, Role::Listens, hellos[1]));
            let connects = prove(&mut one, ours, Role::Connects, hellos[0]);
            drop(one);
            (connects, listens.join().unwrap())
        })
    }

    #[test]
    fn with_one_key_both_sides_learn_the_others_hello() {
        let key = JobKey::random().unwrap();
        let (connects, listens) = both(&key, &key, [b"rank 1", b""]);
        assert_eq!((connects.unwrap(), listens.unwrap()), (b"".to_vec(), b"rank 1".to_vec()));
        let (connects, _) = both(&key, &key, [&[0; HELLO + 1], b""]);
        assert!(matches!(connects, Err(AuthError::TooLong)));
    }

    #[test]
    fn with_two_keys_both_sides_fail_and_learn_nothing() {
        let (one, other) = (JobKey::random().unwrap(), JobKey::random().unwrap());
        let (connects, listens) = both(&one, &other, [b"a", b"secret"]);
        assert!(matches!((connects, listens), (Err(AuthError::Key), Err(AuthError::Key))));
    }

    #[test]
    fn both_sides_learn_that_versions_differ() {
        let key = JobKey::random().unwrap();
        let (mut one, mut other) = UnixStream::pair().unwrap();
        let listens = std::thread::spawn(move || prove(&mut other, &key, Role::Listens, b""));
        one.write_all(b"belady\r\n\x07\x00 and more").unwrap();
        let mut answer = [0; 10];
        one.read_exact(&mut answer).unwrap();
        assert_eq!(answer[8..], VERSION.to_le_bytes());
        drop(one);
        assert!(matches!(listens.join().unwrap(), Err(AuthError::Version { theirs: 7 })));
    }

    /// Input to read, and the output that was written.
    struct Tape<'a>(&'a [u8], Vec<u8>);

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

    proptest! {
        #[test]
        fn garbage_gets_no_answer(garbage in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assume!(!garbage.starts_with(MAGIC));
            let mut tape = Tape(&garbage, vec![]);
            let key = JobKey::random().unwrap();
            prop_assert!(prove(&mut tape, &key, Role::Listens, b"secret").is_err());
            prop_assert!(tape.1.is_empty());
        }

        /// A recorded conversation cannot be replayed.
        #[test]
        fn no_bytes_after_the_first_ones_are_a_proof(
            rest in prop::collection::vec(any::<u8>(), 0..300)
        ) {
            let words = [&opening(&[7; NUMBER])[..], &rest].concat();
            let mut tape = Tape(&words, vec![]);
            let key = JobKey::random().unwrap();
            prop_assert!(prove(&mut tape, &key, Role::Listens, b"secret").is_err());
            prop_assert!(!tape.1.windows(6).any(|seen| seen == b"secret"));
        }
    }
}
