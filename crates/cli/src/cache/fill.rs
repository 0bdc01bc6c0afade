//! `belady cache fill`: copies a dataset into a cache before a job needs it.
//!
//! Threads take stretches of neighbouring samples from one cursor, read each stretch with one
//! request and put its samples into the tier, until the tier holds all samples or reaches its
//! quota. Samples that the tier holds already are not read again, unless their file has changed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use belady_base::SampleId;
use belady_base::sync::{Mutex, lock};
use belady_control::model::Bytes;
use belady_data::source::{Catalog, Freshness, OpenOptions, Source, Want};
use belady_data::tier::disk::{DiskConfig, DiskTier, FileVersions};
use belady_data::tier::{Put, Tier};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::dataset::DatasetArgs;
use crate::text::{bytes, grouped, percent};
use crate::usage::{UsageError, count};
use belady_base::logging;

/// The limits of one request: large enough for any storage, small enough that threads end at about
/// the same time.
const STRETCH_BYTES: u64 = 4 << 20;
const STRETCH_SAMPLES: usize = 256;

/// The options of `belady cache fill`.
#[derive(Args, Clone, Debug)]
pub struct FillArgs {
    /// The directory of the cache, as in --cache DIR:SIZE
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    #[command(flatten)]
    dataset: DatasetArgs,
    /// Limit of all caches in the directory together
    #[arg(long, value_name = "SIZE")]
    quota: Bytes,
    /// Threads that copy samples
    #[arg(long, value_name = "N", default_value = "8", value_parser = threads,
          allow_negative_numbers = true)]
    threads: u32,
    /// Whether cached samples are compared with the dataset's files: `start`, or `never` for files
    /// that do not change
    #[arg(long, value_name = "WHEN", default_value = "start", value_parser = freshness)]
    freshness: Freshness,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

fn freshness(text: &str) -> Result<Freshness, String> {
    text.parse()
}

fn threads(text: &str) -> Result<u32, String> {
    count(text, "the number of threads", 4096)
}

/// Runs the command.
pub fn run(args: &FillArgs) -> anyhow::Result<()> {
    if args.quota == Bytes::ZERO {
        return Err(UsageError::new("--quota 0 leaves no space: use a larger quota").into());
    }
    let options = args.dataset.options(Some(true), None);
    let options = OpenOptions { freshness: args.freshness, ..options };
    let source: Arc<dyn Source> = Arc::from(args.dataset.open(&options)?);
    let sizes = Arc::new(source.catalog().sizes());
    let tier = DiskTier::open(DiskConfig {
        directory: args.directory.clone(),
        quota: args.quota,
        share: args.quota,
        fingerprint: source.catalog().fingerprint(),
        name: args.dataset.name(),
        sizes: Arc::clone(&sizes),
        segment: None,
        versions: FileVersions(Some(Arc::clone(&source))),
    });
    // A cache of an earlier run refuses samples until it has recovered.
    tier.recover();
    let bar = logging::progress(ProgressBar::new(sizes.total().0));
    let template = "{wide_bar} {binary_bytes_per_sec} {percent:>3} % {eta}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let fill = CacheFill::new(&*source, &tier, &bar);
    fill.run(args.threads);
    bar.finish_and_clear();
    fill.report(args, tier.status().samples, sizes.len().into())
}

/// A copy in progress, shared by its threads.
struct CacheFill<'a> {
    source: &'a dyn Source,
    tier: &'a dyn Tier,
    bar: &'a ProgressBar,
    next: Mutex<SampleId>,
    /// The quota is reached.
    full: AtomicBool,
    refused: AtomicBool,
    stored: AtomicU64,
    stored_bytes: AtomicU64,
    present: AtomicU64,
    unread: AtomicU64,
    first_error: Mutex<Option<String>>,
}

impl<'a> CacheFill<'a> {
    fn new(source: &'a dyn Source, tier: &'a dyn Tier, bar: &'a ProgressBar) -> Self {
        Self {
            source,
            tier,
            bar,
            next: Mutex::new(0),
            full: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            stored: AtomicU64::new(0),
            stored_bytes: AtomicU64::new(0),
            present: AtomicU64::new(0),
            unread: AtomicU64::new(0),
            first_error: Mutex::new(None),
        }
    }

