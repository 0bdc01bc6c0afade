//! What an access costs, as NoPFS (section 4) and HDMLP (section 3.1) model it.
//!
//! A sample reaches the consumer in two steps: *fetch* brings its bytes into memory from the
//! source, a peer or a local tier; *write* preprocesses it and stores it in the staging buffer. p_0
//! threads do both ahead of the consumer, which takes samples in order and computes on each. A
//! sample is consumed as soon as it is available and the one before it is done (eq. 3.2); all other
//! formulas feed that maximum.
//!
//! Both papers print the same formulas; where one adds a term (b_fs), it is implemented. Equation
//! numbers are HDMLP's, since NoPFS prints none.
#![allow(clippy::doc_markdown, reason = "symbols and names as the papers print them")]

use super::preprocess::PreprocessWork;
use super::system::{Pipeline, Readers, Sharing, System};
use belady_base::units::{Bytes, Rate, Seconds};

/// Where one thread fetches a sample from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FetchLocation {
    /// The source, while γ readers (this one included) read it.
    Source {
        /// γ.
        readers: u32,
    },
    /// Another node's tier.
    Peer {
        /// j.
        tier: usize,
    },
    /// A tier of this node.
    Local {
        /// j.
        tier: usize,
    },
}

/// Returns what one thread gets from the source while γ readers read it; the denominator of
/// eq. 3.5.
///
/// Under [`Sharing::PerThread`] this is the papers' min(b_fs, t(γ)/γ) for every
/// thread. Under [`Sharing::Aggregate`] the p_0 threads of a node share what the
/// node gets, so that all readers together never exceed t(γ).
pub fn source_rate(system: &System, readers: u32) -> Rate {
    let source = &system.source;
    let gamma = readers.max(1);
    let share = source.throughput.at(gamma) / f64::from(gamma);
    let threads = f64::from(system.staging_threads());
    match (source.sharing, source.readers) {
        (Sharing::PerThread, _) => source.link.min(share),
        (Sharing::Aggregate, Readers::Nodes) => source.link.min(share) / threads,
        (Sharing::Aggregate, Readers::Threads) => (source.link / threads).min(share),
    }
}

/// Returns min(b_c, r_j(p_j)/p_j), what one thread gets from a peer's tier; the denominator of
/// eq. 3.6.
pub fn peer_rate(system: &System, tier: usize) -> Rate {
    system.network.min(local_rate(system, tier))
}

/// Returns r_j(p_j)/p_j, what one thread gets from a local tier; the denominator of eq. 3.7.
pub fn local_rate(system: &System, tier: usize) -> Rate {
    system.tiers[tier].read_rate_per_thread()
}

/// Returns the rate at which one thread fetches from `location`.
pub fn fetch_rate(system: &System, location: FetchLocation) -> Rate {
    match location {
        FetchLocation::Source { readers } => source_rate(system, readers),
        FetchLocation::Peer { tier } => peer_rate(system, tier),
        FetchLocation::Local { tier } => local_rate(system, tier),
    }
}

/// Returns fetch_{i,0,0}, fetch_{i,1,j} or fetch_{i,2,j} (eq. 3.5, 3.6, 3.7).
pub fn fetch(system: &System, size: Bytes, location: FetchLocation) -> Seconds {
    size / fetch_rate(system, location)
}

/// Returns the fastest of the given locations, the first among equals, as NoPFS (section 4) does;
/// `None` if there are none.
pub fn fastest(
    system: &System,
    locations: impl IntoIterator<Item = FetchLocation>,
) -> Option<(FetchLocation, Rate)> {
    let mut best: Option<(FetchLocation, Rate)> = None;
    for location in locations {
        let rate = fetch_rate(system, location);
        if best.is_none_or(|(_, best_rate)| rate > best_rate) {
            best = Some((location, rate));
        }
    }
    best
}

/// Returns write_i(k) = max(s/β, s/(w_0(p_0)/p_0)): preprocessing and storing in the
/// staging buffer, pipelined (unnumbered, after eq. 3.4). Where preprocessing was measured, β is the
/// rate of one of p_0 threads at work.
pub fn write(system: &System, size: Bytes) -> Seconds {
    let mut work = PreprocessWork::default();
    system.preprocess.add(&mut work, size.0);
    let threads = f64::from(system.staging_threads());
    system.preparing_time(&work, threads) * threads
}

/// Returns read_i(k) (eq. 3.4): fetch + write when one thread does both in turn
/// ([`Pipeline::Serial`], as printed); the longer of the two when they are
/// stages of p_0 threads each ([`Pipeline::Overlapped`]), which is what a steady
/// pipeline spends on a sample.
pub fn read(system: &System, size: Bytes, location: FetchLocation) -> Seconds {
    let fetch = fetch(system, size, location);
    let write = write(system, size);
    match system.pipeline {
        Pipeline::Serial => fetch + write,
        Pipeline::Overlapped => fetch.max(write),
    }
}

/// One entry of a worker's access stream R: its size and its read time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Access {
    /// s_k.
    pub size: Bytes,
    /// read_i(k).
    pub read: Seconds,
}

