//! The tiers of a job.
//!
//! A disk tier may hold samples from an earlier run, and so may a retained RAM tier. The policy
//! plans as if the tier were empty; the samples in it are *warm entries* ([`warm`]). The engine
//! serves them until the policy's own samples need the space. A warm entry that the policy decides
//! to keep where it is becomes the policy's own without being written again.
//!
//! A tier whose call hangs is *suspended*: no thread calls it, and its samples come from elsewhere.
//! It is used again when all hung calls have returned and a pause has passed. Evictions that the
//! policy asks for meanwhile are *overdue*; they happen when space is needed. [`TierSet::evict`]
//! never waits for a call that may hang, because it runs under the lock that orders steps; a busy
//! sample becomes overdue too.
//!
//! A copy is valid only for the file version that the source knows. Disk tiers store the version
//! with each copy. RAM tiers hold copies of the listed versions, except for files of which a new
//! version was noticed: those versions are recorded here and read without a lock.

pub mod quotas;
pub mod rates;
pub mod retained;
mod warm;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belady_base::SampleId;
use belady_base::sync::{Arc, Mutex, MutexGuard, lock};
use belady_control::Sizes;
use belady_control::bits::Bits;
use belady_control::policy::TierId;
use belady_data::source::Source;
use belady_data::sparse_table::SparseTable;
use belady_data::tier::{Evicted, Put, Tier, TierStatus};

use quotas::QuotaShare;
use retained::{RetainKey, Retained, RetainedTiers};
use warm::WarmEntries;

/// The longest pause of a tier that has hung repeatedly, in timeouts: the tier then costs less than
/// two hundredths of the time.
const LONGEST_PAUSE: u32 = 64;
/// Locks for puts into memory: more than threads that put at once.
const STRIPES: usize = 64;
/// Busy warm entries that one eviction skips at most: each try takes time, and other threads wait.
const MOST_BUSY: usize = 8;
/// The bytes that rounding takes of a tier vary with the samples it holds, hardly ever by more than
/// this many standard deviations.
const DEVIATIONS: f64 = 6.0;

/// The tiers of a job.
#[derive(Debug)]
pub struct TierSet {
    /// Tier j at j − 1.
    tiers: Vec<ManagedTier>,
    source: Arc<dyn Source>,
    samples: u32,
    share: Arc<QuotaShare>,
    retain: Option<RetainOnDrop>,
}

/// Where a job's RAM tiers go when the job has ended.
#[derive(Debug)]
pub struct RetainOnDrop {
    pub retained: Arc<RetainedTiers>,
    pub key: RetainKey,
}

/// A tier that has lent memory, kept alive together with its quota.
#[derive(Clone, Debug)]
pub struct Lender {
    pub tier: Arc<dyn Tier>,
    _share: Arc<QuotaShare>,
}

#[derive(Debug)]
struct ManagedTier {
    tier: Arc<dyn Tier>,
    /// For warnings.
    name: String,
    /// A call may never return: the tier is on a disk.
    may_hang: bool,
    suspended: AtomicBool,
    outage: Mutex<TierOutage>,
    /// `None` if the tier was empty at the start.
    warm: Option<Mutex<WarmEntries>>,
    overdue: OverdueEvictions,
    /// By sample, the version of a copy in memory that is not of the listed version.
    noticed: SparseTable,
    /// Held while a sample is put into memory or evicted for its version, so that the recorded
    /// version is that of the copy.
    putting: [Mutex<()>; STRIPES],
}

/// The hung calls of a tier.
#[derive(Debug, Default)]
struct TierOutage {
    /// Calls that were given up and have not returned. A call may return before it is recorded as
    /// given up, so this may be −1 for a moment.
    calls: i32,
    /// Outages so far.
    count: u32,
    /// The end of the pause, once a call has returned.
    until: Option<Instant>,
}

/// Samples that could not be evicted when the policy asked for it.
#[derive(Debug, Default)]
struct OverdueEvictions {
    /// Whether there are any; spares the lock in the common case.
    any: AtomicBool,
    samples: Mutex<Bits>,
}

