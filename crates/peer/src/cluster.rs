//! The processes of a job, once they have met and can talk.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use belady_data::sync::{Arc, Mutex, lock};

use crate::NodeId;
use crate::desk::Channel;
use crate::handout::Kept;
use crate::meet::{Meet, World};
use crate::transport::Transport;

/// What an engine needs to know of the others.
#[derive(Debug)]
pub struct Cluster {
    pub meet: Arc<dyn Meet>,
    pub transport: Arc<dyn Transport>,
    /// Jobs that were begun.
    jobs: AtomicU32,
    /// Listings that others may still ask for.
    handouts: Mutex<Vec<Kept>>,
    /// Who tells those who watch how this process is doing.
    speakers: Arc<Speakers>,
}

impl Cluster {
    pub fn new(meet: Arc<dyn Meet>, transport: Arc<dyn Transport>) -> Self {
        let jobs = AtomicU32::new(0);
        Self { meet, transport, jobs, handouts: Mutex::default(), speakers: Arc::default() }
    }

    pub fn world(&self) -> World {
        self.meet.world()
    }

    /// Ranks that run on this machine, this one included.
    pub fn near(&self) -> Vec<NodeId> {
        let World { rank, size } = self.world();
        (0..size).filter(|&other| other == rank || self.transport.is_near(other)).collect()
    }

    /// The channel of the next job: every process begins the same jobs in the same order.
    pub fn next_channel(&self) -> Channel {
        Channel(self.jobs.fetch_add(1, Ordering::Relaxed))
    }

    /// One who can tell how this process is doing ([`Meet::post`]): the last word counts, so of several
    /// only the oldest speaks.
    pub fn speaker(&self) -> Speaker {
        let number = self.speakers.begun.fetch_add(1, Ordering::Relaxed);
        lock(&self.speakers.there).insert(number);
        Speaker { speakers: self.speakers.clone(), number }
    }

    pub(crate) fn keep(&self, handout: Kept) {
        let mut handouts = lock(&self.handouts);
        handouts.retain(Kept::is_in_use);
        handouts.push(handout);
    }
}

#[derive(Debug, Default)]
struct Speakers {
    begun: AtomicU32,
    there: Mutex<BTreeSet<u32>>,
}

/// One of those who can tell how this process is doing, as long as this is there.
#[derive(Debug)]
pub struct Speaker {
    speakers: Arc<Speakers>,
    number: u32,
}

impl Speaker {
    /// Whether this one is to speak.
    pub fn is_first(&self) -> bool {
        lock(&self.speakers.there).first() == Some(&self.number)
    }

    /// Whether there is no other: its end is that of the process, as far as those who watch are concerned.
    pub fn is_alone(&self) -> bool {
        let there = lock(&self.speakers.there);
        there.len() == 1 && there.contains(&self.number)
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        lock(&self.speakers.there).remove(&self.number);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.transport.close();
    }
}
