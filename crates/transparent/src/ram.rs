//! A level in memory: a private directory in `/dev/shm`, for the time of a run.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use belady_control::model::Bytes;

use crate::error::PrepareError;
use crate::level;

const SHARED_MEMORY: &str = "/dev/shm";

/// A new directory with room for so many bytes. What earlier runs of this user left that were killed
/// is removed.
pub fn directory(quota: u64) -> Result<PathBuf, PrepareError> {
    let told = |problem: String| PrepareError::level(Path::new("ram"), problem);
    let prefix = format!("belady-run-{}-", rustix::process::getuid().as_raw());
    let parent = Path::new(SHARED_MEMORY);
    remove_stale(parent, &prefix);
    let fs = rustix::fs::statvfs(parent)
        .map_err(|error| told(format!("{SHARED_MEMORY} cannot be used: {error}")))?;
    let free = fs.f_bavail.saturating_mul(fs.f_frsize).min(available_memory());
    if free < quota {
        let [quota, free] = [quota, free].map(Bytes);
        return Err(told(format!(
            "there is no room for {quota}: {SHARED_MEMORY} and the machine's memory have {free} free; ask for less"
        )));
    }
    make(parent, &prefix).map_err(|error| told(format!("{SHARED_MEMORY} cannot be used: {error}")))
}

fn make(parent: &Path, prefix: &str) -> io::Result<PathBuf> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let path = parent.join(format!("{prefix}{:016x}", u64::from_ne_bytes(random)));
    level::private_directory(&path)?;
    Ok(path)
}

/// Bytes that can be used without swapping, as the kernel estimates them.
fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: Option<u64> =
        line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

/// A directory belongs to a launcher that lives if one of its locks is held.
fn remove_stale(parent: &Path, prefix: &str) {
    let own = rustix::process::getuid().as_raw();
    for path in level::entries(parent).unwrap_or_default() {
        use std::os::unix::fs::MetadataExt as _;
        let named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
        let mine = path.symlink_metadata().is_ok_and(|facts| facts.is_dir() && facts.uid() == own);
        if named && mine && is_stale(&path) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

fn is_stale(path: &Path) -> bool {
    // One that is just being made holds this.
    let Ok(gate) = File::open(path.join(level::LOCK)) else { return false };
    if gate.try_lock().is_err() {
        return false;
    }
    let homes = level::homes(path).unwrap_or_default();
    let partials = homes.iter().flat_map(|home| level::entries(&home.join(level::PARTIAL)));
    let mut partials = partials.flatten().peekable();
    // Or it will hold it in a moment, and nobody has written anything there yet.
    partials.peek().is_some() && !partials.any(|partial| level::is_alive(&partial))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::Level;

    #[test]
    fn what_a_killed_run_left_is_removed_and_what_lives_stays() {
        let folder = tempfile::tempdir().unwrap();
        let [live, stale] = [(); 2].map(|()| make(folder.path(), "belady-run-test-").unwrap());
        let open =
            |root: &Path| Level::open(root, "ram".into(), 9, Path::new("/data"), true).unwrap();
        let kept = open(&live);
        // As when its process has gone: locks are free, files are there.
        drop(open(&stale));
        remove_stale(folder.path(), "belady-run-test-");
        assert!(live.exists() && !stale.exists());
        kept.close();
        assert!(!live.exists());
    }

    #[test]
    fn one_that_is_just_being_made_is_not_stale() {
        let folder = tempfile::tempdir().unwrap();
        let young = make(folder.path(), "belady-run-test-").unwrap();
        // Made, and not yet locked.
        File::create(young.join(level::LOCK)).unwrap();
        remove_stale(folder.path(), "belady-run-test-");
        assert!(young.exists());
    }
}
