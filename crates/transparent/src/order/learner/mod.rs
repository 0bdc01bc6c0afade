//! Learns the order in which a program reads from the files that it opens.
//!
//! An epoch ends when several files are opened again that were not opened recently. A file opened
//! twice in a row, and a file opened now and then (a list of labels) while new files are opened,
//! are no evidence. The beginning of the next epoch is compared with the one before. If they match,
//! the known order is in force; if not, this epoch is learnt instead.

use std::collections::HashMap;
use std::sync::Arc;

use super::names::NameId;
use super::{evidence, tolerance};

/// The files of an epoch in the order of their first open.
#[derive(Debug, Default)]
struct ObservedEpoch {
    names: Vec<NameId>,
    places: HashMap<NameId, usize>,
}

impl ObservedEpoch {
    fn of(order: &[NameId]) -> Self {
        let mut epoch = Self::default();
        for &name in order {
            epoch.push(name);
        }
        epoch
    }

    /// Adds a file. Returns whether it is new in this epoch.
    fn push(&mut self, name: NameId) -> bool {
        let place = self.names.len();
        let new = *self.places.entry(name).or_insert(place) == place;
        if new {
            self.names.push(name);
        }
        new
    }

    fn len(&self) -> usize {
        self.names.len()
    }

    /// Compares the beginning with that of an earlier epoch; None if too few files were opened. The
    /// order of files opened between two polls is unknown, so all opened files are compared with as
    /// many.
    fn begins_like(&self, earlier: &Self) -> Option<Beginning> {
        let enough = evidence(earlier.len());
        if self.len().min(earlier.len()) < enough {
            return None;
        }
        let end = self.len() + tolerance(earlier.len());
        let is_near = |_, place| place < end;
        Some(if self.mostly(earlier, is_near) { Beginning::Same } else { Beginning::Changed })
    }

    /// Returns whether both epochs have the same order.
    fn is_like(&self, earlier: &Self) -> bool {
        let apart = tolerance(earlier.len());
        self.len() == earlier.len()
            && self.mostly(earlier, |here: usize, there| here.abs_diff(there) <= apart)
    }

    /// Returns whether at least 7 of 8 files fit. Others may be opened only once in a run, or their
    /// messages were lost.
    fn mostly(&self, earlier: &Self, fits: impl Fn(usize, usize) -> bool) -> bool {
        let place = |name: &NameId| earlier.places.get(name).copied();
        let files = self.names.iter().enumerate();
        let same = files.filter(|(here, name)| place(name).is_some_and(|there| fits(*here, there)));
        same.count() * 8 >= self.len() * 7
    }
}

/// How the beginning of an epoch compares with the known order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// The known order is in force.
    Same,
    /// No order is in force.
    Changed,
}

/// Learns an order from opened files.
#[derive(Debug, Default)]
pub struct Learner {
    /// The order of an earlier run, or of the last complete epoch.
    known: Option<Arc<ObservedEpoch>>,
    /// The first complete epoch of this run.
    first: Option<Arc<ObservedEpoch>>,
    now: ObservedEpoch,
    beginning: Option<Beginning>,
    /// Files of this epoch that were opened again: perhaps the next epoch.
    again: ObservedEpoch,
    /// How many of those are evidence for a new epoch.
    evidence: usize,
    /// The epoch before ended early, and the known order was kept.
    was_cut_short: bool,
}

impl Learner {
    /// `earlier` is the order that an earlier run has learnt.
    pub fn new(earlier: &[NameId]) -> Self {
        let known = (!earlier.is_empty()).then(|| Arc::new(ObservedEpoch::of(earlier)));
        Self { known, ..Self::default() }
    }

    /// Sorts files that were opened at about the same time by the known order, the best guess.
    pub fn sort(&self, names: &mut [NameId]) {
        if let Some(known) = &self.known {
            names.sort_by_key(|name| known.places.get(name).copied().unwrap_or(usize::MAX));
        }
    }

    /// Handles an opened file.
    pub fn opened(&mut self, name: NameId) {
        if self.now.push(name) {
            self.evidence = self.evidence.saturating_sub(1);
            if self.evidence == 0 {
                self.again = ObservedEpoch::default();
            }
        } else {
            self.opened_again(name);
        }
    }

    /// Compares the beginning of this epoch with the known order. Call it after all known opens.
    /// Returns an answer at most once per epoch.
    pub fn judge(&mut self) -> Option<Beginning> {
        if self.beginning.is_some() {
            return None;
        }
        self.beginning = self.now.begins_like(self.known.as_ref()?);
        self.beginning
    }

    fn opened_again(&mut self, name: NameId) {
        let files = self.now.len();
        let is_old = files - self.now.places[&name] > tolerance(files);
        // A file that is not old was opened twice in a row. If it does belong to the next epoch,
        // counting it as the last of this one does no harm.
        self.evidence += usize::from(is_old && self.again.push(name));
        if self.evidence >= evidence(files) {
            self.end_epoch();
        }
    }

    fn end_epoch(&mut self) {
        let next = std::mem::take(&mut self.again);
        let ended = Arc::new(std::mem::replace(&mut self.now, next));
        let cut_short = self.beginning == Some(Beginning::Same)
            && self.known.as_ref().is_some_and(|known| ended.len() * 4 < known.len() * 3);
        // Twice is no coincidence: the dataset has fewer files now.
        self.was_cut_short = cut_short && !self.was_cut_short;
        if !self.was_cut_short {
            self.remember_first(&ended);
            // The order of opened copies is less exact, so the older order is better.
            if self.known.as_ref().is_none_or(|known| !ended.is_like(known)) {
                self.known = Some(ended);
            }
        }
        self.evidence = 0;
        self.beginning = None;
    }

    fn remember_first(&mut self, ended: &Arc<ObservedEpoch>) {
        match &self.first {
            None => {
                let known = self.known.as_ref().filter(|known| ended.is_like(known));
                self.first = Some(Arc::clone(known.unwrap_or(ended)));
            }
            // The first epoch may have been restarted after a failure.
            Some(first)
                if ended.len() > first.len()
                    && first.begins_like(ended) == Some(Beginning::Same) =>
            {
                self.first = Some(Arc::clone(ended));
            }
            Some(_) => {}
        }
    }

    /// Returns the known order; empty if there is none.
    pub fn known(&self) -> &[NameId] {
        self.known.as_ref().map_or(&[], |known| &known.names)
    }

    /// Returns the files opened in this epoch.
    pub fn so_far(&self) -> &[NameId] {
        &self.now.names
    }

    /// Returns the order to save for the next run: the first epoch of this one. A program that
    /// shuffles with a fixed seed begins each run the same way, if not each epoch.
    pub fn to_keep(&self) -> &[NameId] {
        let so_far = self.so_far();
        match (&self.first, &self.known) {
            (Some(first), _) => &first.names,
            (None, None) => so_far,
            (None, Some(earlier)) => {
                let enough = match self.beginning {
                    Some(Beginning::Changed) => so_far.len() * 2 >= earlier.len(),
                    _ => so_far.len() > earlier.len(),
                };
                if enough { so_far } else { &earlier.names }
            }
        }
    }
}

#[cfg(test)]
mod tests;
