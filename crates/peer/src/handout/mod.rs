//! One rank lists the dataset, the others get its listing: what the shared storage is asked at the start
//! of a job does not grow with the job.
//!
//! The catalog's block travels over the transport as samples do, in pieces on a channel of its own. Rank
//! 0 says what there is (piece 0, the *bill*) as soon as it has listed; until then it says "not yet",
//! however long that takes. The other pieces go down a binary tree: a rank hands on what it has got so
//! far, so rank 0 sends the block twice, however many ranks there are. A parent that is gone or stuck is
//! replaced by rank 0. Nothing is copied as a whole: pieces are cut from the block that the source uses
//! itself. A process that was started again asks again, and its parent still has it.

mod bill;
mod hear;
mod shelf;
#[cfg(test)]
mod tests;

use std::path::Path;

use belady_data::source::{
    Format, Listed, OpenError, OpenOptions, Progress, Source, open_for_others,
};
use belady_data::sync::Arc;

use self::bill::Bill;
use self::hear::Hearing;
use self::shelf::{Block, Shelf};
use crate::agree::agree;
use crate::desk::{Serve, Serving};
use crate::{Cluster, MeetError, PeerError, World};

/// Why a dataset was not opened by all ranks together.
#[derive(Debug, thiserror::Error)]
pub enum HandoutError {
    #[error(transparent)]
    Meet(#[from] MeetError),
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("rank 0 cannot open the dataset: {0}")]
    Refused(String),
    #[error("the listing of the dataset does not come, since {0}")]
    Unreachable(PeerError),
    #[error("rank 0 has closed the dataset before this rank had its listing")]
    Gone,
    #[error("the listing of the dataset that rank 0 has sent cannot be used: {0}")]
    Broken(String),
}

/// Opens a dataset on all ranks of a cluster, which rank 0 lists. Every rank makes the same calls.
pub fn open_together(
    cluster: &Cluster,
    path: &Path,
    options: &OpenOptions,
    progress: &Progress<'_>,
) -> Result<Arc<dyn Source>, HandoutError> {
    let list =
        || open_for_others(path, options, progress).map(|(source, listed)| (source.into(), listed));
    hand_out(cluster, path, options, list).map(|(source, _)| source)
}

/// As [`open_together`], for a rank 0 that `lists` in a way of its own, or has listed before; also says
/// how it was listed.
pub fn hand_out(
    cluster: &Cluster,
    path: &Path,
    options: &OpenOptions,
    lists: impl FnOnce() -> Result<(Arc<dyn Source>, Listed), OpenError>,
) -> Result<(Arc<dyn Source>, Listed), HandoutError> {
    let channel = cluster.next_channel();
    let World { rank, size } = cluster.world();
    let as_it_looks = || "as the files look".to_owned();
    let format = options.format.map_or_else(as_it_looks, |format: Format| format.to_string());
    let facts = [("format", format), ("extensions", options.extensions.to_string())];
    agree(&*cluster.meet, &format!("dataset {}", channel.0), &facts)?;

    let shelf = Arc::new(Shelf::default());
    let job: Arc<dyn Serve> = shelf.clone();
    let serving = cluster.transport.desk().open(channel, Arc::downgrade(&job));
    let opened = if rank == 0 {
        offer(&shelf, size, lists)?
    } else {
        let hears = Hearing { transport: &*cluster.transport, channel, shelf: &shelf };
        hears.receive(rank, path, options)?
    };
    cluster.keep(Kept { shelf, _serving: serving });
    Ok(opened)
}

/// Rank 0's part.
fn offer(
    shelf: &Shelf,
    size: u32,
    lists: impl FnOnce() -> Result<(Arc<dyn Source>, Listed), OpenError>,
) -> Result<(Arc<dyn Source>, Listed), HandoutError> {
    match lists() {
        Ok((source, listed)) => {
            let length = source.catalog().as_bytes().len();
            let bill = Bill::Listed { length, listed: listed.clone() };
            shelf.offer(&bill, Block::There(Arc::downgrade(&source)));
            Ok((source, listed))
        }
        Err(error) => {
            shelf.offer(&Bill::Failed(error.to_string()), Block::Nothing);
            shelf.wait_until_known(size - 1);
            Err(error.into())
        }
    }
}

/// A listing that is handed out as long as the cluster is there.
#[derive(Debug)]
pub(crate) struct Kept {
    shelf: Arc<Shelf>,
    _serving: Serving,
}

impl Kept {
    pub fn is_in_use(&self) -> bool {
        self.shelf.is_in_use()
    }
}
