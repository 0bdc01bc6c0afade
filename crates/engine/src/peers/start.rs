//! How a job begins on all nodes: they make sure that it is the same one.
//!
//! What they have to agree on is told where they meet. What their caches hold is a bit a sample, and
//! comes from each node itself: it is only a hint, and a node that does not say counts as cold. A node
//! that cannot begin the job says why where the others wait for it ([`refuse`]).

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use belady_control::bits::Bits;
use belady_data::source::Source;
use belady_data::sync::{Arc, Condvar, Mutex};
use belady_peer::protocol::claims::Claims;
use belady_peer::protocol::health::Health;
use belady_peer::protocol::ledger::Ledger;
use belady_peer::protocol::pace::Pace;
use belady_peer::{Bulk, Channel, Cluster, MeetError, NodeId, World, agree_if_able, share};
use serde::{Deserialize, Serialize};

use super::digests::Digests;
use super::give::Outgoing;
use super::hands::Hands;
use super::notify::Notices;
use super::{Peers, Talk};
use crate::EngineError;
use crate::cache::Cache;
use crate::config::PeerPatience;

/// What every node tells the others.
#[derive(Clone, Debug)]
pub struct Introduction {
    /// Of each tier, in bytes.
    pub capacities: Vec<u64>,
    /// What its caches hold already, a bit for each sample; empty for nothing.
    pub warm: Vec<u64>,
}

/// What of that is told where nodes meet.
#[derive(Debug, Serialize, Deserialize)]
struct Card {
    capacities: Vec<u64>,
    /// Words of the bits that the node holds ready for others.
    warm: usize,
}

/// What all nodes told.
#[derive(Debug)]
pub struct Gathering {
    pub cluster: Arc<Cluster>,
    pub channel: Channel,
    pub all: Vec<Introduction>,
    /// The bytes that plans count on, by node and tier: the same on every node.
    pub rooms: Vec<Vec<u64>>,
    /// Others may still be asking for it.
    pub bulk: Bulk,
}

impl Gathering {
    /// Brings together what all nodes tell of the job that begins, if they agree on the facts.
    pub fn new(
        cluster: &Arc<Cluster>,
        facts: &[(&str, String)],
        mine: &Introduction,
    ) -> Result<Self, EngineError> {
        let channel = cluster.next_channel();
        // Before the others know of it: whoever does is answered.
        let words = mine.warm.iter().flat_map(|word| word.to_le_bytes());
        let bulk = Bulk::offer(cluster, words.collect());
        let gathered = agree_if_able(&*cluster.meet, &job(channel), Ok(facts))
            .and_then(|()| share(&*cluster.meet, &caches(channel), Ok(&card(mine))))
            .map_err(EngineError::from)
            .and_then(|cards| introductions(cluster, &bulk, mine, &cards));
        let is_over = |error: &EngineError| matches!(error, EngineError::Meet(MeetError::Over(_)));
        let agreed = match gathered {
            Ok(all) => agreed_rooms(cluster, channel, &all).map(|rooms| (all, rooms)),
            Err(error) if is_over(&error) => Err(error),
            Err(error) => Err(cannot_take_part(cluster, &room(channel), error)),
        };
        let (all, rooms) = match agreed {
            Ok(agreed) => agreed,
            Err(error) if is_over(&error) => alone(cluster, channel, mine),
            Err(error) => {
                release(cluster, channel);
                return Err(error);
            }
        };
        Ok(Self { cluster: cluster.clone(), channel, all, rooms, bulk })
    }

    /// Tells the others, who wait for this node to serve, why it does not go on with the job.
    pub fn give_up(&self, error: EngineError) -> EngineError {
        let error = cannot_take_part(&self.cluster, &serves(self.channel), error);
        release(&self.cluster, self.channel);
        error
    }

