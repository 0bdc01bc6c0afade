//! How the threads of a pool are divided between duties.

/// What a thread does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duty {
    /// Runs tasks: loads, stores, prefetches.
    #[default]
    Load,
    /// Transforms samples.
    Transform,
}

impl Duty {
    pub const ALL: [Self; 2] = [Self::Load, Self::Transform];

    pub fn other(self) -> Self {
        match self {
            Self::Load => Self::Transform,
            Self::Transform => Self::Load,
        }
    }

    /// Returns the name of a thread.
    pub fn thread_name(self) -> &'static str {
        match self {
            Self::Load => "belady-load",
            Self::Transform => "belady-xform",
        }
    }
}

/// A count for each duty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByDuty([u32; 2]);

impl ByDuty {
    pub fn new(load: u32, transform: u32) -> Self {
        Self([load, transform])
    }

    pub fn total(self) -> u32 {
        self.0.iter().sum()
    }
}

impl std::ops::Index<Duty> for ByDuty {
    type Output = u32;

    fn index(&self, duty: Duty) -> &u32 {
        &self.0[duty as usize]
    }
}

impl std::ops::IndexMut<Duty> for ByDuty {
    fn index_mut(&mut self, duty: Duty) -> &mut u32 {
        &mut self.0[duty as usize]
    }
}

/// How the ranks of a lane share the threads that transform.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransformShare {
    /// All transform for any rank.
    #[default]
    Pooled,
    /// Each rank has those that its stage brought.
    PerRank,
    /// So many transform, for any rank.
    Threads(u32),
}

/// How a lane uses its threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneThreads {
    /// By rank: how many threads may load for it at once; no limit for a rank beyond the end.
    pub loading: Vec<u32>,
    /// A thread that finds nothing to load within the limits loads beyond them.
    pub is_soft: bool,
    pub transforming: TransformShare,
}

/// Divides threads between duties: so many were there before any transform, the stages of each lane
/// have brought some, and each lane uses its as it says. While there are stages, each duty gets a
/// thread.
pub fn divide(before: u32, lanes: impl IntoIterator<Item = (u32, TransformShare)>) -> ByDuty {
    let (mut brought, mut wanted) = (0, 0);
    for (of_lane, share) in lanes {
        brought += of_lane;
        wanted += match share {
            TransformShare::Threads(threads) if of_lane > 0 => threads.max(1),
            TransformShare::Threads(_) | TransformShare::Pooled | TransformShare::PerRank => {
                of_lane
            }
        };
    }
    let total = before + brought;
    let transform = wanted.min(total.saturating_sub(1));
    ByDuty::new(total - transform, transform)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn threads_are_divided_as_lanes_say() {
        use TransformShare::{PerRank, Pooled, Threads};
        assert_eq!(divide(8, []), ByDuty::new(8, 0));
        assert_eq!(divide(8, [(4, Pooled)]), ByDuty::new(8, 4));
        assert_eq!(divide(8, [(4, PerRank)]), ByDuty::new(8, 4));
        assert_eq!(divide(8, [(4, Threads(9))]), ByDuty::new(3, 9));
        assert_eq!(divide(8, [(4, Threads(99))]), ByDuty::new(1, 11));
        assert_eq!(divide(8, [(0, Threads(5))]), ByDuty::new(8, 0), "nothing to transform");
        assert_eq!(divide(8, [(4, Threads(1)), (2, Pooled)]), ByDuty::new(11, 3));
    }

    proptest! {
        #[test]
        fn no_duty_starves_and_no_thread_is_made_up(
            before in 1u32..40,
            lanes in prop::collection::vec((0u32..9, prop::option::of(0u32..60)), 0..4),
        ) {
            let share = |threads: Option<u32>| {
                threads.map_or(TransformShare::Pooled, TransformShare::Threads)
            };
            let given = divide(before, lanes.iter().map(|&(brought, it)| (brought, share(it))));
            let brought: u32 = lanes.iter().map(|lane| lane.0).sum();
            prop_assert_eq!(given.total(), before + brought);
            prop_assert!(given[Duty::Load] > 0);
            prop_assert_eq!(given[Duty::Transform] > 0, brought > 0);
        }
    }
}
