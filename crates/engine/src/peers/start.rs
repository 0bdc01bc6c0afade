//! Starts a job on all nodes, and makes sure that it is the same job.
//!
//! Nodes exchange a header at the rendezvous: the facts that they have to agree on, and the sizes
//! of their caches. What their caches hold is one bit a sample, which each node gets from the
//! others directly; it is only a hint, and a node that does not answer counts as cold. A node that
//! cannot start the job reports why at the exchange where the others wait for it ([`refuse`]).

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use belady_base::sync::{Arc, Condvar, Mutex};
use belady_control::bits::Bits;
use belady_data::source::Source;
use belady_peer::protocol::claims::Claims;
use belady_peer::protocol::epoch_progress::FinishedEpochs;
use belady_peer::protocol::health::Health;
use belady_peer::protocol::step_fence::StepFence;
use belady_peer::{Bulk, Channel, Cluster, JobWorld, NodeId, RendezvousError, compare, share};
use serde::{Deserialize, Serialize};

use super::digests::Digests;
use super::notices::Notices;
use super::push::PushState;
use super::repeats::StagedOrders;
use super::tier_workers::TierWorkers;
use super::{PeerStatus, Peers};
use crate::EngineError;
use crate::config::PeerPatience;
use crate::job::JobContext;
use crate::pending::PendingQueue;
use crate::tiers::TierSet;

/// The caches of a node when a job starts.
#[derive(Clone, Debug)]
pub struct NodeCaches {
    /// By tier, in bytes.
    pub capacities: Vec<u64>,
    /// What the caches hold, one bit a sample; empty for nothing.
    pub warm: Vec<u64>,
}

/// A node's side of a job, as it is exchanged at the rendezvous.
#[derive(Debug, Serialize, Deserialize)]
struct JobHeader {
    /// What all nodes must have in common: names and values.
    facts: Vec<(String, String)>,
    capacities: Vec<u64>,
    /// The number of words of bits that other nodes can fetch.
    warm: usize,
}

/// A job that all nodes have agreed on.
#[derive(Debug)]
pub struct AgreedJob {
    pub cluster: Arc<Cluster>,
    pub channel: Channel,
    pub all: Vec<NodeCaches>,
    /// The bytes that plans count on, by node and tier: the same on every node.
    pub capacities: Vec<Vec<u64>>,
    /// Other nodes may still fetch it.
    pub bulk: Bulk,
}

impl AgreedJob {
    /// Exchanges the facts and caches of all nodes.
    ///
    /// # Errors
    /// Names the first fact that differs, or the rank that cannot start the job and why.
    pub fn new(
        cluster: &Arc<Cluster>,
        facts: &[(&str, String)],
        mine: &NodeCaches,
    ) -> Result<Self, EngineError> {
        let channel = cluster.next_channel();
        // Before the other nodes know of it, so that each request is answered.
        let words = mine.warm.iter().flat_map(|word| word.to_le_bytes());
        let bulk = Bulk::offer(cluster, words.collect());
        let gathered = share(&*cluster.rendezvous, &job(channel), Ok(&header(facts, mine)))
            .map_err(EngineError::from)
            .and_then(|headers| agreed_headers(&headers, mine))
            .map(|headers| caches_of_all(cluster, &bulk, mine, headers));
        let is_over = |error: &EngineError| {
            matches!(error, EngineError::Rendezvous(RendezvousError::Over(_)))
        };
        let agreed = match gathered {
            Ok(all) => agree_on_capacities(cluster, channel, &all).map(|agreed| (all, agreed)),
            Err(error) if is_over(&error) => Err(error),
            Err(error) => Err(cannot_take_part(cluster, &capacities(channel), error)),
        };
        let (all, capacities) = match agreed {
            Ok(agreed) => agreed,
            Err(error) if is_over(&error) => alone(cluster, channel, mine),
            Err(error) => {
                release(cluster, channel);
                return Err(error);
            }
        };
        Ok(Self { cluster: cluster.clone(), channel, all, capacities, bulk })
    }

