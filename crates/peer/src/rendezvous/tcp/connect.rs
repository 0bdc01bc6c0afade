//! Connects to a rendezvous server: resolves its name, connects, proves the key, and is accepted.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::frames::{Connection, DeadlineStream, Frames, own};
use super::messages::{ClientKind, LONGEST_NAME, RendezvousHello, RendezvousMessage, to_client};
use super::{HANDSHAKE, other_job};
use crate::JobKey;
use crate::auth::{self, AuthError, Role};
use crate::rendezvous::RendezvousAddress;

const CONNECTING: Duration = Duration::from_secs(5);

/// Why the server could not be reached.
#[derive(Clone, Debug)]
pub enum ConnectFailure {
    /// It may work later.
    Temporary(String),
    /// The host's name cannot be resolved.
    UnknownHost(String),
    /// Another program, or another job, listens there.
    WrongServer(String),
    /// The server refuses this process.
    Permanent(String),
}

impl ConnectFailure {
    pub fn sentence(&self) -> &str {
        match self {
            Self::Temporary(it)
            | Self::UnknownHost(it)
            | Self::WrongServer(it)
            | Self::Permanent(it) => it,
        }
    }
}

/// Connects to a server, proves that this process has the key, and waits until the server accepts
/// it.
pub fn connect_to(
    place: &RendezvousAddress,
    key: &JobKey,
    hello: &RendezvousHello,
) -> Result<Frames, ConnectFailure> {
    let until = Instant::now() + HANDSHAKE;
    let stream = connect(place)?;
    let _ = stream.set_nodelay(true);
    let mut hurried = DeadlineStream { stream: &stream, until };
    let at = |what: &dyn std::fmt::Display| format!("the rendezvous server at {place}: {what}");
    let proved = auth::prove(&mut hurried, key, Role::Connects, &hello.to_bytes());
    let host = match proved {
        Ok(host) => RendezvousHello::from_bytes(&host),
        Err(error @ AuthError::Io(_)) => return Err(ConnectFailure::Temporary(at(&error))),
        Err(error) => return Err(ConnectFailure::WrongServer(at(&error))),
    };
    let host = host.ok_or_else(|| ConnectFailure::Permanent(at(&"its hello is invalid")))?;
    if hello.who != ClientKind::Observer && host.job != hello.job {
        return Err(ConnectFailure::Permanent(other_job(
            &place.to_string(),
            &host.job,
            &hello.job,
        )));
    }
    let mut frames = Frames::new(stream, LONGEST_NAME + (4 << 10));
    match frames.next(HANDSHAKE) {
        Ok(Some(RendezvousMessage::Welcome)) => {
            frames.set_longest(to_client(host.size));
            Ok(frames)
        }
        Ok(Some(RendezvousMessage::Refused { again: true, sentence })) => {
            Err(ConnectFailure::Temporary(sentence))
        }
        Ok(Some(RendezvousMessage::Refused { again: false, sentence })) => {
            Err(ConnectFailure::Permanent(sentence))
        }
        Ok(Some(_)) => Err(ConnectFailure::Permanent(at(&"it is not a rendezvous server"))),
        Ok(None) => Err(ConnectFailure::Temporary(at(&"it is silent"))),
        Err(error) => Err(ConnectFailure::Temporary(at(&error))),
    }
}

fn connect(place: &RendezvousAddress) -> Result<Connection, ConnectFailure> {
    let addresses = resolve(place)?;
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECTING) {
            // A connection to an ephemeral port where nothing listens may connect to itself.
            Ok(stream) if stream.local_addr().ok() == Some(address) => {}
            Ok(stream) => match own(stream) {
                Ok(connection) => return Ok(connection),
                Err(error) => failure = error,
            },
            Err(error) => failure = error,
        }
    }
    Err(ConnectFailure::Temporary(format!("cannot connect to {place}: {failure}")))
}

pub fn resolve(place: &RendezvousAddress) -> Result<Vec<SocketAddr>, ConnectFailure> {
    let RendezvousAddress::Server { host, port } = place else {
        return Err(ConnectFailure::Permanent(format!("{place} is not a host and port")));
    };
    let unknown = |why: String| {
        ConnectFailure::UnknownHost(format!(
            "the host `{host}` of the rendezvous cannot be found: {why}; check its name"
        ))
    };
    let addresses = (host.as_str(), *port).to_socket_addrs();
    let addresses: Vec<_> = addresses.map_err(|error| unknown(error.to_string()))?.collect();
    if addresses.is_empty() { Err(unknown("it has no address".into())) } else { Ok(addresses) }
}
