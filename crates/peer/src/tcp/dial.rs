//! Opens connections to peers.

use std::io;
use std::time::Instant;

use belady_base::fork::OwnDescriptor;
use belady_base::open_files::{self, IdleDescriptors};
use belady_base::sync::Arc;
use rustix::net::AddressFamily;

use super::address::Address;
use super::call::Connection;
use super::hello::{HelloError, greet};
use super::shared::NodeShared;
use super::socket::{Descriptor, Limit, Socket, hang_up, open};
use super::stream::{PeerStream, TalkError};
use crate::auth::{AuthError, Role};
use crate::{NodeId, PeerError};

/// Connects to a peer, and checks that it is the right one.
pub fn dial(
    shared: &NodeShared,
    peer: NodeId,
    to: &Address,
    deadline: Instant,
) -> Result<Connection, PeerError> {
    let limit = Limit::Until(deadline);
    let is_near = shared.hello.address.machine.is_same(to.machine);
    let near = if is_near { connect_unix(shared, to, limit)? } else { None };
    let (socket, wire) = match near {
        Some(connected) => connected,
        None => connect_tcp(shared, peer, to, limit)?,
    };
    let talked = talk(shared, peer, to, wire, &socket);
    if talked.is_err() {
        hang_up(&socket);
    }
    talked
}

type Connected = (Arc<Descriptor>, PeerStream);

/// Connects without TLS, since nothing leaves the machine. Returns `None` if the socket cannot be
/// reached, for example from a container with its own file system.
fn connect_unix(
    shared: &NodeShared,
    to: &Address,
    limit: Limit,
) -> Result<Option<Connected>, PeerError> {
    let Some(path) = &to.unix else { return Ok(None) };
    let Ok(socket) = spared(shared, AddressFamily::UNIX) else { return Ok(None) };
    shared.live.enter(&socket)?;
    let connected = Socket::new(socket.clone(), limit).connect_unix(path);
    Ok(connected.ok().map(|connected| (socket, PeerStream::Plain(connected))))
}

/// Opens a socket outside of the descriptors for reads; idle connections are closed first.
fn spared(shared: &NodeShared, family: AddressFamily) -> io::Result<Arc<Descriptor>> {
    let opened = || open(family).and_then(open_files::moved_down).and_then(OwnDescriptor::of);
    let socket = opened().or_else(|error| {
        if !open_files::is_shortage(&error) {
            return Err(error);
        }
        shared.close_idle();
        opened()
    });
    socket.map(Arc::new)
}

fn connect_tcp(
    shared: &NodeShared,
    peer: NodeId,
    to: &Address,
    limit: Limit,
) -> Result<Connected, PeerError> {
    let unreachable =
        |error: io::Error| PeerError::Unreachable { peer, address: to.to_string(), error };
    let family = if to.tcp.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = spared(shared, family).map_err(unreachable)?;
    shared.live.enter(&socket)?;
    let connected = Socket::new(socket.clone(), limit).connect(to.tcp).map_err(unreachable)?;
    let wire = match &shared.tls {
        Some(tls) => {
            let session = tls.connect(connected, to.tcp.ip());
            PeerStream::Tls(Box::new(session.map_err(|error| ended(peer, error))?))
        }
        None => PeerStream::Plain(connected),
    };
    Ok((socket, wire))
}

fn talk(
    shared: &NodeShared,
    peer: NodeId,
    to: &Address,
    mut wire: PeerStream,
    socket: &Arc<Descriptor>,
) -> Result<Connection, PeerError> {
    let refused =
        |why: &dyn std::fmt::Display| PeerError::Refused { peer, reason: why.to_string() };
    let binding = wire.binding().map_err(|error| ended(peer, error))?;
    let greeted = greet(&mut wire, binding, &shared.key, Role::Connects, &shared.hello);
    let other = greeted.map_err(|why| match why {
        HelloError::Auth(AuthError::Io(error)) => ended(peer, error),
        why => refused(&why),
    })?;
    if other.world.rank != peer {
        return Err(refused(&HelloError::OtherRank(other.world.rank)));
    }
    let mut connection = Connection::new(wire, socket.clone());
    match connection.is_welcome() {
        Ok(true) => {}
        Ok(false) => return Err(refused(&"it already serves too many connections of this rank")),
        Err(TalkError::Io(error)) => return Err(ended(peer, error)),
        Err(why) => return Err(PeerError::Garbled { peer, what: why.to_string() }),
    }
    // The peer may have restarted since its address was exchanged. An address that leads to it by
    // another way than its own is kept.
    connection.incarnation = to.incarnation.max(other.address.incarnation);
    if other.address.incarnation > to.incarnation {
        shared.heard_of(&other);
    }
    Ok(connection)
}

/// Returns the error of a connection that ended before it could be used.
fn ended(peer: NodeId, error: io::Error) -> PeerError {
    if error.kind() == io::ErrorKind::TimedOut {
        return PeerError::Closed { peer, error };
    }
    let what = format!(
        "{error}, before it proved that it has the key: check its log, and that all ranks use TLS \
         or none does"
    );
    PeerError::Closed { peer, error: io::Error::new(error.kind(), what) }
}