    /// `outbox`: bytes that may wait for others to take them. `in_step`: nodes put samples into each
    /// other's tiers.
    pub fn peers(self, samples: u32, outbox: u64, limits: PeerPatience, in_step: bool) -> Peers {
        let world = self.cluster.world();
        let nodes = world.size;
        let tiers = self.rooms[world.rank as usize].len();
        let hands = Hands::new(tiers);
        let bits = |one: &Introduction| Bits::from_words(samples, &one.warm);
        let any_warm = self.all.iter().any(|one| !one.warm.is_empty());
        Peers {
            channel: self.channel,
            me: world.rank,
            nodes,
            limits,
            in_step,
            is_leaving: AtomicBool::new(false),
            started: Instant::now(),
            talk: Mutex::new(Talk {
                health: Health::new(nodes),
                ledger: Ledger::new(nodes),
                pace: Pace::new(world.rank, nodes, u64::MAX, limits.wait),
                incarnations: vec![0; nodes as usize],
            }),
            changed: Condvar::new(),
            gates: (0..nodes).map(|_| Mutex::default()).collect(),
            outgoing: Mutex::new(Outgoing::new(nodes, outbox, limits.wait)),
            notices: Mutex::new(Notices::new(nodes)),
            claims: (0..tiers).map(|_| Mutex::new(Claims::new(samples))).collect(),
            digests: Digests::new(samples),
            orders: super::again::Orders::default(),
            warm: if any_warm { self.all.iter().map(bits).collect() } else { vec![] },
            hands,
            bulk: Mutex::new(Some(self.bulk)),
            cluster: self.cluster,
        }
    }
}

/// What is known of a job that all others have ended long since: it is run alone, as if they were like
/// this node, and none of them answers.
fn alone(
    cluster: &Cluster,
    channel: Channel,
    mine: &Introduction,
) -> (Vec<Introduction>, Vec<Vec<u64>>) {
    tracing::warn!(
        job = channel.0,
        "all other ranks have ended this job already: it is run without them, and reads from the source \
         what their caches would hold"
    );
    let cold = Introduction { warm: vec![], ..mine.clone() };
    let nodes = cluster.world().size as usize;
    (vec![cold; nodes], vec![mine.capacities.clone(); nodes])
}

/// The room that plans count on, by node and tier: what each node told of itself when the job began. A
/// node that was started again, with another room than before, takes what the others count on. Each
/// node tells of itself and of the next one, so that there is always one that knows: a few bytes a
/// node, however many there are.
fn agreed_rooms(
    cluster: &Cluster,
    channel: Channel,
    all: &[Introduction],
) -> Result<Vec<Vec<u64>>, EngineError> {
    let World { rank, size } = cluster.world();
    let (me, size) = (rank as usize, size as usize);
    let (before, next) = ((me + size - 1) % size, (me + 1) % size);
    let tell = |rooms: &[Vec<u64>]| -> Result<Vec<[Vec<u64>; 2]>, EngineError> {
        let words = rooms[me].iter().chain(&rooms[next]);
        let bytes: Vec<u8> = words.flat_map(|room| room.to_le_bytes()).collect();
        let told = share(&*cluster.meet, &room(channel), Ok(&bytes))?;
        let read = (0..).zip(&told).map(|(of, told)| two_rooms(of, told, rooms[me].len()));
        read.collect::<Result<_, _>>()
            .map_err(|error| cannot_take_part(cluster, &serves(channel), error))
    };
    let counted: Vec<Vec<u64>> = all.iter().map(|one| one.capacities.clone()).collect();
    let mut told = tell(&counted)?;
    told[me][0] = std::mem::take(&mut told[before][1]);
    let rooms: Vec<Vec<u64>> = told.into_iter().map(|[own, _]| own).collect();
    if (&rooms[me], &rooms[next]) != (&counted[me], &counted[next]) {
        // The next one to be started again hears of what is counted on, not of what was found here.
        tell(&rooms)?;
    }
    Ok(rooms)
}

/// What a node says of itself and of the next one, in so many tiers each.
fn two_rooms(node: NodeId, told: &[u8], tiers: usize) -> Result<[Vec<u64>; 2], EngineError> {
    let (words, rest) = told.as_chunks::<8>();
    if words.len() != 2 * tiers || !rest.is_empty() {
        return Err(EngineError::Peers(format!(
            "rank {node} does not say how much room its caches have as this one does: run the same \
             version of belady everywhere"
        )));
    }
    let rooms: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let (own, next) = rooms.split_at(tiers);
    Ok([own.to_vec(), next.to_vec()])
}

/// Names of the exchanges of a job.
fn job(channel: Channel) -> String {
    format!("loader {}", channel.0)
}

fn caches(channel: Channel) -> String {
    format!("loader {}, its caches", channel.0)
}

fn room(channel: Channel) -> String {
    format!("loader {}, its room", channel.0)
}

pub(super) fn serves(channel: Channel) -> String {
    format!("loader {} serves", channel.0)
}

/// This node needs what was exchanged for a job no more.
pub(super) fn release(cluster: &Cluster, channel: Channel) {
    for name in [job(channel), caches(channel), room(channel), serves(channel)] {
        cluster.meet.release(&name);
    }
}

