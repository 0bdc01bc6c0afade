//! One node's cache: its free space, and what it would evict first.

use std::collections::BinaryHeap;

use super::future::NEVER;
use crate::policy::TierId;
use crate::sampler::SampleId;

/// The larger, the sooner a copy is evicted: a class, and within it a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EvictionKey(CopyClass, u32);

/// What a copy is worth to the group, from what stays to what goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CopyClass {
    /// Prefetched, and not used yet.
    Pinned,
    /// The holder uses it in this epoch or the next; or reuse distances are not looked at.
    Own,
    /// The group's last copy, which another node uses.
    Last,
    /// The holder does not use it in the next epoch, and another node has a copy: what the paper's
    /// policies of reuse count and reuse distance evict.
    Spare,
    /// No node uses it in the window.
    Useless,
}

impl EvictionKey {
    /// The larger `at`, the sooner evicted: the next use in iterations.
    pub fn new(class: CopyClass, at: u32) -> Self {
        Self(class, at)
    }

    /// Of a copy that is in no queue yet.
    pub const NONE: Self = Self(CopyClass::Pinned, NEVER);
    /// Only what the eviction policies free has a larger key.
    pub const BELOW_SPARE: Self = Self(CopyClass::Last, NEVER);
}

#[derive(Clone, Debug)]
pub struct NodeCache {
    /// Free bytes by tier; tier 0 has none.
    pub free: Vec<u64>,
    /// Includes entries whose copy has gone or has another key by now.
    pub heap: BinaryHeap<(EvictionKey, SampleId)>,
    pub held: usize,
}

impl NodeCache {
    pub fn new(room: impl Iterator<Item = u64>) -> Self {
        let free = std::iter::once(0).chain(room).collect();
        Self { free, heap: BinaryHeap::new(), held: 0 }
    }

    pub fn tier_with(&self, bytes: u64) -> Option<TierId> {
        let at = self.free.iter().skip(1).position(|&free| free >= bytes)?;
        Some(at as TierId + 1)
    }

    /// Removes the entries that `is_current` says are not those of copies as they are, when half of
    /// all may be: every use leaves one behind.
    pub fn sweep(&mut self, is_current: impl Fn(EvictionKey, SampleId) -> bool) {
        if self.heap.len() > 2 * self.held + 64 {
            let mut entries = std::mem::take(&mut self.heap).into_vec();
            entries.retain(|&(key, sample)| is_current(key, sample));
            // A key may have come back.
            entries.sort_unstable();
            entries.dedup();
            self.heap = entries.into();
        }
    }

    /// Returns the copy to evict first.
    pub fn worst(
        &mut self,
        is_current: impl Fn(EvictionKey, SampleId) -> bool,
    ) -> Option<(EvictionKey, SampleId)> {
        while let Some(&(key, sample)) = self.heap.peek() {
            if is_current(key, sample) {
                return Some((key, sample));
            }
            self.heap.pop();
        }
        None
    }
}
