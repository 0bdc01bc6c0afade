//! From a rendezvous to a cluster: a process gets the job's key, listens on the job's network, and
//! learns where the others listen.

use std::net::IpAddr;

use belady_base::open_files;
use belady_base::sync::Arc;
use ring::hmac;

use crate::key::random;
use crate::rendezvous::agree::{agree, drawn};
use crate::rendezvous::interface::{self, Bind};
use crate::rendezvous::keys;
use crate::tcp::{Address, TcpConfig, TcpTransport, Tls};
use crate::{Cluster, JobKey, NodeId, PeerError, Rendezvous, RendezvousError, TcpAccess};

/// The exchange in which every rank gives its [`Address`]. A process with the key may ask the
/// rendezvous server for it ([`crate::rendezvous::tcp::ask`]).
pub const ADDRESSES: &str = "addresses";

/// Options of [`join`].
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// The job's key. `None`: the rendezvous's key, or one that rank 0 draws where the rendezvous
    /// is private to the job and needs none.
    pub key: Option<JobKey>,
    /// Where to listen. `None`: at the address by which the rendezvous is reached.
    pub bind: Option<Bind>,
    /// The port to listen at; 0 picks a free one.
    pub port: u16,
    /// Whether ranks on one machine use Unix sockets.
    pub unix: bool,
    /// Certificates for TLS, if it is used.
    pub tls: Option<Tls>,
}

impl Default for JoinOptions {
    fn default() -> Self {
        Self { key: None, bind: None, port: 0, unix: true, tls: None }
    }
}

impl From<TcpAccess> for JoinOptions {
    fn from(TcpAccess { key, listen, unix, tls }: TcpAccess) -> Self {
        Self { key: Some(key), bind: Some(Bind::Address(listen)), port: 0, unix, tls }
    }
}

/// Why a process cannot join.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the variants mean")]
pub enum JoinClusterError {
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    #[error(transparent)]
    Peer(#[from] PeerError),
}

/// Joins the other processes of the job over TCP.
pub fn join(
    rendezvous: Arc<dyn Rendezvous>,
    options: JoinOptions,
) -> Result<Cluster, JoinClusterError> {
    let JoinOptions { key, bind, port, unix, tls } = options;
    open_files::raise_limit();
    let has_tls = if tls.is_some() { "yes" } else { "no" };
    let mut facts = vec![
        ("version of Belady", env!("CARGO_PKG_VERSION").to_owned()),
        ("version of the protocol", crate::auth::VERSION.to_string()),
        ("TLS", has_tls.to_owned()),
    ];
    if let Some(key) = &key {
        facts.push(("a key marked", mark(key)));
    }
    agree(&*rendezvous, "versions", &facts)?;
    let key = match key.or_else(|| rendezvous.key()) {
        Some(key) => key,
        None => keys::handed_out(&*rendezvous)?,
    };
    let listen = match bind {
        Some(bind) => bind.address()?,
        None => rendezvous.interface().unwrap_or_else(interface::usual),
    };
    let job = drawn(&*rendezvous, "job number", || Ok(random::<8>()?.to_vec()))?;
    let job = u64::from_le_bytes(job.try_into().unwrap_or_default());
    let transport = TcpTransport::start(TcpConfig {
        job,
        port,
        unix,
        tls: tls.clone(),
        ..TcpConfig::new(rendezvous.world(), key.clone(), listen)
    })?;
    let mine = reachable(transport.address(), &*rendezvous).to_bytes();
    let learn = |transport: &TcpTransport, rank: NodeId, address: &[u8]| {
        if let Some(address) = Address::from_bytes(address) {
            transport.set_address(rank, address);
        }
    };
    // From here on, dropping the cluster closes the transport.
    let access = TcpAccess { key, listen, unix, tls };
    let mut cluster = Cluster::new(rendezvous, transport.clone());
    cluster.tcp = Some(access);
    let rendezvous = &cluster.rendezvous;
    for (rank, address) in (0..).zip(rendezvous.exchange(ADDRESSES, &mine)?) {
        if rank != rendezvous.world().rank {
            learn(&transport, rank, &address);
        }
    }
    let weak = Arc::downgrade(&transport);
    let changed = move |rank, address: &[u8]| {
        if let Some(transport) = weak.upgrade() {
            learn(&transport, rank, address);
        }
    };
    rendezvous.watch(ADDRESSES, Arc::new(changed));
    Ok(cluster)
}

/// Returns a text that differs between keys and reveals nothing of them.
fn mark(key: &JobKey) -> String {
    let tag = hmac::sign(&key.mac(), b"a mark of this key");
    let start = tag.as_ref().first_chunk().copied().unwrap_or_default();
    format!("{:08x}", u32::from_be_bytes(start))
}

/// Replaces the unspecified address, which no other rank can connect to.
fn reachable(mut address: Address, rendezvous: &dyn Rendezvous) -> Address {
    if address.tcp.ip().is_unspecified() {
        let ip: IpAddr = rendezvous.interface().unwrap_or_else(interface::usual);
        address.tcp.set_ip(ip);
    }
    address
}

#[cfg(test)]
mod tests;
