//! Opening a connection to a peer.

use std::io;
use std::time::Instant;

use belady_data::fork::Own;
use belady_data::open_files::{self, Spare};
use belady_data::sync::Arc;
use rustix::net::AddressFamily;

use super::address::Address;
use super::call::Connection;
use super::hello::{Unwelcome, greet};
use super::shared::Shared;
use super::socket::{Descriptor, Limit, Socket, hang_up, open};
use super::wire::{TalkError, Wire};
use crate::auth::{AuthError, Role};
use crate::{NodeId, PeerError};

/// Whoever has proved to be the peer, at the end of a new connection.
pub fn dial(
    shared: &Shared,
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

type Connected = (Arc<Descriptor>, Wire);

/// Without TLS: nothing leaves the machine. `None` where the socket cannot be reached after all,
/// from a container with files of its own for one.
fn connect_unix(
    shared: &Shared,
    to: &Address,
    limit: Limit,
) -> Result<Option<Connected>, PeerError> {
    let Some(path) = &to.unix else { return Ok(None) };
    let Ok(socket) = spared(shared, AddressFamily::UNIX) else { return Ok(None) };
    shared.live.enter(&socket)?;
    let connected = Socket::new(socket.clone(), limit).connect_unix(path);
    Ok(connected.ok().map(|connected| (socket, Wire::Plain(connected))))
}

/// A socket that reads of samples can do without: connections that nobody uses go first.
fn spared(shared: &Shared, family: AddressFamily) -> io::Result<Arc<Descriptor>> {
    let opened = || open(family).and_then(open_files::moved_down).and_then(Own::of);
    let socket = opened().or_else(|error| {
        if !open_files::is_shortage(&error) {
            return Err(error);
        }
        shared.let_go();
        opened()
    });
    socket.map(Arc::new)
}

fn connect_tcp(
    shared: &Shared,
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
            Wire::Tls(Box::new(session.map_err(|error| ended(peer, error))?))
        }
        None => Wire::Plain(connected),
    };
    Ok((socket, wire))
}

fn talk(
    shared: &Shared,
    peer: NodeId,
    to: &Address,
    mut wire: Wire,
    socket: &Arc<Descriptor>,
) -> Result<Connection, PeerError> {
    let refused =
        |why: &dyn std::fmt::Display| PeerError::Refused { peer, reason: why.to_string() };
    let binding = wire.binding().map_err(|error| ended(peer, error))?;
    let greeted = greet(&mut wire, binding, &shared.key, Role::Connects, &shared.hello);
    let other = greeted.map_err(|why| match why {
        Unwelcome::Auth(AuthError::Io(error)) => ended(peer, error),
        why => refused(&why),
    })?;
    if other.world.rank != peer {
        return Err(refused(&Unwelcome::OtherRank(other.world.rank)));
    }
    let mut connection = Connection::new(wire, socket.clone());
    match connection.is_welcome() {
        Ok(true) => {}
        Ok(false) => return Err(refused(&"this rank has too many connections with it already")),
        Err(TalkError::Io(error)) => return Err(ended(peer, error)),
        Err(why) => return Err(PeerError::Garbled { peer, what: why.to_string() }),
    }
    // Who answers may have begun anew since the address was told; but an address that leads to it by
    // another way than it says itself is kept.
    connection.incarnation = to.incarnation.max(other.address.incarnation);
    if other.address.incarnation > to.incarnation {
        shared.heard_of(&other);
    }
    Ok(connection)
}

/// The connection has ended before it could be used.
fn ended(peer: NodeId, error: io::Error) -> PeerError {
    if error.kind() == io::ErrorKind::TimedOut {
        return PeerError::Closed { peer, error };
    }
    let what = format!(
        "{error}, before it has proved itself: see its log, and whether all ranks use TLS or none"
    );
    PeerError::Closed { peer, error: io::Error::new(error.kind(), what) }
}