impl OverdueEvictions {
    fn add(&self, sample: SampleId, of: u32) {
        let mut samples = lock(&self.samples);
        if samples.is_unallocated() {
            *samples = Bits::new(of);
        }
        samples.insert(sample);
        self.any.store(true, Ordering::Release);
    }

    /// The policy keeps the sample after all.
    fn cancel(&self, sample: SampleId) {
        if self.any.load(Ordering::Acquire) {
            lock(&self.samples).remove(sample);
        }
    }

    fn take(&self) -> Bits {
        if !self.any.load(Ordering::Acquire) {
            return Bits::default();
        }
        let mut samples = lock(&self.samples);
        self.any.store(false, Ordering::Release);
        std::mem::take(&mut *samples)
    }
}

impl TierSet {
    /// Manages tiers, each given with its name and whether a call of it may never return. Only if
    /// other jobs share this job's dataset, tiers take what those offer.
    pub fn new(
        tiers: Vec<(Arc<dyn Tier>, String, bool)>,
        source: Arc<dyn Source>,
        share: Arc<QuotaShare>,
        retain: Option<RetainOnDrop>,
        takes_offers: bool,
    ) -> Self {
        let samples = source.catalog().len();
        let managed = |(tier, name, may_hang): (Arc<dyn Tier>, String, bool)| ManagedTier {
            warm: (takes_offers || tier.status().samples > 0)
                .then(|| Mutex::new(WarmEntries::new(samples))),
            tier,
            name,
            may_hang,
            suspended: AtomicBool::new(false),
            outage: Mutex::default(),
            overdue: OverdueEvictions::default(),
            noticed: SparseTable::new(samples),
            putting: std::array::from_fn(|_| Mutex::default()),
        };
        Self { tiers: tiers.into_iter().map(managed).collect(), source, samples, share, retain }
    }

    /// Returns a tier, unless it is suspended.
    pub fn get(&self, id: TierId) -> Option<&dyn Tier> {
        Some(self.active(id)?.tier.as_ref())
    }

    /// Returns whether a tier that is in use holds a sample.
    pub fn holds(&self, id: TierId, sample: SampleId) -> bool {
        self.get(id).is_some_and(|tier| tier.holds(sample))
    }

    /// Returns whether a call of the tier may never return.
    pub fn may_hang(&self, id: TierId) -> bool {
        self.active(id).is_some_and(|tier| tier.may_hang)
    }

    /// Suspends a tier: a call has not returned within `limit`.
    pub fn suspend(&self, id: TierId, limit: Duration) {
        let Some(tier) = self.managed(id) else { return };
        let mut outage = lock(&tier.outage);
        outage.calls += 1;
        if tier.suspended.swap(true, Ordering::AcqRel) {
            return;
        }
        outage.count += 1;
        if outage.count == 1 {
            tracing::warn!(
                "a read or write in the cache {} has not returned after {limit:?}; the cache is \
                 not used until it does, and its samples are read elsewhere: check its disk",
                tier.name
            );
        }
    }

    /// A call that was given up has returned. The tier is used again when the last one has, after a
    /// pause that grows with the number of outages, because each outage costs `limit`.
    pub fn call_returned(&self, id: TierId, limit: Duration) {
        let Some(tier) = self.managed(id) else { return };
        let mut outage = lock(&tier.outage);
        outage.calls -= 1;
        let pause = limit * 2u32.saturating_pow(outage.count).min(LONGEST_PAUSE);
        outage.until = Some(Instant::now() + pause);
    }

    pub fn lender(&self, id: TierId) -> Option<Lender> {
        let tier = self.active(id)?.tier.clone();
        Some(Lender { tier, _share: self.share.clone() })
    }

    pub fn len(&self) -> usize {
        self.tiers.len()
    }

    pub fn ids(&self) -> impl Iterator<Item = TierId> + use<> {
        1..=self.tiers.len() as TierId
    }

    pub fn status(&self) -> Vec<TierStatus> {
        self.tiers.iter().map(ManagedTier::status).collect()
    }

    /// Returns whether no tier held a sample at the last look.
    pub fn are_empty(&self) -> bool {
        self.status().iter().all(|tier| tier.samples == 0)
    }

