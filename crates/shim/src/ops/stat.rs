//! Questions about files: answered with what the source said when it was copied.

use belady_board::path::{Buffer, Place};
use belady_board::{Counted, Facts, Kind, Revalidate};

use super::Named;
use super::open::compare;
use super::place::place;
use crate::job::Job;

/// What is said of the file of this name; None if the source has to be asked.
#[inline(never)]
pub fn facts(job: &Job, file: Named<'_>, follow: bool) -> Option<Facts> {
    let mut room = Buffer::default();
    let Place::Below(name) = place(job, file, &mut room) else { return None };
    let head = job.board.head();
    let copied = job.board.find(job.board.key(name)).and_then(|entry| {
        let Kind::Copy { level, .. } = entry.kind() else { return None };
        if head.revalidate() == Revalidate::Open || (entry.is_link() && !follow) {
            return None;
        }
        Some((entry, level))
    });
    match copied {
        Some((entry, level)) if entry.is_proved() => {
            head.count(Some(level), Counted::Stats, 1);
            Some(*entry.facts())
        }
        // The first question about a copy of an earlier run is one to the source, and proves the copy.
        // A source that is another one now, or cannot be asked, is left to the real call.
        Some((entry, _)) => {
            compare(job, &entry, file).filter(|facts| facts.is_still(entry.facts()))
        }
        None => {
            head.count(None, Counted::Stats, 1);
            None
        }
    }
}

/// Whether the file is there and may be read, as far as that is known without asking.
#[inline(never)]
pub fn is_readable(job: &Job, file: Named<'_>) -> bool {
    let (user, effective) = (rustix::process::getuid(), rustix::process::geteuid());
    // The copy was made with the rights of this user.
    user == effective && user.as_raw() == job.board.head().owner && facts(job, file, true).is_some()
}
