//! How much of a directory's quota a cache may use.
//!
//! The quota is one for all datasets whose caches lie in the directory. Caches in use keep
//! what they were granted, whether their writer is in this process or in another; idle ones
//! make room, least recently used first. So what is on the disk never passes the quota.

use std::io;
use std::path::Path;

use super::directory::{CacheDirectory, Use};

/// What a cache may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub bytes: u64,
    /// What others that are in use keep.
    pub others: u64,
}

/// Makes room for a cache that wants so many bytes and grants what there is.
pub(super) fn grant(root: &Path, fingerprint: u64, quota: u64, wanted: u64) -> io::Result<Grant> {
    let mut others = 0;
    let mut idle = Vec::new();
    for cache in CacheDirectory::all(root)? {
        if cache.fingerprint == fingerprint {
            continue;
        }
        match cache.usage() {
            Use::Writer => others += cache.bytes()?.max(cache.granted()),
            Use::Readers => others += cache.bytes()?,
            Use::Idle => idle.push((cache.bytes()?, cache)),
        }
    }
    let bytes = wanted.min(quota.saturating_sub(others));
    idle.sort_by_key(|(_, cache)| cache.last_used());
    let mut unused: u64 = idle.iter().map(|(bytes, _)| bytes).sum();
    for (taken, cache) in idle {
        if others + unused + bytes <= quota {
            break;
        }
        unused -= taken;
        tracing::info!("removing the idle cache {} to make room", cache.path.display());
        cache.remove()?;
    }
    Ok(Grant { bytes, others })
}
