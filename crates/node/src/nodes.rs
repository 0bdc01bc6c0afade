//! The engines of the nodes of one job, which are each other's peers.
//!
//! ```text
//!      node 0                            node 1
//!   rank 0   rank 1                   rank 2   rank 3
//!       \     /                           \     /
//!      node engine ◀── rendezvous, TCP ──▶ node engine
//! ```
//!
//! The ranks of the job have met each other before. The first rank of each node tells its engine
//! which node it is, and the job's key ([`NodeConnection::meet`](crate::NodeConnection::meet)), over
//! the private socket. The engine of node 0 then listens; the ranks pass its address on, and each
//! engine meets the others there ([`NodeConnection::join`](crate::NodeConnection::join)). From then
//! on, engines that the run asks for share their caches with those of the other nodes. A process that
//! serves all jobs by one engine does the same: the run's jobs have these peers, and the caches are
//! there for the next run.
//!
//! Every node has as many ranks as the others. The engines count the ranks of node 0 first, then
//! those of node 1, and so on; [`NodesSpec::numbering`] says which rank of the job each of them is.

use belady_peer::TcpAccess;
use serde::{Deserialize, Serialize};

/// A node among those of its job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodesSpec {
    /// The ranks that share the engine: as in [`JobPlace`](crate::JobPlace).
    pub run: u64,
    /// This node, and the number of nodes.
    pub node: u32,
    /// The number of nodes.
    pub nodes: u32,
    /// The ranks of the job, those of node 0 first.
    pub numbering: Vec<u32>,
    /// How the ranks of this node have met the others.
    pub access: TcpAccess,
    /// How long engines wait for each other, in nanoseconds.
    pub limit_ns: u64,
}
