//! Generators saved along a run, so that any epoch of a `RandomSampler` can be asked for
//! in any order without drawing all before it again. They change how long an answer
//! takes, never what it is.

use std::sync::{Mutex, PoisonError};

use super::torch::{RandomSampler, randperm_draws};

#[derive(Debug)]
pub struct Marks {
    /// Epochs between two marks: small datasets would otherwise keep more generators
    /// than samples.
    every: u32,
    /// Epochs that had begun before the first mark.
    first: u64,
    saved: Mutex<Vec<RandomSampler>>,
}

impl Marks {
    /// Epoch 0 is the next one of `sampler`.
    pub fn new(sampler: RandomSampler) -> Self {
        // A million words are skipped in under a millisecond.
        const WORDS: u64 = 1 << 20;
        let every = (WORDS / (2 * randperm_draws(sampler.samples())).max(1)).max(1) as u32;
        Self { every, first: sampler.epoch(), saved: Mutex::new(vec![sampler]) }
    }

    pub fn first_epoch(&self) -> u64 {
        self.first
    }

    /// The sampler as it stands before an epoch.
    pub fn at(&self, epoch: u32) -> RandomSampler {
        let index = (epoch / self.every) as usize;
        let mark = {
            // A panic while a mark was appended cannot leave half of one.
            let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
            while saved.len() <= index {
                let next = skipped(saved[saved.len() - 1].clone(), self.every);
                saved.push(next);
            }
            saved[index].clone()
        };
        skipped(mark, epoch % self.every)
    }
}

fn skipped(mut sampler: RandomSampler, epochs: u32) -> RandomSampler {
    for _ in 0..epochs {
        sampler.skip_epoch();
    }
    sampler
}
