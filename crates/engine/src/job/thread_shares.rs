//! Carries out what the policy decides about threads.

use belady_control::policy::ThreadAssignment;

use super::JobContext;

impl JobContext {
    /// Gives each rank of this node its share of the threads that load.
    pub fn assign_threads(&self, assignment: &ThreadAssignment) {
        let (ranks, threads) = (self.ranks.len(), self.lane.threads());
        self.lane.set_limits(limits(assignment, ranks, threads));
    }
}

/// Returns how many threads may load for each rank at once; empty for no limit. Shares that are not
/// whole are rounded so that their sum stays, and every rank gets a thread.
fn limits(assignment: &ThreadAssignment, ranks: usize, threads: u32) -> Vec<u32> {
    let shares = match assignment {
        ThreadAssignment::Pooled => return vec![],
        ThreadAssignment::PerRank => vec![f64::from(threads) / ranks as f64; ranks],
        ThreadAssignment::Split { loading, .. } => loading.clone(),
    };
    let mut limits: Vec<u32> = shares.iter().map(|share| share.floor() as u32).collect();
    let whole: u32 = limits.iter().sum();
    // A sum of fractions that should be whole may be a little less.
    let rest = ((shares.iter().sum::<f64>() + 1e-6) as u32).saturating_sub(whole);
    let mut largest: Vec<usize> = (0..shares.len()).collect();
    largest.sort_by(|&a, &b| shares[b].fract().total_cmp(&shares[a].fract()));
    for &rank in largest.iter().take(rest as usize) {
        limits[rank] += 1;
    }
    limits.iter().map(|&limit| limit.max(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(loading: &[f64]) -> ThreadAssignment {
        ThreadAssignment::Split { loading: loading.to_vec(), preprocessing: 1.0 }
    }

    #[test]
    fn shares_are_rounded_so_that_all_threads_are_used() {
        assert_eq!(limits(&ThreadAssignment::Pooled, 3, 8), [0; 0]);
        assert_eq!(limits(&ThreadAssignment::PerRank, 3, 8), [3, 3, 2]);
        assert_eq!(limits(&ThreadAssignment::PerRank, 1, 8), [8]);
        assert_eq!(limits(&split(&[3.0, 5.0]), 2, 8), [3, 5]);
        assert_eq!(limits(&split(&[1.25, 4.5, 2.25]), 3, 8), [1, 5, 2]);
        let third = 1.0 / 3.0;
        assert_eq!(limits(&split(&[1.0 + third, 1.0 + third, 1.0 + third]), 3, 4), [2, 1, 1]);
    }

    #[test]
    fn every_rank_has_a_thread() {
        assert_eq!(limits(&ThreadAssignment::PerRank, 4, 2), [1, 1, 1, 1]);
        assert_eq!(limits(&split(&[0.0, 4.0]), 2, 4), [1, 4]);
    }
}
