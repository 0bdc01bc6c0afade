//! Which version of each file a source reads, and since when that is known.
//!
//! A listing says what every file was. Whether it still is that is seen whenever the file is read,
//! and asked for ([`Source::compare`](super::Source::compare)) before a copy of it is taken from a
//! cache: once for each file in a *round*, which begins with a job, or with every epoch
//! ([`Freshness`]).
//!
//! A file of another size or time of modification is a changed file, and none of its samples can be
//! had. A file of which only the time of change is new may be another one or may not: it was
//! overwritten and its time set back, or only its rights were changed. It is read as it is now, and
//! copies that were made of it before are not believed. The new version is *noticed* here. Bytes that
//! are read are of one version ([`Want::version`](super::Want::version)), and go with it wherever they
//! go: into a cache, to another node.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::sparse::Sparse;
use crate::sync::{Mutex, lock};

/// When copies in caches are compared with their files again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// In every job, each file before the first copy of it is used.
    #[default]
    Start,
    /// In every epoch.
    Epoch,
    /// Never: the files of the dataset do not change.
    Never,
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
    Job,
    Epoch,
}

/// A version of a sample's file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// When it came to be: the file's time of change; 0 for what cannot change.
    pub changed: i64,
    /// It was noticed after the file was listed. Once one was, all later ones of the file are.
    pub noticed: bool,
}

/// The versions of a dataset's files.
#[derive(Debug)]
pub(super) struct Versions {
    freshness: Freshness,
    /// A bit a file: it was compared in this round.
    compared: Box<[AtomicU64]>,
    round: AtomicU64,
    /// Held while bits are set or cleared, so that those of one round are not set in the next.
    marking: Mutex<()>,
    /// Whether any version was noticed: mostly none was.
    any: AtomicBool,
    /// By file, the version that was noticed last. Every sample that is served asks for one, so it is
    /// read without a lock.
    noticed: Sparse,
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
            noticed: Sparse::new(files),
        }
    }

    /// Whether a file need not be compared any more in this round.
    pub fn is_compared(&self, file: u32) -> bool {
        self.freshness == Freshness::Never || {
            let word = self.compared[file as usize / 64].load(Ordering::Acquire);
            word & (1 << (file % 64)) != 0
        }
    }

    /// The version of a file that was listed with this time of change, as far as is known.
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

    /// Whether a time of change is that of a version that is not known yet.
    pub fn is_new(&self, file: u32, listed: i64, found: i64) -> bool {
        self.freshness != Freshness::Never && self.of(file, listed).changed != found
    }

    /// The round in which a file is about to be looked at.
    pub fn round(&self) -> u64 {
        self.round.load(Ordering::Acquire)
    }

    /// A file was found with a time of change, by a look in some round: its version, if that was known
    /// already, and nothing if it is new.
    pub fn saw(&self, file: u32, listed: i64, found: i64, round: u64) -> Option<i64> {
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
            // What was seen before a round began says nothing about it.
            if self.round() == round {
                self.compared[file as usize / 64].fetch_or(1 << (file % 64), Ordering::AcqRel);
            }
        }
        known.then_some(found)
    }

    /// Begins another round, if one begins with this.
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
        assert_eq!(versions.saw(65, 10, 10, 0), Some(10));
        assert!(versions.is_compared(65) && !versions.is_compared(64));
        versions.begin(Begin::Epoch);
        assert!(versions.is_compared(65), "a round is a job");
        versions.begin(Begin::Job);
        assert!(!versions.is_compared(65));
        assert_eq!(versions.saw(65, 10, 10, 0), Some(10));
        assert!(!versions.is_compared(65), "it was looked at before the round began");
        assert_eq!(versions.saw(65, 10, 10, versions.round()), Some(10));
        assert!(versions.is_compared(65));
        let versions = Versions::new(70, Freshness::Epoch);
        assert_eq!(versions.saw(1, 10, 10, 0), Some(10));
        versions.begin(Begin::Epoch);
        assert!(!versions.is_compared(1));
    }

    #[test]
    fn a_new_version_is_noticed_and_stays_known() {
        let versions = Versions::new(3, Freshness::Start);
        assert_eq!(versions.saw(1, 10, 11, 0), None, "new");
        assert_eq!(versions.saw(1, 10, 11, 0), Some(11), "known by now");
        assert_eq!(versions.of(1, 10), Version { changed: 11, noticed: true });
        assert_eq!(versions.saw(1, 10, 10, 0), None, "the listed one once more");
        assert_eq!(versions.of(1, 10), Version { changed: 10, noticed: true });
        assert_eq!(versions.of(2, 10), Version { changed: 10, noticed: false });
    }

    #[test]
    fn what_never_changes_is_never_compared() {
        let versions = Versions::new(3, Freshness::Never);
        assert!(versions.is_compared(2));
        assert_eq!(versions.saw(2, 10, 99, 0), Some(10), "as it was listed");
        assert_eq!(versions.of(2, 10), Version { changed: 10, noticed: false });
    }
}
