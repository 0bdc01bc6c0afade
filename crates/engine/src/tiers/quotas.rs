//! The quotas of an engine's tiers, and the shares of them that jobs hold.

use belady_base::sync::{Arc, Mutex, lock};

/// The part of every quota that an engine of several jobs leaves to later ones: one in so many.
const LEFT_TO_OTHERS: u64 = 8;

/// The bytes of each tier's quota that no job holds.
#[derive(Debug)]
pub struct Quotas {
    all: Vec<u64>,
    left: Mutex<Vec<u64>>,
    /// Jobs run at the same time, and each leaves something to the next one.
    several_jobs: bool,
}

/// A job's share of the quotas. Dropping it returns the bytes.
#[derive(Debug)]
pub struct QuotaShare {
    quotas: Arc<Quotas>,
    /// By tier.
    pub bytes: Vec<u64>,
}

impl Quotas {
    pub fn new(bytes: Vec<u64>, several_jobs: bool) -> Self {
        Self { all: bytes.clone(), left: Mutex::new(bytes), several_jobs }
    }

    /// Returns whether a job would get less of some tier than if no other job held any of it.
    pub fn are_short(&self, fraction: f64) -> bool {
        let left = lock(&self.left);
        if !self.several_jobs {
            return left.contains(&0);
        }
        let is_short =
            |(&all, &left)| self.part(all, left, fraction) < self.part(all, all, fraction);
        self.all.iter().zip(&*left).any(is_short)
    }

    /// Grants a fraction of what is left of every quota.
    pub fn grant(self: &Arc<Self>, fraction: f64) -> QuotaShare {
        let mut left = lock(&self.left);
        let granted = |(&all, left): (&u64, &mut u64)| {
            let bytes = self.part(all, *left, fraction);
            *left -= bytes;
            bytes
        };
        let bytes = self.all.iter().zip(&mut *left).map(granted).collect();
        QuotaShare { bytes, quotas: self.clone() }
    }

    /// Returns how much of a tier a job gets that asks for a fraction of what is left. Among several
    /// jobs it leaves an eighth of the quota to others, or half of what is left if that is less.
    fn part(&self, all: u64, left: u64, fraction: f64) -> u64 {
        let asked = (left as f64 * fraction.clamp(0.0, 1.0)) as u64;
        if self.several_jobs {
            asked.min(left - (all / LEFT_TO_OTHERS).min(left / 2))
        } else {
            asked
        }
    }
}

#[cfg(test)]
impl QuotaShare {
    pub fn none() -> Self {
        Self { quotas: Arc::new(Quotas::new(vec![], false)), bytes: vec![] }
    }
}

impl Drop for QuotaShare {
    fn drop(&mut self) {
        for (left, bytes) in lock(&self.quotas.left).iter_mut().zip(&self.bytes) {
            *left += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shares_never_exceed_the_quota_and_each_has_a_floor(
            all in 0u64..1 << 40,
            fractions in prop::collection::vec(0.0f64..=1.0, 1..8),
        ) {
            let quotas = Arc::new(Quotas::new(vec![all], true));
            let shares: Vec<QuotaShare> = fractions.iter().map(|&f| quotas.grant(f)).collect();
            let mut left = all;
            for (share, fraction) in shares.iter().zip(&fractions) {
                let asked = (left as f64 * fraction) as u64;
                let floor = asked.min(left / 2);
                prop_assert!((floor..=asked).contains(&share.bytes[0]));
                prop_assert!(share.bytes[0] + (all / LEFT_TO_OTHERS).min(left / 2) <= left);
                left -= share.bytes[0];
            }
            drop(shares);
            prop_assert_eq!(lock(&quotas.left)[0], all);
        }
    }

    #[test]
    fn one_job_at_a_time_gets_all_that_it_asks_for() {
        let quotas = Arc::new(Quotas::new(vec![1000, 10], false));
        let share = quotas.grant(1.0);
        assert_eq!(share.bytes, [1000, 10]);
        assert!(quotas.are_short(1.0));
        drop(share);
        assert!(!quotas.are_short(1.0));
    }
}
