//! The stamp of a file: its size and times, which distinguish its versions.
//!
//! Programs such as `cp -p` and `rsync` set the time of *modification* (`mtime`). The file system
//! sets the time of *change* (`ctime`) at every write, rename and change of attributes, and no
//! program can set it back.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FileType, Stat, Statx, StatxFlags};
use rustix::io::Errno;

const SECOND: i64 = 1_000_000_000;

/// The stamp of a file at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified: i64,
    /// Nanoseconds since 1970.
    pub changed: i64,
    pub is_regular: bool,
}

impl From<&Stat> for Stamp {
    fn from(stat: &Stat) -> Self {
        Self {
            size: stat.st_size as u64,
            modified: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
            changed: nanoseconds(stat.st_ctime, stat.st_ctime_nsec),
            is_regular: FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile,
        }
    }
}

impl From<&Statx> for Stamp {
    fn from(stat: &Statx) -> Self {
        let mode = u32::from(stat.stx_mode);
        Self {
            size: stat.stx_size,
            modified: nanoseconds(stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec.into()),
            changed: nanoseconds(stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec.into()),
            is_regular: FileType::from_raw_mode(mode) == FileType::RegularFile,
        }
    }
}

/// Returns the stamp of the file at a path. On a network file system the server is asked, not this
/// machine's cache.
pub(super) fn look(root: impl AsFd, path: &Path) -> Result<Stamp, Errno> {
    let wanted = StatxFlags::BASIC_STATS;
    match rustix::fs::statx(&root, path, AtFlags::STATX_FORCE_SYNC, wanted) {
        Ok(found) => Ok(Stamp::from(&found)),
        // Some sandboxes forbid statx.
        Err(Errno::NOSYS | Errno::PERM) => {
            Ok(Stamp::from(&rustix::fs::statat(root, path, AtFlags::empty())?))
        }
        Err(error) => Err(error),
    }
}

/// Returns how long two changes may have the same time. A tick of the kernel's clock is at most 10
/// ms; a time in whole seconds is that of a file system that counts in steps of one or two seconds.
fn tick(time: i64) -> i64 {
    if time % SECOND == 0 { 2 * SECOND } else { SECOND / 50 }
}

/// Whether a change after the moment `then` has a later time than this one.
pub(super) fn is_settled(time: i64, then: SystemTime) -> bool {
    time.saturating_add(tick(time)) < since_1970(then)
}

/// Waits until every further change of a file has a later time of change than this one. A read
/// after that gets the last of all versions with this time.
pub(super) fn settle(changed: i64) {
    let rest = changed.saturating_add(tick(changed)).saturating_sub(since_1970(SystemTime::now()));
    // A time in the future comes from another clock, so the wait is limited.
    let rest = rest.clamp(0, tick(changed));
    std::thread::sleep(Duration::from_nanos(rest.unsigned_abs()));
}

fn since_1970(moment: SystemTime) -> i64 {
    let nanoseconds = moment.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    i64::try_from(nanoseconds).unwrap_or(i64::MAX)
}

fn nanoseconds(seconds: i64, rest: u64) -> i64 {
    seconds.saturating_mul(SECOND).saturating_add_unsigned(rest)
}