/// Returns avail_i(f) for f = 1, 2, ... (eq. 3.3): the reads so far, shared evenly by the
/// p_0 staging threads.
pub fn avail(
    system: &System,
    reads: impl IntoIterator<Item = Seconds>,
) -> impl Iterator<Item = Seconds> {
    let threads = f64::from(system.staging_threads());
    reads.into_iter().scan(Seconds::ZERO, move |sum, read| {
        *sum += read;
        Some(*sum / threads)
    })
}

/// Returns t_{i,f} for f = 1, 2, ... (eq. 3.2): when the worker begins to consume R_f.
///
/// The run ends s/c after the last of them; see [`run_time`].
pub fn consumption(
    system: &System,
    accesses: impl IntoIterator<Item = Access>,
) -> impl Iterator<Item = Seconds> {
    let compute = system.compute;
    let threads = f64::from(system.staging_threads());
    let mut reads = Seconds::ZERO;
    let mut free = Seconds::ZERO;
    accesses.into_iter().map(move |access| {
        reads += access.read;
        let start = free.max(reads / threads);
        free = start + compute.time(1, access.size.as_f64());
        start
    })
}

/// Returns when the worker has computed on its last sample: t_{i,|R|} + s_{R_|R|}/c.
///
/// The papers call t_{i,|R|} the training time (eq. 3.9), which leaves out the
/// last sample's compute.
pub fn run_time(system: &System, accesses: impl IntoIterator<Item = Access>) -> Seconds {
    let mut last = Seconds::ZERO;
    let compute = |access: &Access| system.compute.time(1, access.size.as_f64());
    let accesses = accesses.into_iter().inspect(|access| last = compute(access));
    let start = consumption(system, accesses).last().unwrap_or(Seconds::ZERO);
    start + last
}

/// Returns the worst case, in which the consumer always waits: Σ read / p_0 (eq. 3.9,
/// 3.10).
pub fn worst_case(system: &System, accesses: impl IntoIterator<Item = Access>) -> Seconds {
    let reads: Seconds = accesses.into_iter().map(|access| access.read).sum();
    reads / f64::from(system.staging_threads())
}

/// Where a sample is held. `None` is the papers' throughput of zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// The fastest local tier.
    pub local: Option<usize>,
    /// The fastest tier of another node.
    pub remote: Option<usize>,
}

/// Returns the rate of the fastest location of a placed sample; the denominator of eq. 3.12 and
/// 3.13.
pub fn placed_rate(system: &System, placed: Placed, readers: u32) -> Rate {
    let local = placed.local.map(|tier| local_rate(system, tier));
    let remote = placed.remote.map(|tier| peer_rate(system, tier));
    [local, remote].into_iter().flatten().fold(source_rate(system, readers), Rate::max)
}

