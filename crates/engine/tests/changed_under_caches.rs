//! Files that change while caches hold copies of them: a copy of another version is never served.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::time::Duration;

use belady_control::model::Bytes;
use belady_control::sampler::Order;
use belady_control::sampler::orders::{Batching, EpochList, Lists};
use belady_data::source::{
    Begin, Catalog, DatasetFormat, Freshness, Joined, ListingProgress, OpenOptions, Operations,
    ReadError, Snapshots, Source, Version, Want, open,
};
use belady_engine::{BadSamples, Engine, EngineConfig, EngineError, JobConfig, TierConfig};
use belady_peer::Cluster;
use belady_peer::memory::MemoryTransport;
use belady_peer::rendezvous::InProcessRendezvous;
use tempfile::TempDir;

const LENGTH: usize = 64;
/// The sample that is changed.
const CHANGED: u32 = 7;
const OLD: u8 = 0;
const NEW: u8 = 128;

/// A dataset, its caches and its snapshots.
struct Place {
    folder: TempDir,
    files: u32,
    format: DatasetFormat,
    freshness: Freshness,
}

fn content(sample: u32, version: u8) -> Vec<u8> {
    (0..LENGTH as u32).map(|at| (sample * 31 + at * 7) as u8 & 127 | version).collect()
}

impl Place {
    /// A file for each sample.
    fn of_files(files: u32) -> Self {
        let place = Self::new(files, DatasetFormat::Flat);
        for sample in 0..files {
            fs::write(place.data().join(format!("{sample:05}")), content(sample, OLD)).unwrap();
        }
        place
    }

    /// All samples in one file.
    fn packed(samples: u32) -> Self {
        let place = Self::new(samples, DatasetFormat::Records(Bytes(LENGTH as u64)));
        let all: Vec<u8> = (0..samples).flat_map(|sample| content(sample, OLD)).collect();
        fs::write(place.file(), all).unwrap();
        place
    }

    fn new(files: u32, format: DatasetFormat) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        Self { folder, files, format, freshness: Freshness::Start }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The file of the changed sample.
    fn file(&self) -> PathBuf {
        let name =
            if self.format == DatasetFormat::Flat { format!("{CHANGED:05}") } else { "all".into() };
        self.data().join(name)
    }

    /// Returns the bytes of a version of the changed sample's file.
    fn version(&self, version: u8) -> Vec<u8> {
        if self.format == DatasetFormat::Flat {
            return content(CHANGED, version);
        }
        let of = |sample| if sample == CHANGED { version } else { OLD };
        (0..self.files).flat_map(|sample| content(sample, of(sample))).collect()
    }

    fn open(&self) -> Arc<dyn Source> {
        // A listing of directories that have just changed is not stored.
        std::thread::sleep(Duration::from_millis(50));
        let options = OpenOptions {
            format: Some(self.format),
            snapshots: Snapshots::In(self.folder.path().join("snapshots")),
            freshness: self.freshness,
            ..OpenOptions::default()
        };
        Arc::from(open(&self.data(), &options, &ListingProgress::silent()).unwrap())
    }

    fn disk(&self, name: &str) -> TierConfig {
        let directory = self.folder.path().join(name);
        TierConfig::Disk { directory, capacity: Bytes(64 << 20) }
    }
}

fn engine(tier: TierConfig) -> Engine {
    let tiers = vec![tier];
    Engine::new(EngineConfig { threads: Some(3), tiers, ..EngineConfig::default() }).unwrap()
}

fn ram() -> TierConfig {
    TierConfig::Ram { capacity: Bytes(64 << 20) }
}

fn job(source: &Arc<dyn Source>, epochs: u32) -> JobConfig {
    JobConfig {
        batch: 16,
        epochs: Some(epochs),
        staging: Bytes(1 << 20),
        ..JobConfig::new(source.clone())
    }
}