    /// Tells the other nodes, which wait for this node to serve, why it gives up the job.
    pub fn give_up(&self, error: EngineError) -> EngineError {
        let error = cannot_take_part(&self.cluster, &serves(self.channel), error);
        release(&self.cluster, self.channel);
        error
    }

    /// Returns the job's view of the other nodes. `push_limit` is the size of the push queue in
    /// bytes; with `in_step`, nodes put samples into each other's tiers.
    pub fn into_peers(
        self,
        job: &Arc<JobContext>,
        queue: &Arc<PendingQueue>,
        push_limit: u64,
        limits: PeerPatience,
        in_step: bool,
    ) -> Peers {
        let (world, samples) = (self.cluster.world(), job.sizes.len());
        let nodes = world.size;
        let tiers = self.capacities[world.rank as usize].len();
        let bits = |one: &NodeCaches| Bits::from_words(samples, &one.warm);
        let any_warm = self.all.iter().any(|one| !one.warm.is_empty());
        Peers {
            job: job.clone(),
            queue: queue.clone(),
            channel: self.channel,
            me: world.rank,
            nodes,
            limits,
            in_step,
            is_leaving: AtomicBool::new(false),
            started: Instant::now(),
            status: Mutex::new(PeerStatus {
                health: Health::new(nodes),
                epochs: FinishedEpochs::new(nodes),
                fence: StepFence::new(world.rank, nodes, u64::MAX, limits.wait),
                incarnations: vec![0; nodes as usize],
            }),
            changed: Condvar::new(),
            gates: (0..nodes).map(|_| Mutex::default()).collect(),
            push: Mutex::new(PushState::new(nodes, push_limit, limits.wait)),
            notices: Mutex::new(Notices::new(nodes)),
            claims: (0..tiers).map(|_| Mutex::new(Claims::new(samples))).collect(),
            digests: Digests::new(samples),
            orders: StagedOrders::default(),
            warm: if any_warm { self.all.iter().map(bits).collect() } else { vec![] },
            tier_workers: TierWorkers::new(tiers),
            bulk: Mutex::new(Some(self.bulk)),
            cluster: self.cluster,
        }
    }
}

/// Returns the caches for a job that all other nodes have ended: this node runs it alone, as if the
/// others were like it and did not answer.
fn alone(
    cluster: &Cluster,
    channel: Channel,
    mine: &NodeCaches,
) -> (Vec<NodeCaches>, Vec<Vec<u64>>) {
    tracing::warn!(
        job = channel.0,
        "all other ranks have ended this job; this rank runs it alone and reads from the source \
         what their caches would hold"
    );
    let cold = NodeCaches { warm: vec![], ..mine.clone() };
    let nodes = cluster.world().size as usize;
    (vec![cold; nodes], vec![mine.capacities.clone(); nodes])
}

/// Returns the capacities that plans count on, by node and tier: what each node reported when the
/// job began. A node that was started again with other capacities takes those that the others count
/// on. Each node reports its own and those of the next node, so that one node always knows: a few
/// bytes a node, however many there are.
fn agree_on_capacities(
    cluster: &Cluster,
    channel: Channel,
    all: &[NodeCaches],
) -> Result<Vec<Vec<u64>>, EngineError> {
    let JobWorld { rank, size } = cluster.world();
    let (me, size) = (rank as usize, size as usize);
    let (before, next) = ((me + size - 1) % size, (me + 1) % size);
    let exchange = |of_all: &[Vec<u64>]| -> Result<Vec<[Vec<u64>; 2]>, EngineError> {
        let words = of_all[me].iter().chain(&of_all[next]);
        let bytes: Vec<u8> = words.flat_map(|capacity| capacity.to_le_bytes()).collect();
        let told = share(&*cluster.rendezvous, &capacities(channel), Ok(&bytes))?;
        let read = (0..).zip(&told).map(|(of, told)| own_and_next(of, told, of_all[me].len()));
        read.collect::<Result<_, _>>()
            .map_err(|error| cannot_take_part(cluster, &serves(channel), error))
    };
    let reported: Vec<Vec<u64>> = all.iter().map(|one| one.capacities.clone()).collect();
    let mut told = exchange(&reported)?;
    told[me][0] = std::mem::take(&mut told[before][1]);
    let agreed: Vec<Vec<u64>> = told.into_iter().map(|[own, _]| own).collect();
    if (&agreed[me], &agreed[next]) != (&reported[me], &reported[next]) {
        // The next node that is started again gets the agreed capacities, not those found here.
        exchange(&agreed)?;
    }
    Ok(agreed)
}

