//! The processes of a job, once they have met and can talk.

use std::sync::atomic::{AtomicU32, Ordering};

use belady_data::sync::Arc;

use crate::desk::Channel;
use crate::meet::{Meet, World};
use crate::transport::Transport;

/// What an engine needs to know of the others.
#[derive(Debug)]
pub struct Cluster {
    pub meet: Arc<dyn Meet>,
    pub transport: Arc<dyn Transport>,
    /// Jobs that were begun.
    jobs: AtomicU32,
}

impl Cluster {
    pub fn new(meet: Arc<dyn Meet>, transport: Arc<dyn Transport>) -> Self {
        Self { meet, transport, jobs: AtomicU32::new(0) }
    }

    pub fn world(&self) -> World {
        self.meet.world()
    }

    /// The channel of the next job: every process begins the same jobs in the same order.
    pub fn next_channel(&self) -> Channel {
        Channel(self.jobs.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.transport.close();
    }
}
