//! Servers that do work in virtual time: the staging threads of a rank or node, and the background
//! prefetchers of its tiers.
//!
//! A server works through its queue in order. Each piece of work is a read from the shared source,
//! at a rate that depends on the other readers (see [`super::clock`]), then a span of fixed length.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::clock::{HeapKey, SourceClock};

pub type ServerId = u32;

#[derive(Clone, Copy, Debug)]
pub struct ServerWork {
    /// Returned to the caller when the work is done.
    pub token: Option<u32>,
    pub source_bytes: f64,
    pub then_seconds: f64,
}

#[derive(Debug)]
struct QueueServer {
    node: u32,
    threads: f64,
    queue: VecDeque<ServerWork>,
    busy: bool,
}

#[derive(Debug)]
pub struct Servers {
    pub clock: SourceClock,
    queues: Vec<QueueServer>,
    /// The ends of spans.
    spans: BinaryHeap<Reverse<(HeapKey, ServerId)>>,
}

/// A piece of work with a token has ended.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub token: u32,
    pub server: ServerId,
    pub at: f64,
}

impl Servers {
    pub fn new(clock: SourceClock) -> Self {
        Self { clock, queues: vec![], spans: BinaryHeap::new() }
    }

    pub fn add_server(&mut self, node: u32, threads: f64) -> ServerId {
        self.queues.push(QueueServer { node, threads, queue: VecDeque::new(), busy: false });
        self.queues.len() as ServerId - 1
    }

    /// Takes effect with the next piece of work.
    pub fn set_threads(&mut self, server: ServerId, threads: f64) {
        self.queues[server as usize].threads = threads;
    }

    pub fn threads(&self, server: ServerId) -> f64 {
        self.queues[server as usize].threads
    }

    pub fn submit(&mut self, now: f64, server: ServerId, work: ServerWork) {
        self.queues[server as usize].queue.push_back(work);
        if !self.queues[server as usize].busy {
            self.begin(now, server);
        }
    }

    fn begin(&mut self, now: f64, id: ServerId) {
        let server = &mut self.queues[id as usize];
        let Some(work) = server.queue.front() else {
            server.busy = false;
            return;
        };
        server.busy = true;
        if work.source_bytes > 0.0 {
            self.clock.start(now, server.node, id, work.source_bytes, server.threads);
        } else {
            self.spans.push(Reverse((HeapKey(now + work.then_seconds), id)));
        }
    }

    pub fn next_event(&mut self) -> Option<f64> {
        let source = self.clock.next_end();
        let span = self.spans.peek().map(|Reverse((key, _))| key.0);
        match (source, span) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Handles the next event; returns the work that it ended, if that has a token.
    pub fn step(&mut self) -> Option<Done> {
        let source = self.clock.next_end();
        let span = self.spans.peek().map(|Reverse((key, _))| key.0);
        match (source, span) {
            (Some(at), other) if other.is_none_or(|span| at <= span) => {
                let id = self.clock.end(at)?;
                let then = self.queues[id as usize].queue.front()?.then_seconds;
                if then > 0.0 {
                    self.spans.push(Reverse((HeapKey(at + then), id)));
                    None
                } else {
                    self.finish(at, id)
                }
            }
            (_, Some(at)) => {
                let Reverse((_, id)) = self.spans.pop()?;
                self.finish(at, id)
            }
            _ => None,
        }
    }

    fn finish(&mut self, at: f64, id: ServerId) -> Option<Done> {
        let work = self.queues[id as usize].queue.pop_front()?;
        self.begin(at, id);
        work.token.map(|token| Done { token, server: id, at })
    }
}
