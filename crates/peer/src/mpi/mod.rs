//! Peers over MPI, for jobs that are started by `mpirun` or `srun --mpi`.
//!
//! ```text
//! caller ─▶ calls ─▶ orders ─▶ progress ─▶ MPI ─▶ progress ─▶ inbox ─▶ serving threads ─▶ Desk
//!   ▲                              │                 ▲                        │
//!   └──────── the reply ───────────┘                 └──── replies, sent ─────┘
//! ```
//!
//! A caller orders a message ([`shared`]) and sleeps until its call is answered ([`calls`]) or
//! its deadline has passed. One thread a process talks to MPI ([`progress`], by [`comm`]);
//! others serve what arrives ([`serve`]). MPI takes large samples from the tier's own memory.
//! They are received into memory of ours and copied to where the caller wants them: MPI does not
//! give back memory that it was told to receive into, so a caller whose deadline passes could not
//! return if that were its own.
//!
//! The communicator is a copy of MPI's world that nobody else uses, so that others in the process may
//! use MPI as they like ([`library`]). What MPI cannot do is survive a lost rank: it ends the job.

mod buffers;
mod calls;
mod comm;
mod flights;
mod gathering;
mod library;
mod progress;
mod serve;
mod shared;
mod wire;

use std::io;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use belady_data::sync::{Arc, Mutex, lock};

use self::comm::{Answered, Comm, Outgoing, Tag};
use self::gathering::{Gathering, Kind};
pub use self::library::version;
use self::progress::Progress;
use self::serve::THREADS;
use self::shared::Shared;
use crate::desk::{Channel, Desk};
use crate::transport::{Answer, Notice, Payload, Push, Receive, Request, Taken, Transport};
use crate::{Meet, MeetError, NodeId, PeerError, World};

/// Threads that serve are waited for so long once all ranks have left.
const GRACE: Duration = Duration::from_secs(2);

/// How patient peers over MPI are.
#[derive(Clone, Copy, Debug)]
pub struct MpiConfig {
    /// How long ranks wait for each other when they meet.
    pub meeting: Duration,
    /// How long [`Transport::close`] waits for the others to leave too. After that they are still
    /// served in the background until all have left, or MPI ends.
    pub leaving: Duration,
}

impl Default for MpiConfig {
    fn default() -> Self {
        // Rank 0 may list a large dataset while the others wait.
        Self { meeting: Duration::from_mins(10), leaving: Duration::from_secs(30) }
    }
}

