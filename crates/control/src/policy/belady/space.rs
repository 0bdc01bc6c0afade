//! How much of a tier holds samples.

use crate::job::{Job, Sizes};

/// Bytes of a spot that can hold samples: where all are equally large, whole ones.
pub fn usable(job: &Job, spot: usize) -> u64 {
    let tiers = job.system.tiers.len();
    let (node, tier) = ((spot / tiers) as u32, spot % tiers);
    let capacity = job.system.tiers[tier].capacity_of(node).0;
    match job.sizes {
        _ if tier == 0 => 0,
        Sizes::Equal { bytes, .. } if bytes > 0 => capacity / bytes * bytes,
        _ => capacity,
    }
}
