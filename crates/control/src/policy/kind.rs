//! Policies by name, with their options.

use super::FixedDuties;
use crate::model::Seconds;

/// How `nopfs` learns whether a peer already has a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Availability {
    /// From its own prefetch progress, as the paper does; may be wrong.
    Heuristic,
    /// From the peer, at no cost.
    Known,
}

/// A policy and its options; docs/policies.md describes each.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "docs/policies.md describes each policy")]
pub enum PolicyKind {
    Perfect,
    Naive,
    Staging {
        duties: Option<FixedDuties>,
    },
    DeepioOrdered,
    DeepioOpportunistic,
    ParallelStaging,
    LbannDynamic,
    LbannPreload,
    LocalityAware,
    Nopfs {
        in_order: bool,
        cleanup_read: bool,
        availability: Availability,
        duties: Option<FixedDuties>,
    },
    Lobster {
        threads: bool,
        eviction: bool,
        tau: Seconds,
    },
    Monarch,
    Lru,
    Belady,
    /// MONARCH's baseline: the dataset lies on the local disk before the job.
    Local,
    /// MONARCH's baseline: the first epoch copies the whole dataset to the local disk.
    Cache,
}

impl PolicyKind {
    /// Every policy that a scenario without `[[policy]]` runs, with default options.
    pub const ALL: [Self; 14] = [
        Self::Perfect,
        Self::Naive,
        Self::Staging { duties: None },
        Self::DeepioOrdered,
        Self::DeepioOpportunistic,
        Self::ParallelStaging,
        Self::LbannDynamic,
        Self::LbannPreload,
        Self::LocalityAware,
        Self::Nopfs {
            in_order: true,
            cleanup_read: false,
            availability: Availability::Heuristic,
            duties: None,
        },
        Self::Lobster { threads: true, eviction: true, tau: Seconds(0.001) },
        Self::Monarch,
        Self::Lru,
        Self::Belady,
    ];

    /// Policies that run only when a scenario or `--policy` names them.
    pub const ON_REQUEST: [Self; 2] = [Self::Local, Self::Cache];

    /// Returns the name that scenario files and `--policy` use.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Perfect => "perfect",
            Self::Naive => "naive",
            Self::Staging { .. } => "staging",
            Self::DeepioOrdered => "deepio-ordered",
            Self::DeepioOpportunistic => "deepio-opportunistic",
            Self::ParallelStaging => "parallel-staging",
            Self::LbannDynamic => "lbann-dynamic",
            Self::LbannPreload => "lbann-preload",
            Self::LocalityAware => "locality-aware",
            Self::Nopfs { .. } => "nopfs",
            Self::Lobster { .. } => "lobster",
            Self::Monarch => "monarch",
            Self::Lru => "lru",
            Self::Belady => "belady",
            Self::Local => "local",
            Self::Cache => "cache",
        }
    }

    /// Returns whether nodes put samples into each other's tiers, in logical time. Then what one
    /// epoch leaves for the next is in place only when all nodes are done with it, and a step
    /// retires on one node only when all have loaded it.
    pub fn moves_samples(&self) -> bool {
        matches!(self, Self::Belady)
    }

    /// Returns whether each tier is filled by prefetchers with threads of their own, beside those
    /// that stage.
    pub fn has_prefetch_threads(&self) -> bool {
        matches!(self, Self::Nopfs { .. } | Self::Monarch | Self::Lobster { .. })
    }

    /// Returns the policy of that name with its default options.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().chain(Self::ON_REQUEST).find(|kind| kind.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_found_by_its_own_name_and_by_no_other() {
        let all: Vec<PolicyKind> =
            PolicyKind::ALL.into_iter().chain(PolicyKind::ON_REQUEST).collect();
        for kind in &all {
            assert_eq!(PolicyKind::by_name(kind.name()).as_ref(), Some(kind));
            assert_eq!(all.iter().filter(|other| other.name() == kind.name()).count(), 1);
        }
        assert_eq!(PolicyKind::by_name("beladi"), None);
        assert_eq!(PolicyKind::Belady.name(), "belady");
    }

    #[test]
    fn only_belady_puts_samples_into_other_nodes_tiers() {
        let movers: Vec<&str> = PolicyKind::ALL
            .iter()
            .filter(|kind| kind.moves_samples())
            .map(PolicyKind::name)
            .collect();
        assert_eq!(movers, ["belady"]);
    }
}
