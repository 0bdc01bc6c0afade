//! The tiers of a job, and what lies in them that its policy does not know of.
//!
//! A disk tier may be warm from an earlier run. The policy plans as if it were empty; what is
//! there are *guests*: served if they are asked for before they have to go, and let go when
//! the policy's own samples need the room, those first that were used already. A guest that
//! the policy decides to keep where it is becomes its own without being written again.
//!
//! A tier that hangs is *given up*: nobody calls it, and its samples come from elsewhere. When
//! all calls that hung have returned, and some time after that, it is used again. What it should
//! have let go meanwhile is *overdue* and goes when the room is needed. Letting go never waits
//! for a call that may hang, since all steps would wait with it; that makes samples overdue too.
//!
//! A copy counts only if it is of the version of its file that the source knows. Disk tiers keep the
//! version with each copy. In memory all copies are of the versions that were listed, but for those
//! of files of which a new version was noticed: for these it is written down here, and read without a
//! lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belady_control::Sizes;
use belady_control::bits::Bits;
use belady_control::policy::TierId;
use belady_data::SampleId;
use belady_data::source::Source;
use belady_data::sparse::Sparse;
use belady_data::sync::{Arc, Mutex, MutexGuard, lock};
use belady_data::tier::{Evicted, Put, Tier, TierStatus};

use crate::build::Share;
use crate::parking::{Parked, Parking, Ticket};

/// A tier that has hung again and again pauses for this many timeouts: it then costs less than
/// two hundredths of the time.
const LONGEST_PAUSE: u32 = 64;
/// Locks for putting into memory: more than threads that put at once.
const STRIPES: usize = 64;
/// Guests that cannot go for the moment are passed over up to so many at a time.
const MOST_BUSY: usize = 8;

/// What rounding takes of a tier wavers with which samples it holds: hardly ever by more than so many
/// standard deviations.
const WAVERING: f64 = 6.0;

#[derive(Debug)]
pub struct Cache {
    /// Tier j at j − 1.
    shelves: Vec<Shelf>,
    source: Arc<dyn Source>,
    samples: u32,
    share: Option<Arc<Share>>,
    keep: Option<Keep>,
}

/// Where tiers in memory go when the job has ended.
#[derive(Debug)]
pub struct Keep {
    pub parking: Arc<Parking>,
    pub ticket: Ticket,
}

/// A tier as one knows it whom it has lent memory: it lives as long as that, with its quota.
#[derive(Clone, Debug)]
pub struct Lender {
    pub tier: Arc<dyn Tier>,
    _share: Option<Arc<Share>>,
}

#[derive(Debug)]
struct Shelf {
    tier: Arc<dyn Tier>,
    /// For warnings.
    name: String,
    /// A call of it may never return.
    may_hang: bool,
    given_up: AtomicBool,
    outage: Mutex<Outage>,
    /// `None` where nothing was there at the start.
    guests: Option<Mutex<Guests>>,
    overdue: Overdue,
    /// By sample, the version of a copy in memory that is not of the listed one.
    noticed: Sparse,
    /// Held while a sample is put into memory or taken out for its version, so that what is written down
    /// is of the copy that lies there.
    putting: [Mutex<()>; STRIPES],
}

/// What is known of a tier that hangs or has hung.
#[derive(Debug, Default)]
struct Outage {
    /// Calls that were given up and have not returned. One may return before it is known that
    /// it was given up, so it may be −1 for a moment.
    calls: i32,
    /// Outages so far.
    count: u32,
    /// Not used before this, once all calls have returned.
    until: Option<Instant>,
}

/// Samples that could not be let go when they should have been.
#[derive(Debug)]
struct Overdue {
    /// Whether there are any: mostly there are none, and nobody need take the lock.
    any: AtomicBool,
    samples: Mutex<Bits>,
}

impl Overdue {
    fn new() -> Self {
        Self { any: AtomicBool::new(false), samples: Mutex::default() }
    }

    fn add(&self, sample: SampleId, of: u32) {
        let mut samples = lock(&self.samples);
        if samples.is_unallocated() {
            *samples = Bits::new(of);
        }
        samples.insert(sample);
        self.any.store(true, Ordering::Release);
    }

