//! What keeps a tier from doing all it was asked to: said once each, and kept for its
//! status.

use crate::sync::{Mutex, lock};

/// Kinds of trouble; each is reported the first time only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The tier does nothing.
    Off,
    /// The directory cannot be written to.
    ReadOnly,
    /// Another job or process writes this cache.
    Shared,
    /// Caches of other datasets in use, or the disk, leave less than the quota.
    LessRoom,
    /// What was there could not be used.
    Anew,
    /// The segments cannot grow.
    NoGrowth,
    WriteFailed,
    ReadFailed,
}

#[derive(Debug, Default)]
pub(super) struct Troubles(Mutex<Vec<(Trouble, String)>>);

impl Troubles {
    pub fn warn(&self, kind: Trouble, sentence: String) {
        if let Some(sentence) = self.first(kind, sentence) {
            tracing::warn!("{sentence}");
        }
    }

    /// For what is no fault of anything.
    pub fn inform(&self, kind: Trouble, sentence: String) {
        if let Some(sentence) = self.first(kind, sentence) {
            tracing::info!("{sentence}");
        }
    }

    /// All of them, if any.
    pub fn summary(&self) -> Option<String> {
        let troubles = lock(&self.0);
        let sentences: Vec<&str> = troubles.iter().map(|(_, sentence)| sentence.as_str()).collect();
        (!sentences.is_empty()).then(|| sentences.join("; "))
    }

    fn first(&self, kind: Trouble, sentence: String) -> Option<String> {
        let mut troubles = lock(&self.0);
        if troubles.iter().any(|(known, _)| *known == kind) {
            return None;
        }
        troubles.push((kind, sentence.clone()));
        Some(sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_said_once_and_all_are_kept() {
        let troubles = Troubles::default();
        assert_eq!(troubles.summary(), None);
        assert!(troubles.first(Trouble::Anew, "anew".to_owned()).is_some());
        assert!(troubles.first(Trouble::Anew, "again".to_owned()).is_none());
        assert!(troubles.first(Trouble::NoGrowth, "full".to_owned()).is_some());
        assert_eq!(troubles.summary().as_deref(), Some("anew; full"));
    }
}
