//! How much of a directory's quota a cache may use.
//!
//! All caches of a directory share one quota. Caches in use keep what they were granted, whether
//! their writer is in this process or another. Idle caches are removed to make space, the least
//! recently used first. So the files never exceed the quota.

use std::io;
use std::path::Path;

use super::directory::{CacheDirectory, CacheUse};

/// What a cache may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub bytes: u64,
    /// The bytes of other caches in use.
    pub others: u64,
}

/// Makes space for a cache that wants this many bytes, and grants what is free.
pub(super) fn grant(root: &Path, fingerprint: u64, quota: u64, wanted: u64) -> io::Result<Grant> {
    let mut others = 0;
    let mut idle = Vec::new();
    for cache in CacheDirectory::all(root)? {
        if cache.fingerprint == fingerprint {
            continue;
        }
        match cache.usage() {
            CacheUse::Writer => others += cache.bytes()?.max(cache.granted()),
            CacheUse::Readers => others += cache.bytes()?,
            CacheUse::Idle => idle.push((cache.bytes()?, cache)),
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
        tracing::info!("removing the idle cache {} to make space", cache.path.display());
        cache.remove()?;
    }
    Ok(Grant { bytes, others })
}
