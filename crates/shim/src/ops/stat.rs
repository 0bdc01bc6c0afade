//! `stat` and `access`, answered from the board.

use belady_board::path::{PathBuffer, PathLocation};
use belady_board::{FileStat, OpenCounter, RecordKind, Revalidate};

use super::NamedFile;
use super::locate::locate;
use super::open::compare;
use crate::attached_job::AttachedJob;

/// Returns the stat of a file from the board; None if the real function has to be called.
#[inline(never)]
pub fn stat_of(job: &AttachedJob, file: NamedFile<'_>, follow: bool) -> Option<FileStat> {
    let mut buffer = PathBuffer::default();
    let PathLocation::Below(name) = locate(job, file, &mut buffer) else { return None };
    let head = job.board.header();
    let copied = job.board.find(job.board.key(name)).and_then(|entry| {
        let RecordKind::Copy { level, .. } = entry.kind() else { return None };
        if head.revalidate() == Revalidate::Open || (entry.is_link() && !follow) {
            return None;
        }
        Some((entry, level))
    });
    match copied {
        Some((entry, level)) if entry.is_validated() => {
            head.count(Some(level), OpenCounter::Stats, 1);
            Some(*entry.stat())
        }
        // The first call for a copy of an earlier run asks the source, which validates the copy. If
        // the source has changed or the call fails, the real function is called.
        Some((entry, _)) => {
            compare(job, &entry, file).filter(|stat| stat.is_unchanged_since(entry.stat()))
        }
        None => {
            head.count(None, OpenCounter::Stats, 1);
            None
        }
    }
}

/// Returns whether the board shows that the file exists and is readable.
#[inline(never)]
pub fn is_readable(job: &AttachedJob, file: NamedFile<'_>) -> bool {
    let (user, effective) = (rustix::process::getuid(), rustix::process::geteuid());
    // The copy was made with the permissions of this user.
    user == effective
        && user.as_raw() == job.board.header().owner
        && stat_of(job, file, true).is_some()
}
