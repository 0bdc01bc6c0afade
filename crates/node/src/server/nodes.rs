//! The other nodes of runs.

use std::collections::HashMap;
use std::time::Duration;

use belady_base::sync::{Arc, Mutex, lock};
use belady_control::sampler::RankPlace;
use belady_engine::{Engine, EngineError, ErrorClass};
use belady_peer::rendezvous::RendezvousAddress;
use belady_peer::rendezvous::tcp::{self, TcpRendezvousOptions};
use belady_peer::{Cluster, JobWorld, Rendezvous, RendezvousError, join};

use crate::nodes::NodesSpec;

/// The runs that have several nodes.
#[derive(Debug, Default)]
pub struct RunNodes(Mutex<HashMap<u64, MeetingNodes>>);

#[derive(Debug)]
enum MeetingNodes {
    /// The engine knows which node it is. That of node 0 listens.
    Known(Box<NodesSpec>, Option<Arc<dyn Rendezvous>>),
    Joined(JoinedNodes),
}

/// The nodes of a run, after their engines have met.
#[derive(Clone, Debug)]
pub struct JoinedNodes {
    pub cluster: Arc<Cluster>,
    /// As in [`NodesSpec`].
    pub numbering: Arc<[u32]>,
}

impl RunNodes {
    /// Takes in which node this is. Returns where the others find the engine of node 0.
    pub fn meet(&self, spec: NodesSpec) -> Result<Option<String>, String> {
        let run = spec.run;
        if spec.node >= spec.nodes || !(spec.numbering.len() as u32).is_multiple_of(spec.nodes) {
            return Err(format!(
                "node {} of {} cannot have an equal share of {} ranks",
                spec.node,
                spec.nodes,
                spec.numbering.len()
            ));
        }
        let (rendezvous, address) = if spec.node == 0 {
            let listened = tcp::listen_once(spec.access.listen, options(&spec));
            let (rendezvous, address) = listened.map_err(|error| error.to_string())?;
            (Some(rendezvous), Some(address.to_string()))
        } else {
            (None, None)
        };
        lock(&self.0).insert(run, MeetingNodes::Known(Box::new(spec), rendezvous));
        Ok(address)
    }

    /// Meets the engines of the other nodes.
    pub fn join(&self, run: u64, meeting: &str) -> Result<(), String> {
        let known = lock(&self.0).remove(&run);
        let Some(MeetingNodes::Known(spec, rendezvous)) = known else {
            return Err("it was not told of them".to_owned());
        };
        let text = |error: RendezvousError| error.to_string();
        let rendezvous = if let Some(rendezvous) = rendezvous {
            rendezvous
        } else {
            let address = meeting.parse::<RendezvousAddress>().map_err(text)?;
            tcp::connect_once(&address, options(&spec)).map_err(text)?
        };
        let cluster = join(rendezvous, spec.access.into()).map_err(|error| error.to_string())?;
        let joined = JoinedNodes { cluster: Arc::new(cluster), numbering: spec.numbering.into() };
        lock(&self.0).insert(run, MeetingNodes::Joined(joined));
        Ok(())
    }

    /// Returns the nodes of a run; `None` if it has one node.
    pub fn of_run(&self, run: u64) -> Option<JoinedNodes> {
        match lock(&self.0).get(&run) {
            Some(MeetingNodes::Joined(joined)) => Some(joined.clone()),
            _ => None,
        }
    }

    /// Removes the nodes of a run. This one leaves them when no job has their cluster any more.
    pub fn end(&self, run: u64) -> impl Sized + use<> {
        lock(&self.0).remove(&run)
    }

    /// Leaves the other nodes: this one serves no more samples.
    pub fn close(&self) {
        let all = std::mem::take(&mut *lock(&self.0));
        for nodes in all.into_values() {
            if let MeetingNodes::Joined(joined) = nodes {
                joined.cluster.transport.close();
            }
        }
    }
}

impl JoinedNodes {
    /// Returns the first rank of this node among all ranks, as engines count them.
    pub fn place(&self) -> RankPlace {
        let JobWorld { rank: node, .. } = self.cluster.world();
        let ranks = self.numbering.len() as u32;
        RankPlace { rank: node * self.ranks_here(), ranks }
    }

    /// Returns how many ranks each node has.
    pub fn ranks_here(&self) -> u32 {
        self.numbering.len() as u32 / self.cluster.world().size
    }

    /// Returns what the ranks of this node are told of an error of a job's start.
    pub fn report(error: &EngineError) -> (ErrorClass, String) {
        match error {
            // An engine has gone, so that the ranks continue without engines of nodes.
            EngineError::Rendezvous(
                RendezvousError::Missing { .. } | RendezvousError::Ended { .. },
            ) => (ErrorClass::Lost, format!("among the engines of the job's nodes, {error}")),
            EngineError::Rendezvous(_) | EngineError::Peers(_) => {
                (error.class(), format!("among the engines of the job's nodes, {error}"))
            }
            _ => (error.class(), error.to_string()),
        }
    }

    /// Tells the other nodes, which are about to start a job, that this one cannot.
    pub fn refuse(&self, class: &ErrorClass, text: &str) {
        let (class, text) = (class.clone(), text.to_owned());
        Engine::refuse(&self.cluster, &EngineError::Reported { class, text });
    }
}

fn options(spec: &NodesSpec) -> TcpRendezvousOptions {
    TcpRendezvousOptions {
        world: JobWorld { rank: spec.node, size: spec.nodes },
        job: "node engines".to_owned(),
        key: spec.access.key.clone(),
        limit: Duration::from_nanos(spec.limit_ns),
    }
}
