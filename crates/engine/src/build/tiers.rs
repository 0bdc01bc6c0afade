//! Opens the tiers of a job.

use belady_base::sync::Arc;
use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_data::source::Source;
use belady_data::tier::disk::{DiskConfig, DiskTier, FileVersions};
use belady_data::tier::{FaultyTier, RamTier, Tier};

use super::Engine;
use crate::config::{JobConfig, TierConfig};
use crate::tiers::quotas::QuotaShare;
use crate::tiers::retained::{RetainKey, Retained};
use crate::tiers::{RetainOnDrop, TierSet};

/// The opened tiers of a job.
pub struct OpenTiers {
    pub set: TierSet,
    /// The name and capacity of each tier.
    pub capacities: Vec<(String, Bytes)>,
    /// Whether each tier is on a disk.
    pub are_disks: Vec<bool>,
}

impl Engine {
    /// Opens the tiers of a job, or takes over those in memory that an earlier job has left.
    pub(super) fn open_tiers(&self, config: &JobConfig, sizes: &Arc<Sizes>) -> OpenTiers {
        let key =
            RetainKey { listing: config.source.catalog().listing(), share: config.cache_share };
        let (share, mut in_memory) = match self.retained.take(key) {
            Some(Retained { share, tiers, .. }) => (share, tiers),
            None => (Arc::new(self.grant_share(config.cache_share)), vec![]),
        };
        in_memory.resize(self.config.tiers.len(), None);
        let (mut tiers, mut capacities) = (vec![], vec![]);
        let are_disks: Vec<bool> =
            self.config.tiers.iter().map(|tier| matches!(tier, TierConfig::Disk { .. })).collect();
        for (at, (described, retained)) in self.config.tiers.iter().zip(in_memory).enumerate() {
            let bytes = Bytes(share.bytes[at]);
            let tier = retained.unwrap_or_else(|| self.open_tier(described, bytes, config, sizes));
            let tier = self.with_faults(at, tier);
            self.metrics.watch_tier(at as u8 + 1, &tier);
            capacities.push((described.name(), tier.status().capacity));
            tiers.push((tier, described.name(), are_disks[at]));
        }
        // Tiers with injected faults end with their job.
        let retain = Some(RetainOnDrop { retained: self.retained.clone(), key })
            .filter(|_| self.config.tier_faults.is_none());
        let set =
            TierSet::new(tiers, config.source.clone(), share, retain, self.config.several_jobs);
        OpenTiers { set, capacities, are_disks }
    }

    fn open_tier(
        &self,
        tier: &TierConfig,
        share: Bytes,
        config: &JobConfig,
        sizes: &Arc<Sizes>,
    ) -> Arc<dyn Tier> {
        match tier {
            TierConfig::Ram { .. } if self.config.shared_tiers => {
                Arc::new(RamTier::shared(share, sizes.clone()))
            }
            TierConfig::Ram { .. } => Arc::new(RamTier::new(share, sizes.clone())),
            TierConfig::Disk { directory, capacity } => Arc::new(DiskTier::open(DiskConfig {
                directory: directory.clone(),
                quota: *capacity,
                share,
                fingerprint: config.source.catalog().fingerprint(),
                name: config.name.clone(),
                sizes: sizes.clone(),
                segment: None,
                versions: FileVersions(Some(config.source.clone())),
            })),
        }
    }

    fn grant_share(&self, fraction: f64) -> QuotaShare {
        if self.quotas.are_short(fraction) {
            self.retained.clear();
        }
        self.quotas.grant(fraction)
    }

    fn with_faults(&self, at: usize, tier: Arc<dyn Tier>) -> Arc<dyn Tier> {
        let Some((mut faults, seed)) = self.config.tier_faults else { return tier };
        if let TierConfig::Ram { .. } = self.config.tiers[at] {
            // Memory does not hang.
            (faults.hung_put, faults.hung_get) = (0.0, 0.0);
        }
        Arc::new(FaultyTier::new(tier, faults, seed + at as u64))
    }
}