/// Reads the capacities of a node and of the next one, each of so many tiers.
fn own_and_next(node: NodeId, told: &[u8], tiers: usize) -> Result<[Vec<u64>; 2], EngineError> {
    let (words, rest) = told.as_chunks::<8>();
    if words.len() != 2 * tiers || !rest.is_empty() {
        return Err(EngineError::Peers(format!(
            "rank {node} reports the capacities of its caches in another form: run the same \
             version of belady on all ranks"
        )));
    }
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (own, next) = words.split_at(tiers);
    Ok([own.to_vec(), next.to_vec()])
}

/// Names of the exchanges of a job.
fn job(channel: Channel) -> String {
    format!("loader {}", channel.0)
}

fn capacities(channel: Channel) -> String {
    format!("loader {}, its room", channel.0)
}

pub(super) fn serves(channel: Channel) -> String {
    format!("loader {} serves", channel.0)
}

/// Releases what was exchanged for a job.
pub(super) fn release(cluster: &Cluster, channel: Channel) {
    for name in [job(channel), capacities(channel), serves(channel)] {
        cluster.rendezvous.release(&name);
    }
}

/// Tells the other nodes why this node does not start the job that they are about to start. Logs
/// the reason first, because it waits for them.
pub fn refuse(cluster: &Cluster, error: &EngineError) {
    tracing::error!("this rank cannot start a job and tells all others: {error}");
    let channel = cluster.next_channel();
    let _bulk = Bulk::offer(cluster, vec![]);
    // Whatever the outcome, the caller gets the error of this node.
    let _ = share(&*cluster.rendezvous, &job(channel), Err(&error.to_string()));
    release(cluster, channel);
}

/// Tells the other nodes why this node gives up the job, at the exchange that they come to next.
fn cannot_take_part(cluster: &Cluster, next: &str, error: EngineError) -> EngineError {
    // The other nodes know their own errors.
    if !matches!(error, EngineError::Rendezvous(_)) {
        tracing::error!("this rank gives up a job and tells all others: {error}");
        // Whatever the outcome, the caller gets the error of this node.
        let _ = share(&*cluster.rendezvous, next, Err(&error.to_string()));
    }
    error
}

fn header(facts: &[(&str, String)], mine: &NodeCaches) -> Vec<u8> {
    let header = JobHeader {
        facts: facts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        capacities: mine.capacities.clone(),
        warm: mine.warm.len(),
    };
    // Numbers and text can always be serialised.
    serde_json::to_vec(&header).unwrap_or_default()
}

/// Reads the headers of all nodes, and checks that they describe one job.
fn agreed_headers(headers: &[Vec<u8>], mine: &NodeCaches) -> Result<Vec<JobHeader>, EngineError> {
    let read = |header: &Vec<u8>| serde_json::from_slice::<JobHeader>(header);
    let mut headers = headers.iter().map(read).collect::<Result<Vec<_>, _>>().map_err(|error| {
        EngineError::Peers(format!(
            "a rank describes its job in another form: run the same version of belady on all \
             ranks ({error})"
        ))
    })?;
    let facts = headers.iter_mut().map(|header| std::mem::take(&mut header.facts));
    compare(&facts.collect::<Vec<_>>())?;
    let differs = |header: &JobHeader| header.capacities.len() != mine.capacities.len();
    match headers.iter().position(differs) {
        None => Ok(headers),
        Some(rank) => Err(EngineError::Peers(format!(
            "rank {rank} has another number of cache tiers than this one: give all ranks the same"
        ))),
    }
}

