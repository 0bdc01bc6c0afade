//! Opens a cache: as its writer, as a reader, or not at all.
//!
//! Opening is quick, so it does not read the index's entries; the free space is recovered later.

use std::io;
use std::path::Path;

use belady_base::fork::FileLock;

use super::DiskConfig;
use super::degradation::{Degradation, Degradations};
use super::directory::{self, CacheDirectory, DirectoryError, DirectoryLock};
use super::granule::Granule;
use super::index::{CacheIndex, IndexHeader, OpenIndexError, PAGE};
use super::location::ADDRESSABLE;
use super::quota;
use super::segments::Segments;
use super::store::CacheStore;
use super::writer::CacheWriter;
use crate::tier::extents::GRANULE;

const SEGMENT: u64 = 1 << 30;
/// Larger quotas get longer segments: every segment costs two descriptors, and a process often has
/// no more than 1,024.
const MOST_SEGMENTS: u64 = 128;

/// Why the tier does nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("its index cannot be opened: {0}")]
    Index(#[from] OpenIndexError),
    #[error("its index is of a dataset with other samples")]
    Mismatch,
    #[error("{granted} bytes leave no space beside its index of {index} bytes: raise the quota")]
    NoSpace { granted: u64, index: u64 },
}

pub(super) fn open(
    config: &DiskConfig,
    degradations: &Degradations,
) -> Result<CacheStore, Unusable> {
    let root = directory::prepare(&config.directory)?;
    let cache = CacheDirectory::new(&root, config.fingerprint);
    let directory_lock = DirectoryLock::acquire(&root);
    let locked = match &directory_lock {
        Ok(_) => cache.make().and_then(|()| {
            cache.lock().map_err(|error| DirectoryError::Io { path: cache.path.clone(), error })
        }),
        Err(error) => Err(DirectoryError::Io {
            path: root.clone(),
            error: io::Error::new(error.kind(), error.to_string()),
        }),
    };
    match locked {
        Ok(Some(lock)) => match open_as_writer(config, &root, cache.clone(), lock, degradations) {
            Err(error @ Unusable::Index(OpenIndexError::Io(_))) => {
                open_to_read_only(config, cache, error, degradations)
            }
            opened => opened,
        },
        Ok(None) => {
            open_as_reader(config, cache).inspect(|store| report_shared(store, degradations))
        }
        Err(error @ DirectoryError::Io { .. }) => {
            open_to_read_only(config, cache, error.into(), degradations)
        }
        Err(error) => Err(error.into()),
    }
}

/// Opens a cache that cannot be written as a reader, if it can be read.
fn open_to_read_only(
    config: &DiskConfig,
    cache: CacheDirectory,
    why: Unusable,
    degradations: &Degradations,
) -> Result<CacheStore, Unusable> {
    let Ok(store) = open_as_reader(config, cache) else { return Err(why) };
    let sentence = format!("{why}; samples are read from the cache, and none are added");
    degradations.warn(Degradation::ReadOnly, sentence);
    Ok(store)
}

/// Warns that another writer has the cache, unless the cache holds all samples: otherwise the user
/// would only notice slow epochs.
fn report_shared(store: &CacheStore, degradations: &Degradations) {
    let path = store.cache.path.display();
    if store.index.held().samples == u64::from(store.index.header.samples) {
        let sentence = format!("another job or process writes {path}, which holds all samples");
        return degradations.inform(Degradation::Shared, sentence);
    }
    let sentence = format!(
        "another job or process writes {path}: its samples are read and none are added; stop that \
         one first, or choose another directory, to cache what this job reads"
    );
    degradations.warn(Degradation::Shared, sentence);
}

/// Opens a cache as a reader without creating or changing anything.
pub(super) fn open_to_read(config: &DiskConfig) -> Option<CacheStore> {
    let root = directory::find(&config.directory).ok()?;
    open_as_reader(config, CacheDirectory::new(&root, config.fingerprint)).ok()
}

fn open_as_reader(config: &DiskConfig, cache: CacheDirectory) -> Result<CacheStore, Unusable> {
    let index = CacheIndex::open(&cache.index(), false)?;
    if !index.header.is_of(config.fingerprint, &config.sizes) {
        return Err(Unusable::Mismatch);
    }
    let segments = Segments::new(&cache.path, &index.header, false);
    cache.touch();
    let versions = config.versions.clone();
    Ok(CacheStore { index, segments, cache, versions, writer: None })
}

