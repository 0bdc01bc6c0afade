//! A level in memory: a private directory in `/dev/shm` that exists for one run.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use belady_base::units::Bytes;

use crate::error::PrepareError;
use crate::{files, level};

const SHARED_MEMORY: &str = "/dev/shm";

/// Creates a directory for a level of this size. Removes directories that killed runs of this user
/// left.
pub fn directory(quota: u64) -> Result<PathBuf, PrepareError> {
    let wrong = |problem: String| PrepareError::level(Path::new("ram"), problem);
    let prefix = format!("belady-run-{}-", rustix::process::getuid().as_raw());
    let parent = Path::new(SHARED_MEMORY);
    remove_stale(parent, &prefix);
    let fs = rustix::fs::statvfs(parent)
        .map_err(|error| wrong(format!("{SHARED_MEMORY} cannot be used: {error}")))?;
    let free = fs.f_bavail.saturating_mul(fs.f_frsize).min(available_memory());
    if free < quota {
        let [quota, free] = [quota, free].map(Bytes);
        return Err(wrong(format!(
            "{quota} do not fit: {SHARED_MEMORY} and the machine's memory have {free} free; ask for less"
        )));
    }
    make(parent, &prefix).map_err(|error| wrong(format!("{SHARED_MEMORY} cannot be used: {error}")))
}

fn make(parent: &Path, prefix: &str) -> io::Result<PathBuf> {
    let path = parent.join(format!("{prefix}{:016x}", files::random()?));
    files::private_directory(&path)?;
    Ok(path)
}

/// Returns the kernel's estimate of the bytes that can be used without swapping.
fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: Option<u64> =
        line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

/// Removes directories of launchers that have exited.
fn remove_stale(parent: &Path, prefix: &str) {
    let own = rustix::process::getuid().as_raw();
    for path in files::entries(parent).unwrap_or_default() {
        use std::os::unix::fs::MetadataExt as _;
        let named = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix));
        let ours = path
            .symlink_metadata()
            .is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == own);
        if named && ours && is_stale(&path) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

fn is_stale(path: &Path) -> bool {
    // A launcher that is creating the level holds this lock.
    let Ok(lock) = File::open(path.join(level::LOCK)) else { return false };
    if lock.try_lock().is_err() {
        return false;
    }
    let homes = level::homes(path).unwrap_or_default();
    let partials = homes.iter().flat_map(|home| files::entries(&home.join(level::PARTIAL)));
    let mut partials = partials.flatten().peekable();
    // Without partial copies, a launcher may be about to take the lock.
    partials.peek().is_some() && !partials.any(|partial| level::is_alive(&partial))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::CopyLevel;

    #[test]
    fn the_level_of_a_killed_run_is_removed_and_a_live_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let [live, stale] = [(); 2].map(|()| make(folder.path(), "belady-run-test-").unwrap());
        let open =
            |root: &Path| CopyLevel::open(root, "ram".into(), 9, Path::new("/data"), true).unwrap();
        let kept = open(&live);
        // As after its process was killed: the locks are free, the files exist.
        drop(open(&stale));
        remove_stale(folder.path(), "belady-run-test-");
        assert!(live.exists() && !stale.exists());
        kept.close();
        assert!(!live.exists());
    }

    #[test]
    fn a_level_that_is_being_created_is_not_stale() {
        let folder = tempfile::tempdir().unwrap();
        let young = make(folder.path(), "belady-run-test-").unwrap();
        // Created, and not yet locked.
        File::create(young.join(level::LOCK)).unwrap();
        remove_stale(folder.path(), "belady-run-test-");
        assert!(young.exists());
    }
}
