//! The connection of one process.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;

use belady_base::sync::{Arc, lock};
use rustix::net::sockopt::socket_peercred;

use super::run::RunMember;
use super::{NodeServer, lane};
use crate::message::{Attachment, FromEngine, PROTOCOL, ToEngine};
use crate::message_socket::MessageSocket;

/// Counts a process as connected while this exists.
struct ConnectedProcess<'a>(&'a NodeServer);

impl<'a> ConnectedProcess<'a> {
    fn new(server: &'a NodeServer) -> Self {
        *lock(&server.processes) += 1;
        server.was_used.store(true, Ordering::Release);
        Self(server)
    }
}

impl Drop for ConnectedProcess<'_> {
    fn drop(&mut self) {
        *lock(&self.0.processes) -= 1;
    }
}

/// Serves a process until it disconnects.
pub fn run(server: &Arc<NodeServer>, stream: UnixStream) {
    let own = rustix::process::geteuid();
    match socket_peercred(&stream) {
        Ok(peer) if peer.uid == own => {}
        Ok(peer) => {
            tracing::warn!("refused a process of user {}", peer.uid.as_raw());
            return;
        }
        Err(_) => return,
    }
    let Ok(connection) = MessageSocket::new(stream).map(Arc::new) else { return };
    // A process that dies in mid-message ends its session like one that disconnects.
    let Ok(Some((ToEngine::Hello { protocol, .. }, _))) = connection.receive() else { return };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    if connection.send(&FromEngine::Welcome { protocol: PROTOCOL, version }).is_err()
        || protocol != PROTOCOL
    {
        return;
    }
    // Dropped last: a process that ends with its last connection does not wait for its engines.
    let mut runs = HashMap::new();
    let _connected = ConnectedProcess::new(server);
    let mut take_part = |run| {
        runs.entry(run).or_insert_with(|| RunMember::new(server, run));
    };
    while let Ok(Some((message, descriptors))) = connection.receive() {
        let answered = match message {
            ToEngine::Hello { .. } => break,
            ToEngine::Attach(attachment) => {
                take_part(attachment.place.run);
                attach(server, *attachment, descriptors);
                Ok(())
            }
            ToEngine::Meet(spec) => {
                take_part(spec.run);
                connection.send(&FromEngine::Meeting(server.nodes.meet(*spec)))
            }
            ToEngine::Join { run, meeting } => {
                join(server, connection.clone(), run, meeting);
                Ok(())
            }
            ToEngine::Metrics { run, engine } => {
                let snapshot = server.metrics(run, engine).map(Box::new);
                connection.send(&FromEngine::Metrics(snapshot))
            }
            ToEngine::Status => connection.send(&FromEngine::Status(server.status())),
            ToEngine::Stop => {
                let sent = connection.send(&FromEngine::Stopping);
                server.is_stopping.store(true, Ordering::Release);
                sent
            }
        };
        if answered.is_err() {
            break;
        }
    }
}

fn attach(server: &Arc<NodeServer>, attachment: Attachment, descriptors: Vec<OwnedFd>) {
    let server = server.clone();
    let lane = std::thread::Builder::new().name("belady-lane".into());
    // The rank sees its connection end if there is no thread.
    if let Err(error) = lane.spawn(move || lane::run(&server, attachment, descriptors)) {
        tracing::warn!("cannot serve a rank: {error}");
    }
}

/// Meets the engines of the other nodes on a thread of its own, so that the end of the rank is
/// noticed meanwhile. The rank sends nothing before the answer.
fn join(server: &Arc<NodeServer>, connection: Arc<MessageSocket>, run: u64, meeting: String) {
    let server = server.clone();
    let member = RunMember::new(&server, run);
    let thread = std::thread::Builder::new().name("belady-join".into());
    let joins = move || {
        let joined = server.nodes.join(run, &meeting);
        drop(member);
        // The rank may have gone.
        let _ = connection.send(&FromEngine::Joined(joined));
    };
    // The rank sees its connection end if there is no thread.
    if let Err(error) = thread.spawn(joins) {
        tracing::warn!("cannot meet the engines of other nodes: {error}");
    }
}
