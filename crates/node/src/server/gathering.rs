//! Jobs whose ranks have not all attached yet.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};

use belady_base::sync::{Arc, Mutex, lock};
use belady_control::sampler::Order;
use belady_engine::{Engine, ErrorClass, JobConfig, Loader};

use super::NodeServer;
use super::nodes::JoinedNodes;
use super::orders::AttachedOrders;
use crate::message::{Attachment, NodeJobId, OrdersSpec};
use crate::message_socket::MessageSocket;
use crate::spec::{DatasetSpec, EngineSpec, JobSpec};

/// A rank's loader, or why there is none.
pub type StartResult = Result<Loader, (ErrorClass, String)>;

/// The jobs that are not complete, by their key.
#[derive(Debug, Default)]
pub struct Gatherings(Mutex<HashMap<NodeJobId, Vec<AttachedRank>>>);

/// A rank that waits for the others.
#[derive(Debug)]
struct AttachedRank {
    rank: u32,
    engine: EngineSpec,
    job: JobSpec,
    orders: OrdersSpec,
    asks: MessageSocket,
    dataset: Option<(DatasetSpec, Vec<OwnedFd>)>,
    start: Sender<StartResult>,
}

impl Gatherings {
    /// Removes the jobs of a run that are not complete and never will be.
    pub fn end(&self, run: u64) -> impl Sized + use<> {
        lock(&self.0).extract_if(|place, _| place.run == run).collect::<Vec<_>>()
    }
}

/// Adds a rank; the last one of a job starts it. The result comes over the channel.
pub fn attach(
    server: &NodeServer,
    attachment: Attachment,
    orders: MessageSocket,
    catalogs: Vec<OwnedFd>,
) -> Receiver<StartResult> {
    let (start, result) = channel();
    let Attachment { place, rank, ranks, engine, job, dataset, orders: spec } = attachment;
    let attached = AttachedRank {
        rank,
        engine,
        job,
        orders: spec,
        asks: orders,
        dataset: dataset.map(|dataset| (dataset, catalogs)),
        start,
    };
    let mut gatherings = lock(&server.gatherings.0);
    let gathered = gatherings.entry(place).or_default();
    // A rank that attaches again has given up its first attempt.
    gathered.retain(|other| other.rank != rank);
    gathered.push(attached);
    let complete = gathered.len() >= ranks as usize;
    let complete = complete.then(|| gatherings.remove(&place).unwrap_or_default());
    drop(gatherings);
    if let Some(ranks) = complete {
        begin(server, place, ranks);
    }
    result
}

/// Starts a job whose ranks are there. The first rank's engine counts: default quotas depend on the
/// memory that was free at a moment.
fn begin(server: &NodeServer, place: NodeJobId, mut attached: Vec<AttachedRank>) {
    attached.sort_by_key(|rank| rank.rank);
    let (mut starts, mut asks, mut ranks) = (vec![], vec![], vec![]);
    let mut dataset = None;
    for rank in attached {
        starts.push(rank.start);
        asks.push(rank.asks);
        dataset = dataset.or(rank.dataset);
        ranks.push((rank.engine, rank.job, rank.orders));
    }
    let nodes = server.nodes.of_run(place.run);
    let prepared = prepare(server, place, &ranks, asks, dataset, nodes.as_ref());
    if let (Err((class, text)), Some(nodes)) = (&prepared, &nodes) {
        nodes.refuse(class, text);
    }
    let started = prepared.and_then(|(engine, config)| {
        let started = engine.start_ranks(&config, ranks.len() as u32);
        started.map_err(|error| match &nodes {
            Some(_) => JoinedNodes::report(&error),
            None => (error.class(), error.to_string()),
        })
    });
    match started {
        Ok(loaders) => {
            for (loader, start) in loaders.into_iter().zip(starts) {
                // The rank may have gone.
                let _ = start.send(Ok(loader));
            }
        }
        Err(error) => {
            for start in starts {
                let _ = start.send(Err(error.clone()));
            }
        }
    }
}

/// Checks what can fail on this node alone.
fn prepare(
    server: &NodeServer,
    place: NodeJobId,
    ranks: &[(EngineSpec, JobSpec, OrdersSpec)],
    asks: Vec<MessageSocket>,
    dataset: Option<(DatasetSpec, Vec<OwnedFd>)>,
    nodes: Option<&JoinedNodes>,
) -> Result<(Arc<Engine>, JobConfig), (ErrorClass, String)> {
    let configuration = |text| (ErrorClass::Configuration, text);
    let differ = || {
        let text = "the ranks of this node have made different loaders: give all of them the same \
                    arguments";
        configuration(text.to_owned())
    };
    let (engine, job, orders) = ranks.first().ok_or_else(differ)?;
    let is_same = |(_, other, theirs): &(EngineSpec, JobSpec, OrdersSpec)| {
        other.is_same(job)
            && (theirs.ahead, theirs.first_epoch) == (orders.ahead, orders.first_epoch)
    };
    if !ranks.iter().all(is_same) {
        return Err(differ());
    }
    if let Some(nodes) = nodes.filter(|nodes| nodes.ranks_here() as usize != ranks.len()) {
        let (here, counted) = (ranks.len(), nodes.ranks_here());
        return Err(configuration(format!(
            "{here} ranks of this node start a job that {counted} ranks of each node share"
        )));
    }
    let missing = || configuration("the first rank of this node has sent no dataset".to_owned());
    let (dataset, catalogs) = dataset.ok_or_else(missing)?;
    let source = dataset.open(&mut catalogs.into_iter());
    let source = source.map_err(|text| (ErrorClass::Other, text))?;
    let engine = server.engine(place.run, place.engine, engine).map_err(configuration)?;
    // Ranks may have batches of different sizes.
    let largest_batch = ranks.iter().map(|(.., orders)| orders.largest_batch).max().flatten();
    let spec = OrdersSpec { largest_batch, ..orders.clone() };
    let orders = Arc::new(AttachedOrders::new(spec, asks, nodes));
    let config = job.config(source, Order::Provided(orders)).map_err(configuration)?;
    Ok((engine, config))
}
