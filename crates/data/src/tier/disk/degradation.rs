//! Why a disk tier does less than configured: each reason is logged once and shown in the tier's
//! status.

use belady_base::sync::{Mutex, lock};

/// The kinds of degradation; each is reported only the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Degradation {
    /// The tier does nothing.
    Off,
    /// The directory cannot be written to.
    ReadOnly,
    /// Another job or process writes this cache.
    Shared,
    /// Caches of other datasets in use, or the disk, leave less than the quota.
    LessSpace,
    /// The existing cache could not be used.
    Reset,
    /// The segments cannot grow.
    NoGrowth,
    /// A write failed.
    WriteFailed,
    /// A read failed.
    ReadFailed,
}

#[derive(Debug, Default)]
pub(super) struct Degradations(Mutex<Vec<(Degradation, String)>>);

impl Degradations {
    pub fn warn(&self, kind: Degradation, sentence: String) {
        if let Some(sentence) = self.first(kind, sentence) {
            tracing::warn!("{sentence}");
        }
    }

    /// Reports a degradation that is no fault.
    pub fn inform(&self, kind: Degradation, sentence: String) {
        if let Some(sentence) = self.first(kind, sentence) {
            tracing::info!("{sentence}");
        }
    }

    /// Returns all reasons, if there are any.
    pub fn summary(&self) -> Option<String> {
        let degradations = lock(&self.0);
        let sentences: Vec<&str> =
            degradations.iter().map(|(_, sentence)| sentence.as_str()).collect();
        (!sentences.is_empty()).then(|| sentences.join("; "))
    }

    fn first(&self, kind: Degradation, sentence: String) -> Option<String> {
        let mut degradations = lock(&self.0);
        if degradations.iter().any(|(known, _)| *known == kind) {
            return None;
        }
        degradations.push((kind, sentence.clone()));
        Some(sentence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_reported_once_and_all_are_in_the_summary() {
        let degradations = Degradations::default();
        assert_eq!(degradations.summary(), None);
        assert!(degradations.first(Degradation::Reset, "reset".to_owned()).is_some());
        assert!(degradations.first(Degradation::Reset, "again".to_owned()).is_none());
        assert!(degradations.first(Degradation::NoGrowth, "full".to_owned()).is_some());
        assert_eq!(degradations.summary().as_deref(), Some("reset; full"));
    }
}