/// Tells the others why this node does not begin the job that they are about to begin. Waits for
/// them, so the reason is in the log before.
pub fn refuse(cluster: &Cluster, error: &EngineError) {
    tracing::error!("this rank cannot begin a job, which is told to all others: {error}");
    let channel = cluster.next_channel();
    let _bulk = Bulk::offer(cluster, vec![]);
    // Whatever comes of it, what the caller is told is why this node does not begin.
    let _ = agree_if_able(&*cluster.meet, &job(channel), Err(&error.to_string()));
    release(cluster, channel);
}

/// Tells the others at the exchange that they come to next why this node does not go on with the job.
fn cannot_take_part(cluster: &Cluster, next: &str, error: EngineError) -> EngineError {
    // What came from the others they know already.
    if !matches!(error, EngineError::Meet(_)) {
        tracing::error!("this rank gives a job up, which is told to all others: {error}");
        // Whatever comes of it, what the caller is told is why this node does not go on.
        let _ = share(&*cluster.meet, next, Err(&error.to_string()));
    }
    error
}

fn card(mine: &Introduction) -> Vec<u8> {
    let card = Card { capacities: mine.capacities.clone(), warm: mine.warm.len() };
    // Numbers and names can always be written down.
    serde_json::to_vec(&card).unwrap_or_default()
}

/// What all nodes told on their cards, with what the caches of the warm ones hold.
fn introductions(
    cluster: &Cluster,
    bulk: &Bulk,
    mine: &Introduction,
    cards: &[Vec<u8>],
) -> Result<Vec<Introduction>, EngineError> {
    let (me, size) = (cluster.world().rank as usize, cards.len());
    let read = |card: &Vec<u8>| serde_json::from_slice::<Card>(card);
    let cards: Vec<Card> = cards.iter().map(read).collect::<Result<_, _>>().map_err(|error| {
        EngineError::Peers(format!("a rank says of its caches what is not understood: {error}"))
    })?;
    let other = |card: &Card| card.capacities.len() != mine.capacities.len();
    if let Some(rank) = cards.iter().position(other) {
        return Err(EngineError::Peers(format!(
            "rank {rank} has another number of cache tiers than this one: give all ranks the same"
        )));
    }
    let warm_words = cards.iter().map(|card| card.warm).collect::<Vec<_>>();
    let mut all: Vec<Introduction> = cards
        .into_iter()
        .map(|card| Introduction { capacities: card.capacities, warm: vec![] })
        .collect();
    // From the next rank on, so that not all ask the same one.
    let others = (me + 1..size).chain(0..me).filter(|&peer| warm_words[peer] > 0);
    let wanted: Vec<(NodeId, usize)> =
        others.map(|peer| (peer as NodeId, warm_words[peer].saturating_mul(8))).collect();
    for (&(peer, _), bytes) in wanted.iter().zip(bulk.of_all(cluster, &wanted)) {
        let words = bytes.unwrap_or_default();
        let words = words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        all[peer as usize].warm = words.collect();
    }
    all[me].warm.clone_from(&mine.warm);
    Ok(all)
}

