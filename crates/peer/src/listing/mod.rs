//! Listing transfer: one rank lists the dataset and the others receive its listing, so the load on
//! shared storage at the start of a job does not grow with the job.
//!
//! The catalog's block travels over the transport as samples do, in pieces on a channel of its own.
//! Piece 0 is the *header*: rank 0 serves it as soon as it has listed, and replies "not yet"
//! before. The other pieces go down a binary tree: a rank serves the pieces that it has received so
//! far, so rank 0 sends the block twice, however many ranks there are. Rank 0 replaces a parent
//! that is gone or stuck. The block is never copied as a whole: pieces are cut from the memory that
//! the source uses. A restarted process asks again, and its parent still serves it.

mod header;
mod receiver;
mod server;
#[cfg(test)]
mod tests;

use std::path::Path;

use belady_base::sync::Arc;
use belady_data::source::{
    DatasetFormat, ListingProgress, OpenError, OpenOptions, SharedListing, Source, open_for_sharing,
};

use self::header::ListingHeader;
use self::receiver::ListingReceiver;
use self::server::{ListingBlock, ListingServer};
use crate::dispatcher::{Handler, Registration};
use crate::rendezvous::agree::agree;
use crate::{Cluster, JobWorld, PeerError, RendezvousError};

/// Why the ranks have not opened a dataset together.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what the variants mean")]
pub enum ListingError {
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("rank 0 cannot open the dataset: {0}")]
    Refused(String),
    #[error("cannot receive the listing of the dataset: {0}")]
    Unreachable(PeerError),
    #[error("rank 0 closed the dataset before this rank had received its listing")]
    Gone,
    #[error("the listing of the dataset that rank 0 has sent cannot be used: {0}")]
    Broken(String),
}

/// Opens a dataset on all ranks of a cluster; rank 0 lists it. Every rank makes the same calls.
pub fn open_together(
    cluster: &Cluster,
    path: &Path,
    options: &OpenOptions,
    progress: &ListingProgress<'_>,
) -> Result<Arc<dyn Source>, ListingError> {
    let list = || {
        open_for_sharing(path, options, progress).map(|(source, listed)| (source.into(), listed))
    };
    share_listing(cluster, path, options, list).map(|(source, _)| source)
}

/// As [`open_together`], with `lists` as rank 0's way to list the dataset. Also returns how it was
/// listed.
pub fn share_listing(
    cluster: &Cluster,
    path: &Path,
    options: &OpenOptions,
    lists: impl FnOnce() -> Result<(Arc<dyn Source>, SharedListing), OpenError>,
) -> Result<(Arc<dyn Source>, SharedListing), ListingError> {
    let channel = cluster.next_channel();
    let JobWorld { rank, size } = cluster.world();
    let as_it_looks = || "as the files look".to_owned();
    let format =
        options.format.map_or_else(as_it_looks, |format: DatasetFormat| format.to_string());
    let facts = [("format", format), ("extensions", options.extensions.to_string())];
    agree(&*cluster.rendezvous, &format!("dataset {}", channel.0), &facts)?;

    let server = Arc::new(ListingServer::default());
    let job: Arc<dyn Handler> = server.clone();
    let serving = cluster.transport.dispatcher().register(channel, Arc::downgrade(&job));
    let opened = if rank == 0 {
        offer(&server, size, lists)?
    } else {
        let receiver = ListingReceiver { transport: &*cluster.transport, channel, server: &server };
        receiver.receive(rank, path, options)?
    };
    cluster.keep(ServedListing { server, _serving: serving });
    Ok(opened)
}

/// Lists the dataset and serves the listing: rank 0's part.
fn offer(
    server: &ListingServer,
    size: u32,
    lists: impl FnOnce() -> Result<(Arc<dyn Source>, SharedListing), OpenError>,
) -> Result<(Arc<dyn Source>, SharedListing), ListingError> {
    match lists() {
        Ok((source, listed)) => {
            let length = source.catalog().as_bytes().len();
            let header = ListingHeader::Listed { length, listed: listed.clone() };
            server.offer(&header, ListingBlock::There(Arc::downgrade(&source)));
            Ok((source, listed))
        }
        Err(error) => {
            server.offer(&ListingHeader::Failed(error.to_string()), ListingBlock::Nothing);
            server.wait_until_known(size - 1);
            Err(error.into())
        }
    }
}

/// A listing that is served until the cluster is dropped.
#[derive(Debug)]
pub(crate) struct ServedListing {
    server: Arc<ListingServer>,
    _serving: Registration,
}

impl ServedListing {
    pub fn is_in_use(&self) -> bool {
        self.server.is_in_use()
    }
}
