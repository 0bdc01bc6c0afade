//! One rank's part of a job that a node engine runs.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use belady_base::shared_memory::SharedMapping;
use belady_base::sync::{Arc, Mutex, lock};
use belady_control::sampler::OrderError;
use belady_engine::{EngineError, ErrorClass};

use super::PATIENCE;
use crate::message::{FromRank, Query, Reply, ToRank};
use crate::message_socket::{MessageSocket, Received};

/// How often a rank that leaves a job looks whether the engine lives.
const TICK: Duration = Duration::from_secs(1);

/// The sockets of a job: data, replies, orders.
pub struct JobSockets {
    pub here: [MessageSocket; 3],
    pub there: [UnixStream; 3],
}

impl JobSockets {
    pub fn new() -> io::Result<Self> {
        let (data, data_there) = MessageSocket::pair()?;
        let (replies, replies_there) = MessageSocket::pair()?;
        let (orders, orders_there) = MessageSocket::pair()?;
        let there = [data_there, replies_there, orders_there];
        Ok(Self { here: [data, replies, orders], there })
    }
}

/// The memory of the engine in which a rank finds its batches.
#[derive(Debug)]
pub struct RankMemory {
    pub ring: SharedMapping,
    /// By tier; `None` if it cannot be mapped.
    tiers: Vec<Option<SharedMapping>>,
}

impl RankMemory {
    pub fn attach(
        ring: u64,
        tiers: &[Option<u64>],
        files: &mut impl Iterator<Item = OwnedFd>,
    ) -> io::Result<Self> {
        let mut map = |length: u64, writable| {
            let file = files.next().ok_or_else(|| io::Error::other("it sent too little memory"))?;
            SharedMapping::attach(file, length as usize, writable)
        };
        let ring = map(ring, true)?;
        // What a tier lends, others read too.
        let tier = |length: &Option<u64>| length.map(|length| map(length, false)).transpose();
        Ok(Self { ring, tiers: tiers.iter().map(tier).collect::<io::Result<_>>()? })
    }

    /// Returns the memory of a tier, numbered from 1.
    pub fn tier(&self, tier: u8) -> Option<&SharedMapping> {
        self.tiers.get(usize::from(tier).checked_sub(1)?)?.as_ref()
    }
}

/// The connections of one rank's job. The engine keeps the rank's batches until the last holder of
/// this drops it.
#[derive(Debug)]
pub struct NodeJob {
    pub(super) data: MessageSocket,
    sending: Mutex<()>,
    replies: Mutex<MessageSocket>,
    /// Why there was no order, in place of the text that comes back from the engine.
    order_error: Arc<Mutex<Option<OrderError>>>,
    is_lost: AtomicBool,
    has_left: AtomicBool,
    pid: u32,
}

impl NodeJob {
    pub(super) fn new(
        data: MessageSocket,
        replies: MessageSocket,
        order_error: Arc<Mutex<Option<OrderError>>>,
        pid: u32,
    ) -> Self {
        Self {
            data,
            sending: Mutex::new(()),
            replies: Mutex::new(replies),
            order_error,
            is_lost: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            pid,
        }
    }

    /// Sends a message. A lost engine is noticed when a batch is received.
    pub(super) fn send(&self, message: &FromRank) {
        // A forked child holds copies of batches that belong to its parent.
        if !self.data.is_ours() {
            return;
        }
        let _sending = lock(&self.sending);
        if self.data.send(message).is_err() {
            self.is_lost.store(true, Ordering::Release);
        }
    }

    /// Receives a message that has come, or the end of the connection.
    pub(super) fn receive(&self) -> Result<Received<ToRank>, EngineError> {
        match self.data.receive() {
            Ok(Some(received)) => Ok(received),
            Ok(None) => Err(self.lost(&io::ErrorKind::UnexpectedEof.into())),
            Err(error) => Err(self.lost(&error)),
        }
    }

    /// Tells the engine that no more batches are wanted, and waits until it has ended the job for
    /// this rank. Another job then finds its caches and quotas. Batches that are held stay valid.
    pub(super) fn leave(&self) {
        if !self.data.is_ours() || self.has_left.swap(true, Ordering::AcqRel) {
            return;
        }
        self.send(&FromRank::Leave);
        let until = Instant::now() + PATIENCE;
        while !self.is_lost() {
            let left = until.saturating_duration_since(Instant::now());
            let came = self.data.wait(left.min(TICK));
            if left.is_zero() || came.is_err() {
                return;
            }
            // What was sent before is not taken any more.
            if came.is_ok_and(|came| came)
                && matches!(self.receive(), Ok((ToRank::Left, _)) | Err(_))
            {
                return;
            }
        }
    }

    /// Returns whether the engine has gone.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Returns the error of a lost engine.
    pub(super) fn lost(&self, error: &io::Error) -> EngineError {
        self.is_lost.store(true, Ordering::Release);
        let why = match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => "has ended".to_owned(),
            _ => format!("does not answer as it should ({error})"),
        };
        let text = format!("the engine of this node's ranks, process {}, {why}", self.pid);
        EngineError::Reported { class: ErrorClass::Lost, text }
    }

    /// Returns an error of the engine, or the error of this process's order that it speaks of.
    pub(super) fn reported(&self, class: ErrorClass, text: String) -> EngineError {
        match lock(&self.order_error).take() {
            Some(error) => EngineError::Order(error),
            None => EngineError::Reported { class, text },
        }
    }

    /// Asks the engine; `None` if it has gone or does not answer.
    pub(super) fn query(&self, query: Query) -> Option<Reply> {
        let replies = lock(&self.replies);
        self.send(&FromRank::Query(query));
        if self.is_lost() || !replies.wait(PATIENCE).ok()? {
            return None;
        }
        replies.receive().ok()?.map(|(reply, _)| reply)
    }
}