/// Returns the changed sample's version in each epoch, or the error that names it. Checks all
/// others.
fn consume(engine: &Engine, job: &JobConfig) -> Vec<Result<u8, String>> {
    let mut loader = engine.start(job).unwrap();
    let mut outcomes = vec![];
    loop {
        match loader.next_batch() {
            Ok(None) => return outcomes,
            Ok(Some(batch)) => {
                for sample in batch.iter() {
                    let version = sample.bytes()[0] & 128;
                    assert_eq!(sample.bytes(), content(sample.id, version), "sample {}", sample.id);
                    assert!(sample.id == CHANGED || version == OLD);
                    if sample.id == CHANGED {
                        outcomes.push(Ok(version));
                    }
                }
            }
            Err(error @ EngineError::BadSample { .. }) => outcomes.push(Err(error.to_string())),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Fills a cache with the whole dataset.
fn warm(engine: &Engine, source: &Arc<dyn Source>) {
    assert_eq!(consume(engine, &job(source, 2)), [Ok(OLD), Ok(OLD)]);
    let next = engine.start(&job(source, 1)).unwrap();
    assert_eq!(next.tiers()[0].samples, u64::from(source.catalog().len()), "all of it was kept");
}

/// Named ways to change a file without changing its size.
type Change = fn(&Path, &[u8]);

const CHANGES: [(&str, Change); 4] = [
    ("written in place", |path, bytes| overwrite(path, bytes)),
    ("written in place, its time set back", |path, bytes| {
        setting_the_time_back(path, || overwrite(path, bytes));
    }),
    ("replaced", |path, bytes| replace(path, bytes)),
    ("replaced by one of the same time", |path, bytes| {
        setting_the_time_back(path, || replace(path, bytes));
    }),
];

fn overwrite(path: &Path, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    fs::File::options().write(true).open(path).unwrap().write_all_at(bytes, 0).unwrap();
}

/// Replaces it by a file made elsewhere, so that only the directory shows it.
fn replace(path: &Path, bytes: &[u8]) {
    let other = path.parent().unwrap().with_extension("other");
    fs::write(&other, bytes).unwrap();
    fs::rename(other, path).unwrap();
}

fn setting_the_time_back(path: &Path, change: impl FnOnce()) {
    let before = fs::metadata(path).unwrap().modified().unwrap();
    change();
    fs::File::options().write(true).open(path).unwrap().set_modified(before).unwrap();
}

/// Checks that it is the new version or an error that names the file.
fn assert_new(outcomes: &[Result<u8, String>], place: &Place, what: &str) {
    assert!(!outcomes.is_empty(), "{what}");
    for outcome in outcomes {
        match outcome {
            Ok(version) => assert_eq!(*version, NEW, "{what}"),
            Err(error) => {
                let name = place.file().file_name().unwrap().to_string_lossy().into_owned();
                assert!(error.contains(&name) && error.contains("changed"), "{what}: {error}");
            }
        }
    }
}

#[test]
fn a_changed_file_is_never_served_from_a_warm_disk_cache() {
    for files in [100, 5_000] {
        for (what, change) in CHANGES {
            let place = Place::of_files(files);
            warm(&engine(place.disk("cache")), &place.open());
            change(&place.file(), &place.version(NEW));
            let later = engine(place.disk("cache"));
            let what = format!("{what}, {files} files");
            // Before anything is noticed, which would make the next start list anew.
            let (for_view, for_job) = (place.open(), place.open());
            let view = later.view(for_view, "data").read(CHANGED);
            assert!(view.is_err() || view.unwrap() == content(CHANGED, NEW), "{what}");
            assert_new(&consume(&later, &job(&for_job, 2)), &place, &what);
            // Whatever the outcome, the current version is read now.
            let again = consume(&later, &job(&place.open(), 2));
            assert_eq!(again, [Ok(NEW), Ok(NEW)], "{what}");
        }
    }
}

#[test]
fn a_changed_packed_file_is_never_served_from_a_warm_disk_cache() {
    for (what, change) in CHANGES {
        let place = Place::packed(200);
        let early = place.open();
        warm(&engine(place.disk("cache")), &early);
        change(&place.file(), &place.version(NEW));
        let later = engine(place.disk("cache"));
        // With the listing from before the change, and with a new one.
        let skip = JobConfig { bad_samples: BadSamples::Skip, ..job(&early, 1) };
        let seen = consume(&later, &skip);
        assert!(seen.iter().all(|outcome| *outcome == Ok(NEW)), "{what}: {seen:?}");
        assert_eq!(consume(&later, &job(&place.open(), 1)), [Ok(NEW)], "{what}");
    }
}

#[test]
fn a_changed_file_is_never_served_from_memory_that_a_job_left() {
    for (what, change) in CHANGES {
        let place = Place::of_files(100);
        let (engine, source) = (engine(ram()), place.open());
        warm(&engine, &source);
        change(&place.file(), &place.version(NEW));
        assert_new(&consume(&engine, &job(&source, 2)), &place, what);
        assert_eq!(consume(&engine, &job(&place.open(), 1)), [Ok(NEW)], "{what}");
    }
}

#[test]
fn a_changed_file_is_never_served_from_what_another_running_job_holds() {
    for (what, change) in CHANGES {
        let place = Place::of_files(100);
        let several = Engine::new(EngineConfig {
            threads: Some(3),
            tiers: vec![ram()],
            several_jobs: true,
            ..EngineConfig::default()
        });
        let several = several.unwrap();
        let (running, early) = (place.open(), place.open());
        let mut holds = several.start(&job(&running, 3)).unwrap();
        while holds.tiers()[0].samples < 100 {
            holds.next_batch().unwrap();
        }
        let reads = early.operations().bytes;
        assert_eq!(consume(&several, &job(&early, 1)), [Ok(OLD)], "{what}");
        assert_eq!(early.operations().bytes, reads, "{what}: it takes all from the other job");
        change(&place.file(), &place.version(NEW));
        assert_new(&consume(&several, &job(&early, 2)), &place, what);
        assert_new(&consume(&several, &job(&place.open(), 2)), &place, what);
    }
}

#[test]
fn a_changed_part_of_a_joined_dataset_is_never_served_from_a_warm_cache() {
    for (what, change) in CHANGES {
        let place = Place::of_files(100);
        let joined = || -> Arc<dyn Source> {
            Arc::new(Joined::new(vec![("a".into(), place.open())]).unwrap())
        };
        let early = joined();
        warm(&engine(place.disk("cache")), &early);
        change(&place.file(), &place.version(NEW));
        let later = engine(place.disk("cache"));
        assert_new(&consume(&later, &job(&early, 1)), &place, what);
        assert_eq!(consume(&later, &job(&joined(), 1)), [Ok(NEW)], "{what}");
    }
}

#[test]
fn a_file_that_changes_in_mid_run_is_noticed_in_the_next_epoch_if_epochs_are_compared() {
    for (what, change) in CHANGES {
        let place = Place { freshness: Freshness::Epoch, ..Place::of_files(2_000) };
        let (engine, source) = (engine(ram()), place.open());
        let config = JobConfig { staging: Bytes(64 << 10), ..job(&source, 4) };
        let mut loader = engine.start(&config).unwrap();
        let (mut batches, mut last) = (0, vec![]);
        loop {
            // The ring holds far less than an epoch, so the last epoch is staged after this.
            if batches == 2_000 / 16 * 2 {
                change(&place.file(), &place.version(NEW));
            }
            batches += 1;
            let in_last = batches > 2_000 / 16 * 3;
            match loader.next_batch() {
                Ok(None) => break,
                Ok(Some(batch)) => last.extend(
                    batch
                        .iter()
                        .filter(|sample| in_last && sample.id == CHANGED)
                        .map(|sample| Ok(sample.bytes()[0] & 128)),
                ),
                Err(error) if in_last => last.push(Err(error.to_string())),
                Err(_) => {}
            }
        }
        assert_new(&last, &place, what);
    }
}

#[test]
fn a_node_gives_no_copy_of_a_changed_file_to_another() {
    for (what, change) in CHANGES {
        let place = Place::of_files(200);
        let sources: Vec<_> = (0..2).map(|_| place.open()).collect();
        let run = || -> Vec<Result<u8, String>> {
            let (rendezvous, nodes) =
                (InProcessRendezvous::new(2, Duration::from_mins(1)), MemoryTransport::network(2));
            std::thread::scope(|scope| {
                let nodes = nodes.into_iter().zip(&sources).enumerate();
                let threads: Vec<_> = nodes
                    .map(|(rank, (transport, source))| {
                        let cluster =
                            Arc::new(Cluster::new(rendezvous.member(rank as u32), transport));
                        let tiers = vec![place.disk(&format!("cache {rank}"))];
                        let peers = Some(cluster);
                        let config = EngineConfig {
                            threads: Some(3),
                            tiers,
                            peers,
                            ..EngineConfig::default()
                        };
                        scope.spawn(move || consume(&Engine::new(config).unwrap(), &job(source, 2)))
                    })
                    .collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            })
        };
        assert!(run().iter().all(|outcome| *outcome == Ok(OLD)));
        change(&place.file(), &place.version(NEW));
        assert_new(&run(), &place, what);
    }
}

/// Runs two ranks, and returns the samples of each epoch with their versions. Between two epochs
/// both wait for `between`. Each has space for so many samples.
fn two_ranks(
    sources: &[Arc<dyn Source>],
    job: &JobConfig,
    rooms: [u32; 2],
    between: &(dyn Fn(u32) + Sync),
) -> Vec<Vec<(u32, u32, u8)>> {
    let (rendezvous, nodes) =
        (InProcessRendezvous::new(2, Duration::from_mins(1)), MemoryTransport::network(2));
    let together = Barrier::new(2);
    let rank = |rank: u32, transport, source: &Arc<dyn Source>| {
        let config = EngineConfig {
            threads: Some(3),
            tiers: vec![TierConfig::Ram { capacity: Bytes(u64::from(rooms[rank as usize]) * 64) }],
            peers: Some(Arc::new(Cluster::new(rendezvous.member(rank), transport))),
            ..EngineConfig::default()
        };
        let job = JobConfig { source: source.clone(), ..job.clone() };
        let mut loader = Engine::new(config).unwrap().start(&job).unwrap();
        let (mut seen, mut epoch) = (vec![], 0);
        while let Some(batch) = loader.next_batch().unwrap() {
            if batch.step().epoch > epoch {
                epoch = batch.step().epoch;
                if together.wait().is_leader() {
                    between(epoch);
                }
                together.wait();
            }
            for sample in batch.iter() {
                let version = sample.bytes()[0] & 128;
                assert_eq!(sample.bytes(), content(sample.id, version), "sample {}", sample.id);
                seen.push((epoch, sample.id, version));
            }
        }
        seen
    };
    std::thread::scope(|scope| {
        let nodes = (0..).zip(nodes).zip(sources);
        let threads: Vec<_> = nodes
            .map(|((number, transport), source)| {
                let rank = &rank;
                scope.spawn(move || rank(number, transport, source))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

const FILES: u32 = 1_600;

fn two_rank_job(source: &Arc<dyn Source>, epochs: u32) -> JobConfig {
    JobConfig { staging: Bytes(16 << 10), ..job(source, epochs) }
}

#[test]
fn a_rank_takes_no_old_bytes_from_one_that_has_not_seen_the_new_version() {
    let place = Place::of_files(FILES);
    let sources = [place.open(), place.open()];
    let change_all = |epoch| {
        if epoch != 2 {
            return;
        }
        for sample in 0..FILES {
            let path = place.data().join(format!("{sample:05}"));
            setting_the_time_back(&path, || overwrite(&path, &content(sample, NEW)));
        }
        // One of the two notices it.
        sources[1].begin(Begin::Job);
        for sample in 0..FILES {
            sources[1].compare(sample).unwrap();
        }
    };
    // The other one holds what the first lacks.
    let rooms = [2 * FILES, FILES / 8];
    let seen = two_ranks(&sources, &two_rank_job(&sources[0], 5), rooms, &change_all);
    // Some batches of the epoch after the change were staged before it.
    let late: Vec<_> = seen[1].iter().filter(|(epoch, ..)| *epoch > 2).collect();
    assert_eq!(late.len(), FILES as usize);
    let old = late.iter().filter(|(.., version)| *version == OLD).count();
    assert_eq!(old, 0, "of {} samples", late.len());
}

#[test]
fn a_touched_file_is_cached_by_all_ranks_again() {
    let place = Place::of_files(FILES);
    let sources = [place.open(), place.open()];
    for sample in 0..FILES {
        let path = place.data().join(format!("{sample:05}"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let reads = || sources.iter().map(|source| source.operations().read).sum::<u64>();
    let before = reads();
    let rooms = [FILES * 2 / 3; 2];
    let seen = two_ranks(&sources, &two_rank_job(&sources[0], 5), rooms, &|_| ());
    assert!(seen.iter().flatten().all(|(.., version)| *version == OLD));
    // Each once, and a few more that were not pushed in time.
    let read = reads() - before;
    assert!(read < u64::from(FILES) * 3 / 2, "{read} reads of {FILES} files in 5 epochs");
}

/// A source that changes a file after its first read, when the next epoch has begun.
#[derive(Debug)]
struct ChangesOnTheWay {
    inner: Arc<dyn Source>,
    path: PathBuf,
    begun: Mutex<mpsc::Receiver<()>>,
    begin: mpsc::Sender<()>,
    was_read: AtomicBool,
}

impl Source for ChangesOnTheWay {
    fn catalog(&self) -> &Catalog {
        self.inner.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        self.inner.read(wants)?;
        let is_wanted = wants.iter().any(|want| want.sample == CHANGED);
        if is_wanted && !self.was_read.swap(true, Ordering::AcqRel) {
            self.begun.lock().unwrap().recv().unwrap();
            // So that the batch of the next epoch is coalesced with this read.
            std::thread::sleep(Duration::from_millis(100));
            setting_the_time_back(&self.path, || overwrite(&self.path, &content(CHANGED, NEW)));
        }
        Ok(())
    }

    fn operations(&self) -> Operations {
        self.inner.operations()
    }

    fn compare(&self, sample: u32) -> Result<(), ReadError> {
        self.inner.compare(sample)
    }

    fn is_compared(&self, sample: u32) -> bool {
        self.inner.is_compared(sample)
    }

    fn version(&self, sample: u32) -> Version {
        self.inner.version(sample)
    }

    fn begin(&self, what: Begin) {
        while what == Begin::Epoch && !self.was_read.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.inner.begin(what);
        if what == Begin::Epoch {
            let _ = self.begin.send(());
        }
    }
}

#[test]
fn a_batch_of_the_next_epoch_that_waits_for_a_read_of_this_one_gets_the_new_version() {
    let place = Place { freshness: Freshness::Epoch, ..Place::of_files(100) };
    let (begin, begun) = mpsc::channel();
    let source: Arc<dyn Source> = Arc::new(ChangesOnTheWay {
        inner: place.open(),
        path: place.file(),
        begun: Mutex::new(begun),
        begin,
        was_read: AtomicBool::new(false),
    });
    let batches = Batching::Every { batch: 4, drop_last: false };
    let list = |samples: Vec<u32>| EpochList { samples, batches: batches.clone() };
    let epochs = vec![list(vec![1, 2, 3, CHANGED]), list(vec![CHANGED, 4, 5, 6])];
    let order = Order::Provided(Arc::new(Lists(epochs)));
    let config = JobConfig { order, epochs: None, ..job(&source, 2) };
    assert_eq!(consume(&engine(ram()), &config), [Ok(OLD), Ok(NEW)]);
}

#[test]
fn a_warm_run_compares_each_file_once_and_never_with_freshness_never() {
    for (freshness, asked) in [(Freshness::Start, 1), (Freshness::Epoch, 3), (Freshness::Never, 0)]
    {
        let place = Place { freshness, ..Place::of_files(5_000) };
        warm(&engine(place.disk("cache")), &place.open());
        let source = place.open();
        let before = source.operations();
        consume(&engine(place.disk("cache")), &job(&source, 3));
        let after = source.operations();
        assert_eq!(after.read, before.read, "all of it was cached");
        // The background pass and a loading thread may compare one file at the same time, and a
        // sample staged when an epoch begins may be compared once for both.
        let stats = after.stat - before.stat;
        assert!((4_500 * asked..=7_500 * asked).contains(&stats), "{freshness:?}: {stats}");
    }
}

#[test]
fn changed_permissions_cost_one_read_of_a_file_and_no_sample() {
    let place = Place::of_files(5_000);
    warm(&engine(place.disk("cache")), &place.open());
    for sample in 0..5_000 {
        let path = place.data().join(format!("{sample:05}"));
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    assert_eq!(consume(&engine(place.disk("cache")), &job(&place.open(), 2)), [Ok(OLD), Ok(OLD)]);
    let source = place.open();
    assert_eq!(consume(&engine(place.disk("cache")), &job(&source, 1)), [Ok(OLD)]);
    assert_eq!(source.operations().read, 0, "its copies are valid again");
}

#[test]
fn a_moved_dataset_keeps_its_copies() {
    let mut place = Place::of_files(100);
    warm(&engine(place.disk("cache")), &place.open());
    let other = tempfile::tempdir_in(place.folder.path().parent().unwrap()).unwrap();
    for name in ["data", "cache"] {
        fs::rename(place.folder.path().join(name), other.path().join(name)).unwrap();
    }
    place.folder = other;
    let source = place.open();
    consume(&engine(place.disk("cache")), &job(&source, 1));
    assert_eq!(source.operations().read, 0);
}
