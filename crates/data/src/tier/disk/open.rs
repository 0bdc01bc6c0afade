//! Opening a cache: as its writer, as one of its readers, or not at all.
//!
//! It must be quick, so nothing here looks at the entries of the index; what is free is
//! worked out behind it.

use std::io;
use std::path::Path;

use super::DiskConfig;
use super::directory::{self, CacheDirectory, DirectoryError, Gate};
use super::granule::Granule;
use super::index::{Header, Index, OpenError, PAGE};
use super::location::ADDRESSABLE;
use super::quota;
use super::segments::Segments;
use super::store::{Store, Writer};
use super::troubles::{Trouble, Troubles};
use crate::fork::FileLock;
use crate::tier::extents::GRANULE;

const SEGMENT: u64 = 1 << 30;
/// Larger quotas get longer segments: every segment costs two descriptors, of which a
/// process often has no more than 1,024.
const MOST_SEGMENTS: u64 = 128;

/// Why the tier does nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("its index cannot be opened: {0}")]
    Index(#[from] OpenError),
    #[error("its index is of a dataset with other samples")]
    Mismatch,
    #[error("{granted} bytes leave no room beside its index of {index} bytes")]
    NoRoom { granted: u64, index: u64 },
}

pub(super) fn open(config: &DiskConfig, troubles: &Troubles) -> Result<Store, Unusable> {
    let root = directory::prepare(&config.directory)?;
    let cache = CacheDirectory::new(&root, config.fingerprint);
    let gate = Gate::enter(&root);
    let locked = match &gate {
        Ok(_) => cache.make().and_then(|()| {
            cache.lock().map_err(|error| DirectoryError::Io { path: cache.path.clone(), error })
        }),
        Err(error) => Err(DirectoryError::Io {
            path: root.clone(),
            error: io::Error::new(error.kind(), error.to_string()),
        }),
    };
    match locked {
        Ok(Some(lock)) => match open_as_writer(config, &root, cache.clone(), lock, troubles) {
            Err(error @ Unusable::Index(OpenError::Io(_))) => {
                open_to_read_only(config, cache, error, troubles)
            }
            opened => opened,
        },
        Ok(None) => open_as_reader(config, cache).inspect(|store| tell_shared(store, troubles)),
        Err(error @ DirectoryError::Io { .. }) => {
            open_to_read_only(config, cache, error.into(), troubles)
        }
        Err(error) => Err(error.into()),
    }
}

/// For one that cannot write: what is there is read, if it can be.
fn open_to_read_only(
    config: &DiskConfig,
    cache: CacheDirectory,
    why: Unusable,
    troubles: &Troubles,
) -> Result<Store, Unusable> {
    let Ok(store) = open_as_reader(config, cache) else { return Err(why) };
    let sentence = format!("{why}; what is held there is read, nothing is added");
    troubles.warn(Trouble::ReadOnly, sentence);
    Ok(store)
}

/// A cache that holds everything misses nothing without a writer. Else the user would find out by the
/// time that epochs take.
fn tell_shared(store: &Store, troubles: &Troubles) {
    let path = store.cache.path.display();
    if store.index.held().samples == u64::from(store.index.header.samples) {
        let sentence = format!("another job or process writes {path}, which holds all samples");
        return troubles.inform(Trouble::Shared, sentence);
    }
    let sentence = format!(
        "another job or process writes {path}: what it holds is read, and nothing is added; end that \
         one first, or give this one another directory, to cache what it reads"
    );
    troubles.warn(Trouble::Shared, sentence);
}

/// Without making or changing anything.
pub(super) fn open_to_read(config: &DiskConfig) -> Option<Store> {
    let root = directory::find(&config.directory).ok()?;
    open_as_reader(config, CacheDirectory::new(&root, config.fingerprint)).ok()
}

fn open_as_reader(config: &DiskConfig, cache: CacheDirectory) -> Result<Store, Unusable> {
    let index = Index::open(&cache.index(), false)?;
    if !index.header.is_of(config.fingerprint, &config.sizes) {
        return Err(Unusable::Mismatch);
    }
    let segments = Segments::new(&cache.path, &index.header, false);
    cache.touch();
    let versions = config.versions.clone();
    Ok(Store { index, segments, cache, versions, writer: None })
}

