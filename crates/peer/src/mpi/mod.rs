//! Peers over MPI, for jobs that are started by `mpirun` or `srun --mpi`.
//!
//! ```text
//! caller ─▶ calls ─▶ commands ─▶ progress ─▶ MPI ─▶ progress ─▶ inbox ─▶ serving threads ─▶ Dispatcher
//!   ▲                              │                 ▲                        │
//!   └──────── the reply ───────────┘                 └──── replies, sent ─────┘
//! ```
//!
//! A caller queues a message (`shared`) and sleeps until its call is answered (`calls`) or its
//! deadline has passed. One thread a process calls MPI (`progress`, `comm`); others handle the
//! requests that arrive (`serve`). MPI takes large samples from the tier's own memory. They are
//! received into a buffer of the transport and copied to their destination: MPI cannot cancel a
//! receive, so a caller whose deadline passes could not return if its own memory were the buffer.
//!
//! The communicators are private copies of MPI's world, so other code of the process may use MPI as
//! well (`library`). MPI does not survive a lost rank: it ends the job.

mod buffers;
mod calls;
mod collective;
mod comm;
mod library;
mod pending;
mod progress;
mod serve;
mod shared;
mod wire;

use std::borrow::Cow;
use std::io;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use belady_base::sync::{Arc, Mutex, lock};

use self::collective::{Collective, CollectiveKind};
use self::comm::{Answered, Comm, OutgoingMessage, Tag};
pub use self::library::version;
use self::progress::MpiProgress;
use self::serve::THREADS;
use self::shared::MpiShared;
use crate::dispatcher::Dispatcher;
use crate::message::{Answer, Channel, GetRequest, Notice, Payload, Push, PushOutcome, Receive};
use crate::transport::Transport;
use crate::wire::WireMessage;
use crate::{JobWorld, NodeId, PeerError, Rendezvous, RendezvousError};

/// How long closing waits for serving threads once all ranks have left.
const GRACE: Duration = Duration::from_secs(2);

/// Time limits of peers over MPI.
#[derive(Clone, Copy, Debug)]
pub struct MpiConfig {
    /// How long ranks wait for each other in an exchange.
    pub rendezvous_timeout: Duration,
    /// How long [`Transport::close`] waits for the others to leave too. After that they are served
    /// in the background until all have left, or MPI ends.
    pub close_timeout: Duration,
}

impl Default for MpiConfig {
    fn default() -> Self {
        // Rank 0 may list a large dataset while the others wait.
        Self { rendezvous_timeout: Duration::from_mins(10), close_timeout: Duration::from_secs(30) }
    }
}

