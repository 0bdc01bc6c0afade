//! How often a worker reads a sample over a run: the binomial law behind frequency placement
//! (NoPFS, section 3.1; HDMLP, section 3.2.1).
//!
//! In every epoch a sample goes to one of N workers, each with probability 1/N. Over E epochs a
//! given worker reads a given sample X ~ Binomial(E, 1/N) times. Frequency placement uses the
//! spread of X. Since workers choose independently, it also leaves samples that no worker holds.
//!
//! The papers print the sum from ⌈(1+δ)E/N⌉, which includes equality where (1+δ)E/N is whole. Their
//! numbers and words ("more than 275 times") use the strict inequality, as does this code.
#![allow(clippy::doc_markdown, reason = "symbols and names as the papers print them")]

/// X ~ Binomial(E, 1/N).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessLaw {
    epochs: u32,
    workers: u32,
}

/// What a worker holds when it takes its most frequent samples first: all that it reads more than
/// `above` times, and `share_at` of those that it reads exactly `above` times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrequencyCut {
    /// Samples read more often than this are held.
    pub above: u32,
    /// The share of samples read exactly `above` times that is held.
    pub share_at: f64,
}

impl AccessLaw {
    /// Returns the law of E epochs on N workers.
    ///
    /// # Panics
    /// If `workers` is 0.
    pub fn new(epochs: u32, workers: u32) -> Self {
        assert!(workers > 0, "there is no access law for zero workers");
        Self { epochs, workers }
    }

    /// Returns μ = E/N.
    pub fn mean(self) -> f64 {
        f64::from(self.epochs) / f64::from(self.workers)
    }

    /// Returns the fewest accesses that are more than (1+δ)E/N.
    ///
    /// A product within rounding of a whole number counts as that number: 1.1 · 250 is
    /// 275.00000000000006 in floating point.
    pub fn more_than(self, delta: f64) -> u32 {
        let limit = (1.0 + delta) * self.mean();
        let whole = limit.round();
        let near = (limit - whole).abs() <= 1e-9 * limit.abs().max(1.0);
        let at_most = if near { whole } else { limit.floor() };
        (at_most + 1.0).max(0.0) as u32
    }

    /// Returns P(X = k), by C. Loader's saddle-point form: the large parts of the logarithms cancel
    /// before they are computed, so it is accurate for any E.
    pub fn exactly(self, k: u32) -> f64 {
        let n = f64::from(self.epochs);
        let p = 1.0 / f64::from(self.workers);
        let x = f64::from(k);
        if k > self.epochs {
            return 0.0;
        }
        if self.workers == 1 {
            return if k == self.epochs { 1.0 } else { 0.0 };
        }
        if k == 0 {
            return (n * (-p).ln_1p()).exp();
        }
        if k == self.epochs {
            return (n * p.ln()).exp();
        }
        let rest = n - x;
        let exponent = stirling_error(n)
            - stirling_error(x)
            - stirling_error(rest)
            - deviance(x, n * p)
            - deviance(rest, n * (1.0 - p));
        exponent.exp() * (n / (std::f64::consts::TAU * x * rest)).sqrt()
    }

    /// Returns P(X ≥ k), summed from the side with the smaller terms.
    pub fn at_least(self, k: u32) -> f64 {
        if k == 0 {
            return 1.0;
        }
        if k > self.epochs {
            return 0.0;
        }
        if f64::from(k) > self.mean() { self.upper_sum(k) } else { 1.0 - self.lower_sum(k - 1) }
    }

    /// Returns P(X > (1+δ)E/N) (HDMLP, before eq. 3.8).
    pub fn exceeds(self, delta: f64) -> f64 {
        self.at_least(self.more_than(delta))
    }

    /// Returns F · P(X > (1+δ)E/N) (HDMLP, eq. 3.8): how many of F samples a worker is expected to
    /// read more often than δ above the mean.
    pub fn expected_above(self, samples: u64, delta: f64) -> f64 {
        samples as f64 * self.exceeds(delta)
    }

    /// Returns the cut at which a worker that takes its most frequent samples first has taken
    /// `share` of the dataset. It does not take samples that it never reads.
    pub fn cut(self, share: f64) -> FrequencyCut {
        let mut taken = 0.0;
        // From the top down; above mean + 40σ probabilities vanish in an f64.
        let deviation = (self.mean() * (1.0 - 1.0 / f64::from(self.workers))).sqrt();
        let top = self.mean() + 40.0 * deviation + 40.0;
        let mut k = self.epochs.min(top as u32);
        while k > 0 {
            let here = self.exactly(k);
            if taken + here >= share {
                let share_at = if here > 0.0 { (share - taken) / here } else { 0.0 };
                return FrequencyCut { above: k, share_at: share_at.clamp(0.0, 1.0) };
            }
            taken += here;
            k -= 1;
        }
        FrequencyCut { above: 0, share_at: 0.0 }
    }

