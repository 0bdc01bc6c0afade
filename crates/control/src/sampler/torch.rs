//! torch's samplers, bit for bit.
//!
//! Everything rests on [`randperm`], which shuffles in one of two ways depending on n.
//! [`distributed`] is `DistributedSampler`: a generator seeded with seed + epoch, then padding and
//! striding. [`RandomSampler`] instead keeps one generator for the whole run, so an epoch's order
//! depends on everything drawn before it. That includes two invisible draws: a second `randperm`
//! when an epoch is exhausted (its result is cut to nothing), and the base seed that a `DataLoader`
//! draws for its workers ([`Draws`]).

use super::SampleId;
use super::mt19937::Mt19937;

/// From here on `randperm` takes 64-bit draws: a 32-bit draw modulo n would favour
/// low values by more than one part in twenty.
pub const LARGE: u32 = u32::MAX / 20;

/// Words a block of shuffle steps draws at once; a multiple of any vector's width,
/// and small enough to stay in the first-level cache beside the generator.
const BLOCK: usize = 512;

/// Returns `torch.randperm(n, generator=generator)`.
pub fn randperm(n: u32, generator: &mut Mt19937) -> Vec<SampleId> {
    let mut order = Vec::new();
    randperm_into(&mut order, n, generator);
    order
}

/// Writes [`randperm`] into a vector, whose memory is reused.
pub fn randperm_into(order: &mut Vec<SampleId>, n: u32, generator: &mut Mt19937) {
    order.clear();
    order.extend(0..n);
    if n < LARGE { shuffle_small(order, generator) } else { shuffle_large(order, generator) }
}

/// Returns how many words `randperm(n)` takes from the generator.
pub fn randperm_draws(n: u32) -> u64 {
    if n < LARGE { u64::from(n.saturating_sub(1)) } else { 2 * u64::from(n) }
}

/// Fisher–Yates from the front, one word a step.
fn shuffle_small(order: &mut [SampleId], generator: &mut Mt19937) {
    let mut targets = [0; BLOCK];
    let steps = order.len().saturating_sub(1);
    let mut start = 0;
    while start < steps {
        let count = BLOCK.min(steps - start);
        let targets = &mut targets[..count];
        generator.fill(targets);
        let rest = &mut order[start..];
        // All targets are known before the first swap, so that the processor
        // waits for many cache misses at a time instead of one after another.
        reduce(targets, rest.len() as u32);
        for (i, &target) in targets.iter().enumerate() {
            rest.swap(i, i + target as usize);
        }
        start += count;
    }
}

/// `words[i] %= left - i`, for `left` below 2^31.
fn reduce(words: &mut [u32], left: u32) {
    // Adding 2^52 leaves the rounded quotient in the low bits of a double.
    const INTEGER: f64 = (1_u64 << 52) as f64;
    for (i, word) in words.iter_mut().enumerate() {
        let divisor = left - i as u32;
        let quotient = (f64::from(*word) / f64::from(divisor) + INTEGER).to_bits() as u32;
        // Rounded to nearest, the quotient may be one too large: the remainder,
        // within half a divisor of zero, is then negative.
        let remainder = word.wrapping_sub(quotient.wrapping_mul(divisor)).cast_signed();
        *word = (remainder + (divisor.cast_signed() & (remainder >> 31))).cast_unsigned();
    }
}

/// The inside-out shuffle, two words a step.
fn shuffle_large(order: &mut [SampleId], generator: &mut Mt19937) {
    let mut words = [0; 2 * BLOCK];
    let mut targets = [0_u32; BLOCK];
    let mut start = 0;
    while start < order.len() {
        let count = BLOCK.min(order.len() - start);
        let words = &mut words[..2 * count];
        generator.fill(words);
        for (i, (target, pair)) in targets.iter_mut().zip(words.chunks_exact(2)).enumerate() {
            let draw = u64::from(pair[0]) << 32 | u64::from(pair[1]);
            *target = (draw % (start + i + 1) as u64) as u32;
        }
        for (i, &target) in targets[..count].iter().enumerate() {
            order.swap(start + i, target as usize);
        }
        start += count;
    }
}

/// Returns how many entries each rank gets from `DistributedSampler`: its `__len__`.
pub fn distributed_len(samples: u64, ranks: u32, drop_last: bool) -> u64 {
    let ranks = u64::from(ranks);
    if drop_last { samples / ranks } else { samples.div_ceil(ranks) }
}