/// The transport over MPI of one rank.
#[derive(Debug)]
pub struct MpiTransport {
    world: JobWorld,
    config: MpiConfig,
    near: Vec<bool>,
    shared: Arc<MpiShared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl MpiTransport {
    /// Starts the transport. A collective call of all ranks.
    pub fn start(config: MpiConfig) -> Result<Arc<Self>, RendezvousError> {
        library::enter()?;
        let deadline = Instant::now() + config.rendezvous_timeout;
        let talk = duplicate(deadline, config)?;
        let bulk = duplicate(deadline, config)?;
        let meet = duplicate(deadline, config)?;
        let world = JobWorld { rank: talk.rank(), size: talk.size() };
        let near = talk.near();
        let shared = Arc::<MpiShared>::default();
        library::opened(&shared);
        let progress = MpiProgress::new(shared.clone(), talk, bulk, meet);
        let mut threads = vec![spawn("belady-mpi", move || progress.run())?];
        for queue in THREADS {
            let shared = shared.clone();
            threads.push(spawn("belady-mpi-serve", move || {
                shared.inbox.serve(queue, &shared.dispatcher, |reply| shared.send(reply));
            })?);
        }
        Ok(Arc::new(Self { world, config, near, shared, threads: Mutex::new(threads) }))
    }

    /// Returns a rendezvous of the same ranks.
    pub fn rendezvous(&self) -> Arc<dyn Rendezvous> {
        let (world, limit) = (self.world, self.config.rendezvous_timeout);
        Arc::new(MpiRendezvous { world, limit, shared: self.shared.clone() })
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
        self.shared.send(OutgoingMessage { to: peer, tag, head: request(number), large: vec![] });
        call.wait(peer, deadline).ok_or_else(late)?
    }
}

fn duplicate(deadline: Instant, config: MpiConfig) -> Result<Comm, RendezvousError> {
    let comm =
        Comm::of_world(deadline).map_err(|failure| RendezvousError::Other(failure.to_string()))?;
    comm.ok_or_else(|| {
        RendezvousError::Other(format!(
            "not all ranks of mpirun joined within {:?}: with peers over MPI, every rank has to",
            config.rendezvous_timeout
        ))
    })
}

fn spawn(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, RendezvousError> {
    let begun = thread::Builder::new().name(name.into()).spawn(run);
    begun.map_err(|error| {
        RendezvousError::Other(format!("cannot start a thread for peers over MPI: {error}"))
    })
}

impl Transport for MpiTransport {
    fn get(
        &self,
        peer: NodeId,
        request: &GetRequest<'_>,
        deadline: Instant,
        into: &mut dyn Receive,
    ) -> Result<(), PeerError> {
        let mut at = 0;
        while at < request.asks.len() {
            let asks = &request.asks[at..request.asks.len().min(at + wire::ASKS)];
            let &GetRequest { channel, epoch, .. } = request;
            let part = WireMessage::Get { channel, epoch, asks: asks.into() };
            let answer =
                self.call(peer, Tag::Ask, deadline, |call| wire::message(call, &part, 0))?;
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
    ) -> Result<Vec<PushOutcome>, PeerError> {
        let mut taken = Vec::with_capacity(pushes.len());
        while taken.len() < pushes.len() {
            let rest = &pushes[taken.len()..];
            if rest[0].bytes.len() > wire::SAMPLE {
                taken.push(PushOutcome::Refused);
                continue;
            }
            let part = &rest[..fitting(rest)];
            let headers = part.iter().map(Into::into).collect();
            let request = WireMessage::Put { channel, pushes: headers };
            let answer = self.call(peer, Tag::Push, deadline, |call| {
                let bytes = part.iter().map(|push| push.bytes.len() + 40).sum();
                let mut out = wire::message(call, &request, bytes);
                for push in part {
                    out.extend_from_slice(push.bytes);
                }
                out
            })?;
            match wire::read(&answer.reply) {
                Some((WireMessage::Outcomes(outcomes), [])) if outcomes.len() == part.len() => {
                    taken.extend(&*outcomes);
                }
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
        // A notice that names too many samples names the first of them: the others are evicted
        // later.
        let notice = match notice {
            Notice::Released { epoch, samples } if samples.len() > wire::RELEASED => {
                let samples = samples[..wire::RELEASED].to_vec();
                Cow::Owned(Notice::Released { epoch: *epoch, samples })
            }
            notice => Cow::Borrowed(notice),
        };
        let request = WireMessage::Tell { channel, notice };
        self.call(peer, Tag::Ask, deadline, |call| wire::message(call, &request, 0)).map(drop)
    }

    fn dispatcher(&self) -> &Arc<Dispatcher> {
        &self.shared.dispatcher
    }

    /// MPI does not tell how many bytes of a message have arrived.
    fn sees_progress(&self) -> bool {
        false
    }

    fn is_near(&self, peer: NodeId) -> bool {
        self.near.get(peer as usize).copied().unwrap_or(false)
    }

    /// A collective call: returns when all ranks have closed theirs. Until then they are served.
    fn close(&self) {
        self.shared.leave();
        if !self.shared.wait_for_end(Some(self.config.close_timeout)) {
            tracing::warn!(
                "not all ranks have left within {:?}; they are served until they have, or until \
                 MPI ends",
                self.config.close_timeout
            );
            return;
        }
        let left = crate::threads::join_within(lock(&self.threads).drain(..), GRACE);
        if left > 0 {
            tracing::warn!(
                threads = left,
                "serving threads did not end in time and were left behind"
            );
        }
    }
}

impl Drop for MpiTransport {
    fn drop(&mut self) {
        self.shared.leave();
    }
}

/// Returns how many of the pushes go into one message.
fn fitting(pushes: &[Push<'_>]) -> usize {
    let mut bytes = 0;
    let fits = |push: &&Push<'_>| {
        bytes += push.bytes.len();
        bytes <= wire::BYTES
    };
    pushes.iter().take(wire::ASKS).take_while(fits).count().max(1)
}

/// The rendezvous of MPI's ranks.
#[derive(Debug)]
struct MpiRendezvous {
    world: JobWorld,
    limit: Duration,
    shared: Arc<MpiShared>,
}

impl MpiRendezvous {
    fn gather(
        &self,
        name: &str,
        kind: CollectiveKind,
        mine: &[u8],
    ) -> Result<Vec<Vec<u8>>, RendezvousError> {
        let (collective, waiting) = Collective::new(name, kind, mine);
        self.shared.gather(collective);
        waiting.wait(self.limit).unwrap_or_else(|| {
            let (limit, size) = (self.limit, self.world.size);
            Err(RendezvousError::Other(format!(
                "not all {size} ranks came to {name:?} over MPI within {limit:?}: check the output \
                 of the other ranks"
            )))
        })
    }
}

impl Rendezvous for MpiRendezvous {
    fn world(&self) -> JobWorld {
        self.world
    }

    fn exchange(&self, name: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, RendezvousError> {
        self.gather(name, CollectiveKind::Exchange, mine)
    }

    fn broadcast(&self, name: &str, mine: &[u8]) -> Result<Vec<u8>, RendezvousError> {
        let mine = if self.world.rank == 0 { mine } else { &[] };
        self.gather(name, CollectiveKind::Broadcast, mine).map(|mut all| all.swap_remove(0))
    }
}
