//! The way to a meeting point: a name, a connection, a proof, a welcome.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::frames::{Connection, Frames, Hurried, own};
use super::wire::{Hello, LONGEST_NAME, Message, Who, to_guest};
use super::{HANDSHAKE, other_job};
use crate::Key;
use crate::auth::{self, AuthError, Role};
use crate::meet::Place;

const CONNECTING: Duration = Duration::from_secs(5);

/// Why rank 0 could not be reached.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// That may change.
    ForNow(String),
    /// The name of its host is not known.
    NoSuchHost(String),
    /// Somebody is there who is none of this job.
    NotOurs(String),
    /// It does not want this process.
    ForGood(String),
}

impl Trouble {
    pub fn sentence(&self) -> &str {
        match self {
            Self::ForNow(it) | Self::NoSuchHost(it) | Self::NotOurs(it) | Self::ForGood(it) => it,
        }
    }
}

/// Goes to a meeting point, proves that it has the key, and is welcome there.
pub fn visit(place: &Place, key: &Key, hello: &Hello) -> Result<Frames, Trouble> {
    let until = Instant::now() + HANDSHAKE;
    let stream = connect(place)?;
    let _ = stream.set_nodelay(true);
    let mut hurried = Hurried { stream: &stream, until };
    let at = |what: &dyn std::fmt::Display| format!("the meeting point at {place}: {what}");
    let proved = auth::prove(&mut hurried, key, Role::Connects, &hello.to_bytes());
    let host = match proved {
        Ok(host) => Hello::from_bytes(&host),
        Err(error @ AuthError::Io(_)) => return Err(Trouble::ForNow(at(&error))),
        Err(error) => return Err(Trouble::NotOurs(at(&error))),
    };
    let host = host.ok_or_else(|| Trouble::ForGood(at(&"what it says of itself is no hello")))?;
    if hello.who != Who::Visitor && host.job != hello.job {
        return Err(Trouble::ForGood(other_job(&place.to_string(), &host.job, &hello.job)));
    }
    let mut frames = Frames::new(stream, LONGEST_NAME + (4 << 10));
    match frames.next(HANDSHAKE) {
        Ok(Some(Message::Welcome)) => {
            frames.set_longest(to_guest(host.size));
            Ok(frames)
        }
        Ok(Some(Message::Refused { again: true, sentence })) => Err(Trouble::ForNow(sentence)),
        Ok(Some(Message::Refused { again: false, sentence })) => Err(Trouble::ForGood(sentence)),
        Ok(Some(_)) => Err(Trouble::ForGood(at(&"it does not say what a meeting point says"))),
        Ok(None) => Err(Trouble::ForNow(at(&"it is silent"))),
        Err(error) => Err(Trouble::ForNow(at(&error))),
    }
}

fn connect(place: &Place) -> Result<Connection, Trouble> {
    let addresses = resolve(place)?;
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECTING) {
            // A port that nobody listens at may connect to itself, if it is one of those that the
            // system hands out.
            Ok(stream) if stream.local_addr().ok() == Some(address) => {}
            Ok(stream) => match own(stream) {
                Ok(connection) => return Ok(connection),
                Err(error) => failure = error,
            },
            Err(error) => failure = error,
        }
    }
    Err(Trouble::ForNow(format!("cannot connect to {place}: {failure}")))
}

pub fn resolve(place: &Place) -> Result<Vec<SocketAddr>, Trouble> {
    let Place::Point { host, port } = place else {
        return Err(Trouble::ForGood(format!("{place} is no meeting point")));
    };
    let unknown = |why: String| {
        Trouble::NoSuchHost(format!(
            "the host `{host}` of the meeting point cannot be found: {why}; see whether its name is \
             right"
        ))
    };
    let addresses = (host.as_str(), *port).to_socket_addrs();
    let addresses: Vec<_> = addresses.map_err(|error| unknown(error.to_string()))?.collect();
    if addresses.is_empty() { Err(unknown("it has no address".into())) } else { Ok(addresses) }
}
