//! One engine for all ranks of a node, in a process of its own.
//!
//! ```text
//! rank 0 ──┐ attach, want, release        ┌─ one job: one plan, one cache, one pool
//! rank 1 ──┼──────── socket ────────▶ node engine
//! rank 2 ──┘◀─────── batches ─────────────┘
//!    └── maps the ring's memory, which came over the socket
//! ```
//!
//! 1. The first local rank binds a socket in a [`directory`] of the user and [`launch`]es a process
//!    that listens there. Every local rank connects ([`NodeConnection`]); both ends check that the
//!    other is of the same user.
//! 2. The ranks of a job attach (`client`): each sends what it wants as plain data (`spec`), with
//!    sockets of the job's own. When all have come, the `server` starts the job for all of them, and
//!    each gets the memory of its ring.
//! 3. A batch stays where the engine has staged it. The rank is sent the places of its samples, and
//!    releases the batch when its last holder drops it. Transformed batches lie in memory that is
//!    passed in the same way.
//! 4. Orders come from the ranks: the engine asks one of them for the order of an epoch.
//! 5. In a job of several nodes, the engines of the nodes are each other's peers ([`nodes`]); ranks
//!    exchange no samples.
//!
//! A rank that ends, however it ends, closes its sockets; the engine drops its batches and goes on
//! for the others. A rank whose engine ends gets an error of the class
//! [`ErrorClass::Lost`](belady_engine::ErrorClass) at its next batch. The process ends with the
//! last connection, unless it was started to stay. What a run alone has used ends with its last rank.

mod client;
pub mod directory;
mod error;
mod launch;
mod message;
mod message_socket;
pub mod nodes;
mod rank;
mod server;
mod spec;

pub use client::{JobPlace, NodeConnection, NodeJob, NodeLoader, NodeMonitor, NodeTransformed};
pub use error::NodeError;
pub use launch::{Launched, launch};
pub use message::NodeStatus;
pub use nodes::NodesSpec;
pub use rank::{RankLoader, RankMonitor, RankTransformed};
pub use server::{ServerOptions, serve, serve_stdin};
pub use spec::{DatasetRecipe, EngineSpec, RawPath, TransformRecipe};
