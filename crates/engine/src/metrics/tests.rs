//! Every event is counted under its own name.

use belady_data::source::{Catalog, Operations, ReadError, Want};

use super::*;

#[derive(Debug)]
struct Counted {
    catalog: Catalog,
    reads: AtomicU64,
}

impl Counted {
    fn new(reads: u64) -> Arc<Self> {
        Arc::new(Self { catalog: Catalog::of_sizes([1, 2]), reads: AtomicU64::new(reads) })
    }
}

impl Source for Counted {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn read(&self, _: &mut [Want<'_>]) -> Result<(), ReadError> {
        self.reads.fetch_add(1, Relaxed);
        Ok(())
    }

    fn operations(&self) -> Operations {
        Operations { read: self.reads.load(Relaxed), list: 1, ..Operations::default() }
    }
}

fn metrics() -> Metrics {
    Metrics::new(&["ram".to_owned(), "ssd".to_owned()])
}

#[test]
fn every_origin_is_counted_separately() {
    let metrics = metrics();
    metrics.loaded(Served::Source, 1, 10);
    metrics.loaded(Served::Tier(1), 2, 20);
    metrics.loaded(Served::Tier(2), 3, 30);
    metrics.loaded(Served::Shared, 4, 40);
    metrics.loaded(Served::Lent(1), 5, 50);
    metrics.delivered(15, 150);
    let seen = metrics.snapshot();
    assert_eq!(seen.source, Volume { samples: 1, bytes: 10 });
    assert_eq!(seen.tiers[0].read, Volume { samples: 2, bytes: 20 });
    assert_eq!(seen.tiers[1].read, Volume { samples: 3, bytes: 30 });
    assert_eq!(seen.ring, Volume { samples: 4, bytes: 40 });
    assert_eq!(seen.tiers[0].lent, Volume { samples: 5, bytes: 50 });
    assert_eq!(seen.delivered, Volume { samples: 15, bytes: 150 });
    assert_eq!(seen.hit_ratio(), 14.0 / 15.0);
    assert_eq!(seen.tiers[0].bytes(), 70);
}

#[test]
fn outcomes_and_times_are_counted_separately() {
    let metrics = metrics();
    for (outcome, times) in [(Put::Stored, 1), (Put::Present, 2), (Put::Full, 3), (Put::Refused, 4)]
    {
        (0..times).for_each(|_| metrics.put(2, outcome));
    }
    metrics.bad_sample(Bad::Raised);
    (0..2).for_each(|_| metrics.bad_sample(Bad::Skipped));
    (0..3).for_each(|_| metrics.bad_sample(Bad::Replaced));
    metrics.retry();
    metrics.timeout();
    metrics.tier_miss(1);
    metrics.damaged(2);
    metrics.queue_depth(7);
    metrics.waited(Duration::from_micros(30), false);
    metrics.waited(Duration::from_micros(50), true);
    metrics.source_read(Duration::from_millis(2));
    metrics.tier_read(1, Duration::from_micros(9));
    let seen = metrics.snapshot();
    assert_eq!(seen.tiers[1].puts, Puts { stored: 1, present: 2, full: 3, refused: 4 });
    assert_eq!(seen.bad, BadSampleCounts { raised: 1, skipped: 2, replaced: 3 });
    assert_eq!((seen.retries, seen.timeouts, seen.queue_depth), (1, 1, 7));
    assert_eq!((seen.tiers[0].misses, seen.tiers[1].damaged), (1, 1));
    assert_eq!(seen.blocked_ns, 80_000);
    assert_eq!((seen.wait_us.max, seen.boundary_wait_us.max), (30, 50));
    assert_eq!((seen.source_read_us.max, seen.tiers[0].read_us.max), (2000, 9));
}

#[test]
fn a_snapshot_minus_an_earlier_one_is_the_epoch_between() {
    let metrics = metrics();
    metrics.loaded(Served::Source, 1, 10);
    metrics.waited(Duration::from_micros(900), true);
    let before = metrics.snapshot();
    metrics.loaded(Served::Source, 2, 30);
    metrics.loaded(Served::Tier(2), 1, 5);
    metrics.waited(Duration::from_micros(20), true);
    let epoch = &metrics.snapshot() - &before;
    assert_eq!(epoch.source, Volume { samples: 2, bytes: 30 });
    assert_eq!(epoch.tiers[1].read, Volume { samples: 1, bytes: 5 });
    assert_eq!(epoch.blocked_ns, 20_000);
    assert_eq!((epoch.boundary_wait_us.count, epoch.boundary_wait_us.max), (1, 20));
}

#[test]
fn a_source_is_counted_once_and_remembered_when_it_is_gone() {
    let metrics = Arc::new(metrics());
    let (one, other) = (Counted::new(5), Counted::new(100));
    let first = metrics.watch(Arc::clone(&one) as Arc<dyn Source>);
    let second = metrics.watch(Arc::clone(&one) as Arc<dyn Source>);
    let third = metrics.watch(other);
    assert_eq!(metrics.snapshot().operations.read, 105);
    drop(first);
    one.read(&mut []).expect("it only counts");
    assert_eq!(metrics.snapshot().operations.read, 106);
    drop(second);
    drop(third);
    let seen = metrics.snapshot().operations;
    assert_eq!((seen.read, seen.list), (106, 2));
    let again = metrics.watch(Arc::clone(&one) as Arc<dyn Source>);
    assert_eq!(metrics.snapshot().operations.read, 106);
    one.read(&mut []).expect("it only counts");
    drop((again, one));
    assert_eq!(metrics.snapshot().operations.read, 107);
    let _later = metrics.watch(Counted::new(3));
    assert_eq!(metrics.snapshot().operations.read, 110);
}

#[test]
fn threads_lose_nothing() {
    let metrics = metrics();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for at in 0..10_000 {
                    metrics.loaded(Served::Tier(1), 1, 3);
                    metrics.tier_read(1, Duration::from_micros(at));
                }
            });
        }
    });
    let seen = metrics.snapshot();
    assert_eq!(seen.tiers[0].read, Volume { samples: 40_000, bytes: 120_000 });
    assert_eq!((seen.tiers[0].read_us.count, seen.tiers[0].read_us.max), (40_000, 9_999));
}

#[test]
fn tiers_of_one_name_get_distinct_names() {
    let metrics = Metrics::new(&["ram", "ram", "ram 2", "ram"].map(str::to_owned));
    let seen = metrics.snapshot();
    let names: Vec<&str> = seen.tiers.iter().map(|tier| tier.name.as_str()).collect();
    assert_eq!(names, ["ram", "ram 2", "ram 2 2", "ram 3"]);
}

#[test]
fn a_snapshot_serialises() {
    let metrics = metrics();
    metrics.loaded(Served::Lent(1), 1, 2);
    let value = serde_json::to_value(metrics.snapshot()).expect("plain values");
    assert_eq!(value["tiers"][0]["lent"]["bytes"], 2);
    assert_eq!(value["tiers"][1]["name"], "ssd");
}