    /// P(X=k+1)/P(X=k) = (E-k)/(k+1) · 1/(N-1).
    fn step_up(self, k: u32) -> f64 {
        f64::from(self.epochs - k) / (f64::from(k) + 1.0) / (f64::from(self.workers) - 1.0)
    }

    fn upper_sum(self, from: u32) -> f64 {
        let mut term = self.exactly(from);
        let mut sum = term;
        for k in from..self.epochs {
            term *= self.step_up(k);
            sum += term;
            if term < sum * 1e-17 {
                break;
            }
        }
        sum
    }

    fn lower_sum(self, from: u32) -> f64 {
        let mut term = self.exactly(from);
        let mut sum = term;
        for k in (0..from).rev() {
            term /= self.step_up(k);
            sum += term;
            if term < sum * 1e-17 {
                break;
            }
        }
        sum
    }
}

/// Returns the bound of NoPFS's lemma 1 (HDMLP, 3.1): if a worker reads a sample `accesses` ≥ E/N
/// times, some other worker reads it at most this often.
///
/// It is ⌈((N-1-δ)/(N-1))·E/N⌉ with δ = accesses·N/E - 1: the mean of the others, rounded up.
pub fn some_other_at_most(accesses: u32, epochs: u32, workers: u32) -> u32 {
    (epochs - accesses).div_ceil(workers - 1)
}

/// Returns the bound of lemma 1's other half (HDMLP, 3.2): if a worker reads a sample `accesses` ≤
/// E/N times, some other worker reads it at least this often.
pub fn some_other_at_least(accesses: u32, epochs: u32, workers: u32) -> u32 {
    (epochs - accesses) / (workers - 1)
}

/// ln n! minus Stirling's formula.
fn stirling_error(n: f64) -> f64 {
    // Up to 15! a factorial is exact in a f64; from 16 on the series' next term is
    // below 1e-14.
    if n <= 15.0 {
        let factorial: f64 = (1..=n as u32).map(f64::from).product();
        let stirling = (n + 0.5) * n.ln() - n + 0.5 * std::f64::consts::TAU.ln();
        return factorial.ln() - stirling;
    }
    let square = n * n;
    (1.0 / 12.0 - (1.0 / 360.0 - (1.0 / 1260.0 - 1.0 / 1680.0 / square) / square) / square) / n
}

