//! The used bytes of a level, shared by all launchers: a number in a file.
//!
//! The number changes under a file lock, which the kernel releases when a process ends. Launchers
//! reserve bytes before they write a copy and release them after they have removed one, so the
//! copies never exceed the number (`many_at_once_never_exceed_the_quota`). A killed launcher leaves
//! the number too high, until a launcher that is alone on the level counts again.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use belady_base::sync::{Mutex, lock};

use crate::files::NO_LINK;

/// The used bytes of a level and its quota.
#[derive(Debug)]
pub struct QuotaUsage {
    /// The threads of a process share the file's lock, so they need a mutex.
    file: Mutex<File>,
    quota: u64,
}

impl QuotaUsage {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn open(path: &Path, quota: u64) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(NO_LINK).open(path)?;
        Ok(Self { file: Mutex::new(file), quota })
    }

    pub fn quota(&self) -> u64 {
        self.quota
    }

    /// Returns the used bytes.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn get(&self) -> io::Result<u64> {
        let mut now = 0;
        self.change(|used| {
            now = used;
            None
        })?;
        Ok(now)
    }

    /// Reserves bytes. Returns false if they exceed the quota less `spared`.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn reserve(&self, bytes: u64, spared: u64) -> io::Result<bool> {
        let most = self.quota.saturating_sub(spared);
        self.change(|used| used.checked_add(bytes).filter(|&sum| sum <= most))
    }

    /// Releases reserved bytes.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn release(&self, bytes: u64) -> io::Result<()> {
        self.change(|used| Some(used.saturating_sub(bytes))).map(drop)
    }

    /// Sets the used bytes after a launcher that is alone has counted them.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn set(&self, bytes: u64) -> io::Result<()> {
        self.change(|_| Some(bytes)).map(drop)
    }

    fn change(&self, mut next: impl FnMut(u64) -> Option<u64>) -> io::Result<bool> {
        let file = lock(&self.file);
        file.lock()?;
        let answer = read(&file).and_then(|used| match next(used) {
            Some(now) => file.write_all_at(&now.to_le_bytes(), 0).map(|()| true),
            None => Ok(false),
        });
        file.unlock()?;
        answer
    }
}

fn read(file: &File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => Ok(u64::from_le_bytes(bytes)),
        // A new file.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_share_a_quota() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("used");
        let [mine, yours] = [(); 2].map(|()| QuotaUsage::open(&path, 100).unwrap());
        assert!(mine.reserve(60, 0).unwrap());
        assert!(!yours.reserve(41, 0).unwrap());
        assert!(yours.reserve(40, 0).unwrap());
        mine.release(60).unwrap();
        assert!(!mine.reserve(60, 1).unwrap());
        assert_eq!(yours.get().unwrap(), 40);
        assert!(!yours.reserve(u64::MAX, 0).unwrap());
    }

    #[test]
    fn many_at_once_never_exceed_the_quota() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("used");
        let taken = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let used = QuotaUsage::open(&path, 1000).unwrap();
                    for _ in 0..200 {
                        if used.reserve(3, 0).unwrap() {
                            taken.fetch_add(3, std::sync::atomic::Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(taken.into_inner(), 999);
        assert_eq!(QuotaUsage::open(&path, 1000).unwrap().get().unwrap(), 999);
    }
}
