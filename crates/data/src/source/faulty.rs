//! A source with injected faults.
//!
//! The seed, the sample and the number of earlier reads of it decide whether and how a read fails,
//! not threads, time or other samples. A request of several samples fails with the first of them
//! that fails; those behind it do not count as read.
//!
//! In a format without checksums, corrupted bytes cannot be noticed. So [`Fault::Corrupt`] flips a
//! bit, and with [`FaultSpec::checksums`], as for a format that has them, the read then fails.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use belady_base::SampleId;
use belady_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use rustix::io::Errno;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{Catalog, Operations, ReadError, Source, Want};

/// What can go wrong with a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operating system reports an input/output error.
    Error,
    /// Fewer bytes come than requested.
    Short,
    /// Nothing comes for a while, and then an error.
    Hang,
    /// A checksum does not match.
    Damaged,
    /// A bit is flipped in the bytes.
    Corrupt,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 5] = [Self::Error, Self::Short, Self::Hang, Self::Damaged, Self::Corrupt];
}

/// How unreliable a source is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultSpec {
    /// The share of reads of single samples with each fault, in the order of [`Fault::ALL`];
    /// together at most 1.
    pub rates: [f64; 5],
    /// How long a hanging read hangs.
    pub hang: Duration,
    /// Whether flipped bits are noticed, as in a format with checksums.
    pub checksums: bool,
    /// Samples that can never be read.
    pub broken: BTreeSet<SampleId>,
    /// Decides which reads fail.
    pub seed: u64,
}

impl FaultSpec {
    /// Creates a spec with every fault at the same rate, and with checksums.
    pub fn all_at(rate: f64, seed: u64) -> Self {
        Self { rates: [rate; 5], checksums: true, seed, ..Self::default() }
    }

    /// Returns the fault of the read of a sample after `attempt` earlier ones, and a random number
    /// for its details.
    fn draw(&self, sample: SampleId, attempt: u32) -> (Option<Fault>, u64) {
        let [a, b, c, d] = sample.to_le_bytes();
        let [e, f, g, h] = attempt.to_le_bytes();
        let draw = xxh3_64_with_seed(&[a, b, c, d, e, f, g, h], self.seed);
        // In [0, 1).
        let mut rest = (draw >> 11) as f64 / 2f64.powi(53);
        for (fault, rate) in Fault::ALL.into_iter().zip(self.rates) {
            if rest < rate {
                return (Some(fault), draw);
            }
            rest -= rate;
        }
        (None, draw)
    }
}

/// A source with injected faults.
#[derive(Debug)]
pub struct Faulty<S> {
    source: S,
    spec: FaultSpec,
    /// How often each sample was read.
    attempts: Vec<AtomicU32>,
    faults: [AtomicU64; 5],
    broken_reads: AtomicU64,
}

impl<S: Source> Faulty<S> {
    /// Wraps a source.
    pub fn new(source: S, spec: FaultSpec) -> Self {
        let attempts = (0..source.catalog().len()).map(|_| AtomicU32::new(0)).collect();
        let faults = Fault::ALL.map(|_| AtomicU64::new(0));
        Self { source, spec, attempts, faults, broken_reads: AtomicU64::new(0) }
    }

    /// Returns the wrapped source.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Returns how many reads have had this fault so far.
    pub fn count(&self, fault: Fault) -> u64 {
        self.faults[fault as usize].load(Ordering::Relaxed)
    }

    /// Returns how many reads of [`FaultSpec::broken`] samples there were so far.
    pub fn broken_count(&self) -> u64 {
        self.broken_reads.load(Ordering::Relaxed)
    }

    /// Returns the fault of this read of a sample, and counts the read.
    fn next_fault(&self, sample: SampleId) -> (Option<Fault>, u64) {
        let attempt = self.attempts[sample as usize].fetch_add(1, Ordering::Relaxed);
        self.spec.draw(sample, attempt)
    }

    /// Returns the error of a fault that does not change the bytes.
    fn fail(&self, fault: Fault, want: &Want<'_>, draw: u64) -> ReadError {
        let (sample, path) = (want.sample, fault_path());
        let expected = want.into.len() as u64;
        match fault {
            Fault::Error => ReadError::Io { sample, path, error: Errno::IO.into() },
            Fault::Short => {
                ReadError::Short { sample, path, expected, got: draw % expected.max(1) }
            }
            Fault::Hang => {
                std::thread::sleep(self.spec.hang);
                ReadError::Io { sample, path, error: Errno::TIMEDOUT.into() }
            }
            Fault::Damaged | Fault::Corrupt => damaged(sample, "its checksum does not match"),
        }
    }

    /// Flips a bit; with checksums that is an error.
    fn corrupt(&self, want: &mut Want<'_>, draw: u64) -> Result<(), ReadError> {
        let checksum = xxh3_64(want.into);
        let at = (draw >> 3) % want.into.len() as u64;
        want.into[at as usize] ^= 1 << (draw % 8);
        if self.spec.checksums && xxh3_64(want.into) != checksum {
            return Err(self.fail(Fault::Corrupt, want, draw));
        }
        Ok(())
    }

    fn count_fault(&self, fault: Fault) {
        self.faults[fault as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl<S: Source> Source for Faulty<S> {
    fn catalog(&self) -> &Catalog {
        self.source.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        let mut corrupt = Vec::new();
        for (at, want) in wants.iter().enumerate() {
            if self.spec.broken.contains(&want.sample) {
                self.broken_reads.fetch_add(1, Ordering::Relaxed);
                return Err(damaged(want.sample, "it was made to fail on every attempt"));
            }
            match self.next_fault(want.sample) {
                (None, _) => {}
                // An empty sample has no bit to flip and cannot be shorter.
                (Some(Fault::Corrupt | Fault::Short), _) if want.into.is_empty() => {}
                (Some(Fault::Corrupt), draw) => corrupt.push((at, draw)),
                (Some(fault), draw) => {
                    self.count_fault(fault);
                    return Err(self.fail(fault, want, draw));
                }
            }
        }
        self.source.read(wants)?;
        for (at, draw) in corrupt {
            self.count_fault(Fault::Corrupt);
            self.corrupt(&mut wants[at], draw)?;
        }
        Ok(())
    }

    fn operations(&self) -> Operations {
        self.source.operations()
    }

    super::forward_versions!(self, self.source);
}

fn damaged(sample: SampleId, damage: &str) -> ReadError {
    ReadError::Damaged { sample, path: fault_path(), damage: damage.to_owned() }
}

/// Returns the path that errors name: the file is not at fault.
fn fault_path() -> PathBuf {
    PathBuf::from("a source with injected faults")
}
