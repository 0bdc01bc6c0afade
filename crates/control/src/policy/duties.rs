//! Fixed duties of a node's staging threads: so many of each rank only load, so many only
//! preprocess, as in DALI and, in Lobster's evaluation (section 5.1), in torch's `DataLoader` and
//! NoPFS.

use super::{ThreadAssignment, Unsupported};
use crate::job::Job;

/// Threads of each rank that have one duty for the whole run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedDuties {
    /// Threads that only load.
    pub loading: u32,
    /// Threads that only preprocess; all of the node that do not load where it is `None`.
    pub preprocessing: Option<u32>,
}

impl FixedDuties {
    /// DALI's default, as Lobster gives it (section 5.1): three threads load, and it runs one
    /// pipeline a GPU.
    pub const DALI: Self = Self { loading: 3, preprocessing: None };

    /// Returns how a node's threads are used: each rank's for both where no duties are fixed.
    ///
    /// # Errors
    /// If the node has too few threads for them.
    pub fn assignment(duties: Option<Self>, job: &Job) -> Result<ThreadAssignment, Unsupported> {
        let Some(Self { loading, preprocessing }) = duties else {
            return Ok(ThreadAssignment::PerRank);
        };
        let all = job.system.staging_threads();
        let ranks = job.system.ranks_per_node;
        let of_node = |threads: u32| u64::from(threads) * u64::from(ranks);
        let needed = of_node(loading) + preprocessing.map_or(1, of_node);
        if loading == 0 || preprocessing == Some(0) || needed > u64::from(all) {
            let more = preprocessing
                .map(|threads| format!(" and `preprocessing_threads` is {threads}"))
                .unwrap_or_default();
            return Err(Unsupported(format!(
                "`loading_threads` is {loading}{more} for each of {ranks} ranks, but the node has \
                 {all} staging threads: each rank needs at least 1 to load, and 1 must be left to \
                 preprocess"
            )));
        }
        let left = all - loading * ranks;
        Ok(ThreadAssignment::Split {
            loading: vec![f64::from(loading); ranks as usize],
            preprocessing: f64::from(preprocessing.map_or(left, |threads| threads * ranks)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::testing::job;

    fn assigned(loading: u32, preprocessing: Option<u32>) -> Result<ThreadAssignment, Unsupported> {
        FixedDuties::assignment(Some(FixedDuties { loading, preprocessing }), &job(8, 1, 2, &[]))
    }

    #[test]
    fn duties_are_of_each_rank() {
        let split = |loading, preprocessing| {
            Ok(ThreadAssignment::Split { loading: vec![loading; 2], preprocessing })
        };
        // The node has eight threads.
        assert_eq!(assigned(3, None), split(3.0, 2.0));
        assert_eq!(assigned(3, Some(1)), split(3.0, 2.0));
        assert_eq!(assigned(1, Some(2)), split(1.0, 4.0));
        let free = FixedDuties::assignment(None, &job(8, 1, 2, &[]));
        assert_eq!(free, Ok(ThreadAssignment::PerRank));
    }

    #[test]
    fn too_few_threads_for_the_duties_is_an_error_that_names_them() {
        for (loading, preprocessing) in
            [(4, None), (0, None), (3, Some(2)), (1, Some(0)), (u32::MAX, Some(u32::MAX / 2))]
        {
            let error = assigned(loading, preprocessing).unwrap_err().to_string();
            assert!(error.contains(&format!("`loading_threads` is {loading}")), "{error}");
            assert_eq!(error.contains("`preprocessing_threads`"), preprocessing.is_some());
        }
    }
}
