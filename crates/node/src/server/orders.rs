//! Orders that the ranks of a job give.

use std::fmt;
use std::io;

use belady_base::sync::{Arc, Mutex, lock};
use belady_control::sampler::{EpochList, OrderError, OrderProvider, RankPlace};

use crate::connection::Connection;
use crate::message::{OrderReply, OrderRequest, OrdersSpec};

/// Asks the ranks of a job for orders. Every rank knows what all of them read, so one that answers
/// is enough.
#[derive(Debug)]
pub struct AttachedOrders {
    spec: OrdersSpec,
    ranks: u32,
    /// The connections of the ranks that are there.
    askable: Mutex<Vec<Arc<Mutex<Connection>>>>,
}

/// No rank gives an order.
#[derive(Debug)]
struct NoOrder(String);

impl fmt::Display for NoOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoOrder {}

impl AttachedOrders {
    pub fn new(spec: OrdersSpec, ranks: Vec<Connection>) -> Self {
        let count = ranks.len() as u32;
        let askable = ranks.into_iter().map(|rank| Arc::new(Mutex::new(rank))).collect();
        Self { spec, ranks: count, askable: Mutex::new(askable) }
    }

    fn ask(&self, epoch: u32) -> Result<Option<Vec<EpochList>>, String> {
        loop {
            let first = lock(&self.askable).first().cloned();
            let Some(rank) = first else { return Err("all ranks have gone".to_owned()) };
            match exchange(&lock(&rank), epoch) {
                Ok(reply) => {
                    let lists = reply?;
                    return Ok(lists.map(|lists| lists.into_iter().map(Into::into).collect()));
                }
                // The rank has gone: the next one answers.
                Err(_) => lock(&self.askable).retain(|other| !Arc::ptr_eq(other, &rank)),
            }
        }
    }
}

fn exchange(rank: &Connection, epoch: u32) -> io::Result<OrderReply> {
    rank.send(&OrderRequest { epoch })?;
    let reply = rank.receive()?;
    reply.map(|(reply, _)| reply).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

impl OrderProvider for AttachedOrders {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        Ok(self.all_ranks(epoch)?.and_then(|lists| lists.into_iter().next()))
    }

    fn ahead(&self) -> bool {
        self.spec.ahead
    }

    fn largest_batch(&self) -> Option<u32> {
        self.spec.largest_batch
    }

    fn place(&self) -> Option<RankPlace> {
        Some(RankPlace { rank: 0, ranks: self.ranks })
    }

    fn all_ranks(&self, epoch: u32) -> Result<Option<Vec<EpochList>>, OrderError> {
        self.ask(epoch).map_err(|text| OrderError::Failed { epoch, error: Box::new(NoOrder(text)) })
    }

    fn number(&self, epoch: u32) -> u32 {
        self.spec.first_epoch.saturating_add(epoch)
    }
}
