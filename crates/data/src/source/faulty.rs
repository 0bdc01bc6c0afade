//! Makes a source unreliable, as storage is over a long enough time.
//!
//! Whether and how a read of a sample fails is decided by the seed, the sample and how often
//! it was asked for before, and by nothing else: not by threads, time or other samples. A
//! request of several samples fails with the first of them that does; those behind it do not
//! count as asked for.
//!
//! Bytes that change unnoticed are the one fault nobody can guard against where the format
//! has no checksum. So `corrupt` flips a bit in what was read, and with `checksums` set, as
//! for a format that has them, a check finds it and the read fails.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use rustix::io::Errno;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::{Catalog, Operations, ReadError, Source, Want};
use crate::SampleId;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What may go wrong with a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operating system reports an input/output error.
    Error,
    /// Fewer bytes come than asked for.
    Short,
    /// Nothing comes for a while, and then an error.
    Hang,
    /// A checksum does not match.
    Damaged,
    /// A bit is flipped in the bytes.
    Corrupt,
}

impl Fault {
    pub const ALL: [Self; 5] = [Self::Error, Self::Short, Self::Hang, Self::Damaged, Self::Corrupt];
}

/// How unreliable a source is to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultSpec {
    /// Which share of the reads of single samples meets each fault, in the order of
    /// [`Fault::ALL`]; together at most 1.
    pub rates: [f64; 5],
    /// How long a hanging read hangs.
    pub hang: Duration,
    /// Whether flipped bits are found, as where the format has checksums.
    pub checksums: bool,
    /// Samples that can never be read.
    pub broken: BTreeSet<SampleId>,
    pub seed: u64,
}

impl FaultSpec {
    /// Every fault at the same rate, noticed as with checksums.
    pub fn all_at(rate: f64, seed: u64) -> Self {
        Self { rates: [rate; 5], checksums: true, seed, ..Self::default() }
    }

    /// What happens to the read of a sample that was asked for `attempt` times before, and a
    /// number that decides the rest.
    fn draw(&self, sample: SampleId, attempt: u32) -> (Option<Fault>, u64) {
        let [a, b, c, d] = sample.to_le_bytes();
        let [e, f, g, h] = attempt.to_le_bytes();
        let draw = xxh3_64_with_seed(&[a, b, c, d, e, f, g, h], self.seed);
        // From 0 to 1, 1 left out.
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

/// An unreliable source.
#[derive(Debug)]
pub struct Faulty<S> {
    source: S,
    spec: FaultSpec,
    /// How often each sample was asked for.
    attempts: Vec<AtomicU32>,
    met: [AtomicU64; 5],
    broken_met: AtomicU64,
}

impl<S: Source> Faulty<S> {
    pub fn new(source: S, spec: FaultSpec) -> Self {
        let attempts = (0..source.catalog().len()).map(|_| AtomicU32::new(0)).collect();
        let met = Fault::ALL.map(|_| AtomicU64::new(0));
        Self { source, spec, attempts, met, broken_met: AtomicU64::new(0) }
    }

    pub fn source(&self) -> &S {
        &self.source
    }

    /// How many reads have met this fault so far.
    pub fn count(&self, fault: Fault) -> u64 {
        self.met[fault as usize].load(Ordering::Relaxed)
    }

    /// How many reads of samples that can never be read there were so far.
    pub fn broken_count(&self) -> u64 {
        self.broken_met.load(Ordering::Relaxed)
    }

    /// What happens to this read of a sample; counts it as asked for.
    fn next_fault(&self, sample: SampleId) -> (Option<Fault>, u64) {
        let attempt = self.attempts[sample as usize].fetch_add(1, Ordering::Relaxed);
        self.spec.draw(sample, attempt)
    }

    /// Meets a fault that does not touch the bytes.
    fn fail(&self, fault: Fault, want: &Want<'_>, draw: u64) -> ReadError {
        let (sample, path) = (want.sample, place());
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

    /// Flips a bit; with checksums this is noticed.
    fn corrupt(&self, want: &mut Want<'_>, draw: u64) -> Result<(), ReadError> {
        let checksum = xxh3_64(want.into);
        let at = (draw >> 3) % want.into.len() as u64;
        want.into[at as usize] ^= 1 << (draw % 8);
        if self.spec.checksums && xxh3_64(want.into) != checksum {
            return Err(self.fail(Fault::Corrupt, want, draw));
        }
        Ok(())
    }

    fn meet(&self, fault: Fault) {
        self.met[fault as usize].fetch_add(1, Ordering::Relaxed);
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
                self.broken_met.fetch_add(1, Ordering::Relaxed);
                return Err(damaged(want.sample, "it was made to fail on every attempt"));
            }
            match self.next_fault(want.sample) {
                (None, _) => {}
                // Nothing has no bit that could flip, and cannot be shorter.
                (Some(Fault::Corrupt | Fault::Short), _) if want.into.is_empty() => {}
                (Some(Fault::Corrupt), draw) => corrupt.push((at, draw)),
                (Some(fault), draw) => {
                    self.meet(fault);
                    return Err(self.fail(fault, want, draw));
                }
            }
        }
        self.source.read(wants)?;
        for (at, draw) in corrupt {
            self.meet(Fault::Corrupt);
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
    ReadError::Damaged { sample, path: place(), damage: damage.to_owned() }
}

/// What errors name as the place of a sample: the file is not to blame.
fn place() -> PathBuf {
    PathBuf::from("a source with injected faults")
}