    /// Returns how many bytes of samples of these sizes each tier can hold. Tiers round sizes up,
    /// and nodes rely on each other's capacity, so the estimate is on the low side.
    pub fn usable(&self, sizes: &Sizes) -> Vec<u64> {
        let samples = f64::from(sizes.len().max(1));
        let mean = (sizes.total().0 as f64 / samples).max(1.0);
        let usable = |tier: &ManagedTier| {
            let lost = |sample| {
                let size = sizes.get(sample);
                (tier.tier.footprint(size) - size) as f64
            };
            let all = 0..sizes.len();
            let rounding = all.clone().map(lost).sum::<f64>() / samples;
            let variance =
                all.map(|sample| (lost(sample) - rounding).powi(2)).sum::<f64>() / samples;
            let capacity = tier.tier.status().capacity.0 as f64;
            let held = capacity / (mean + rounding);
            (held * mean - DEVIATIONS * (held * variance).sqrt() - mean).max(0.0) as u64
        };
        self.tiers.iter().map(usable).collect()
    }

    fn managed(&self, id: TierId) -> Option<&ManagedTier> {
        self.tiers.get(usize::from(id).checked_sub(1)?)
    }

    /// Returns a tier that is not suspended.
    fn active(&self, id: TierId) -> Option<&ManagedTier> {
        self.managed(id).filter(|tier| tier.is_active())
    }

    /// Returns the fastest tier that holds a sample, as a warm entry or as the policy's own.
    pub fn find(&self, sample: SampleId) -> Option<TierId> {
        self.ids().find(|&id| self.holds(id, sample))
    }

    /// Puts a sample where the policy wants it, and evicts overdue samples and warm entries if the
    /// tier is full. Refuses bytes of a version that is not the one that the source knows now.
    pub fn put(&self, id: TierId, sample: SampleId, bytes: &[u8], version: i64) -> Put {
        let Some(tier) = self.active(id) else { return Put::Refused };
        let _putting = (!tier.may_hang).then(|| tier.putting(sample));
        let known = self.source.version(sample);
        if known.changed != version {
            return Put::Refused;
        }
        if known.noticed && !tier.may_hang {
            // A copy of an older version would be in the way.
            self.evict_other_version(id, tier, sample, version);
        }
        // Before the put: if it hangs, the policy may have evicted the sample again by its end.
        tier.adopt(sample);
        loop {
            let put = tier.tier.put(sample, bytes, version);
            match put {
                Put::Full if tier.evict_overdue(self.samples) || tier.evict_warm_entry() => {}
                Put::Stored if known.noticed && !tier.may_hang => {
                    tier.noticed.set(sample, version);
                    return put;
                }
                _ => return put,
            }
        }
    }

    /// Returns the fastest tier in memory that holds a sample.
    pub fn find_in_memory(&self, sample: SampleId) -> Option<TierId> {
        self.ids().find(|&id| !self.may_hang(id) && self.holds(id, sample))
    }

    /// Returns the tiers of ended jobs on the same listing of the dataset.
    pub fn retained(&self) -> Vec<Arc<dyn Tier>> {
        let of_listing = |retain: &RetainOnDrop| retain.retained.of_listing(retain.key.listing);
        self.retain.as_ref().map_or(vec![], of_listing)
    }

    /// Puts a sample that another job has read into a tier in memory that has space, as a warm
    /// entry.
    pub fn offer(&self, sample: SampleId, bytes: &[u8], version: i64) {
        let known = self.source.version(sample);
        if known.noticed || known.changed != version || self.find(sample).is_some() {
            return;
        }
        for tier in self.tiers.iter().filter(|tier| !tier.may_hang) {
            let Some(warm) = &tier.warm else { continue };
            let _putting = tier.putting(sample);
            if tier.tier.put(sample, bytes, version) == Put::Stored {
                lock(warm).used(sample);
                return;
            }
        }
    }

    /// Returns the version of a tier's copy if it is the one that the source knows. Evicts a copy
    /// in memory of another version; disk tiers drop theirs themselves.
    pub fn current_version(&self, id: TierId, sample: SampleId) -> Option<i64> {
        let known = self.source.version(sample);
        if let Some(tier) = self.managed(id).filter(|tier| known.noticed && !tier.may_hang)
            && tier.noticed.get(sample) != Some(known.changed)
        {
            let _putting = tier.putting(sample);
            self.evict_other_version(id, tier, sample, known.changed);
            return None;
        }
        Some(known.changed)
    }