/// Makes an order as long as all ranks together need: drops its tail, or repeats
/// it from its start, several times over when there are more ranks than samples.
pub fn pad_or_truncate(order: &mut Vec<SampleId>, ranks: u32, drop_last: bool) {
    let samples = order.len();
    let total = (distributed_len(samples as u64, ranks, drop_last) * u64::from(ranks)) as usize;
    order.truncate(total);
    order.reserve_exact(total - order.len());
    while order.len() < total && samples > 0 {
        let missing = (total - order.len()).min(samples);
        order.extend_from_within(..missing);
    }
}

/// Returns what `DistributedSampler(range(samples), ranks, rank, seed=seed,
/// drop_last=drop_last)` yields after `set_epoch(epoch)`.
///
/// # Panics
/// If `rank` is not below `ranks`, where torch raises.
pub fn distributed(
    samples: u32,
    ranks: u32,
    rank: u32,
    seed: u64,
    epoch: u32,
    drop_last: bool,
) -> Vec<SampleId> {
    assert!(rank < ranks, "rank {rank} of {ranks}");
    let mut order = epoch_order(samples, seed, epoch);
    pad_or_truncate(&mut order, ranks, drop_last);
    order.into_iter().skip(rank as usize).step_by(ranks as usize).collect()
}

/// Returns the order that all ranks of a `DistributedSampler` share, before padding.
pub fn epoch_order(samples: u32, seed: u64, epoch: u32) -> Vec<SampleId> {
    randperm(samples, &mut Mt19937::new(seed.wrapping_add(u64::from(epoch))))
}

/// What else draws from a [`RandomSampler`]'s generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Draws {
    /// Nothing: the sampler is iterated by itself.
    SamplerAlone,
    /// `DataLoader(shuffle=True, generator=g)`: each epoch begins with a base seed.
    ThroughLoader,
    /// The same with `persistent_workers=True`: only the first epoch begins with a base seed.
    ThroughPersistentLoader,
}

/// `RandomSampler(range(samples), generator=g)` over a run's epochs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RandomSampler {
    samples: u32,
    draws: Draws,
    /// Epochs begun.
    epoch: u64,
    generator: Mt19937,
}

impl RandomSampler {
    /// Starts with `g.manual_seed(seed)`.
    pub fn new(samples: u32, seed: u64, draws: Draws) -> Self {
        Self { samples, draws, epoch: 0, generator: Mt19937::new(seed) }
    }

    /// Continues a run whose generator was saved after `epoch` epochs.
    pub fn from_state(samples: u32, draws: Draws, epoch: u64, generator: Mt19937) -> Self {
        Self { samples, draws, epoch, generator }
    }

    /// Returns the dataset's length.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Returns the generator as it is between two epochs.
    pub fn state(&self) -> &Mt19937 {
        &self.generator
    }

    /// Returns the number of epochs begun so far.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the order of the next epoch, which is then iterated to its end, as a `for` loop over
    /// sampler or loader does.
    pub fn next_epoch(&mut self) -> Vec<SampleId> {
        let order = self.next_epoch_left_early();
        // `randperm(n)[:num_samples % n]`, run only when the order is used up.
        self.generator.skip(randperm_draws(self.samples));
        order
    }

    /// Returns the order of the next epoch, which is left before the sampler is exhausted: a
    /// `break`, or a loop that counts its batches. (An incomplete last batch exhausts the sampler:
    /// to make it, torch asks for one sample too many.)
    pub fn next_epoch_left_early(&mut self) -> Vec<SampleId> {
        self.draw_base_seed();
        randperm(self.samples, &mut self.generator)
    }

    /// Skips one whole epoch without building its order.
    pub fn skip_epoch(&mut self) {
        self.draw_base_seed();
        self.generator.skip(2 * randperm_draws(self.samples));
    }

    /// Skips one epoch that is left early without building its order.
    pub fn skip_epoch_left_early(&mut self) {
        self.draw_base_seed();
        self.generator.skip(randperm_draws(self.samples));
    }