fn open_as_writer(
    config: &DiskConfig,
    root: &Path,
    cache: CacheDirectory,
    lock: FileLock,
    degradations: &Degradations,
) -> Result<CacheStore, Unusable> {
    let sizes = &config.sizes;
    let payload = sizes.total().0;
    let granule = Granule::for_payload(payload, sizes.len());
    let segment = config.segment.map_or_else(|| segment_bytes(config.quota.0), |bytes| bytes.0);
    let header = IndexHeader::new(config.fingerprint, &config.name, segment, granule, sizes);
    let index_bytes = header.file_bytes();
    let payload = payload + granule.bytes() * u64::from(sizes.len());
    // With tables of pieces, and some slack.
    let need = index_bytes + payload + payload / 64 + (1 << 20);
    let granted = granted(config, root, &cache, need, degradations)?;
    // A page for the lock, and the file system's own tables: on ext4 a block for some hundred
    // fragments of a file.
    let overhead = index_bytes + PAGE + granted / 512;
    let space = granted.saturating_sub(overhead) / PAGE * PAGE;
    if space == 0 {
        return Err(Unusable::NoSpace { granted, index: index_bytes });
    }
    CacheDirectory::grant(&lock, granted)?;
    cache.touch();
    let (index, is_new) = index(config, &cache, &header, degradations)?;
    let segments = Segments::new(&cache.path, &index.header, true);
    let limit = space.min(ADDRESSABLE.saturating_mul(index.header.granule.bytes()));
    let writer = if is_new {
        index.load_empty();
        CacheWriter::of_empty(&segments, limit, lock)
    } else {
        CacheWriter::new(segments.trim(limit)?, limit, lock)
    };
    let versions = config.versions.clone();
    Ok(CacheStore { index, segments, cache, versions, writer: Some(writer) })
}

/// Returns the bytes that the cache may use: the least of its share, its need, the rest of the
/// quota and the free space of the disk.
fn granted(
    config: &DiskConfig,
    root: &Path,
    cache: &CacheDirectory,
    need: u64,
    degradations: &Degradations,
) -> Result<u64, Unusable> {
    let quota = config.quota.0;
    let wanted = need.min(config.share.0);
    let grant = quota::grant(root, config.fingerprint, quota, wanted)?;
    if grant.bytes < wanted.min(quota) {
        let sentence = format!(
            "caches of other datasets in use take {} of the {quota} bytes of {}; this one gets {}",
            grant.others,
            config.directory.display(),
            grant.bytes
        );
        degradations.warn(Degradation::LessSpace, sentence);
    }
    let disk = rustix::fs::statvfs(root).map_err(io::Error::from)?;
    let available = disk.f_bavail.saturating_mul(disk.f_frsize).saturating_add(cache.bytes()?);
    if available < grant.bytes {
        let sentence = format!(
            "the disk of {} has space for {available} of the {} configured bytes",
            config.directory.display(),
            grant.bytes
        );
        degradations.warn(Degradation::LessSpace, sentence);
    }
    Ok(grant.bytes.min(available))
}

/// Returns the existing index or a new one, and whether it is new. An index that is not valid
/// resets the cache. One that cannot be opened or read now may still be valid: the cache then stays
/// as it is, for a later run.
fn index(
    config: &DiskConfig,
    cache: &CacheDirectory,
    header: &IndexHeader,
    degradations: &Degradations,
) -> Result<(CacheIndex, bool), Unusable> {
    let path = cache.index();
    let why = match CacheIndex::open(&path, true) {
        Ok(index) if index.header.is_of(config.fingerprint, &config.sizes) => {
            return Ok((index, false));
        }
        Ok(_) => Some(Unusable::Mismatch.to_string()),
        Err(OpenIndexError::Io(error)) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error @ OpenIndexError::Io(_)) => return Err(error.into()),
        Err(OpenIndexError::Index(error)) => Some(error.to_string()),
    };
    if let Some(why) = why {
        let sentence = format!("the cache {} is reset: {why}", cache.path.display());
        degradations.warn(Degradation::Reset, sentence);
    }
    cache.empty()?;
    CacheIndex::create(&path, header, &config.sizes)?;
    Ok((CacheIndex::open(&path, true)?, true))
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