/// This rank among those of `mpirun`.
#[derive(Debug)]
pub struct MpiTransport {
    world: World,
    config: MpiConfig,
    near: Vec<bool>,
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl MpiTransport {
    /// Takes part in MPI. Every rank has to come.
    pub fn start(config: MpiConfig) -> Result<Arc<Self>, MeetError> {
        library::enter()?;
        let deadline = Instant::now() + config.meeting;
        let talk = duplicate(deadline, config)?;
        let bulk = duplicate(deadline, config)?;
        let meet = duplicate(deadline, config)?;
        let world = World { rank: talk.rank(), size: talk.size() };
        let near = talk.near();
        let shared = Arc::<Shared>::default();
        library::opened(&shared);
        let progress = Progress::new(shared.clone(), talk, bulk, meet);
        let mut threads = vec![spawn("belady-mpi", move || progress.run())?];
        for queue in THREADS {
            let shared = shared.clone();
            threads.push(spawn("belady-mpi-serve", move || {
                shared.inbox.serve(queue, &shared.desk, |reply| shared.send(reply));
            })?);
        }
        Ok(Arc::new(Self { world, config, near, shared, threads: Mutex::new(threads) }))
    }

    /// The same ranks, as a place to meet.
    pub fn meet(&self) -> Arc<dyn Meet> {
        let (world, limit) = (self.world, self.config.meeting);
        Arc::new(MpiMeet { world, limit, shared: self.shared.clone() })
    }

    /// Sends a request and waits for the answer.
    fn call(
        &self,
        peer: NodeId,
        tag: Tag,
        deadline: Instant,
        request: impl FnOnce(u64) -> Vec<u8>,
    ) -> Result<Answered, PeerError> {
        if peer >= self.world.size {
            let error = io::Error::other(format!("the job has {} ranks", self.world.size));
            return Err(PeerError::Unreachable { peer, address: "MPI".into(), error });
        }
        let begun = Instant::now();
        let late =
            || PeerError::TimedOut { peer, limit: deadline.saturating_duration_since(begun) };
        let (number, call) = self.shared.calls.begin(peer, deadline).ok_or_else(late)??;
        self.shared.send(Outgoing { to: peer, tag, head: request(number), large: vec![] });
        call.wait(peer, deadline).ok_or_else(late)?
    }
}

fn duplicate(deadline: Instant, config: MpiConfig) -> Result<Comm, MeetError> {
    let comm = Comm::of_world(deadline).map_err(|failure| MeetError::Other(failure.to_string()))?;
    comm.ok_or_else(|| {
        MeetError::Other(format!(
            "not all ranks that mpirun has started came to be peers within {:?}: every rank has to, \
             with peers over MPI",
            config.meeting
        ))
    })
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, MeetError> {
    let begun = thread::Builder::new().name(name.into()).spawn(run);
    begun.map_err(|error| MeetError::Other(format!("no thread for peers over MPI: {error}")))
}

impl Transport for MpiTransport {
    fn get(
        &self,
        peer: NodeId,
        request: &Request<'_>,
        deadline: Instant,
        into: &mut dyn Receive,
    ) -> Result<(), PeerError> {
        let mut at = 0;
        while at < request.asks.len() {
            let asks = &request.asks[at..request.asks.len().min(at + wire::ASKS)];
            let part = Request { asks, ..*request };
            let answer = self.call(peer, Tag::Ask, deadline, |call| wire::get(call, &part))?;
            let answers = wire::read_got(&answer.reply, &answer.large).unwrap_or_default();
            if answers.is_empty() || answers.len() > asks.len() {
                let what = format!("{} answers to {} asks", answers.len(), asks.len());
                return Err(PeerError::Garbled { peer, what });
            }
            for (answer, bytes) in answers {
                if let Answer::Here { .. } = answer {
                    let slot = into.slot(at);
                    if slot.len() != bytes.len() {
                        let what = format!("{} bytes instead of {}", bytes.len(), slot.len());
                        return Err(PeerError::Garbled { peer, what });
                    }
                    slot.copy_from_slice(bytes);
                }
                into.answered(at, answer);
                at += 1;
            }
        }
        Ok(())
    }

    fn put(
        &self,
        peer: NodeId,
        channel: Channel,
        pushes: &[Push<'_>],
        deadline: Instant,
    ) -> Result<Vec<Taken>, PeerError> {
        let mut taken = Vec::with_capacity(pushes.len());
        while taken.len() < pushes.len() {
            let rest = &pushes[taken.len()..];
            if rest[0].bytes.len() > wire::SAMPLE {
                taken.push(Taken::Refused);
                continue;
            }
            let part = &rest[..fitting(rest)];
            let answer =
                self.call(peer, Tag::Push, deadline, |call| wire::put(call, channel, part))?;
            match wire::read_taken(&answer.reply) {
                Some(outcomes) if outcomes.len() == part.len() => taken.extend(outcomes),
                _ => {
                    let what = format!("{} bytes to {} pushes", answer.reply.len(), part.len());
                    return Err(PeerError::Garbled { peer, what });
                }
            }
        }
        Ok(taken)
    }

    fn tell(
        &self,
        peer: NodeId,
        channel: Channel,
        notice: &Notice,
        deadline: Instant,
    ) -> Result<(), PeerError> {
        self.call(peer, Tag::Ask, deadline, |call| wire::tell(call, channel, notice)).map(|_| ())
    }

    fn desk(&self) -> &Arc<Desk> {
        &self.shared.desk
    }

    /// MPI does not say how much of a message has come.
    fn sees_progress(&self) -> bool {
        false
    }

    fn is_near(&self, peer: NodeId) -> bool {
        self.near.get(peer as usize).copied().unwrap_or(false)
    }

    /// Collective: returns when all have closed theirs and nobody asks any more. Until then others
    /// are served.
    fn close(&self) {
        self.shared.leave();
        if !self.shared.wait_for_end(Some(self.config.leaving)) {
            tracing::warn!(
                "not all ranks have left within {:?}; they are served until they have, or until MPI \
                 ends",
                self.config.leaving
            );
            return;
        }
        let left = crate::threads::join_within(lock(&self.threads).drain(..), GRACE);
        if left > 0 {
            tracing::warn!(threads = left, "left threads behind that serve others and do not end");
        }
    }
}

impl Drop for MpiTransport {
    fn drop(&mut self) {
        self.shared.leave();
    }
}

/// As many of the first pushes as go into one message.
fn fitting(pushes: &[Push<'_>]) -> usize {
    let mut bytes = 0;
    let fits = |push: &&Push<'_>| {
        bytes += push.bytes.len();
        bytes <= wire::BYTES
    };
    pushes.iter().take(wire::ASKS).take_while(fits).count().max(1)
}

/// MPI's ranks, as a place to meet.
#[derive(Debug)]
struct MpiMeet {
    world: World,
    limit: Duration,
    shared: Arc<Shared>,
}

impl MpiMeet {
    fn gather(&self, name: &str, kind: Kind, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        let (gathering, waiting) = Gathering::new(name, kind, mine);
        self.shared.gather(gathering);
        waiting.wait(self.limit).unwrap_or_else(|| {
            let (limit, size) = (self.limit, self.world.size);
            Err(MeetError::Other(format!(
                "not all {size} ranks came to exchange {name:?} over MPI within {limit:?}: see \
                 what the other ranks say"
            )))
        })
    }
}

impl Meet for MpiMeet {
    fn world(&self) -> World {
        self.world
    }

    fn exchange(&self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetError> {
        self.gather(name, Kind::Exchange, mine)
    }

    fn broadcast(&self, name: &str, mine: &[u8]) -> Result<Vec<u8>, MeetError> {
        let mine = if self.world.rank == 0 { mine } else { &[] };
        self.gather(name, Kind::Broadcast, mine).map(|mut all| all.swap_remove(0))
    }
}