/// x·ln(x/m) + m - x without the cancellation when x is near m.
fn deviance(x: f64, m: f64) -> f64 {
    if (x - m).abs() >= 0.1 * (x + m) {
        return x * (x / m).ln() + m - x;
    }
    let v = (x - m) / (x + m);
    let mut sum = (x - m) * v;
    let mut odd = 2.0 * x * v;
    // Each term is at most 1 % of the one before, since |v| < 0.1.
    for j in 1..20 {
        odd *= v * v;
        let next = sum + odd / f64::from(2 * j + 1);
        if next == sum {
            break;
        }
        sum = next;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_published_numbers_are_met() {
        let imagenet = AccessLaw::new(90, 16);
        assert_eq!(imagenet.more_than(0.8), 11);
        assert_eq!(format!("{:.1}", imagenet.expected_above(1_281_167, 0.8)), "31634.7");
        let small = AccessLaw::new(1000, 4);
        assert_eq!(small.more_than(0.1), 276);
        assert_eq!(format!("{:.1}", small.expected_above(10_000, 0.1)), "322.9");
    }

    #[test]
    fn agrees_with_exact_fractions() {
        // From exact rational arithmetic.
        let value = AccessLaw::new(90, 16).expected_above(1_281_167, 0.8);
        assert!((value - 31_634.685_810_763_236).abs() < 1e-7, "{value}");
        let value = AccessLaw::new(1000, 4).expected_above(10_000, 0.1);
        assert!((value - 322.937_392_707_993_1).abs() < 1e-9, "{value}");
    }

    #[test]
    fn holds_for_very_long_runs() {
        // P(X > μ) tends to a half; the normal law gives the tail at 2σ.
        let law = AccessLaw::new(4_000_000_000, 4);
        assert!((law.exceeds(0.0) - 0.5).abs() < 1e-4);
        let two_sigma = 2.0 * (1e9 * 0.75_f64).sqrt() / 1e9;
        assert!((law.exceeds(two_sigma) - 0.022_750_13).abs() < 1e-5);
    }

    #[test]
    fn degenerate_laws_are_exact() {
        assert_eq!(AccessLaw::new(10, 1).exceeds(0.0), 0.0);
        assert_eq!(AccessLaw::new(10, 1).at_least(10), 1.0);
        assert_eq!(AccessLaw::new(1, 4).exactly(1), 0.25);
        assert_eq!(AccessLaw::new(0, 4).at_least(1), 0.0);
        assert_eq!(AccessLaw::new(9, 4).at_least(0), 1.0);
    }

    #[test]
    fn the_cut_takes_the_share_it_was_given() {
        for (epochs, workers) in [(10, 4), (90, 16), (90, 256), (1000, 4)] {
            let law = AccessLaw::new(epochs, workers);
            let share = 1.0 / f64::from(workers);
            let cut = law.cut(share);
            let taken = law.at_least(cut.above + 1) + cut.share_at * law.exactly(cut.above);
            assert!((taken - share).abs() < 1e-12, "{epochs} {workers} {cut:?}");
        }
        // More capacity than it reads samples: all of those, no more.
        assert_eq!(AccessLaw::new(1, 4).cut(0.5), FrequencyCut { above: 0, share_at: 0.0 });
    }

    proptest! {
        #[test]
        fn probabilities_sum_to_one(epochs in 0u32..400, workers in 1u32..40) {
            let law = AccessLaw::new(epochs, workers);
            let sum: f64 = (0..=epochs).map(|k| law.exactly(k)).sum();
            prop_assert!((sum - 1.0).abs() < 1e-11);
        }

        #[test]
        fn tails_are_the_sums_of_their_terms(
            epochs in 1u32..400, workers in 1u32..40, k in 0u32..400,
        ) {
            let law = AccessLaw::new(epochs, workers);
            let naive: f64 = (k..=epochs).map(|k| law.exactly(k)).sum();
            prop_assert!((law.at_least(k) - naive).abs() < 1e-11);
        }

        #[test]
        fn strictly_more_in_whole_numbers(
            epochs in 1u32..5000, workers in 1u32..200, percent in 0u32..400,
        ) {
            // (1 + percent/100)·E/N in integers.
            let limit = u64::from(100 + percent) * u64::from(epochs) / (100 * u64::from(workers));
            let law = AccessLaw::new(epochs, workers);
            prop_assert_eq!(u64::from(law.more_than(f64::from(percent) / 100.0)), limit + 1);
        }

        /// NoPFS's lemma 1 on random assignments: each epoch gives the sample to one worker.
        #[test]
        fn nopfs_lemma_1_holds_on_random_assignments(
            (workers, owners) in (2u32..12)
                .prop_flat_map(|n| (Just(n), proptest::collection::vec(0..n, 1..120))),
        ) {
            let epochs = owners.len() as u32;
            let mut counts = vec![0u32; workers as usize];
            for &owner in &owners {
                counts[owner as usize] += 1;
            }
            for (worker, &count) in counts.iter().enumerate() {
                let others = || counts.iter().enumerate().filter(|&(w, _)| w != worker);
                let fewest = *others().map(|(_, c)| c).min().unwrap();
                let most = *others().map(|(_, c)| c).max().unwrap();
                prop_assert!(fewest <= some_other_at_most(count, epochs, workers));
                prop_assert!(most >= some_other_at_least(count, epochs, workers));
            }
        }

        /// As the paper prints it, for any δ = percent/100 in [0, N-1].
        #[test]
        fn lemma_1_as_printed(
            (workers, owners) in (2u32..8)
                .prop_flat_map(|n| (Just(n), proptest::collection::vec(0..n, 1..60))),
            percent in 0u32..700,
        ) {
            let epochs = i64::try_from(owners.len()).unwrap();
            let n = i64::from(workers);
            let delta = i64::from(percent).min(100 * (n - 1));
            let mut counts = vec![0i64; workers as usize];
            for &owner in &owners {
                counts[owner as usize] += 1;
            }
            let floor = |a: i64, b: i64| a.div_euclid(b);
            let ceil = |a: i64, b: i64| -(-a).div_euclid(b);
            let often = ceil((100 + delta) * epochs, 100 * n);
            let seldom = floor((100 - delta) * epochs, 100 * n);
            let at_most = ceil((100 * (n - 1) - delta) * epochs, 100 * (n - 1) * n);
            let at_least = floor((100 * (n - 1) + delta) * epochs, 100 * (n - 1) * n);
            for (worker, &count) in counts.iter().enumerate() {
                let mut others = counts.iter().enumerate().filter(|&(w, _)| w != worker);
                if count == often {
                    prop_assert!(others.clone().any(|(_, &c)| c <= at_most));
                }
                if count == seldom {
                    prop_assert!(others.any(|(_, &c)| c >= at_least));
                }
            }
        }
    }
}
