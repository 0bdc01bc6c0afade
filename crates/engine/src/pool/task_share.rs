//! The part of the pool that a task uses.

/// What a running task takes from the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskShare {
    pub lane: u64,
    pub rank: Option<usize>,
    pub is_background: bool,
}
