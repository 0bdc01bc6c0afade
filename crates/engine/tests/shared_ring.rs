//! Samples for other processes: this test binary runs itself again as a worker that maps the
//! staging buffer and reads samples there.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use belady_base::SampleId;
use belady_control::model::Bytes;
use belady_data::source::{Fault, FaultSpec, Faulty, Source, Synthetic};
use belady_engine::{
    BadSamples, Engine, EngineConfig, JobConfig, Lend, Loader, Retry, RingKind, TierConfig,
};
use memmap2::MmapOptions;
use rustix::io::{FdFlags, fcntl_setfd};

/// Tells the child that it is the worker: `descriptor length`.
const MEMORY: &str = "BELADY_TEST_MEMORY";
const SAMPLES: u32 = 500;

fn source() -> Synthetic {
    Synthetic::of_sizes((0..u64::from(SAMPLES)).map(|sample| sample * 37 % 3_000), 11)
}

/// Not a test: the worker of the tests below.
#[test]
fn worker() {
    let Ok(memory) = std::env::var(MEMORY) else { return };
    let (descriptor, length) = memory.split_once(' ').unwrap();
    // SAFETY: the parent left this descriptor open for us, and nothing else uses it.
    let file = unsafe { File::from_raw_fd(descriptor.parse().unwrap()) };
    let length = length.parse().unwrap();
    // SAFETY: the file's size is sealed; what it holds changes only where we are not told to look.
    let writable = unsafe { MmapOptions::new().len(length).map_mut(&file) };
    assert!(writable.is_err(), "a worker can never write to samples");
    // SAFETY: as above.
    let memory = unsafe { MmapOptions::new().len(length).map(&file) }.unwrap();
    assert!(file.set_len(0).is_err(), "the size is sealed");
    let source = source();
    for line in std::io::stdin().lines().map(Result::unwrap) {
        let mut numbers = line.split(' ').map(|number| number.parse::<usize>().unwrap());
        let (sample, offset) = (numbers.next().unwrap() as SampleId, numbers.next().unwrap());
        let length = numbers.next().unwrap();
        println!("SAYS {}", source.verify(sample, &memory[offset..offset + length]));
    }
    // Before the test harness reports to a parent that no longer listens.
    std::process::exit(0);
}

struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn new(loader: &Loader) -> Self {
        let memory = loader.shared_memory().unwrap();
        let inherited: OwnedFd = memory.fd.try_clone_to_owned().unwrap();
        fcntl_setfd(&inherited, FdFlags::empty()).unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["worker", "--exact", "--nocapture", "--quiet"])
            .env(MEMORY, format!("{} {}", inherited.as_raw_fd(), memory.length))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, orders, answers }
    }

    fn tell(&mut self, sample: SampleId, (offset, length): (usize, usize)) {
        writeln!(self.orders.as_mut().unwrap(), "{sample} {offset} {length}").unwrap();
    }

    /// Returns whether the worker found the right bytes.
    fn hear(&mut self) -> bool {
        let mut answers = self.answers.by_ref().map(Result::unwrap);
        let said = answers.find_map(|line| Some(line.split_once("SAYS ")?.1 == "true"));
        said.expect("the worker answers")
    }

    fn end(mut self) {
        drop(self.orders.take());
        assert!(self.child.wait().unwrap().success());
    }
}

fn engine(retry: Retry) -> Engine {
    let tiers = vec![TierConfig::Ram { capacity: Bytes(200_000) }];
    Engine::new(EngineConfig { threads: Some(4), tiers, retry, ..EngineConfig::default() }).unwrap()
}

fn job(source: Arc<dyn Source>) -> JobConfig {
    JobConfig {
        ring: RingKind::Shared,
        batch: 16,
        epochs: Some(3),
        staging: Bytes(400_000),
        ..JobConfig::new(source)
    }
}

#[test]
fn a_worker_process_reads_every_sample_in_place() {
    let lend = Lend::ReadOnly; // Has no effect here: a tier's memory cannot be mapped.
    let config = JobConfig { lend, ..job(Arc::new(source())) };
    let mut loader = engine(Retry::default()).start(&config).unwrap();
    let mut worker = Worker::new(&loader);
    let mut seen = 0;
    while let Some(batch) = loader.next_batch().unwrap() {
        for index in 0..batch.len() {
            let place = batch.place(index).expect("all samples are in their slots");
            worker.tell(batch.get(index).unwrap().id, place);
        }
        // The batch is held until the worker has answered for all of it.
        assert!((0..batch.len()).all(|_| worker.hear()));
        seen += batch.len() as u32;
    }
    assert_eq!(seen, 3 * SAMPLES);
    worker.end();
}

#[test]
fn a_sample_that_is_not_in_the_ring_has_no_place_and_its_bytes_are_in_the_parent() {
    let rates = Fault::ALL.map(|fault| if fault == Fault::Hang { 0.02 } else { 0.0 });
    let spec =
        FaultSpec { rates, hang: Duration::from_millis(80), seed: 5, ..FaultSpec::default() };
    let retry = Retry {
        attempts: 20,
        backoff: Duration::from_micros(100),
        timeout: Duration::from_millis(40),
    };
    let known = source();
    let config = job(Arc::new(Faulty::new(source(), spec)));
    let config = JobConfig { bad_samples: BadSamples::Raise, ..config };
    let mut loader = engine(retry).start(&config).unwrap();
    let mut worker = Worker::new(&loader);
    let (mut in_ring, mut sent) = (0, 0);
    while let Some(batch) = loader.next_batch().unwrap() {
        let told: Vec<bool> = (0..batch.len())
            .map(|index| {
                let sample = batch.get(index).unwrap();
                assert!(known.verify(sample.id, sample.bytes()));
                let place = batch.place(index);
                place.inspect(|&place| worker.tell(sample.id, place)).is_some()
            })
            .collect();
        in_ring += told.iter().filter(|&&told| told).count();
        sent += told.iter().filter(|&&told| !told).count();
        assert!(told.into_iter().filter(|&told| told).all(|_| worker.hear()));
    }
    assert_eq!(in_ring + sent, 3 * SAMPLES as usize);
    assert!(in_ring > 0 && sent > 0, "{in_ring} in the ring, {sent} elsewhere");
    worker.end();
}

#[test]
fn a_private_ring_has_nothing_to_map() {
    let config = JobConfig { ring: RingKind::Private, ..job(Arc::new(source())) };
    let mut loader = engine(Retry::default()).start(&config).unwrap();
    assert!(loader.shared_memory().is_none());
    assert_eq!(loader.next_batch().unwrap().unwrap().place(0), None);
}
