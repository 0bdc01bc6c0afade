//! Orders that the ranks of a job give.

use std::fmt;
use std::io;

use belady_base::sync::{Arc, Mutex, lock};
use belady_control::sampler::{Batching, EpochList, OrderError, OrderProvider, RankPlace};

use super::nodes::JoinedNodes;
use crate::message::{OrderReply, OrderRequest, OrdersSpec};
use crate::message_socket::MessageSocket;

/// Asks the ranks of this node for the orders of a job. Every rank knows what all of them read, so
/// one that answers is enough.
#[derive(Debug)]
pub struct AttachedOrders {
    spec: OrdersSpec,
    place: RankPlace,
    /// The ranks of the job in the order in which engines count them.
    numbering: Arc<[u32]>,
    /// The connections of the ranks that are there.
    askable: Mutex<Vec<Arc<Mutex<MessageSocket>>>>,
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
    pub fn new(spec: OrdersSpec, ranks: Vec<MessageSocket>, nodes: Option<&JoinedNodes>) -> Self {
        let place = match nodes {
            None => RankPlace { rank: 0, ranks: ranks.len() as u32 },
            Some(nodes) => nodes.place(),
        };
        let numbering =
            nodes.map_or_else(|| (0..place.ranks).collect(), |nodes| nodes.numbering.clone());
        let askable = ranks.into_iter().map(|rank| Arc::new(Mutex::new(rank))).collect();
        Self { spec, place, numbering, askable: Mutex::new(askable) }
    }

    fn ask(&self, epoch: u32) -> Result<Option<Vec<EpochList>>, String> {
        loop {
            let first = lock(&self.askable).first().cloned();
            let Some(rank) = first else { return Err("all ranks have gone".to_owned()) };
            match exchange(&lock(&rank), epoch) {
                Ok(reply) => {
                    let lists = reply?.map(|lists| lists.into_iter().map(Into::into).collect());
                    return lists.map(|lists| of_ranks(lists, &self.numbering)).transpose();
                }
                // The rank has gone: the next one answers.
                Err(_) => lock(&self.askable).retain(|other| !Arc::ptr_eq(other, &rank)),
            }
        }
    }
}

/// Returns the lists of these ranks, in their order.
fn of_ranks(mut lists: Vec<EpochList>, ranks: &[u32]) -> Result<Vec<EpochList>, String> {
    let count = lists.len();
    let take = |&rank: &u32| {
        let empty = EpochList { samples: vec![], batches: Batching::Ends(vec![]) };
        lists.get_mut(rank as usize).map(|list| std::mem::replace(list, empty))
    };
    let taken: Option<Vec<EpochList>> = ranks.iter().map(take).collect();
    let wrong = || format!("the order is one of {count} ranks, and the job has {}", ranks.len());
    taken.filter(|_| count == ranks.len()).ok_or_else(wrong)
}

fn exchange(rank: &MessageSocket, epoch: u32) -> io::Result<OrderReply> {
    rank.send(&OrderRequest { epoch })?;
    let reply = rank.receive()?;
    reply.map(|(reply, _)| reply).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

impl OrderProvider for AttachedOrders {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        let own = self.place.rank as usize;
        Ok(self.all_ranks(epoch)?.and_then(|lists| lists.into_iter().nth(own)))
    }

    fn ahead(&self) -> bool {
        self.spec.ahead
    }

    fn largest_batch(&self) -> Option<u32> {
        self.spec.largest_batch
    }

    fn place(&self) -> Option<RankPlace> {
        Some(self.place)
    }

    fn all_ranks(&self, epoch: u32) -> Result<Option<Vec<EpochList>>, OrderError> {
        self.ask(epoch).map_err(|text| OrderError::Failed { epoch, error: Box::new(NoOrder(text)) })
    }

    fn number(&self, epoch: u32) -> u32 {
        self.spec.first_epoch.saturating_add(epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_ranks_are_counted_by_node() {
        let list = |rank| EpochList { samples: vec![rank], batches: Batching::Ends(vec![1]) };
        let lists = || (0..4).map(list).collect::<Vec<_>>();
        // Rank 0 and 2 are on one node, 1 and 3 on the other.
        let counted = of_ranks(lists(), &[0, 2, 1, 3]).unwrap();
        assert_eq!(counted, [0, 2, 1, 3].map(list));
        for ranks in [&[0, 1][..], &[0, 1, 2, 4], &[0, 1, 2, 3, 3]] {
            let error = of_ranks(lists(), ranks).unwrap_err();
            assert!(error.contains("of 4 ranks"), "{error}");
        }
    }
}