fn open_as_writer(
    config: &DiskConfig,
    root: &Path,
    cache: CacheDirectory,
    lock: FileLock,
    troubles: &Troubles,
) -> Result<Store, Unusable> {
    let sizes = &config.sizes;
    let payload = sizes.total().0;
    let granule = Granule::for_payload(payload, sizes.len());
    let segment = config.segment.map_or_else(|| segment_bytes(config.quota.0), |bytes| bytes.0);
    let header = Header::new(config.fingerprint, &config.name, segment, granule, sizes);
    let index_bytes = header.file_bytes();
    let payload = payload + granule.bytes() * u64::from(sizes.len());
    // Tables of samples in pieces, and a little to move in.
    let need = index_bytes + payload + payload / 64 + (1 << 20);
    let granted = granted(config, root, &cache, need, troubles)?;
    // A page for the lock, and what file systems take for their own tables: on ext4 a block
    // for some hundred fragments of a file.
    let overhead = index_bytes + PAGE + granted / 512;
    let room = granted.saturating_sub(overhead) / PAGE * PAGE;
    if room == 0 {
        return Err(Unusable::NoRoom { granted, index: index_bytes });
    }
    CacheDirectory::grant(&lock, granted)?;
    cache.touch();
    let (index, is_new) = index(config, &cache, &header, troubles)?;
    let segments = Segments::new(&cache.path, &index.header, true);
    let limit = room.min(ADDRESSABLE.saturating_mul(index.header.granule.bytes()));
    let writer = if is_new {
        index.load_empty();
        Writer::of_empty(&segments, limit, lock)
    } else {
        Writer::new(segments.trim(limit)?, limit, lock)
    };
    let versions = config.versions.clone();
    Ok(Store { index, segments, cache, versions, writer: Some(writer) })
}

/// Bytes that the cache may use in all: of its share, what it needs, others leave of the
/// quota and the disk has.
fn granted(
    config: &DiskConfig,
    root: &Path,
    cache: &CacheDirectory,
    need: u64,
    troubles: &Troubles,
) -> Result<u64, Unusable> {
    let quota = config.quota.0;
    let wanted = need.min(config.share.0);
    let grant = quota::grant(root, config.fingerprint, quota, wanted)?;
    if grant.bytes < wanted.min(quota) {
        let sentence = format!(
            "caches of other datasets in use take {} of the {quota} bytes of {}; this one has {}",
            grant.others,
            config.directory.display(),
            grant.bytes
        );
        troubles.warn(Trouble::LessRoom, sentence);
    }
    let disk = rustix::fs::statvfs(root).map_err(io::Error::from)?;
    let available = disk.f_bavail.saturating_mul(disk.f_frsize).saturating_add(cache.bytes()?);
    if available < grant.bytes {
        let sentence = format!(
            "the disk of {} has room for {available} of the {} bytes asked for",
            config.directory.display(),
            grant.bytes
        );
        troubles.warn(Trouble::LessRoom, sentence);
    }
    Ok(grant.bytes.min(available))
}

/// The index that is there, or a new one; whether it is new. The cache starts anew if what the index
/// says is of no use. That it cannot be opened or read now says nothing about what it says: then the
/// cache stays as it is, for a run that can.
fn index(
    config: &DiskConfig,
    cache: &CacheDirectory,
    header: &Header,
    troubles: &Troubles,
) -> Result<(Index, bool), Unusable> {
    let path = cache.index();
    let why = match Index::open(&path, true) {
        Ok(index) if index.header.is_of(config.fingerprint, &config.sizes) => {
            return Ok((index, false));
        }
        Ok(_) => Some(Unusable::Mismatch.to_string()),
        Err(OpenError::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error @ OpenError::Io(_)) => return Err(error.into()),
        Err(OpenError::Index(error)) => Some(error.to_string()),
    };
    if let Some(why) = why {
        let sentence = format!("the cache {} starts anew: {why}", cache.path.display());
        troubles.warn(Trouble::Anew, sentence);
    }
    cache.empty()?;
    Index::create(&path, header, &config.sizes)?;
    Ok((Index::open(&path, true)?, true))
}

fn segment_bytes(quota: u64) -> u64 {
    (quota / MOST_SEGMENTS).clamp(SEGMENT, ADDRESSABLE * GRANULE).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_of_one_gib_or_so_long_that_there_are_no_more_than_128() {
        let gib = 1 << 30;
        for (quota, bytes) in [
            (0, gib),
            (128 * gib, gib),
            (128 * gib + 127, gib),
            (128 * gib + 128, 2 * gib),
            (1024 * gib, 8 * gib),
            (u64::MAX, ADDRESSABLE * GRANULE),
        ] {
            assert_eq!(segment_bytes(quota), bytes, "{quota}");
        }
    }
}
