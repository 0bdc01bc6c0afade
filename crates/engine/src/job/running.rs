//! The running jobs of an engine, and what those on the same dataset share.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Weak;

use belady_base::SampleId;
use belady_base::sync::{Arc, Mutex, MutexGuard, lock};

use super::recent_reads::RecentReads;
use super::{JobContext, Waiter};

/// Shards of the table of reads.
const SHARDS: usize = 16;

/// The running jobs of an engine, by the fingerprint of their dataset.
#[derive(Debug, Default)]
pub struct RunningJobs(Mutex<HashMap<u64, Weak<DatasetJobs>>>);

/// The running jobs on one dataset.
#[derive(Debug, Default)]
pub struct DatasetJobs {
    jobs: Mutex<Vec<Weak<JobContext>>>,
    /// The reads of the source that other jobs may use; `None` if the engine runs one job at a time.
    pub reads: Option<SharedReads>,
}

impl RunningJobs {
    /// Returns the jobs on a dataset, for a job that is about to be added. They share their reads
    /// if the engine runs several jobs at once.
    pub fn of_dataset(&self, fingerprint: u64, several_jobs: bool) -> Arc<DatasetJobs> {
        let mut datasets = lock(&self.0);
        datasets.retain(|_, dataset| dataset.strong_count() > 0);
        let known = datasets.get(&fingerprint).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let reads = several_jobs.then(SharedReads::default);
            let dataset = Arc::new(DatasetJobs { jobs: Mutex::default(), reads });
            datasets.insert(fingerprint, Arc::downgrade(&dataset));
            dataset
        })
    }

    /// Returns the jobs that read a dataset.
    pub fn reading(&self, fingerprint: u64) -> Vec<Arc<JobContext>> {
        let dataset = lock(&self.0).get(&fingerprint).and_then(Weak::upgrade);
        dataset.map_or(vec![], |dataset| dataset.running())
    }
}

impl DatasetJobs {
    /// Adds a job with a staging buffer of so many bytes, which is also what jobs keep of recent reads
    /// for each other.
    pub fn add(&self, job: &Arc<JobContext>, staging: u64) {
        if let Some(reads) = &self.reads {
            reads.recent.grow(staging);
        }
        let mut jobs = lock(&self.jobs);
        jobs.retain(|job| job.strong_count() > 0);
        jobs.push(Arc::downgrade(job));
    }

    fn running(&self) -> Vec<Arc<JobContext>> {
        lock(&self.jobs).iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the jobs on this dataset except one.
    pub fn others(&self, job: &JobContext) -> Vec<Arc<JobContext>> {
        let is_other = |other: &&Weak<JobContext>| !std::ptr::eq(other.as_ptr(), job);
        lock(&self.jobs).iter().filter(is_other).filter_map(Weak::upgrade).collect()
    }
}

/// A batch that leads reads.
pub trait LeadingBatch: Send + Sync {
    /// Copies an item that has arrived, before the batch is published, and returns the version of
    /// its file.
    fn copy_item(&self, item: u32, into: &mut [u8]) -> i64;
}

/// Reads of the source that are in flight, and what has arrived and is not in a tier yet.
///
/// The job that reads a sample *leads* the read, from just before the read until the batch is
/// published. Another job that needs the sample meanwhile waits for the read, and copies it from the
/// leader's batch afterwards. A leader waits for nothing but its read, so leaders never wait for
/// each other.
#[derive(Default)]
pub struct SharedReads {
    in_flight: [Mutex<HashMap<SampleId, SharedRead>>; SHARDS],
    /// Reads that have ended.
    pub recent: RecentReads,
}

/// The item that leads a read.
pub type LeadingItem = (Weak<dyn LeadingBatch>, u32);

struct SharedRead {
    leader: LeadingItem,
    has_arrived: bool,
    /// Each with its job.
    waiters: Vec<(Weak<JobContext>, Box<dyn Waiter>)>,
}

/// What a job does about a sample that it needs from the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedRole {
    /// Read it for all jobs.
    Lead,
    /// Wait for the read of another job.
    Wait,
    /// It was copied, in this version of its file.
    Copied(i64),
    /// Read it for this job alone.
    Alone,
}

impl SharedReads {
    fn shard(&self, sample: SampleId) -> MutexGuard<'_, HashMap<SampleId, SharedRead>> {
        lock(&self.in_flight[sample as usize % SHARDS])
    }

    /// Returns whether a job leads a read of the sample.
    pub fn is_open(&self, sample: SampleId) -> bool {
        self.shard(sample).contains_key(&sample)
    }

    /// Leads a read, or uses that of another job if the sample `may_come` from one.
    pub fn enter(
        &self,
        job: &Arc<JobContext>,
        sample: SampleId,
        into: &mut [u8],
        may_come: bool,
        leader: impl FnOnce() -> LeadingItem,
        waiter: impl FnOnce() -> Box<dyn Waiter>,
    ) -> SharedRole {
        // Outlives the lock: the end of a batch ends its reads, under the same lock.
        let batch;
        let mut shard = self.shard(sample);
        match shard.entry(sample) {
            Entry::Vacant(vacant) => {
                let leader = leader();
                vacant.insert(SharedRead { leader, has_arrived: false, waiters: vec![] });
                SharedRole::Lead
            }
            Entry::Occupied(_) if !may_come => SharedRole::Alone,
            Entry::Occupied(mut read) if !read.get().has_arrived => {
                read.get_mut().waiters.push((Arc::downgrade(job), waiter()));
                SharedRole::Wait
            }
            Entry::Occupied(read) => {
                let (leader, item) = &read.get().leader;
                batch = leader.upgrade();
                // Under the lock, which the batch takes before it is published.
                let copied = batch.as_ref().map(|batch| batch.copy_item(*item, into));
                copied.map_or(SharedRole::Alone, SharedRole::Copied)
            }
        }
    }

    /// The sample of a led read has arrived; returns who waits for it.
    pub fn arrive(&self, sample: SampleId) -> Vec<Box<dyn Waiter>> {
        let mut shard = self.shard(sample);
        let Some(read) = shard.get_mut(&sample) else { return vec![] };
        read.has_arrived = true;
        read.waiters.drain(..).map(|(_, waiter)| waiter).collect()
    }

    /// Ends a led read; those that still wait read the sample themselves.
    pub fn end(&self, sample: SampleId) {
        let read = self.shard(sample).remove(&sample);
        for (_, waiter) in read.into_iter().flat_map(|read| read.waiters) {
            waiter.failed();
        }
    }

    /// Drops the waiters of a job that ends, and what was kept for it.
    pub fn leave(&self, job: &JobContext) {
        self.recent.clear();
        for shard in &self.in_flight {
            let mut left = vec![];
            for read in lock(shard).values_mut() {
                let is_of_job = |(of, _): &mut (Weak<JobContext>, _)| {
                    std::ptr::eq(of.as_ptr(), std::ptr::from_ref(job))
                };
                left.extend(read.waiters.extract_if(.., is_of_job));
            }
            // Without the lock: a waiter refers to a batch, which may lead reads itself.
            drop(left);
        }
    }
}

impl std::fmt::Debug for SharedReads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedReads").finish_non_exhaustive()
    }
}