    fn run(&self, threads: u32) {
        // First in parallel, since stretches are taken under one lock.
        let next = AtomicU32::new(0);
        on_threads(threads, || self.compare(&next));
        on_threads(threads, || self.work());
    }

    /// Compares the files of the samples that the tier holds, from one cursor.
    fn compare(&self, next: &AtomicU32) {
        let samples = self.source.catalog().len();
        loop {
            let first = next.fetch_add(STRETCH_SAMPLES as u32, Relaxed);
            if first >= samples {
                return;
            }
            let held = |sample: &SampleId| self.tier.holds(*sample);
            for sample in (first..samples.min(first + STRETCH_SAMPLES as u32)).filter(held) {
                // An error is reported when the sample is read.
                let _ = self.source.compare(sample);
            }
        }
    }

    /// Returns whether the tier holds a sample of the current version of its file.
    fn is_there(&self, sample: SampleId) -> bool {
        self.tier.is_current(sample) && self.source.is_compared(sample)
    }

    fn work(&self) {
        let mut memory = vec![];
        while !self.full.load(Relaxed) && !self.refused.load(Relaxed) {
            let stretch = self.take_stretch();
            if stretch.is_empty() {
                return;
            }
            self.copy(&stretch, &mut memory);
        }
    }

    /// Returns the next stretch of samples that the tier does not hold; empty at the end.
    fn take_stretch(&self) -> Vec<SampleId> {
        let catalog = self.source.catalog();
        let mut next = lock(&self.next);
        let (mut stretch, mut total) = (vec![], 0);
        while *next < catalog.len() {
            let sample = *next;
            let size = catalog.size(sample);
            let held = self.is_there(sample);
            if !held && !stretch.last().is_none_or(|&last| may_follow(catalog, last, sample)) {
                break;
            }
            let many = stretch.len() == STRETCH_SAMPLES || total + size > STRETCH_BYTES;
            if !held && !stretch.is_empty() && many {
                break;
            }
            *next += 1;
            if held {
                self.present.fetch_add(1, Relaxed);
                self.bar.inc(size);
            } else {
                stretch.push(sample);
                total += size;
            }
        }
        stretch
    }

    /// Copies a stretch with one request, or sample by sample if that fails.
    fn copy(&self, stretch: &[SampleId], memory: &mut Vec<u8>) {
        match (self.try_copy(stretch, memory), stretch) {
            (Ok(()), _) => {}
            (Err(error), [_]) => {
                self.unread.fetch_add(1, Relaxed);
                lock(&self.first_error).get_or_insert(error);
            }
            (Err(_), stretch) => {
                for sample in stretch {
                    self.copy(std::slice::from_ref(sample), memory);
                }
            }
        }
    }

    fn try_copy(&self, stretch: &[SampleId], memory: &mut Vec<u8>) -> Result<(), String> {
        let catalog = self.source.catalog();
        let sizes: Vec<usize> =
            stretch.iter().map(|&sample| catalog.size(sample) as usize).collect();
        memory.resize(sizes.iter().sum(), 0);
        let mut rest = memory.as_mut_slice();
        let mut wants = Vec::with_capacity(stretch.len());
        for (&sample, &size) in stretch.iter().zip(&sizes) {
            let (into, after) = rest.split_at_mut(size);
            wants.push(Want::new(sample, into));
            rest = after;
        }
        self.source.read(&mut wants).map_err(|error| error.to_string())?;
        wants.iter().try_for_each(|want| self.put(want))
    }

    /// Puts a sample into the tier.
    ///
    /// # Errors
    /// If its file changed and it must be read again.
    fn put(&self, want: &Want<'_>) -> Result<(), String> {
        let length = want.into.len() as u64;
        match self.tier.put(want.sample, want.into, want.version) {
            Put::Stored => {
                self.stored.fetch_add(1, Relaxed);
                self.stored_bytes.fetch_add(length, Relaxed);
            }
            Put::Present => {
                self.present.fetch_add(1, Relaxed);
            }
            Put::Full => self.full.store(true, Relaxed),
            Put::Refused if self.source.version(want.sample).changed != want.version => {
                return Err(format!(
                    "the file of sample {} changed while it was copied",
                    want.sample
                ));
            }
            Put::Refused => self.refused.store(true, Relaxed),
        }
        self.bar.inc(length);
        Ok(())
    }