    /// Evicts a copy in memory unless it is of this version. The caller holds the sample's lock.
    fn evict_other_version(&self, id: TierId, tier: &ManagedTier, sample: SampleId, version: i64) {
        if tier.noticed.get(sample) != Some(version) && tier.tier.holds(sample) {
            self.evict(id, sample);
        }
    }

    /// The policy knows from now on that a tier holds a sample.
    pub fn adopt(&self, id: TierId, sample: SampleId) {
        if let Some(tier) = self.active(id) {
            tier.adopt(sample);
        }
    }

    /// Evicts a sample, later if that cannot be done without waiting.
    pub fn evict(&self, id: TierId, sample: SampleId) {
        let Some(tier) = self.managed(id) else { return };
        if !tier.is_active() || tier.tier.evict_now(sample) == Evicted::Busy {
            tier.overdue.add(sample, self.samples);
        }
        if let Some(warm) = &tier.warm {
            lock(warm).evicted(sample);
        }
    }

    /// A tier has served a sample; if it is a warm entry, it is evicted before unused ones.
    pub fn served(&self, id: TierId, sample: SampleId) {
        if let Some(warm) = self.active(id).and_then(|tier| tier.warm.as_ref()) {
            lock(warm).used(sample);
        }
    }
}

impl Drop for TierSet {
    fn drop(&mut self) {
        let Some(RetainOnDrop { retained, key }) = &self.retain else { return };
        let in_memory = |tier: &ManagedTier| (!tier.may_hang).then(|| tier.tier.clone());
        let tiers = self.tiers.iter().map(in_memory).collect();
        retained.retain(Retained { key: *key, share: self.share.clone(), tiers });
    }
}