    /// The policy wants it after all.
    fn forgive(&self, sample: SampleId) {
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

#[derive(Debug)]
struct Guests {
    /// What the policy knows of.
    own: Bits,
    used: Used,
    /// Guests before this one are gone or used.
    next: SampleId,
    samples: u32,
}

impl Guests {
    /// The next to go, if there are any.
    fn take(&mut self) -> Option<SampleId> {
        while let Some(sample) = self.used.take() {
            if !self.own.contains(sample) {
                return Some(sample);
            }
        }
        let next = (self.next..self.samples).find(|&sample| !self.own.contains(sample));
        self.next = next.map_or(self.samples, |sample| sample + 1);
        next
    }
}

/// Guests that were used already, each once, in the order of their first use.
#[derive(Debug)]
struct Used {
    queue: VecDeque<SampleId>,
    queued: Bits,
}

impl Used {
    fn new(samples: u32) -> Self {
        Self { queue: VecDeque::new(), queued: Bits::new(samples) }
    }

    fn add(&mut self, sample: SampleId) {
        if self.queued.insert(sample) {
            self.queue.push_back(sample);
        }
    }

    fn take(&mut self) -> Option<SampleId> {
        let sample = self.queue.pop_front()?;
        self.queued.remove(sample);
        Some(sample)
    }
}

impl Cache {
    /// Of tiers, each with its name and whether a call of it may never return.
    pub fn new(
        tiers: Vec<(Arc<dyn Tier>, String, bool)>,
        source: Arc<dyn Source>,
        share: Arc<Share>,
        keep: Option<Keep>,
    ) -> Self {
        let samples = source.catalog().len();
        let shelf = |(tier, name, may_hang): (Arc<dyn Tier>, String, bool)| {
            let guests = (tier.status().samples > 0).then(|| {
                let (own, used) = (Bits::new(samples), Used::new(samples));
                Mutex::new(Guests { own, used, next: 0, samples })
            });
            let (given_up, outage) = (AtomicBool::new(false), Mutex::default());
            let (overdue, noticed) = (Overdue::new(), Sparse::new(samples));
            let putting = std::array::from_fn(|_| Mutex::default());
            Shelf { tier, name, may_hang, given_up, outage, guests, overdue, noticed, putting }
        };
        let shelves = tiers.into_iter().map(shelf).collect();
        Self { shelves, source, samples, share: Some(share), keep }
    }

    pub fn tier(&self, id: TierId) -> Option<&dyn Tier> {
        Some(self.shelf(id)?.tier.as_ref())
    }

    /// Whether a call of the tier may never return.
    pub fn may_hang(&self, id: TierId) -> bool {
        self.shelf(id).is_some_and(|shelf| shelf.may_hang)
    }

    /// A call of the tier has not returned within `limit`: the tier is left alone from now on.
    pub fn give_up(&self, id: TierId, limit: Duration) {
        let Some(shelf) = self.any_shelf(id) else { return };
        let mut outage = lock(&shelf.outage);
        outage.calls += 1;
        if shelf.given_up.swap(true, Ordering::AcqRel) {
            return;
        }
        outage.count += 1;
        if outage.count == 1 {
            tracing::warn!(
                "a read or write in the cache {} has not returned after {limit:?}: it is not used \
                 until it does, and its samples are read elsewhere; look after its disk",
                shelf.name
            );
        }
    }

    /// A call that was given up has returned after all. The tier is used again when the last of
    /// them has, and later the more often it has hung: each time costs `limit`.
    pub fn came_back(&self, id: TierId, limit: Duration) {
        let Some(shelf) = self.any_shelf(id) else { return };
        let mut outage = lock(&shelf.outage);
        outage.calls -= 1;
        let pause = limit * 2u32.saturating_pow(outage.count).min(LONGEST_PAUSE);
        outage.until = Some(Instant::now() + pause);
    }

    pub fn lender(&self, id: TierId) -> Option<Lender> {
        let tier = self.shelf(id)?.tier.clone();
        Some(Lender { tier, _share: self.share.clone() })
    }

    pub fn len(&self) -> usize {
        self.shelves.len()
    }

    pub fn ids(&self) -> impl Iterator<Item = TierId> + use<> {
        1..=self.shelves.len() as TierId
    }

    pub fn status(&self) -> Vec<TierStatus> {
        self.shelves.iter().map(Shelf::status).collect()
    }

    /// What each tier can hold of samples of these sizes, by their own bytes: tiers round up. Nodes
    /// count on each other's room, so it is rather too little.
    pub fn usable(&self, sizes: &Sizes) -> Vec<u64> {
        let samples = f64::from(sizes.len().max(1));
        let mean = (sizes.total().0 as f64 / samples).max(1.0);
        let usable = |shelf: &Shelf| {
            let lost = |sample| {
                let size = sizes.get(sample);
                (shelf.tier.footprint(size) - size) as f64
            };
            let all = 0..sizes.len();
            let rounding = all.clone().map(lost).sum::<f64>() / samples;
            let variance =
                all.map(|sample| (lost(sample) - rounding).powi(2)).sum::<f64>() / samples;
            let capacity = shelf.tier.status().capacity.0 as f64;
            let held = capacity / (mean + rounding);
            (held * mean - WAVERING * (held * variance).sqrt() - mean).max(0.0) as u64
        };
        self.shelves.iter().map(usable).collect()
    }

    fn any_shelf(&self, id: TierId) -> Option<&Shelf> {
        self.shelves.get(usize::from(id).checked_sub(1)?)
    }

    /// A tier that is in use.
    fn shelf(&self, id: TierId) -> Option<&Shelf> {
        self.any_shelf(id).filter(|shelf| shelf.is_in_use())
    }

    /// The fastest tier that holds a sample, whether the policy knows of it or not.
    pub fn find(&self, sample: SampleId) -> Option<TierId> {
        self.ids().find(|&id| self.tier(id).is_some_and(|tier| tier.holds(sample)))
    }

    /// Puts a sample where the policy wants it, at the expense of guests if need be. Its bytes are of
    /// this version of its file; if the source knows another one by now, they are refused.
    pub fn put(&self, id: TierId, sample: SampleId, bytes: &[u8], version: i64) -> Put {
        let Some(shelf) = self.shelf(id) else { return Put::Refused };
        let _putting = (!shelf.may_hang).then(|| shelf.putting(sample));
        let known = self.source.version(sample);
        if known.changed != version {
            return Put::Refused;
        }
        if known.noticed && !shelf.may_hang {
            // A copy of an older version would be in the way.
            self.drop_other_version(id, shelf, sample, version);
        }
        // Not when it is done: by then the policy may have let go of it again, if it hung.
        shelf.claim(sample);
        loop {
            let put = shelf.tier.put(sample, bytes, version);
            match put {
                Put::Full if shelf.evict_overdue(self.samples) || shelf.evict_guest() => {}
                Put::Stored if known.noticed && !shelf.may_hang => {
                    shelf.noticed.set(sample, version);
                    return put;
                }
                _ => return put,
            }
        }
    }

    /// The version of a copy in a tier, if it is the one that the source knows. A copy in memory that is
    /// of another one goes; disk tiers see to theirs.
    pub fn believed(&self, id: TierId, sample: SampleId) -> Option<i64> {
        let known = self.source.version(sample);
        if let Some(shelf) = self.any_shelf(id).filter(|shelf| known.noticed && !shelf.may_hang)
            && shelf.noticed.get(sample) != Some(known.changed)
        {
            let _putting = shelf.putting(sample);
            self.drop_other_version(id, shelf, sample, known.changed);
            return None;
        }
        Some(known.changed)
    }

    /// Lets go of a copy in memory unless it is of this version. With the sample's lock held.
    fn drop_other_version(&self, id: TierId, shelf: &Shelf, sample: SampleId, version: i64) {
        if shelf.noticed.get(sample) != Some(version) && shelf.tier.holds(sample) {
            self.evict(id, sample);
        }
    }

    /// The policy knows from now on that a tier holds a sample.
    pub fn claim(&self, id: TierId, sample: SampleId) {
        if let Some(shelf) = self.shelf(id) {
            shelf.claim(sample);
        }
    }

    pub fn evict(&self, id: TierId, sample: SampleId) {
        let Some(shelf) = self.any_shelf(id) else { return };
        if !shelf.is_in_use() || shelf.tier.evict_now(sample) == Evicted::Busy {
            shelf.overdue.add(sample, self.samples);
        }
        if let Some(guests) = &shelf.guests {
            lock(guests).own.remove(sample);
        }
    }

    /// A sample was served from a tier; if it is a guest there, it may go now.
    pub fn served(&self, id: TierId, sample: SampleId) {
        if let Some(guests) = self.shelf(id).and_then(|shelf| shelf.guests.as_ref()) {
            let mut guests = lock(guests);
            if !guests.own.contains(sample) {
                guests.used.add(sample);
            }
        }
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let (Some(Keep { parking, ticket }), Some(share)) = (&self.keep, &self.share) else {
            return;
        };
        let in_memory = |shelf: &Shelf| (!shelf.may_hang).then(|| shelf.tier.clone());
        let tiers = self.shelves.iter().map(in_memory).collect();
        parking.park(Parked { ticket: *ticket, share: share.clone(), tiers });
    }
}

impl Shelf {
    fn putting(&self, sample: SampleId) -> MutexGuard<'_, ()> {
        lock(&self.putting[sample as usize % STRIPES])
    }

    fn is_in_use(&self) -> bool {
        !self.given_up.load(Ordering::Acquire) || self.is_used_again()
    }

    fn is_used_again(&self) -> bool {
        let outage = lock(&self.outage);
        let over = outage.calls <= 0 && outage.until.is_some_and(|until| Instant::now() >= until);
        if over && self.given_up.swap(false, Ordering::AcqRel) {
            tracing::info!("the cache {} answers again and is used again", self.name);
        }
        over
    }

    fn status(&self) -> TierStatus {
        let status = self.tier.status();
        if self.is_in_use() {
            return status;
        }
        let hangs = "a read or write has not returned: it is not used for the time being";
        let degraded = status.degraded.into_iter().chain([hangs.to_owned()]);
        TierStatus { degraded: Some(degraded.collect::<Vec<_>>().join("; ")), ..status }
    }

    fn claim(&self, sample: SampleId) {
        self.overdue.forgive(sample);
        if let Some(guests) = &self.guests {
            lock(guests).own.insert(sample);
        }
    }

    /// Whether one of those that should have gone before has gone now.
    fn evict_overdue(&self, samples: u32) -> bool {
        let overdue = self.overdue.take();
        let mut gone = false;
        for sample in overdue.iter() {
            match self.tier.evict_now(sample) {
                Evicted::Gone => gone = true,
                Evicted::NotHeld => {}
                Evicted::Busy => self.overdue.add(sample, samples),
            }
        }
        gone
    }

    /// Whether there was one to go.
    fn evict_guest(&self) -> bool {
        let Some(guests) = &self.guests else { return false };
        let guests = &mut *lock(guests);
        let mut busy = vec![];
        let mut gone = false;
        while !gone && let Some(sample) = guests.take() {
            match self.tier.evict_now(sample) {
                Evicted::Gone => gone = true,
                Evicted::NotHeld => {}
                Evicted::Busy => busy.push(sample),
            }
            // Each of these has taken its time, and others wait.
            if busy.len() == MOST_BUSY {
                break;
            }
        }
        for sample in busy {
            guests.used.add(sample);
        }
        gone
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

    /// One tier that may hang, with room for two samples.
    fn cache() -> Cache {
        let sizes = Arc::new(Sizes::Equal { bytes: 16, samples: 9 });
        let tier: Arc<dyn Tier> = Arc::new(RamTier::new(Bytes(32), sizes));
        let tiers = vec![(tier, "slow".into(), true)];
        Cache::new(tiers, source(), Arc::new(Share::none()), None)
    }

    #[test]
    fn a_tier_that_hangs_is_left_alone_until_all_calls_have_returned() {
        let cache = cache();
        assert_eq!(cache.put(1, 3, &[3; 16], 0), Put::Stored);
        cache.give_up(1, AT_ONCE);
        cache.give_up(1, AT_ONCE);
        assert!(cache.tier(1).is_none() && cache.find(3).is_none());
        assert_eq!(cache.put(1, 4, &[4; 16], 0), Put::Refused);
        assert!(cache.status()[0].degraded.as_ref().unwrap().contains("has not returned"));
        cache.came_back(1, AT_ONCE);
        assert!(cache.tier(1).is_none(), "one still hangs");
        cache.came_back(1, AT_ONCE);
        assert_eq!((cache.find(3), cache.status()[0].degraded.clone()), (Some(1), None));
        cache.give_up(1, NOT_SOON);
        cache.came_back(1, NOT_SOON);
        assert!(cache.tier(1).is_none(), "it has hung before, so it pauses");
    }

    #[test]
    fn a_call_may_return_before_it_is_known_that_it_was_given_up() {
        let cache = cache();
        cache.came_back(1, AT_ONCE);
        cache.give_up(1, AT_ONCE);
        assert!(cache.tier(1).is_some());
    }

    #[test]
    fn what_was_to_go_while_a_tier_hung_goes_when_its_room_is_needed() {
        let cache = cache();
        for sample in [3, 4] {
            assert_eq!(cache.put(1, sample, &[3; 16], 0), Put::Stored);
        }
        cache.give_up(1, AT_ONCE);
        cache.evict(1, 3);
        cache.evict(1, 4);
        cache.came_back(1, AT_ONCE);
        assert_eq!(cache.put(1, 4, &[3; 16], 0), Put::Present, "wanted again, so it stays");
        assert_eq!(cache.put(1, 5, &[5; 16], 0), Put::Stored);
        assert_eq!((cache.find(3), cache.find(4), cache.find(5)), (None, Some(1), Some(1)));
        assert_eq!(cache.put(1, 6, &[5; 16], 0), Put::Full);
    }

    #[test]
    fn a_write_that_hung_kept_what_was_let_go_meanwhile_for_good() {
        let (cache, back) = hanging(&[]);
        std::thread::scope(|scope| {
            let hung = scope.spawn(|| cache.put(1, 3, &[3; 16], 0));
            back.begun.recv().unwrap();
            cache.give_up(1, AT_ONCE);
            cache.evict(1, 3);
            back.go_on.send(()).unwrap();
            assert_eq!(hung.join().unwrap(), Put::Stored);
        });
        cache.came_back(1, AT_ONCE);
        for sample in [4, 5] {
            assert_eq!(cache.put(1, sample, &[4; 16], 0), Put::Stored, "3 has to make room");
        }
        assert_eq!(cache.find(3), None);
    }

    #[test]
    fn a_guest_that_was_busy_once_stayed_for_ever() {
        let (cache, _back) = hanging(&[1, 2]);
        assert_eq!(cache.put(1, 3, &[3; 16], 0), Put::Full, "both are busy");
        for sample in [3, 4] {
            assert_eq!(cache.put(1, sample, &[3; 16], 0), Put::Stored);
        }
        assert_eq!((cache.find(1), cache.find(2)), (None, None));
    }

    struct Back {
        begun: mpsc::Receiver<()>,
        go_on: mpsc::Sender<()>,
    }

    /// A tier with room for two samples whose guests are busy the first time that they are to
    /// go. The first write of a tier without guests waits to be told to go on.
    fn hanging(guests: &[SampleId]) -> (Cache, Back) {
        let sizes = Arc::new(Sizes::Equal { bytes: 16, samples: 9 });
        let inner = RamTier::new(Bytes(32), sizes);
        for &guest in guests {
            assert_eq!(inner.put(guest, &[0; 16], 0), Put::Stored);
        }
        let (begin, begun) = mpsc::channel();
        let (go_on, told) = mpsc::channel();
        let hangs = guests.is_empty().then_some((begin, told));
        let tier = Hanging { inner, hangs: Mutex::new(hangs), busy: Mutex::new(guests.to_vec()) };
        let tier: Arc<dyn Tier> = Arc::new(tier);
        let tiers = vec![(tier, "slow".into(), true)];
        (Cache::new(tiers, source(), Arc::new(Share::none()), None), Back { begun, go_on })
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

    /// A source in which the version of all files is a number that is set from outside.
    #[derive(Debug)]
    struct Touched(Synthetic, AtomicI64);

    impl Source for Touched {
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
    fn what_was_read_before_a_new_version_was_noticed_is_not_kept_as_that() {
        let source = Arc::new(Touched(Synthetic::of_sizes([16; 9], 0), 0.into()));
        let sizes = Arc::new(Sizes::Equal { bytes: 16, samples: 9 });
        let tier: Arc<dyn Tier> = Arc::new(RamTier::new(Bytes(64), sizes));
        let tiers = vec![(tier, "memory".into(), false)];
        let cache = Cache::new(tiers, source.clone(), Arc::new(Share::none()), None);
        assert_eq!(cache.put(1, 3, &[0; 16], 0), Put::Stored);
        assert_eq!(cache.believed(1, 3), Some(0));
        for version in [1, 2] {
            source.1.store(version, Ordering::Release);
            assert_eq!(cache.put(1, 3, &[0; 16], version - 1), Put::Refused, "read before");
            assert_eq!((cache.believed(1, 3), cache.find(3)), (None, None));
            assert_eq!(cache.put(1, 3, &[1; 16], version), Put::Stored);
            assert_eq!(cache.believed(1, 3), Some(version));
            assert_eq!(cache.put(1, 3, &[1; 16], version), Put::Present);
            assert_eq!(cache.put(1, 4, &[1; 16], version), Put::Stored);
        }
        assert_eq!((cache.believed(1, 3), cache.believed(1, 4)), (Some(2), Some(2)));
    }
}
