//! The processes of a job, once they have met and can talk.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

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
    /// Somebody tells those who watch how this process is doing.
    is_told_of: AtomicBool,
}

impl Cluster {
    pub fn new(meet: Arc<dyn Meet>, transport: Arc<dyn Transport>) -> Self {
        let (jobs, is_told_of) = (AtomicU32::new(0), AtomicBool::new(false));
        Self { meet, transport, jobs, handouts: Mutex::default(), is_told_of }
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

    /// Whether the caller is the first who wants to tell how this process is doing ([`Meet::post`]):
    /// the last word counts, so only one may speak.
    pub fn speaks_first(&self) -> bool {
        !self.is_told_of.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn keep(&self, handout: Kept) {
        let mut handouts = lock(&self.handouts);
        handouts.retain(Kept::is_in_use);
        handouts.push(handout);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.transport.close();
    }
}