impl ManagedTier {
    fn putting(&self, sample: SampleId) -> MutexGuard<'_, ()> {
        lock(&self.putting[sample as usize % STRIPES])
    }

    fn is_active(&self) -> bool {
        !self.suspended.load(Ordering::Acquire) || self.has_resumed()
    }

    fn has_resumed(&self) -> bool {
        let outage = lock(&self.outage);
        let over = outage.calls <= 0 && outage.until.is_some_and(|until| Instant::now() >= until);
        if over && self.suspended.swap(false, Ordering::AcqRel) {
            tracing::info!("the cache {} answers again and is in use again", self.name);
        }
        over
    }

    fn status(&self) -> TierStatus {
        let status = self.tier.status();
        if self.is_active() {
            return status;
        }
        let hangs = "a read or write has not returned: the cache is suspended";
        let degraded = status.degraded.into_iter().chain([hangs.to_owned()]);
        TierStatus { degraded: Some(degraded.collect::<Vec<_>>().join("; ")), ..status }
    }

    fn adopt(&self, sample: SampleId) {
        self.overdue.cancel(sample);
        if let Some(warm) = &self.warm {
            lock(warm).adopt(sample);
        }
    }

    /// Carries out overdue evictions; returns whether one of them freed space.
    fn evict_overdue(&self, samples: u32) -> bool {
        let overdue = self.overdue.take();
        let mut freed = false;
        for sample in overdue.iter() {
            match self.tier.evict_now(sample) {
                Evicted::Gone => freed = true,
                Evicted::NotHeld => {}
                Evicted::Busy => self.overdue.add(sample, samples),
            }
        }
        freed
    }

    /// Evicts one warm entry; returns whether there was one.
    fn evict_warm_entry(&self) -> bool {
        let Some(warm) = &self.warm else { return false };
        let warm = &mut *lock(warm);
        let mut busy = vec![];
        let mut freed = false;
        while !freed
            && busy.len() < MOST_BUSY
            && let Some(sample) = warm.next_victim()
        {
            match self.tier.evict_now(sample) {
                Evicted::Gone => freed = true,
                Evicted::NotHeld => {}
                Evicted::Busy => busy.push(sample),
            }
        }
        for sample in busy {
            warm.put_back(sample);
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;
    use std::sync::mpsc;

    use belady_control::model::Bytes;
    use belady_data::source::{Catalog, Operations, ReadError, Synthetic, Version, Want};
    use belady_data::tier::{Get, RamTier};

    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;
    const NOT_SOON: Duration = Duration::from_mins(10);

    fn source() -> Arc<dyn Source> {
        Arc::new(Synthetic::of_sizes([16; 9], 0))
    }

    /// Returns one tier that may hang, with space for two samples.
    fn tiers() -> TierSet {
        let sizes = Arc::new(Sizes::Equal { bytes: 16, samples: 9 });
        let tier: Arc<dyn Tier> = Arc::new(RamTier::new(Bytes(32), sizes));
        let tiers = vec![(tier, "slow".into(), true)];
        TierSet::new(tiers, source(), Arc::new(QuotaShare::none()), None, false)
    }

    #[test]
    fn a_tier_that_hangs_is_suspended_until_all_calls_have_returned() {
        let set = tiers();
        assert_eq!(set.put(1, 3, &[3; 16], 0), Put::Stored);
        set.suspend(1, AT_ONCE);
        set.suspend(1, AT_ONCE);
        assert!(set.get(1).is_none() && set.find(3).is_none());
        assert_eq!(set.put(1, 4, &[4; 16], 0), Put::Refused);
        assert!(set.status()[0].degraded.as_ref().unwrap().contains("has not returned"));
        set.call_returned(1, AT_ONCE);
        assert!(set.get(1).is_none(), "one still hangs");
        set.call_returned(1, AT_ONCE);
        assert_eq!((set.find(3), set.status()[0].degraded.clone()), (Some(1), None));
        set.suspend(1, NOT_SOON);
        set.call_returned(1, NOT_SOON);
        assert!(set.get(1).is_none(), "it has hung before, so it pauses");
    }

    #[test]
    fn a_call_that_returns_before_it_is_recorded_as_given_up_suspends_nothing() {
        let set = tiers();
        set.call_returned(1, AT_ONCE);
        set.suspend(1, AT_ONCE);
        assert!(set.get(1).is_some());
    }

    #[test]
    fn evictions_during_an_outage_happen_when_space_is_needed() {
        let set = tiers();
        for sample in [3, 4] {
            assert_eq!(set.put(1, sample, &[3; 16], 0), Put::Stored);
        }
        set.suspend(1, AT_ONCE);
        set.evict(1, 3);
        set.evict(1, 4);
        set.call_returned(1, AT_ONCE);
        assert_eq!(set.put(1, 4, &[3; 16], 0), Put::Present, "wanted again, so it stays");
        assert_eq!(set.put(1, 5, &[5; 16], 0), Put::Stored);
        assert_eq!((set.find(3), set.find(4), set.find(5)), (None, Some(1), Some(1)));
        assert_eq!(set.put(1, 6, &[5; 16], 0), Put::Full);
    }

    #[test]
    fn a_sample_evicted_during_its_hung_write_is_evicted_afterwards() {
        let (set, back) = hanging(&[]);
        std::thread::scope(|scope| {
            let hung = scope.spawn(|| set.put(1, 3, &[3; 16], 0));
            back.begun.recv().unwrap();
            set.suspend(1, AT_ONCE);
            set.evict(1, 3);
            back.go_on.send(()).unwrap();
            assert_eq!(hung.join().unwrap(), Put::Stored);
        });
        set.call_returned(1, AT_ONCE);
        for sample in [4, 5] {
            assert_eq!(set.put(1, sample, &[4; 16], 0), Put::Stored, "3 is evicted");
        }
        assert_eq!(set.find(3), None);
    }

    #[test]
    fn a_warm_entry_that_was_busy_once_is_evicted_later() {
        let (set, _back) = hanging(&[1, 2]);
        assert_eq!(set.put(1, 3, &[3; 16], 0), Put::Full, "both are busy");
        for sample in [3, 4] {
            assert_eq!(set.put(1, sample, &[3; 16], 0), Put::Stored);
        }
        assert_eq!((set.find(1), set.find(2)), (None, None));
    }

    struct Back {
        begun: mpsc::Receiver<()>,
        go_on: mpsc::Sender<()>,
    }

    /// Returns a tier with space for two samples. Its warm entries are busy at the first attempt to
    /// evict them. The first write of a tier without warm entries waits for a message.
    fn hanging(warm: &[SampleId]) -> (TierSet, Back) {
        let sizes = Arc::new(Sizes::Equal { bytes: 16, samples: 9 });
        let inner = RamTier::new(Bytes(32), sizes);
        for &sample in warm {
            assert_eq!(inner.put(sample, &[0; 16], 0), Put::Stored);
        }
        let (begin, begun) = mpsc::channel();
        let (go_on, told) = mpsc::channel();
        let hangs = warm.is_empty().then_some((begin, told));
        let tier = Hanging { inner, hangs: Mutex::new(hangs), busy: Mutex::new(warm.to_vec()) };
        let tier: Arc<dyn Tier> = Arc::new(tier);
        let tiers = vec![(tier, "slow".into(), true)];
        (
            TierSet::new(tiers, source(), Arc::new(QuotaShare::none()), None, false),
            Back { begun, go_on },
        )
    }

    #[derive(Debug)]
    struct Hanging {
        inner: RamTier,
        hangs: Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>,
        busy: Mutex<Vec<SampleId>>,
    }

    impl Tier for Hanging {
        fn put(&self, sample: SampleId, bytes: &[u8], version: i64) -> Put {
            if let Some((begin, told)) = lock(&self.hangs).take() {
                begin.send(()).unwrap();
                told.recv().unwrap();
            }
            self.inner.put(sample, bytes, version)
        }

        fn get(&self, sample: SampleId, into: &mut [u8]) -> Get {
            self.inner.get(sample, into)
        }

        fn evict(&self, sample: SampleId) -> bool {
            self.inner.evict(sample)
        }

        fn evict_now(&self, sample: SampleId) -> Evicted {
            let mut busy = lock(&self.busy);
            if let Some(at) = busy.iter().position(|&other| other == sample) {
                busy.remove(at);
                return Evicted::Busy;
            }
            self.inner.evict_now(sample)
        }

        fn holds(&self, sample: SampleId) -> bool {
            self.inner.holds(sample)
        }

        fn status(&self) -> TierStatus {
            self.inner.status()
        }
    }

    /// A source whose file versions are all one number that the test sets.
    #[derive(Debug)]
    struct Versioned(Synthetic, AtomicI64);

    impl Source for Versioned {
        fn catalog(&self) -> &Catalog {
            self.0.catalog()
        }

        fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
            self.0.read(wants)
        }

        fn operations(&self) -> Operations {
            self.0.operations()
        }

        fn version(&self, _: SampleId) -> Version {
            let changed = self.1.load(Ordering::Acquire);
            Version { changed, noticed: changed > 0 }
        }
    }

    #[test]
    fn bytes_read_before_a_new_version_was_noticed_are_not_stored_as_the_new_version() {
        let source = Arc::new(Versioned(Synthetic::of_sizes([16; 9], 0), 0.into()));
        let sizes = Arc::new(Sizes::Equal { bytes: 16, samples: 9 });
        let tier: Arc<dyn Tier> = Arc::new(RamTier::new(Bytes(64), sizes));
        let tiers = vec![(tier, "memory".into(), false)];
        let set = TierSet::new(tiers, source.clone(), Arc::new(QuotaShare::none()), None, false);
        assert_eq!(set.put(1, 3, &[0; 16], 0), Put::Stored);
        assert_eq!(set.current_version(1, 3), Some(0));
        for version in [1, 2] {
            source.1.store(version, Ordering::Release);
            assert_eq!(set.put(1, 3, &[0; 16], version - 1), Put::Refused, "read before");
            assert_eq!((set.current_version(1, 3), set.find(3)), (None, None));
            assert_eq!(set.put(1, 3, &[1; 16], version), Put::Stored);
            assert_eq!(set.current_version(1, 3), Some(version));
            assert_eq!(set.put(1, 3, &[1; 16], version), Put::Present);
            assert_eq!(set.put(1, 4, &[1; 16], version), Put::Stored);
        }
        assert_eq!((set.current_version(1, 3), set.current_version(1, 4)), (Some(2), Some(2)));
    }
}