/// What the caches hold at the start.
pub fn warm(cache: &Cache, source: &dyn Source) -> Vec<u64> {
    if cache.status().iter().all(|tier| tier.samples == 0) {
        return vec![];
    }
    let samples = source.catalog().len();
    let mut held = Bits::new(samples);
    for sample in (0..samples).filter(|&sample| cache.find(sample).is_some()) {
        held.insert(sample);
    }
    held.words().to_vec()
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, TcpListener};
    use std::time::Duration;

    use belady_peer::meet::{Hall, Place, file, point};
    use belady_peer::memory::MemoryTransport;
    use belady_peer::{JoinOptions, Key, Meet, join};

    use super::*;

    const LIMIT: Duration = Duration::from_mins(1);
    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// What `work` gives on every rank of a cluster that has met like this.
    fn on_all<T: Send>(
        size: u32,
        meet: impl Fn(World) -> Arc<dyn Meet> + Sync,
        work: impl Fn(&Arc<Cluster>) -> T + Sync,
    ) -> Vec<T> {
        std::thread::scope(|scope| {
            let (meet, work) = (&meet, &work);
            let node = move |rank| {
                let cluster = join(meet(World { rank, size }), JoinOptions::default()).unwrap();
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

    fn gathered_at(samples: u32, meet: impl Fn(World) -> Arc<dyn Meet> + Sync) {
        let heard = on_all(3, meet, |cluster| {
            let me = cluster.world().rank;
            let mine = Introduction { capacities: vec![7], warm: held(me, samples) };
            let gathering = Gathering::new(cluster, &[("a", "b".to_owned())], &mine).unwrap();
            // Others may still ask.
            cluster.meet.exchange("the end", &[]).unwrap();
            gathering.all.iter().map(|one| one.warm.clone()).collect::<Vec<_>>()
        });
        for (me, heard) in heard.iter().enumerate() {
            for (rank, heard) in (0..).zip(heard) {
                assert!(*heard == held(rank, samples), "rank {rank} as rank {me} knows it");
            }
        }
    }

    #[test]
    fn all_know_what_the_caches_of_each_hold() {
        let hall = Hall::new(3, LIMIT);
        gathered_at(1000, |World { rank, .. }| hall.seat(rank));
    }

    #[test]
    fn warm_caches_of_100_million_samples_are_told_at_every_meeting() {
        for samples in [4_000_000, 100_000_000] {
            let hall = Hall::new(3, LIMIT);
            gathered_at(samples, |World { rank, .. }| hall.seat(rank));

            let free = TcpListener::bind((LOOPBACK, 0)).unwrap().local_addr().unwrap();
            let (place, key) = (free.to_string().parse::<Place>().unwrap(), Key::random().unwrap());
            gathered_at(samples, |world| {
                let (job, key) = ("test".to_owned(), key.clone());
                point::meet(&place, point::Options { world, job, key, limit: LIMIT }).unwrap()
            });

            let directory = tempfile::tempdir().unwrap();
            gathered_at(samples, |world| {
                let (job, key, listen) = ("test".to_owned(), None, Some(LOOPBACK));
                file::meet(
                    directory.path(),
                    file::Options { world, job, key, limit: LIMIT, listen },
                )
                .unwrap()
            });
        }
    }

    #[test]
    fn plans_count_on_the_room_that_each_node_has() {
        let hall = Hall::new(3, LIMIT);
        let rooms = on_all(
            3,
            |World { rank, .. }| hall.seat(rank),
            |cluster| {
                let capacities = [[5, 9], [7, 3], [6, 6]][cluster.world().rank as usize];
                let mine = Introduction { capacities: capacities.into(), warm: vec![] };
                Gathering::new(cluster, &[], &mine).unwrap().rooms
            },
        );
        assert_eq!(rooms, vec![vec![vec![5, 9], vec![7, 3], vec![6, 6]]; 3]);
    }

    #[test]
    fn a_node_that_was_started_again_runs_a_job_that_is_over_alone() {
        let hall = Hall::new(2, LIMIT);
        let transports = MemoryTransport::network(2);
        let cluster =
            |rank: u32| Arc::new(Cluster::new(hall.seat(rank), transports[rank as usize].clone()));
        let clusters = [cluster(0), cluster(1)];
        let mine = |room| Introduction { capacities: vec![room], warm: vec![1] };
        // The job ends when what it knows of the others is dropped.
        let gather = |cluster: &Arc<Cluster>| {
            let gathering = Gathering::new(cluster, &[], &mine(5)).unwrap();
            let limits = PeerPatience { answer: LIMIT, wait: LIMIT };
            drop(gathering.peers(1, 1, limits, true));
        };
        std::thread::scope(|scope| {
            for cluster in &clusters {
                scope.spawn(|| gather(cluster));
            }
        });
        let again = Gathering::new(&cluster(1), &[], &mine(9)).unwrap();
        assert_eq!((again.rooms, again.all.len()), (vec![vec![9]; 2], 2));
        assert!(again.all.iter().all(|one| one.warm.is_empty()), "no node gives anything");
    }

    /// It has learnt who takes part, and then the others have ended the job.
    #[test]
    fn a_job_that_ends_elsewhere_while_a_node_begins_it_again_is_run_alone() {
        let hall = Hall::new(2, LIMIT);
        let transports = MemoryTransport::network(2);
        let cluster =
            |rank: u32| Arc::new(Cluster::new(hall.seat(rank), transports[rank as usize].clone()));
        let clusters = [cluster(0), cluster(1)];
        let mine = |room| Introduction { capacities: vec![room], warm: vec![] };
        std::thread::scope(|scope| {
            for cluster in &clusters {
                scope.spawn(|| {
                    let gathering = Gathering::new(cluster, &[], &mine(5)).unwrap();
                    cluster.meet.release(&room(gathering.channel));
                });
            }
        });
        let again = Gathering::new(&cluster(1), &[], &mine(9)).unwrap();
        assert_eq!((again.rooms, again.all.len()), (vec![vec![9]; 2], 2));
    }

    #[test]
    fn a_node_that_fails_before_it_serves_tells_all_others_why() {
        let hall = Hall::new(2, LIMIT);
        let told = on_all(
            2,
            |World { rank, .. }| hall.seat(rank),
            |cluster| {
                let mine = Introduction { capacities: vec![], warm: vec![] };
                let gathering = Gathering::new(cluster, &[], &mine).unwrap();
                if cluster.world().rank == 1 {
                    let none = std::io::Error::other("none is left");
                    return gathering.give_up(EngineError::Threads(none)).to_string();
                }
                let others = share(&*cluster.meet, &serves(gathering.channel), Ok(&[]));
                others.unwrap_err().to_string()
            },
        );
        assert!(told[1].contains("none is left"), "{told:?}");
        assert_eq!(told[0], format!("rank 1 cannot take part: {}", told[1]));
    }

    #[test]
    fn a_node_that_comes_back_with_another_room_takes_what_the_others_count_on() {
        for size in [2, 3, 5] {
            let hall = Hall::new(size, LIMIT);
            let transports = MemoryTransport::network(size);
            let cluster = |rank: u32| {
                Arc::new(Cluster::new(hall.seat(rank), transports[rank as usize].clone()))
            };
            let mine = |room| Introduction { capacities: vec![room, 2 * room], warm: vec![] };
            let gather =
                |rank: u32, room| Gathering::new(&cluster(rank), &[], &mine(room)).unwrap().rooms;
            let first: Vec<_> = std::thread::scope(|scope| {
                let begin = |rank| scope.spawn(move || gather(rank, 10 + u64::from(rank)));
                let threads: Vec<_> = (0..size).map(begin).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let counted: Vec<Vec<u64>> =
                (0..u64::from(size)).map(|rank| vec![10 + rank, 20 + 2 * rank]).collect();
            assert!(first.iter().all(|rooms| *rooms == counted), "{first:?}");
            // One after the other and over again, each with another room every time.
            for (room, rank) in (1..).zip([1, 0, 1, size - 1, 0, 0, 1]) {
                assert_eq!(gather(rank, 100 * room), counted, "rank {rank} of {size}");
            }
        }
    }

    #[test]
    fn a_rank_that_tells_of_its_room_in_other_words_is_named() {
        let hall = Hall::new(2, LIMIT);
        let told = on_all(
            2,
            |World { rank, .. }| hall.seat(rank),
            |cluster| {
                let mine = Introduction { capacities: vec![5], warm: vec![] };
                if cluster.world().rank == 0 {
                    return Gathering::new(cluster, &[], &mine).unwrap_err().to_string();
                }
                let channel = cluster.next_channel();
                agree_if_able(&*cluster.meet, &job(channel), Ok(&[])).unwrap();
                share(&*cluster.meet, &caches(channel), Ok(&card(&mine))).unwrap();
                share(&*cluster.meet, &room(channel), Ok(&[0; 8])).unwrap();
                share(&*cluster.meet, &serves(channel), Ok(&[])).unwrap_err().to_string()
            },
        );
        assert!(told[0].contains("rank 1 does not say how much room"), "{told:?}");
        assert_eq!(told[1], format!("rank 0 cannot take part: {}", told[0]));
    }

    /// Whatever the number of nodes, each tells a few bytes, and all agree.
    #[test]
    fn hundreds_of_nodes_agree_on_the_room_of_each() {
        let (hall, size) = (Hall::new(300, LIMIT), 300);
        let clusters: Vec<Arc<Cluster>> = (0..)
            .zip(MemoryTransport::network(size))
            .map(|(rank, transport)| Arc::new(Cluster::new(hall.seat(rank), transport)))
            .collect();
        std::thread::scope(|scope| {
            for (rank, cluster) in (0..).zip(&clusters) {
                scope.spawn(move || {
                    let mine = Introduction { capacities: vec![rank, 7], warm: vec![] };
                    let rooms = Gathering::new(cluster, &[], &mine).unwrap().rooms;
                    assert!((0..).zip(&rooms).all(|(of, room)| *room == [of, 7]));
                    assert_eq!(rooms.len(), 300);
                });
            }
        });
    }

    #[test]
    fn exchanges_of_jobs_do_not_meet_each_other() {
        let of = |channel| [job(channel), caches(channel), room(channel), serves(channel)];
        let mut names: Vec<String> = [Channel(0), Channel(1)].into_iter().flat_map(of).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 8, "{names:?}");
    }
}
