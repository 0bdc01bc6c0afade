//! The processes of a job, once they have met and can talk.

use std::sync::atomic::{AtomicU32, Ordering};

use belady_data::sync::{Arc, Mutex, lock};

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
}

impl Cluster {
    pub fn new(meet: Arc<dyn Meet>, transport: Arc<dyn Transport>) -> Self {
        Self { meet, transport, jobs: AtomicU32::new(0), handouts: Mutex::default() }
    }

    pub fn world(&self) -> World {
        self.meet.world()
    }

    /// The channel of the next job: every process begins the same jobs in the same order.
    pub fn next_channel(&self) -> Channel {
        Channel(self.jobs.fetch_add(1, Ordering::Relaxed))
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