/// Returns the placement objective Σ r_k·s_k / rate (eq. 3.13) over the samples, given as
/// (r_k, s_k, where). With r_k = 1 and one entry an access it is eq. 3.12.
pub fn placement_cost(
    system: &System,
    readers: u32,
    samples: impl IntoIterator<Item = (u32, Bytes, Placed)>,
) -> Seconds {
    samples
        .into_iter()
        .map(|(accesses, size, placed)| {
            size / placed_rate(system, placed, readers) * f64::from(accesses)
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Curve, SourceModel, TierModel};

    const MB: f64 = 1e6;

    /// HDMLP's small cluster, with rates that divide well.
    fn system(pipeline: Pipeline, sharing: Sharing) -> System {
        let rate = |mb: f64| Rate(mb * MB);
        let tier = |name: &str, threads, read, write| TierModel {
            name: name.into(),
            capacity: Bytes(1_000_000_000),
            by_node: vec![],
            threads,
            read: Curve::flat(rate(read)),
            write: Curve::flat(rate(write)),
        };
        System {
            nodes: 4,
            ranks_per_node: 1,
            compute: rate(100.0).into(),
            preprocess: rate(200.0).into(),
            network: rate(1_000.0),
            source: SourceModel {
                throughput: Curve::new(vec![(1, rate(60.0)), (4, rate(120.0))]).unwrap(),
                link: rate(50.0),
                sharing,
                readers: Readers::Nodes,
            },
            tiers: vec![
                tier("staging", 2, 8_000.0, 600.0),
                tier("ram", 4, 8_000.0, 8_000.0),
                tier("ssd", 2, 800.0, 400.0),
            ],
            pipeline,
        }
    }

    fn printed() -> System {
        system(Pipeline::Serial, Sharing::PerThread)
    }

    fn close(a: Seconds, b: f64) {
        assert!((a.0 - b).abs() < 1e-12 * b.abs().max(1.0), "{a:?} is not {b}");
    }

    const SIZE: Bytes = Bytes(6_000_000);

    #[test]
    fn fetch_times_by_hand() {
        let system = printed();
        // One reader: t(1)/1 = 60 MB/s, but the link gives 50.
        close(fetch(&system, SIZE, FetchLocation::Source { readers: 1 }), 6.0 / 50.0);
        // Four readers: 120/4 = 30 MB/s each.
        close(fetch(&system, SIZE, FetchLocation::Source { readers: 4 }), 6.0 / 30.0);
        // Two: 60 + (120-60)/3 = 80, 40 each.
        close(fetch(&system, SIZE, FetchLocation::Source { readers: 2 }), 6.0 / 40.0);
        // RAM: 8000/4 = 2000 MB/s a thread, the network gives 1000.
        close(fetch(&system, SIZE, FetchLocation::Local { tier: 1 }), 6.0 / 2_000.0);
        close(fetch(&system, SIZE, FetchLocation::Peer { tier: 1 }), 6.0 / 1_000.0);
        // SSD: 800/2 = 400 MB/s a thread, locally or over the network.
        close(fetch(&system, SIZE, FetchLocation::Local { tier: 2 }), 6.0 / 400.0);
        close(fetch(&system, SIZE, FetchLocation::Peer { tier: 2 }), 6.0 / 400.0);
    }

    #[test]
    fn write_takes_the_slower_of_preprocessing_and_storing() {
        let mut system = printed();
        // β = 200 against 600/2 = 300 MB/s.
        close(write(&system, SIZE), 6.0 / 200.0);
        system.preprocess = Rate(400.0 * MB).into();
        close(write(&system, SIZE), 6.0 / 300.0);
    }

    #[test]
    fn read_is_serial_as_printed_or_overlapped() {
        let ssd = FetchLocation::Local { tier: 2 };
        close(read(&printed(), SIZE, ssd), 6.0 / 400.0 + 6.0 / 200.0);
        let overlapped = system(Pipeline::Overlapped, Sharing::PerThread);
        close(read(&overlapped, SIZE, ssd), 6.0 / 200.0);
    }

    #[test]
    fn aggregate_readers_never_exceed_the_source() {
        let mut system = system(Pipeline::Serial, Sharing::Aggregate);
        let all = |system: &System, readers: u32, threads: u32| {
            source_rate(system, readers).0 * f64::from(threads)
        };
        // 4 nodes of 2 threads share t(4) = 120.
        assert_eq!(all(&system, 4, 8), 120.0 * MB);
        // One node of 2 threads has its link, 50.
        assert_eq!(all(&system, 1, 2), 50.0 * MB);
        system.source.readers = Readers::Threads;
        // 8 threads: t(8) = t(4) = 120.
        assert_eq!(all(&system, 8, 8), 120.0 * MB);
    }

    #[test]
    fn fastest_takes_the_best_applicable() {
        let system = printed();
        let options = [
            FetchLocation::Source { readers: 1 },
            FetchLocation::Peer { tier: 2 },
            FetchLocation::Local { tier: 2 },
            FetchLocation::Peer { tier: 1 },
        ];
        let (location, rate) = fastest(&system, options).unwrap();
        assert_eq!((location, rate), (FetchLocation::Peer { tier: 1 }, Rate(1_000.0 * MB)));
        assert_eq!(fastest(&system, []), None);
    }

    #[test]
    fn consumption_by_hand() {
        let system = printed();
        let access = |mb: u64, read| Access { size: Bytes(mb * 1_000_000), read: Seconds(read) };
        // avail = 0.05, 0.10, 0.60, 0.65; compute = 0.06, 0.10, 0.02, 0.04.
        let stream = [access(6, 0.1), access(10, 0.1), access(2, 1.0), access(4, 0.1)];
        let at: Vec<f64> = avail(&system, stream.iter().map(|a| a.read)).map(|t| t.0).collect();
        assert_eq!(at, [0.05, 0.1, 0.6, 0.65]);
        let times: Vec<Seconds> = consumption(&system, stream).collect();
        for (time, expected) in times.iter().zip([0.05, 0.11, 0.6, 0.65]) {
            close(*time, expected);
        }
        close(run_time(&system, stream), 0.69);
        close(worst_case(&system, stream), 0.65);
        close(run_time(&system, []), 0.0);
    }

    #[test]
    fn placement_cost_by_hand() {
        let system = printed();
        let nowhere = Placed::default();
        let ram = Placed { local: Some(1), remote: Some(2) };
        let remote = Placed { local: None, remote: Some(1) };
        let cost = placement_cost(
            &system,
            4,
            [(3, SIZE, ram), (2, SIZE, remote), (1, SIZE, nowhere), (0, SIZE, nowhere)],
        );
        close(cost, 3.0 * 6.0 / 2_000.0 + 2.0 * 6.0 / 1_000.0 + 6.0 / 30.0);
    }

    #[test]
    fn caching_the_frequent_sample_is_cheaper() {
        let system = printed();
        let ram = Placed { local: Some(1), remote: None };
        let cost =
            |often, seldom| placement_cost(&system, 4, [(9, SIZE, often), (4, SIZE, seldom)]).0;
        assert!(cost(ram, Placed::default()) < cost(Placed::default(), ram));
    }
}
