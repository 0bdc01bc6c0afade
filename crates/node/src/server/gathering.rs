//! Jobs whose ranks have not all attached yet.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};

use belady_base::sync::{Arc, Mutex, lock};
use belady_control::sampler::Order;
use belady_engine::{EngineError, ErrorClass, Loader};

use super::NodeServer;
use super::orders::AttachedOrders;
use crate::connection::Connection;
use crate::message::{Attachment, EngineSpec, JobKey, OrdersSpec};
use crate::spec::{DatasetSpec, JobSpec};

/// A rank's loader, or why there is none.
pub type StartResult = Result<Loader, (ErrorClass, String)>;

/// The jobs that are not complete, by their key.
#[derive(Debug, Default)]
pub struct Gatherings(Mutex<HashMap<JobKey, Vec<AttachedRank>>>);

/// A rank that waits for the others.
#[derive(Debug)]
struct AttachedRank {
    rank: u32,
    asked: AskedJob,
    orders: Connection,
    dataset: Option<(DatasetSpec, Vec<OwnedFd>)>,
    start: Sender<StartResult>,
}

/// What the ranks of a job have to agree on.
#[derive(Debug, PartialEq)]
struct AskedJob {
    ranks: u32,
    engine: EngineSpec,
    job: JobSpec,
    orders: OrdersSpec,
}

/// Adds a rank; the last one of a job starts it. The result comes over the channel.
pub fn attach(
    server: &NodeServer,
    attachment: Attachment,
    orders: Connection,
    catalogs: Vec<OwnedFd>,
) -> Receiver<StartResult> {
    let (start, result) = channel();
    let Attachment { place, rank, ranks, engine, job, dataset, orders: spec } = attachment;
    let attached = AttachedRank {
        rank,
        asked: AskedJob { ranks, engine, job, orders: spec },
        orders,
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

/// Starts a job whose ranks are there.
fn begin(server: &NodeServer, place: JobKey, mut attached: Vec<AttachedRank>) {
    attached.sort_by_key(|rank| rank.rank);
    let mut starts = vec![];
    let mut orders = vec![];
    let mut dataset = None;
    let mut asked: Option<AskedJob> = None;
    let mut differ = false;
    for rank in attached {
        starts.push(rank.start);
        orders.push(rank.orders);
        dataset = dataset.or(rank.dataset);
        differ |= asked.as_ref().is_some_and(|asked| *asked != rank.asked);
        asked = asked.or(Some(rank.asked));
    }
    let started = match asked {
        Some(asked) if !differ => start(server, place, asked, orders, dataset),
        _ => Err((
            ErrorClass::Configuration,
            "the ranks of this node have made different loaders: give all of them the same \
             arguments"
                .to_owned(),
        )),
    };
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

fn start(
    server: &NodeServer,
    place: JobKey,
    asked: AskedJob,
    orders: Vec<Connection>,
    dataset: Option<(DatasetSpec, Vec<OwnedFd>)>,
) -> Result<Vec<Loader>, (ErrorClass, String)> {
    let configuration = |text| (ErrorClass::Configuration, text);
    let missing = || configuration("the first rank of this node has sent no dataset".to_owned());
    let (dataset, catalogs) = dataset.ok_or_else(missing)?;
    let source = dataset.open(&mut catalogs.into_iter());
    let source = source.map_err(|text| (ErrorClass::Other, text))?;
    let engine = server.engine(place.run, place.engine, &asked.engine).map_err(configuration)?;
    let orders = Arc::new(AttachedOrders::new(asked.orders, orders));
    let config = asked.job.config(source, Order::Provided(orders)).map_err(configuration)?;
    let started = engine.start_ranks(&config, asked.ranks);
    started.map_err(|error: EngineError| (error.class(), error.to_string()))
}