/// Returns the caches of all nodes, and fetches the bits of those that are warm.
fn caches_of_all(
    cluster: &Cluster,
    bulk: &Bulk,
    mine: &NodeCaches,
    headers: Vec<JobHeader>,
) -> Vec<NodeCaches> {
    let (me, size) = (cluster.world().rank as usize, headers.len());
    let warm_words = headers.iter().map(|header| header.warm).collect::<Vec<_>>();
    let mut all: Vec<NodeCaches> = headers
        .into_iter()
        .map(|header| NodeCaches { capacities: header.capacities, warm: vec![] })
        .collect();
    // From the next rank on, so that not all ranks fetch from the same one.
    let others = (me + 1..size).chain(0..me).filter(|&peer| warm_words[peer] > 0);
    let wanted: Vec<(NodeId, usize)> =
        others.map(|peer| (peer as NodeId, warm_words[peer].saturating_mul(8))).collect();
    for (&(peer, _), bytes) in wanted.iter().zip(bulk.of_all(cluster, &wanted)) {
        let words = bytes.unwrap_or_default();
        let words = words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        all[peer as usize].warm = words.collect();
    }
    all[me].warm.clone_from(&mine.warm);
    all
}

/// Returns what the caches hold at the start, one bit a sample; empty for nothing.
pub fn warm_bits(tiers: &TierSet, source: &dyn Source) -> Vec<u64> {
    if tiers.are_empty() {
        return vec![];
    }
    let samples = source.catalog().len();
    let mut held = Bits::new(samples);
    for sample in (0..samples).filter(|&sample| tiers.find(sample).is_some()) {
        held.insert(sample);
    }
    held.words().to_vec()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, TcpListener};
    use std::time::Duration;

    use belady_peer::memory::MemoryTransport;
    use belady_peer::rendezvous::{InProcessRendezvous, RendezvousAddress, directory, tcp};
    use belady_peer::{JobKey, JoinOptions, Rendezvous, join};

    use super::*;
    use crate::peers::tests::idle_job;

    const LIMIT: Duration = Duration::from_mins(1);
    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Runs `work` on every rank of a cluster, and returns the results.
    fn on_all<T: Send>(
        size: u32,
        meet: impl Fn(JobWorld) -> Arc<dyn Rendezvous> + Sync,
        work: impl Fn(&Arc<Cluster>) -> T + Sync,
    ) -> Vec<T> {
        std::thread::scope(|scope| {
            let (meet, work) = (&meet, &work);
            let node = move |rank| {
                let cluster = join(meet(JobWorld { rank, size }), JoinOptions::default()).unwrap();
                work(&Arc::new(cluster))
            };
            let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || node(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Rank 0 is cold, rank 1 has some samples, rank 2 has all but one.
    fn held(rank: u32, samples: u32) -> Vec<u64> {
        let words = (0..u64::from(samples.div_ceil(64)))
            .map(|at| if rank == 1 { at.wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { !at & !1 });
        if rank == 0 { vec![] } else { words.collect() }
    }

    fn agree_at(samples: u32, meet: impl Fn(JobWorld) -> Arc<dyn Rendezvous> + Sync) {
        let heard = on_all(3, meet, |cluster| {
            let me = cluster.world().rank;
            let mine = NodeCaches { capacities: vec![7], warm: held(me, samples) };
            let agreed = AgreedJob::new(cluster, &[("a", "b".to_owned())], &mine).unwrap();
            // Others may still ask.
            cluster.rendezvous.exchange("the end", &[]).unwrap();
            agreed.all.iter().map(|one| one.warm.clone()).collect::<Vec<_>>()
        });
        for (me, heard) in heard.iter().enumerate() {
            for (rank, heard) in (0..).zip(heard) {
                assert!(*heard == held(rank, samples), "rank {rank} as rank {me} knows it");
            }
        }
    }

    #[test]
    fn all_nodes_know_what_the_caches_of_each_hold() {
        let rendezvous = InProcessRendezvous::new(3, LIMIT);
        agree_at(1000, |JobWorld { rank, .. }| rendezvous.member(rank));
    }

    #[test]
    fn warm_caches_of_100_million_samples_are_exchanged_at_every_kind_of_rendezvous() {
        for samples in [4_000_000, 100_000_000] {
            let rendezvous = InProcessRendezvous::new(3, LIMIT);
            agree_at(samples, |JobWorld { rank, .. }| rendezvous.member(rank));

            let free = TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap();
            let (place, key) =
                (free.to_string().parse::<RendezvousAddress>().unwrap(), JobKey::random().unwrap());
            agree_at(samples, |world| {
                let (job, key) = ("test".to_owned(), key.clone());
                tcp::start(&place, tcp::TcpRendezvousOptions { world, job, key, limit: LIMIT })
                    .unwrap()
            });

            let directory = tempfile::tempdir().unwrap();
            agree_at(samples, |world| {
                let (job, key, listen) = ("test".to_owned(), None, Some(LOOPBACK));
                directory::start(
                    directory.path(),
                    directory::DirectoryOptions { world, job, key, limit: LIMIT, listen },
                )
                .unwrap()
            });
        }
    }

    #[test]
    fn plans_count_on_the_capacity_of_each_node() {
        let rendezvous = InProcessRendezvous::new(3, LIMIT);
        let capacities = on_all(
            3,
            |JobWorld { rank, .. }| rendezvous.member(rank),
            |cluster| {
                let capacities = [[5, 9], [7, 3], [6, 6]][cluster.world().rank as usize];
                let mine = NodeCaches { capacities: capacities.into(), warm: vec![] };
                AgreedJob::new(cluster, &[], &mine).unwrap().capacities
            },
        );
        assert_eq!(capacities, vec![vec![vec![5, 9], vec![7, 3], vec![6, 6]]; 3]);
    }

    #[test]
    fn a_restarted_node_runs_a_job_that_is_over_alone() {
        let rendezvous = InProcessRendezvous::new(2, LIMIT);
        let transports = MemoryTransport::network(2);
        let cluster = |rank: u32| {
            Arc::new(Cluster::new(rendezvous.member(rank), transports[rank as usize].clone()))
        };
        let clusters = [cluster(0), cluster(1)];
        let mine = |capacity| NodeCaches { capacities: vec![capacity], warm: vec![1] };
        // The job ends when what it knows of the others is dropped.
        let agree = |cluster: &Arc<Cluster>| {
            let agreed = AgreedJob::new(cluster, &[], &mine(5)).unwrap();
            let limits = PeerPatience { answer: LIMIT, wait: LIMIT };
            drop(agreed.into_peers(&idle_job(1), &Arc::default(), 1, limits, true));
        };
        std::thread::scope(|scope| {
            for cluster in &clusters {
                scope.spawn(|| agree(cluster));
            }
        });
        let again = AgreedJob::new(&cluster(1), &[], &mine(9)).unwrap();
        assert_eq!((again.capacities, again.all.len()), (vec![vec![9]; 2], 2));
        assert!(again.all.iter().all(|one| one.warm.is_empty()), "no node gives anything");
    }

    /// The others end the job after the node has learnt which nodes take part.
    #[test]
    fn a_job_that_ends_elsewhere_while_a_node_restarts_it_is_run_alone() {
        let rendezvous = InProcessRendezvous::new(2, LIMIT);
        let transports = MemoryTransport::network(2);
        let cluster = |rank: u32| {
            Arc::new(Cluster::new(rendezvous.member(rank), transports[rank as usize].clone()))
        };
        let clusters = [cluster(0), cluster(1)];
        let mine = |capacity| NodeCaches { capacities: vec![capacity], warm: vec![] };
        std::thread::scope(|scope| {
            for cluster in &clusters {
                scope.spawn(|| {
                    let agreed = AgreedJob::new(cluster, &[], &mine(5)).unwrap();
                    cluster.rendezvous.release(&capacities(agreed.channel));
                });
            }
        });
        let again = AgreedJob::new(&cluster(1), &[], &mine(9)).unwrap();
        assert_eq!((again.capacities, again.all.len()), (vec![vec![9]; 2], 2));
    }

    #[test]
    fn a_node_that_fails_before_it_serves_tells_all_others_why() {
        let rendezvous = InProcessRendezvous::new(2, LIMIT);
        let told = on_all(
            2,
            |JobWorld { rank, .. }| rendezvous.member(rank),
            |cluster| {
                let mine = NodeCaches { capacities: vec![], warm: vec![] };
                let agreed = AgreedJob::new(cluster, &[], &mine).unwrap();
                if cluster.world().rank == 1 {
                    let none = std::io::Error::other("none is left");
                    return agreed.give_up(EngineError::Threads(none)).to_string();
                }
                let others = share(&*cluster.rendezvous, &serves(agreed.channel), Ok(&[]));
                others.unwrap_err().to_string()
            },
        );
        assert!(told[1].contains("none is left"), "{told:?}");
        assert_eq!(told[0], format!("rank 1 cannot take part: {}", told[1]));
    }

    #[test]
    fn a_node_that_comes_back_with_other_capacities_takes_those_that_the_others_count_on() {
        for size in [2, 3, 5] {
            let rendezvous = InProcessRendezvous::new(size, LIMIT);
            let transports = MemoryTransport::network(size);
            let cluster = |rank: u32| {
                Arc::new(Cluster::new(rendezvous.member(rank), transports[rank as usize].clone()))
            };
            let mine = |bytes| NodeCaches { capacities: vec![bytes, 2 * bytes], warm: vec![] };
            let agree = |rank: u32, bytes| {
                AgreedJob::new(&cluster(rank), &[], &mine(bytes)).unwrap().capacities
            };
            let first: Vec<_> = std::thread::scope(|scope| {
                let begin = |rank| scope.spawn(move || agree(rank, 10 + u64::from(rank)));
                let threads: Vec<_> = (0..size).map(begin).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let counted: Vec<Vec<u64>> =
                (0..u64::from(size)).map(|rank| vec![10 + rank, 20 + 2 * rank]).collect();
            assert!(first.iter().all(|agreed| *agreed == counted), "{first:?}");
            // One node after the other, each with other capacities every time.
            for (factor, rank) in (1..).zip([1, 0, 1, size - 1, 0, 0, 1]) {
                assert_eq!(agree(rank, 100 * factor), counted, "rank {rank} of {size}");
            }
        }
    }

    #[test]
    fn a_rank_that_reports_its_capacities_in_another_form_is_named() {
        let rendezvous = InProcessRendezvous::new(2, LIMIT);
        let told = on_all(
            2,
            |JobWorld { rank, .. }| rendezvous.member(rank),
            |cluster| {
                let mine = NodeCaches { capacities: vec![5], warm: vec![] };
                if cluster.world().rank == 0 {
                    return AgreedJob::new(cluster, &[], &mine).unwrap_err().to_string();
                }
                let channel = cluster.next_channel();
                share(&*cluster.rendezvous, &job(channel), Ok(&header(&[], &mine))).unwrap();
                share(&*cluster.rendezvous, &capacities(channel), Ok(&[0; 8])).unwrap();
                share(&*cluster.rendezvous, &serves(channel), Ok(&[])).unwrap_err().to_string()
            },
        );
        assert!(
            told[0].contains("rank 1 reports the capacities of its caches in another form"),
            "{told:?}"
        );
        assert_eq!(told[1], format!("rank 0 cannot take part: {}", told[0]));
    }

    #[test]
    fn hundreds_of_nodes_agree_on_the_capacity_of_each() {
        let (rendezvous, size) = (InProcessRendezvous::new(300, LIMIT), 300);
        let clusters: Vec<Arc<Cluster>> = (0..)
            .zip(MemoryTransport::network(size))
            .map(|(rank, transport)| Arc::new(Cluster::new(rendezvous.member(rank), transport)))
            .collect();
        std::thread::scope(|scope| {
            for (rank, cluster) in (0..).zip(&clusters) {
                scope.spawn(move || {
                    let mine = NodeCaches { capacities: vec![rank, 7], warm: vec![] };
                    let agreed = AgreedJob::new(cluster, &[], &mine).unwrap().capacities;
                    assert!((0..).zip(&agreed).all(|(of, one)| *one == [of, 7]));
                    assert_eq!(agreed.len(), 300);
                });
            }
        });
    }

    #[test]
    fn exchanges_of_different_jobs_have_different_names() {
        let of = |channel| [job(channel), capacities(channel), serves(channel)];
        let mut names: Vec<String> = [Channel(0), Channel(1)].into_iter().flat_map(of).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 6, "{names:?}");
    }
}
