//! From a meeting to a cluster: a process gets the job's key, listens where the job's traffic goes, and
//! learns where the others do.

use std::net::IpAddr;

use belady_data::open_files;
use belady_data::sync::Arc;
use ring::hmac;

use crate::agree::{agree, drawn};
use crate::key::random;
use crate::meet::interface::{self, Bind};
use crate::meet::keys;
use crate::tcp::{Address, TcpConfig, TcpTransport, Tls};
use crate::{Cluster, Key, Meet, MeetError, NodeId, PeerError};

/// The exchange in which every rank tells its [`Address`]: whoever has the key may ask a meeting point
/// for it ([`crate::meet::point::ask`]).
pub const ADDRESSES: &str = "addresses";

/// How to take part.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// The job's key. `None`: the meeting's, or one that rank 0 draws, where a meeting needs none since
    /// nobody else hears it.
    pub key: Option<Key>,
    /// Where to listen. `None`: at the address by which the meeting is reached.
    pub bind: Option<Bind>,
    /// 0: one that is free.
    pub port: u16,
    /// Whether ranks on one machine use Unix sockets.
    pub unix: bool,
    pub tls: Option<Tls>,
}

impl Default for JoinOptions {
    fn default() -> Self {
        Self { key: None, bind: None, port: 0, unix: true, tls: None }
    }
}

/// Why a process cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    #[error(transparent)]
    Meet(#[from] MeetError),
    #[error(transparent)]
    Peer(#[from] PeerError),
}

/// Joins the others over TCP.
pub fn join(meet: Arc<dyn Meet>, options: JoinOptions) -> Result<Cluster, JoinError> {
    let JoinOptions { key, bind, port, unix, tls } = options;
    open_files::raise_limit();
    let is_hidden = if tls.is_some() { "yes" } else { "no" };
    let mut facts = vec![
        ("version of Belady", env!("CARGO_PKG_VERSION").to_owned()),
        ("version of the protocol", crate::auth::VERSION.to_string()),
        ("TLS", is_hidden.to_owned()),
    ];
    if let Some(key) = &key {
        facts.push(("a key marked", mark(key)));
    }
    agree(&*meet, "versions", &facts)?;
    let key = match key.or_else(|| meet.key()) {
        Some(key) => key,
        None => keys::handed_out(&*meet)?,
    };
    let listen = match bind {
        Some(bind) => bind.address()?,
        None => meet.interface().unwrap_or_else(interface::usual),
    };
    let job = drawn(&*meet, "job number", || Ok(random::<8>()?.to_vec()))?;
    let job = u64::from_le_bytes(job.try_into().unwrap_or_default());
    let transport = TcpTransport::start(TcpConfig {
        job,
        port,
        unix,
        tls,
        ..TcpConfig::new(meet.world(), key, listen)
    })?;
    let mine = reachable(transport.address(), &*meet).to_bytes();
    let learn = |transport: &TcpTransport, rank: NodeId, address: &[u8]| {
        if let Some(address) = Address::from_bytes(address) {
            transport.set_address(rank, address);
        }
    };
    // From here on, whoever drops it closes the transport.
    let cluster = Cluster::new(meet, transport.clone());
    let meet = &cluster.meet;
    for (rank, address) in (0..).zip(meet.exchange(ADDRESSES, &mine)?) {
        if rank != meet.world().rank {
            learn(&transport, rank, &address);
        }
    }
    let weak = Arc::downgrade(&transport);
    let changed = move |rank, address: &[u8]| {
        if let Some(transport) = weak.upgrade() {
            learn(&transport, rank, address);
        }
    };
    meet.watch(ADDRESSES, Arc::new(changed));
    Ok(cluster)
}

/// Tells keys apart without telling anything of them.
fn mark(key: &Key) -> String {
    let tag = hmac::sign(&key.mac(), b"a mark of this key");
    let start = tag.as_ref().first_chunk().copied().unwrap_or_default();
    format!("{:08x}", u32::from_be_bytes(start))
}

/// Whoever listens everywhere must be told of somewhere.
fn reachable(mut address: Address, meet: &dyn Meet) -> Address {
    if address.tcp.ip().is_unspecified() {
        let ip: IpAddr = meet.interface().unwrap_or_else(interface::usual);
        address.tcp.set_ip(ip);
    }
    address
}

#[cfg(test)]
mod tests;
