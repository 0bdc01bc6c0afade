//! Measures what the threads of a job do, for the model that is fitted to it.
//!
//! A load is measured once a request, a transform once a sample; sums are kept apart by how many
//! threads did the same at once. Jobs without a transform stage measure nothing: their threads have
//! one duty.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use belady_base::sync::{Mutex, lock};
use belady_control::model::online::{FitWindow, FittedModel, IterationWork, WorkSum, size_class};

/// The least time between two fits, which take some tens of microseconds: iterations that are
/// shorter count as one.
const LEAST: Duration = Duration::from_millis(5);

/// What the threads of a job do.
#[derive(Debug)]
pub struct ThreadMeter {
    is_on: AtomicBool,
    cores: u32,
    /// Threads that load now, by class.
    loading: [AtomicU32; 3],
    /// Threads that transform now.
    transforming: AtomicU32,
    /// Since the last fit.
    work: Mutex<IterationWork>,
    window: Mutex<FitWindow>,
    /// When the model was fitted last.
    fitted: Mutex<Option<Instant>>,
    /// By local rank: when its consumer got the last batch.
    delivered: Box<[Mutex<Option<Instant>>]>,
}

impl ThreadMeter {
    pub fn new(ranks: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
        Self {
            is_on: AtomicBool::new(false),
            cores,
            loading: Default::default(),
            transforming: AtomicU32::new(0),
            work: Mutex::default(),
            window: Mutex::default(),
            fitted: Mutex::default(),
            delivered: (0..ranks).map(|_| Mutex::default()).collect(),
        }
    }

    /// Begins to measure: samples are transformed.
    pub fn turn_on(&self) {
        self.is_on.store(true, Relaxed);
    }

    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Measures a load from a class of places, until the result is dropped; `None` if nothing is
    /// measured.
    pub fn load(&self, class: usize) -> Option<LoadTimer<'_>> {
        self.is_on().then(|| {
            let threads = self.loading[class].fetch_add(1, Relaxed) + 1;
            LoadTimer { meter: self, class, threads, began: Instant::now() }
        })
    }

    /// Counts a thread as transforming until the result is dropped.
    pub fn transform(&self) -> TransformTally<'_> {
        self.transforming.fetch_add(1, Relaxed);
        TransformTally { meter: self, sums: vec![] }
    }

    /// The consumer of a rank got a batch after a wait. Pauses between epochs do not count.
    pub fn delivered(&self, rank: usize, waited: Duration, first_of_epoch: bool) {
        let Some(last) = self.delivered.get(rank).filter(|_| self.is_on()) else { return };
        let now = Instant::now();
        let Some(before) = lock(last).replace(now).filter(|_| !first_of_epoch) else { return };
        let training = (now - before).saturating_sub(waited).as_nanos() as u64;
        let mut work = lock(&self.work);
        work.training = Some(work.training.map_or(training, |least| least.min(training)));
    }

    /// Returns whether the model should be fitted.
    pub fn is_due(&self) -> bool {
        self.is_on() && lock(&self.fitted).is_none_or(|last| last.elapsed() >= LEAST)
    }

    /// Ends an iteration, and fits the model to the last ones.
    pub fn fit(&self) -> FittedModel {
        *lock(&self.fitted) = Some(Instant::now());
        let work = std::mem::take(&mut *lock(&self.work));
        let mut window = lock(&self.window);
        window.push(work);
        window.fit(self.cores)
    }
}

/// Measures a load.
#[derive(Debug)]
pub struct LoadTimer<'a> {
    meter: &'a ThreadMeter,
    class: usize,
    /// The threads that loaded from the class when it began.
    threads: u32,
    began: Instant,
}

impl LoadTimer<'_> {
    /// Counts what was loaded. Without this call, nothing was.
    pub fn end(self, bytes: u64) {
        let nanoseconds = self.began.elapsed().as_nanos() as u64;
        let sum = WorkSum { count: 1, bytes, nanoseconds };
        *lock(&self.meter.work).loads[self.class].entry(self.threads).or_default() += sum;
    }
}

impl Drop for LoadTimer<'_> {
    fn drop(&mut self) {
        self.meter.loading[self.class].fetch_sub(1, Relaxed);
    }
}

/// The transforms of one thread, which are added up when it stops.
#[derive(Debug)]
pub struct TransformTally<'a> {
    meter: &'a ThreadMeter,
    /// By size class and number of threads; a few.
    sums: Vec<((u8, u32), WorkSum)>,
}

impl TransformTally<'_> {
    /// Counts a sample.
    pub fn count(&mut self, bytes: u64, time: Duration) {
        let key = (size_class(bytes), self.meter.transforming.load(Relaxed).max(1));
        let sum = WorkSum { count: 1, bytes, nanoseconds: time.as_nanos() as u64 };
        match self.sums.iter_mut().find(|(other, _)| *other == key) {
            Some((_, known)) => *known += sum,
            None => self.sums.push((key, sum)),
        }
    }
}

impl Drop for TransformTally<'_> {
    fn drop(&mut self) {
        self.meter.transforming.fetch_sub(1, Relaxed);
        if !self.sums.is_empty() && self.meter.is_on() {
            let mut work = lock(&self.meter.work);
            for &(key, sum) in &self.sums {
                *work.transforms.entry(key).or_default() += sum;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use belady_control::model::online::SOURCE;

    use super::*;

    #[test]
    fn loads_and_transforms_are_counted_by_how_many_threads_did_the_same() {
        let meter = ThreadMeter::new(1);
        assert!(meter.load(SOURCE).is_none(), "nothing is measured before there is a stage");
        meter.turn_on();
        let (one, other) = (meter.load(SOURCE).unwrap(), meter.load(SOURCE).unwrap());
        other.end(1 << 20);
        one.end(1 << 20);
        drop(meter.load(SOURCE));
        let (mut first, mut second) = (meter.transform(), meter.transform());
        first.count(1000, Duration::from_micros(5));
        second.count(1001, Duration::from_micros(7));
        drop(second);
        first.count(0, Duration::from_micros(1));
        drop(first);
        meter.delivered(0, Duration::ZERO, true);
        meter.delivered(0, Duration::MAX, false);
        let model = meter.fit();
        let counts = |class: usize| -> Vec<u32> {
            model.loads[class].points().iter().map(|point| point.0).collect()
        };
        assert_eq!(counts(SOURCE), [1, 2]);
        assert_eq!(model.transforms[1].samples, 2 * model.transforms[0].samples);
        assert_eq!(model.transforms[0].time.points(), [(1, 1000)]);
        assert_eq!(model.transforms[1].time.points(), [(2, 6000)]);
        assert_eq!(model.training, 0);
        assert_eq!(meter.fit(), model, "an iteration without work changes nothing");
    }
}
