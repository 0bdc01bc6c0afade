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

    /// None if too little was opened to tell.
    fn begins_like(&self, earlier: &Self) -> Option<Beginning> {
        let enough = evidence(earlier.len());
        let first = self.names.get(..enough).filter(|_| earlier.len() >= enough)?;
        let near = first.len() + tolerance(earlier.len());
        let near = |name: &&Name| earlier.places.get(*name).is_some_and(|&place| place < near);
        // A few may differ: files that are opened only once in a run, messages that were lost.
        let same = first.iter().filter(near).count() * 8 >= first.len() * 7;
        Some(if same { Beginning::Same } else { Beginning::Changed })
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

    /// A file was opened. An answer comes once in an epoch at most.
    pub fn opened(&mut self, name: Name) -> Option<Beginning> {
        if self.now.push(name) {
            self.evidence = self.evidence.saturating_sub(1);
            if self.evidence == 0 {
                self.again = Epoch::default();
            }
        } else {
            self.opened_again(name);
        }
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
            self.known = Some(ended);
        }
        self.evidence = 0;
        self.beginning = None;
    }

    fn remember_first(&mut self, ended: &Arc<Epoch>) {
        // The first epoch may have been begun anew after an accident.
        let better = self.first.as_ref().is_none_or(|first| {
            ended.len() > first.len() && ended.begins_like(first) == Some(Beginning::Same)
        });
        if better {
            self.first = Some(Arc::clone(ended));
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
