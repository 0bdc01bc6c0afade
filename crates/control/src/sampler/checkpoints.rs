//! Saved generators along a run, so that any epoch of a `RandomSampler` can be computed without
//! drawing all epochs before it again. They change how long an answer takes, never the answer.

use std::sync::{Mutex, PoisonError};

use super::torch::{RandomSampler, randperm_draws};

/// States of one sampler at regular epochs.
#[derive(Debug)]
pub struct GeneratorCheckpoints {
    /// Epochs between two checkpoints: small datasets would otherwise keep more generators
    /// than samples.
    every: u32,
    /// Epochs that had begun before the first checkpoint.
    first: u64,
    saved: Mutex<Vec<RandomSampler>>,
}

impl GeneratorCheckpoints {
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
        let checkpoint = {
            // A panic while a checkpoint was appended cannot leave half of one.
            let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
            while saved.len() <= index {
                let next = skipped(saved[saved.len() - 1].clone(), self.every);
                saved.push(next);
            }
            saved[index].clone()
        };
        skipped(checkpoint, epoch % self.every)
    }
}

fn skipped(mut sampler: RandomSampler, epochs: u32) -> RandomSampler {
    for _ in 0..epochs {
        sampler.skip_epoch();
    }
    sampler
}
