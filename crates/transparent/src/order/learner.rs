//! Learning the order in which a program reads, from what it opens.
//!
//! An epoch is over when files are opened again that were opened already: several of them, and not
//! just now. One that is opened twice in a row was looked at twice; one that is opened again now and
//! then (a list of labels) is no evidence as long as new files come between. How the next epoch
//! begins is compared with the one before. If it begins the same way, that order is in force;
//! if not, this epoch is the one that is learnt.

use std::collections::HashMap;
use std::sync::Arc;

use super::names::Name;
use super::{evidence, tolerance};

/// What was opened in an epoch, in the order in which it was first opened.
#[derive(Debug, Default)]
struct Epoch {
    names: Vec<Name>,
    places: HashMap<Name, usize>,
}

impl Epoch {
    fn of(order: &[Name]) -> Self {
        let mut epoch = Self::default();
        for &name in order {
            epoch.push(name);
        }
        epoch
    }

    /// Whether it was new.
    fn push(&mut self, name: Name) -> bool {
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

    /// None if too little was opened to tell. Of files that were opened between two looks nobody knows which
    /// was first; so all that were opened are compared with as many.
    fn begins_like(&self, earlier: &Self) -> Option<Beginning> {
        let enough = evidence(earlier.len());
        if self.len().min(earlier.len()) < enough {
            return None;
        }
        let end = self.len() + tolerance(earlier.len());
        let is_near = |_, place| place < end;
        Some(if self.mostly(earlier, is_near) { Beginning::Same } else { Beginning::Changed })
    }

    /// All of it is in the same order.
    fn is_like(&self, earlier: &Self) -> bool {
        let apart = tolerance(earlier.len());
        self.len() == earlier.len()
            && self.mostly(earlier, |here: usize, there| here.abs_diff(there) <= apart)
    }

    /// A few may differ: files that are opened only once in a run, messages that were lost.
    fn mostly(&self, earlier: &Self, fits: impl Fn(usize, usize) -> bool) -> bool {
        let place = |name: &Name| earlier.places.get(name).copied();
        let files = self.names.iter().enumerate();
        let same = files.filter(|(here, name)| place(name).is_some_and(|there| fits(*here, there)));
        same.count() * 8 >= self.len() * 7
    }
}

/// How an epoch begins, compared with the order that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// The known order is in force.
    Same,
    /// No order is in force.
    Changed,
}

#[derive(Debug, Default)]
pub struct Learner {
    /// Of an earlier run, or of the last epoch that was complete.
    known: Option<Arc<Epoch>>,
    /// The first complete epoch of this run.
    first: Option<Arc<Epoch>>,
    now: Epoch,
    beginning: Option<Beginning>,
    /// Files of this epoch that were opened again: perhaps the next one.
    again: Epoch,
    /// How many of those speak for it.
    evidence: usize,
    /// The epoch before was given up early, and the known order was kept.
    was_cut_short: bool,
}

impl Learner {
    /// `earlier` is what an earlier run has learnt.
    pub fn new(earlier: &[Name]) -> Self {
        let known = (!earlier.is_empty()).then(|| Arc::new(Epoch::of(earlier)));
        Self { known, ..Self::default() }
    }

    /// Files that were opened at about the same time, as they stand in the known order: the best guess of which
    /// was first.
    pub fn sort(&self, names: &mut [Name]) {
        if let Some(known) = &self.known {
            names.sort_by_key(|name| known.places.get(name).copied().unwrap_or(usize::MAX));
        }
    }

    /// A file was opened.
    pub fn opened(&mut self, name: Name) {
        if self.now.push(name) {
            self.evidence = self.evidence.saturating_sub(1);
            if self.evidence == 0 {
                self.again = Epoch::default();
            }
        } else {
            self.opened_again(name);
        }
    }

    /// Once all is told that is known: an answer comes once in an epoch at most.
    pub fn judge(&mut self) -> Option<Beginning> {
        if self.beginning.is_some() {
            return None;
        }
        self.beginning = self.now.begins_like(self.known.as_ref()?);
        self.beginning
    }

    fn opened_again(&mut self, name: Name) {
        let files = self.now.len();
        let is_old = files - self.now.places[&name] > tolerance(files);
        // One that is not old was only looked at twice. If it does belong to the next epoch, it will be
        // taken for the last one of this; between the two nobody minds.
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
        // Twice is no accident: there are fewer files now.
        self.was_cut_short = cut_short && !self.was_cut_short;
        if !self.was_cut_short {
            self.remember_first(&ended);
            // Of copies it is less well known which was opened first: the older order is the better one.
            if self.known.as_ref().is_none_or(|known| !ended.is_like(known)) {
                self.known = Some(ended);
            }
        }
        self.evidence = 0;
        self.beginning = None;
    }

    fn remember_first(&mut self, ended: &Arc<Epoch>) {
        match &self.first {
            None => {
                let known = self.known.as_ref().filter(|known| ended.is_like(known));
                self.first = Some(Arc::clone(known.unwrap_or(ended)));
            }
            // The first epoch may have been begun anew after an accident.
            Some(first)
                if ended.len() > first.len()
                    && first.begins_like(ended) == Some(Beginning::Same) =>
            {
                self.first = Some(Arc::clone(ended));
            }
            Some(_) => {}
        }
    }

    /// The order that epochs are compared with; nothing if there is none.
    pub fn known(&self) -> &[Name] {
        self.known.as_ref().map_or(&[], |known| &known.names)
    }

    /// What was opened in this epoch.
    pub fn so_far(&self) -> &[Name] {
        &self.now.names
    }

    /// What the next run is to know: how this one began. A program that shuffles from a fixed seed
    /// begins each run the same way, if not each epoch.
    pub fn to_keep(&self) -> &[Name] {
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
#[path = "learner_tests.rs"]
mod tests;