    fn report(self, args: &FillArgs, held: u64, samples: u64) -> anyhow::Result<()> {
        let [stored, stored_bytes, present, unread] =
            [&self.stored, &self.stored_bytes, &self.present, &self.unread]
                .map(|counter| counter.load(Relaxed));
        if self.refused.load(Relaxed) {
            let why = self.tier.status().degraded;
            let why = why.unwrap_or_else(|| "another job is writing to it".to_owned());
            anyhow::bail!("the cache in {} accepts no samples: {why}", args.directory.display());
        }
        let full = self.full.load(Relaxed);
        if args.json {
            super::print_json(&json!({
                "stored": stored,
                "stored_bytes": stored_bytes,
                "present": present,
                "unread": unread,
                "held": held,
                "samples": samples,
                "full": full,
            }))?;
        } else {
            let number = |count: u64| grouped(count as f64, 0);
            let share = percent(held as f64 / samples.max(1) as f64);
            super::print(&format!(
                "stored {} samples, {}; {} were cached already\nthe cache holds {share} of the \
                 dataset{}\n",
                number(stored),
                bytes(stored_bytes),
                number(present),
                if full { " and is full" } else { "" },
            ))?;
        }
        let first_error = lock(&self.first_error).take();
        match first_error {
            Some(error) => anyhow::bail!("{unread} samples could not be read, the first: {error}"),
            None => Ok(()),
        }
    }
}

fn on_threads(threads: u32, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(&work);
        }
    });
}

/// Returns whether one request can read both: in one file, one behind the other.
fn may_follow(catalog: &Catalog, one: SampleId, other: SampleId) -> bool {
    let (one, other) = (catalog.location(one), catalog.location(other));
    one.file == other.file && one.offset + one.length <= other.offset
}

#[cfg(test)]
mod tests {
    use belady_data::source::{FaultSpec, Faulty, Synthetic};
    use belady_data::tier::Get;
    use belady_data::tier::RamTier;

    use super::*;

    fn fill<'a>(source: &'a dyn Source, tier: &'a dyn Tier, bar: &'a ProgressBar) -> CacheFill<'a> {
        let fill = CacheFill::new(source, tier, bar);
        fill.run(3);
        fill
    }

    fn tier(source: &dyn Source, capacity: u64) -> RamTier {
        RamTier::new(Bytes(capacity), Arc::new(source.catalog().sizes()))
    }

    #[test]
    fn every_sample_that_can_be_read_is_stored_once() {
        let broken = [3, 50].into();
        let spec = FaultSpec { broken, ..FaultSpec::default() };
        let source = Faulty::new(Synthetic::of_sizes((0..100).map(|at| at * 37), 1), spec);
        let tier = tier(&source, 1 << 20);
        let bar = ProgressBar::hidden();
        let first = fill(&source, &tier, &bar);
        assert_eq!(first.stored.load(Relaxed), 98);
        assert_eq!(first.unread.load(Relaxed), 2);
        assert!(lock(&first.first_error).as_ref().is_some_and(|error| error.contains("sample")));
        for sample in (0..100).filter(|sample| ![3, 50].contains(sample)) {
            let mut bytes = vec![0; sample as usize * 37];
            assert_eq!(tier.get(sample, &mut bytes), Get::Hit);
            assert!(source.source().verify(sample, &bytes));
        }
        let again = fill(&source, &tier, &bar);
        assert_eq!((again.stored.load(Relaxed), again.present.load(Relaxed)), (0, 98));
    }

    #[test]
    fn copying_ends_at_the_quota() {
        let source = Synthetic::of_sizes([1000; 100], 1);
        let tier = tier(&source, 10 * 1008);
        let bar = ProgressBar::hidden();
        let fill = fill(&source, &tier, &bar);
        assert!(fill.full.load(Relaxed));
        assert_eq!((fill.stored.load(Relaxed), tier.status().samples), (10, 10));
    }
}
