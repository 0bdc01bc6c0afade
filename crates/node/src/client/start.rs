//! The start of one rank's part of a job.

use std::io;
use std::time::Duration;

use belady_base::sync::{Arc, Mutex, lock};
use belady_control::sampler::{OrderError, OrderProvider};
use belady_data::source::Source;
use belady_engine::EngineError;

use super::job::{NodeJob, RankMemory};
use super::loader::NodeLoader;
use crate::message::{OrderReply, OrderRequest, ToRank, WireList};
use crate::message_socket::MessageSocket;

/// How often a rank that waits for the start of a job looks whether the engine lives.
const TICK: Duration = Duration::from_secs(1);

/// Waits until the engine has started the job. The connections are those of data, replies and
/// orders.
pub fn wait(
    [data, replies, orders]: [MessageSocket; 3],
    provider: Arc<dyn OrderProvider>,
    source: Arc<dyn Source>,
    pid: u32,
) -> Result<NodeLoader, EngineError> {
    let order_error = Arc::<Mutex<Option<OrderError>>>::default();
    let job = Arc::new(NodeJob::new(data, replies, order_error.clone(), pid));
    // Ends with the job in the engine, or with the engine.
    let thread = std::thread::Builder::new().name("belady-orders".into());
    let spawned = thread.spawn(move || answer_orders(&orders, &*provider, &order_error));
    spawned.map_err(EngineError::Threads)?;
    // It starts when all ranks of the node have come, which may take long.
    while !job.data.wait(TICK).map_err(|error| job.lost(&error))? {}
    let (message, mut files) = job.receive()?;
    match message {
        ToRank::Started { length, tiers } => {
            let memory = RankMemory::attach(length, &tiers, &mut files.drain(..));
            let memory = Arc::new(memory.map_err(|error| job.lost(&error))?);
            Ok(NodeLoader::new(job, memory, source))
        }
        ToRank::Failed { class, text } => Err(job.reported(class, text)),
        _ => Err(job.lost(&io::ErrorKind::InvalidData.into())),
    }
}

/// Answers the engine's questions until it ends the connection.
fn answer_orders(
    orders: &MessageSocket,
    provider: &dyn OrderProvider,
    failure: &Mutex<Option<OrderError>>,
) {
    while let Ok(Some((OrderRequest { epoch }, _))) = orders.receive() {
        let reply: OrderReply = match provider.all_ranks(epoch) {
            Ok(lists) => Ok(lists.map(|lists| lists.into_iter().map(WireList::from).collect())),
            Err(error) => {
                let text = error.to_string();
                *lock(failure) = Some(error);
                Err(text)
            }
        };
        if orders.send(&reply).is_err() {
            return;
        }
    }
}
