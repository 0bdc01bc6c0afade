//! Which version of each file a source reads, and whether it was compared in this round.
//!
//! A listing records the stamp of every file. Whenever a file is read, its stamp is compared with
//! that. Before a cached copy is used, the file is compared too
//! ([`Source::compare`](super::Source::compare)), once in a *round*: a round begins with a job, or
//! with every epoch ([`Freshness`]).
//!
//! A file of another size or time of modification has changed, and none of its samples is read. If
//! only the time of change is new, the content may be new (the file was overwritten and its `mtime`
//! set back) or not (its permissions were changed). Such a file is read as it is now, earlier
//! copies of it are not used, and the new version is *noticed* here. Bytes that are read belong to
//! one version ([`Want::version`](super::Want::version)), which goes with them into caches and to
//! other nodes.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use belady_base::sync::{Mutex, lock};

use crate::sparse_table::SparseTable;

/// When cached copies are compared with their files again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// Once per job, before the first copy of a file is used.
    #[default]
    Start,
    /// Once per epoch.
    Epoch,
    /// Never: the files of the dataset do not change.
    Never,
}

impl Freshness {
    /// Returns the name, which parses to the same.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Epoch => "epoch",
            Self::Never => "never",
        }
    }
}

impl FromStr for Freshness {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "start" => Ok(Self::Start),
            "epoch" => Ok(Self::Epoch),
            "never" => Ok(Self::Never),
            _ => Err(format!("freshness is \"start\", \"epoch\" or \"never\", not \"{text}\"")),
        }
    }
}

/// What begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// A job.
    Job,
    /// An epoch.
    Epoch,
}

/// A version of a sample's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// The file's time of change; 0 for what cannot change.
    pub changed: i64,
    /// Whether it was noticed after the listing. All later versions of the file are then noticed
    /// too.
    pub noticed: bool,
}

/// The versions of a dataset's files.
#[derive(Debug)]
pub(super) struct Versions {
    freshness: Freshness,
    /// One bit per file: whether it was compared in this round.
    compared: Box<[AtomicU64]>,
    round: AtomicU64,
    /// Locked while bits are set or cleared, so that those of one round are not set in the next.
    marking: Mutex<()>,
    /// Whether any version was noticed.
    any: AtomicBool,
    /// By file, the version noticed last. Read without a lock, since every served sample needs it.
    noticed: SparseTable,
}

impl Versions {
    pub fn new(files: u32, freshness: Freshness) -> Self {
        let words = if freshness == Freshness::Never { 0 } else { files.div_ceil(64) };
        Self {
            freshness,
            compared: (0..words).map(|_| AtomicU64::new(0)).collect(),
            round: AtomicU64::new(0),
            marking: Mutex::default(),
            any: AtomicBool::new(false),
            noticed: SparseTable::new(files),
        }
    }

    /// Whether a file needs no further comparison in this round.
    pub fn is_compared(&self, file: u32) -> bool {
        self.freshness == Freshness::Never || {
            let word = self.compared[file as usize / 64].load(Ordering::Acquire);
            word & (1 << (file % 64)) != 0
        }
    }

    /// Returns the latest known version of a file that was listed with this time of change.
    pub fn of(&self, file: u32, listed: i64) -> Version {
        match self.noticed.get(file) {
            Some(changed) => Version { changed, noticed: true },
            None => Version { changed: listed, noticed: false },
        }
    }

    /// Whether a new version of any file was noticed.
    pub fn has_noticed(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Whether a time of change belongs to a version that is not known yet.
    pub fn is_new(&self, file: u32, listed: i64, found: i64) -> bool {
        self.freshness != Freshness::Never && self.of(file, listed).changed != found
    }

    /// Returns the current round. Callers read it before they look at a file.
    pub fn round(&self) -> u64 {
        self.round.load(Ordering::Acquire)
    }

    /// Records the time of change that a file had in a round. Returns the version if it was known
    /// before, and `None` if it is new.
    pub fn record(&self, file: u32, listed: i64, found: i64, round: u64) -> Option<i64> {
        if self.freshness == Freshness::Never {
            return Some(listed);
        }
        let known = !self.is_new(file, listed, found);
        if !known {
            self.noticed.set(file, found);
            self.any.store(true, Ordering::Release);
        }
        if !self.is_compared(file) {
            let _marking = lock(&self.marking);
            // A look before the round began does not count.
            if self.round() == round {
                self.compared[file as usize / 64].fetch_or(1 << (file % 64), Ordering::AcqRel);
            }
        }
        known.then_some(found)
    }

    /// Begins a new round, if one begins with this.
    pub fn begin(&self, what: Begin) {
        if what == Begin::Job || self.freshness == Freshness::Epoch {
            let _marking = lock(&self.marking);
            self.round.fetch_add(1, Ordering::AcqRel);
            for word in &self.compared {
                word.store(0, Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_compared_once_a_round() {
        let versions = Versions::new(70, Freshness::Start);
        assert!(!versions.is_compared(65));
        assert_eq!(versions.record(65, 10, 10, 0), Some(10));
        assert!(versions.is_compared(65) && !versions.is_compared(64));
        versions.begin(Begin::Epoch);
        assert!(versions.is_compared(65), "a round is a job");
        versions.begin(Begin::Job);
        assert!(!versions.is_compared(65));
        assert_eq!(versions.record(65, 10, 10, 0), Some(10));
        assert!(!versions.is_compared(65), "it was looked at before the round began");
        assert_eq!(versions.record(65, 10, 10, versions.round()), Some(10));
        assert!(versions.is_compared(65));
        let versions = Versions::new(70, Freshness::Epoch);
        assert_eq!(versions.record(1, 10, 10, 0), Some(10));
        versions.begin(Begin::Epoch);
        assert!(!versions.is_compared(1));
    }

    #[test]
    fn a_new_version_is_noticed_and_stays_known() {
        let versions = Versions::new(3, Freshness::Start);
        assert_eq!(versions.record(1, 10, 11, 0), None, "new");
        assert_eq!(versions.record(1, 10, 11, 0), Some(11), "known by now");
        assert_eq!(versions.of(1, 10), Version { changed: 11, noticed: true });
        assert_eq!(versions.record(1, 10, 10, 0), None, "the listed one once more");
        assert_eq!(versions.of(1, 10), Version { changed: 10, noticed: true });
        assert_eq!(versions.of(2, 10), Version { changed: 10, noticed: false });
    }

    #[test]
    fn with_freshness_never_no_file_is_compared() {
        let versions = Versions::new(3, Freshness::Never);
        assert!(versions.is_compared(2));
        assert_eq!(versions.record(2, 10, 99, 0), Some(10), "as it was listed");
        assert_eq!(versions.of(2, 10), Version { changed: 10, noticed: false });
    }
}