    fn draw_base_seed(&mut self) {
        let drawn = match self.draws {
            Draws::SamplerAlone => false,
            Draws::ThroughLoader => true,
            Draws::ThroughPersistentLoader => self.epoch == 0,
        };
        if drawn {
            // An int64 `random_()` is one 64-bit draw.
            self.generator.skip(2);
        }
        self.epoch += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reduce_is_the_remainder_for_every_kind_of_divisor() {
        let mut generator = Mt19937::new(3);
        for left in [BLOCK as u32, 1000, 65_536, 1_281_167, LARGE - 1, i32::MAX as u32] {
            let mut words = [0; BLOCK];
            generator.fill(&mut words);
            words[..4].copy_from_slice(&[0, u32::MAX, left, left - 1]);
            let divisor = |i: usize| left - i as u32;
            let want: Vec<u32> =
                words.iter().enumerate().map(|(i, word)| word % divisor(i)).collect();
            reduce(&mut words, left);
            assert_eq!(words[..], want);
        }
    }

    #[test]
    fn reduce_is_exact_next_to_multiples() {
        for divisor in [2, 3, 7, 1_000_003, LARGE - 1, i32::MAX as u32] {
            for multiple in [1, 2, u32::MAX / divisor / 2, u32::MAX / divisor] {
                for offset in [-1, 0, 1] {
                    let word = (divisor * multiple).wrapping_add_signed(offset);
                    let mut words = [word];
                    reduce(&mut words, divisor);
                    assert_eq!(words[0], word % divisor, "{word} % {divisor}");
                }
            }
        }
    }

    #[test]
    fn the_large_shuffle_takes_a_64_bit_draw_a_step_from_the_front() {
        for n in [0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7] {
            let mut generator = Mt19937::new(n as u64);
            let mut draws = generator.clone();
            let mut order: Vec<SampleId> = (0..n as u32).collect();
            let mut want = order.clone();
            shuffle_large(&mut order, &mut generator);
            for at in 0..n {
                want.swap(at, (draws.random64() % (at as u64 + 1)) as usize);
            }
            assert_eq!(order, want);
            assert_eq!(generator, draws);
        }
    }

    #[test]
    fn a_small_permutation_takes_a_word_a_step_and_a_large_one_two() {
        let drawn = [0, 1, 2, 10, LARGE - 1, LARGE, LARGE + 1].map(randperm_draws);
        let large = u64::from(LARGE);
        assert_eq!(drawn, [0, 0, 1, 9, large - 2, 2 * large, 2 * large + 2]);
    }

    #[test]
    fn ranks_get_equal_shares_by_repeating_the_order_or_by_dropping_its_end() {
        for (samples, ranks, drop_last, want) in [
            (5, 2, false, vec![0, 1, 2, 3, 4, 0]),
            (5, 2, true, vec![0, 1, 2, 3]),
            (6, 3, false, vec![0, 1, 2, 3, 4, 5]),
            (2, 5, false, vec![0, 1, 0, 1, 0]),
            (2, 5, true, vec![]),
            (0, 3, false, vec![]),
        ] {
            let mut order: Vec<SampleId> = (0..samples).collect();
            pad_or_truncate(&mut order, ranks, drop_last);
            assert_eq!(order, want, "{samples} samples, {ranks} ranks");
            let each = distributed_len(samples.into(), ranks, drop_last);
            assert_eq!(each * u64::from(ranks), want.len() as u64);
            for rank in 0..ranks {
                let epoch = epoch_order(samples, 7, 3);
                let of_rank = want.iter().skip(rank as usize).step_by(ranks as usize);
                let of_rank: Vec<_> = of_rank.map(|&at| epoch[at as usize]).collect();
                assert_eq!(distributed(samples, ranks, rank, 7, 3, drop_last), of_rank);
            }
        }
    }

    #[test]
    fn an_epochs_order_is_that_of_seed_plus_epoch() {
        let mut generator = Mt19937::new(10);
        assert_eq!(epoch_order(100, 7, 3), randperm(100, &mut generator));
        assert_ne!(epoch_order(100, 7, 3), epoch_order(100, 7, 4));
    }

    #[test]
    fn a_sampler_counts_its_epochs_and_draws_base_seeds_as_the_loader_does() {
        for (draws, words) in [
            (Draws::SamplerAlone, [0, 0]),
            (Draws::ThroughLoader, [2, 2]),
            (Draws::ThroughPersistentLoader, [2, 0]),
        ] {
            let mut sampler = RandomSampler::new(50, 4, draws);
            let mut generator = Mt19937::new(4);
            for (epoch, words) in words.into_iter().enumerate() {
                assert_eq!((sampler.samples(), sampler.epoch()), (50, epoch as u64));
                generator.skip(words);
                assert_eq!(sampler.next_epoch_left_early(), randperm(50, &mut generator));
                assert_eq!(*sampler.state(), generator);
            }
            assert_eq!(sampler.epoch(), 2);
        }
    }

    #[test]
    fn skipping_an_epoch_leaves_the_generator_as_drawing_it_does() {
        for draws in [Draws::SamplerAlone, Draws::ThroughLoader, Draws::ThroughPersistentLoader] {
            let mut drawn = RandomSampler::new(1000, 9, draws);
            let mut skipped = drawn.clone();
            for _ in 0..4 {
                drawn.next_epoch();
                skipped.skip_epoch();
                assert_eq!(drawn, skipped);
                let (mut drawn, mut skipped) = (drawn.clone(), skipped.clone());
                drawn.next_epoch_left_early();
                skipped.skip_epoch_left_early();
                assert_eq!(drawn, skipped);
            }
        }
    }
}
