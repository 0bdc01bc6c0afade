//! The processes of a job after their rendezvous.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use belady_base::sync::{Arc, Mutex, lock};
use serde::{Deserialize, Serialize};

use crate::NodeId;
use crate::key::JobKey;
use crate::listing::ServedListing;
use crate::message::Channel;
use crate::rendezvous::{JobWorld, Rendezvous};
use crate::tcp::Tls;
use crate::transport::Transport;

/// What another process of this machine and user needs to meet processes of the job over TCP, as
/// this process has met them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TcpAccess {
    /// The job's key.
    pub key: JobKey,
    /// The address of this machine at which the other machines reach it.
    pub listen: IpAddr,
    /// Whether processes on one machine use Unix sockets.
    pub unix: bool,
    /// Certificates for TLS, if it is used.
    pub tls: Option<Tls>,
}

/// This process's connection to the other processes of the job.
#[derive(Debug)]
pub struct Cluster {
    /// Where the processes exchange small values.
    pub rendezvous: Arc<dyn Rendezvous>,
    /// What carries samples.
    pub transport: Arc<dyn Transport>,
    /// How this process has joined, if it was over TCP.
    pub tcp: Option<TcpAccess>,
    /// The number of jobs that have started.
    jobs: AtomicU32,
    /// Listings that other ranks may still ask for.
    listings: Mutex<Vec<ServedListing>>,
    /// The jobs of this process that report its status.
    reporters: Arc<StatusReporters>,
}

impl Cluster {
    /// Creates the cluster of processes that have found each other.
    pub fn new(rendezvous: Arc<dyn Rendezvous>, transport: Arc<dyn Transport>) -> Self {
        let jobs = AtomicU32::new(0);
        let (tcp, listings, reporters) = (None, Mutex::default(), Arc::default());
        Self { rendezvous, transport, tcp, jobs, listings, reporters }
    }

    /// Returns this process's rank and the number of ranks.
    pub fn world(&self) -> JobWorld {
        self.rendezvous.world()
    }

    /// Returns the ranks on this machine, this one included.
    pub fn near(&self) -> Vec<NodeId> {
        let JobWorld { rank, size } = self.world();
        (0..size).filter(|&other| other == rank || self.transport.is_near(other)).collect()
    }

    /// Returns the channel of the next job. Every process starts the same jobs in the same order.
    pub fn next_channel(&self) -> Channel {
        Channel(self.jobs.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a reporter of this process's status ([`Rendezvous::post`]). A post replaces the one
    /// before, so only the oldest of several reporters posts.
    pub fn status_reporter(&self) -> StatusReporter {
        let number = self.reporters.begun.fetch_add(1, Ordering::Relaxed);
        lock(&self.reporters.there).insert(number);
        StatusReporter { reporters: self.reporters.clone(), number }
    }

    pub(crate) fn keep(&self, handout: ServedListing) {
        let mut listings = lock(&self.listings);
        listings.retain(ServedListing::is_in_use);
        listings.push(handout);
    }
}

#[derive(Debug, Default)]
struct StatusReporters {
    begun: AtomicU32,
    there: Mutex<BTreeSet<u32>>,
}

/// One of the jobs that can report this process's status, until it is dropped.
#[derive(Debug)]
pub struct StatusReporter {
    reporters: Arc<StatusReporters>,
    number: u32,
}

impl StatusReporter {
    /// Returns whether this reporter is the oldest, which posts.
    pub fn is_first(&self) -> bool {
        lock(&self.reporters.there).first() == Some(&self.number)
    }

    /// Returns whether there is no other reporter, so that this one reports the end of the process.
    pub fn is_alone(&self) -> bool {
        let there = lock(&self.reporters.there);
        there.len() == 1 && there.contains(&self.number)
    }
}

impl Drop for StatusReporter {
    fn drop(&mut self) {
        lock(&self.reporters.there).remove(&self.number);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.transport.close();
    }
}
