//! Calls of tiers that may never return: those on disks.
//!
//! A thread of the pool makes such a call under the watchdog. If the call takes too long, the tier
//! is suspended ([`crate::tiers`]), and another thread carries on with the hung thread's work. The
//! hung thread may still access the memory it was given:
//!
//! - a *get* may write to slots, so their samples are read again, into memory of their own;
//! - a *put* may read from a slot that the consumer may write to, and would store a checksum of the
//!   consumer's bytes. So the consumer gets a copy, and the slot stays as it is.
//!
//! Both hold a reference to the pending batch, so the ring does not reuse its space meanwhile.

use belady_base::SampleId;
use belady_base::sync::Arc;
use belady_control::policy::TierId;
use belady_data::tier::Put;

use super::JobContext;
use crate::EngineError;
use crate::pool::{Hung, Watched, Worker};

impl JobContext {
    /// Makes a call of a tier under the watchdog. If the call hangs, returns `None` when it comes
    /// back, and another thread calls `instead` meanwhile.
    pub fn call_tier<T>(
        self: &Arc<Self>,
        worker: &Worker,
        tier: TierId,
        instead: impl FnOnce() + Send + 'static,
        call: impl FnOnce() -> T,
    ) -> Option<T> {
        let on_timeout = {
            let job = self.clone();
            move |hung: Hung| {
                job.metrics.timeout();
                let limit = job.retry.timeout;
                job.tiers.suspend(tier, limit);
                if hung.too_many {
                    job.fail(EngineError::TierHangs { hung: hung.threads, limit, tier });
                } else {
                    instead();
                }
            }
        };
        match worker.watch(on_timeout, call) {
            Watched::InTime(outcome) => Some(outcome),
            Watched::TooLate => {
                self.tiers.call_returned(tier, self.retry.timeout);
                None
            }
        }
    }

    /// Puts a sample of a file version into a tier, under the watchdog if the tier may hang. If it
    /// does, returns `None`, and another thread calls `instead`.
    pub fn put_watched(
        self: &Arc<Self>,
        worker: &Worker,
        tier: TierId,
        (sample, version): (SampleId, i64),
        with_bytes: impl FnOnce(&mut dyn FnMut(&[u8]) -> Put) -> Put,
        instead: impl FnOnce() + Send + 'static,
    ) -> Option<Put> {
        let put = || with_bytes(&mut |bytes| self.tiers.put(tier, sample, bytes, version));
        if !self.tiers.may_hang(tier) {
            return Some(put());
        }
        self.call_tier(worker, tier, instead, put)
    }
}
