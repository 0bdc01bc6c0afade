//! The quotas of an engine's tiers, and the shares of them that jobs hold.

use belady_base::sync::{Arc, Mutex, lock};

/// The bytes of each tier's quota that no job holds.
#[derive(Debug)]
pub struct Quotas(Mutex<Vec<u64>>);

/// A job's share of the quotas. Dropping it returns the bytes.
#[derive(Debug)]
pub struct QuotaShare {
    quotas: Arc<Quotas>,
    /// By tier.
    pub bytes: Vec<u64>,
}

impl Quotas {
    pub fn new(bytes: Vec<u64>) -> Self {
        Self(Mutex::new(bytes))
    }

    /// Returns whether other jobs hold all of some tier's quota.
    pub fn is_exhausted(&self) -> bool {
        lock(&self.0).contains(&0)
    }

    /// Grants a fraction of what is left of every quota.
    pub fn grant(self: &Arc<Self>, fraction: f64) -> QuotaShare {
        let mut left = lock(&self.0);
        let granted = |left: &mut u64| {
            let bytes = (*left as f64 * fraction.clamp(0.0, 1.0)) as u64;
            *left -= bytes;
            bytes
        };
        QuotaShare { bytes: left.iter_mut().map(granted).collect(), quotas: self.clone() }
    }
}

#[cfg(test)]
impl QuotaShare {
    pub fn none() -> Self {
        Self { quotas: Arc::new(Quotas::new(vec![])), bytes: vec![] }
    }
}

impl Drop for QuotaShare {
    fn drop(&mut self) {
        for (left, bytes) in lock(&self.quotas.0).iter_mut().zip(&self.bytes) {
            *left += bytes;
        }
    }
}
