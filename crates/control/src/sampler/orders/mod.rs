//! Orders that come epoch by epoch.
//!
//! An [`AccessStream`](super::AccessStream) computes any epoch at any time. Other orders cannot: a
//! user's sampler gives one epoch after the other, its epochs differ in length, its batches are
//! ragged, and at some point it ends. An [`OrderProvider`] gives the [`EpochList`] of one epoch:
//! the samples that this process reads and their batches. `Order::Provided` makes a job of it.
//!
//! | provider | order |
//! |---|---|
//! | [`Lists`] | lists that are known from the start |
//! | [`RankOrders`] | one rank's part of an access stream of several ranks |
//! | [`LoaderOrders`] | torch's `DataLoader(shuffle=True)`, from a seed or a generator's state |
//! | [`WeightedOrders`], [`MixtureOrders`] | drawn by weight, split over ranks by a [`RankShare`] |
//! | [`StartAt`] | any of these, from a position on |
//! | [`FirstBatches`] | any of these, the first batches of every epoch |

mod first_batches;
mod mixture;
mod rank_orders;
mod rank_share;
mod start_at;
mod torch_loader;
mod weighted;

use std::error::Error;

pub use first_batches::FirstBatches;
pub use mixture::{MixtureOrders, MixturePart};
pub use rank_orders::RankOrders;
pub use rank_share::RankShare;
pub use start_at::StartAt;
pub use torch_loader::LoaderOrders;
pub use weighted::{Replacement, WeightedOrders};

use super::SampleId;

/// Gives the list of one epoch after the other. Only [`epoch`](Self::epoch) is required.
pub trait OrderProvider: Send + Sync + std::fmt::Debug {
    /// Returns what is read in an epoch, or `None` when there are no more epochs.
    ///
    /// A thread of the engine calls it ahead of need. Unless it can look [`ahead`](Self::ahead) it
    /// is called once for each epoch, in order, and no sooner than the epoch before is staged. It
    /// may block, but must not wait for a delivery of the epoch before: that epoch begins only
    /// when this order is known.
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError>;

    /// Returns whether any epoch can be computed at any time, repeatedly, with the same answer.
    fn ahead(&self) -> bool {
        false
    }

    /// Returns the most samples of a batch, where that is known. A staging buffer that is too small
    /// for it is refused at the start.
    fn largest_batch(&self) -> Option<u32> {
        None
    }

    /// Returns the rank that this order belongs to, where it knows what the other ranks read.
    fn place(&self) -> Option<RankPlace> {
        None
    }

    /// Returns what every rank reads in an epoch, by rank, for orders that know their
    /// [`place`](Self::place).
    fn all_ranks(&self, epoch: u32) -> Result<Option<Vec<EpochList>>, OrderError> {
        Ok(self.epoch(epoch)?.map(|own| vec![own]))
    }

    /// Returns the number by which messages call epoch `epoch` of this order.
    fn number(&self, epoch: u32) -> u32 {
        epoch
    }
}

/// One rank of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankPlace {
    /// From 0.
    pub rank: u32,
    /// How many there are.
    pub ranks: u32,
}

/// What one process reads in an epoch, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochList {
    /// May repeat samples and leave some out.
    pub samples: Vec<SampleId>,
    /// Where batches begin and end in `samples`.
    pub batches: Batching,
}

/// How a list is split into batches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Batching {
    /// Equally long; the last one shorter or dropped.
    Every {
        /// Samples of a batch.
        batch: u32,
        /// Drop an incomplete last batch.
        drop_last: bool,
    },
    /// Where each batch ends: the first has the entries before the first end, and so on.
    /// Entries after the last end are not read. Two equal ends make an empty batch, which is
    /// delivered like any other, so that a rank without samples in a step stays in step.
    Ends(Vec<u32>),
}

impl EpochList {
    /// Makes a list of batches as a batch sampler gives them.
    pub fn of_batches<B: AsRef<[SampleId]>>(batches: impl IntoIterator<Item = B>) -> Self {
        let (mut samples, mut ends) = (vec![], vec![]);
        for batch in batches {
            samples.extend_from_slice(batch.as_ref());
            ends.push(samples.len() as u32);
        }
        Self { samples, batches: Batching::Ends(ends) }
    }

    /// Returns the number of batches.
    pub fn len(&self) -> usize {
        match self.batches {
            Batching::Every { batch: 0, .. } => 0,
            Batching::Every { batch, drop_last: true } => self.samples.len() / batch as usize,
            Batching::Every { batch, drop_last: false } => {
                self.samples.len().div_ceil(batch as usize)
            }
            Batching::Ends(ref ends) => ends.len(),
        }
    }

    /// Returns whether there are no batches.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the batches of a list that passes [`Self::check`].
    pub fn batches(&self) -> Vec<&[SampleId]> {
        match &self.batches {
            Batching::Every { batch, .. } => {
                let batch = (*batch).max(1) as usize;
                self.samples.chunks(batch).take(self.len()).collect()
            }
            Batching::Ends(ends) => {
                let starts = std::iter::once(0).chain(ends.iter().copied());
                starts
                    .zip(ends)
                    .map(|(start, &end)| {
                        self.samples.get(start as usize..end as usize).unwrap_or_default()
                    })
                    .collect()
            }
        }
    }

    /// Checks that the list can be read from a dataset of `samples`.
    ///
    /// # Errors
    /// If not; the error names `epoch`.
    pub fn check(&self, epoch: u32, samples: u32) -> Result<(), OrderError> {
        if let Some(position) = self.samples.iter().position(|&sample| sample >= samples) {
            let sample = self.samples[position];
            return Err(OrderError::OutOfRange { epoch, position, sample, samples });
        }
        match &self.batches {
            Batching::Every { batch: 0, .. } => Err(OrderError::ZeroBatch { epoch }),
            Batching::Every { .. } => Ok(()),
            Batching::Ends(ends) => {
                let length = self.samples.len();
                let mut before = 0;
                for (batch, &end) in ends.iter().enumerate() {
                    if end < before || end as usize > length {
                        return Err(OrderError::BadEnd { epoch, batch, end, before, length });
                    }
                    before = end;
                }
                Ok(())
            }
        }
    }
}

/// Why there is no order for an epoch.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum OrderError {
    #[error(
        "the order of epoch {epoch} names sample {sample} at position {position}, but there are \
         only {samples} samples, counted from 0"
    )]
    OutOfRange { epoch: u32, position: usize, sample: SampleId, samples: u32 },
    #[error(
        "batch {batch} of epoch {epoch} cannot end at entry {end} of its order: the batch before \
         it ends at {before}, and there are {length} entries"
    )]
    BadEnd { epoch: u32, batch: usize, end: u32, before: u32, length: usize },
    #[error("the order of epoch {epoch} has batches of 0 samples; make them at least 1")]
    ZeroBatch { epoch: u32 },
    #[error(
        "the run cannot continue after batch {batch} of epoch {epoch}, which has {batches} \
         batches; the saved position belongs to another run"
    )]
    PastEnd { epoch: u32, batches: usize, batch: u32 },
    #[error("there is no order for epoch {epoch}: {error}")]
    Failed {
        epoch: u32,
        /// The provider's own error.
        #[source]
        error: Box<dyn Error + Send + Sync>,
    },
}

impl OrderError {
    /// Wraps a provider's own error.
    pub fn failed(epoch: u32, error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Failed { epoch, error: error.into() }
    }
}

/// Lists that are known from the start, one for each epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists(pub Vec<EpochList>);

impl OrderProvider for Lists {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        Ok(self.0.get(epoch as usize).cloned())
    }

    fn ahead(&self) -> bool {
        true
    }

    fn largest_batch(&self) -> Option<u32> {
        self.0.iter().flat_map(EpochList::batches).map(|batch| batch.len() as u32).max()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::mt19937::Mt19937;
    use super::super::torch::{Draws, RandomSampler};
    use super::super::{Order, SamplerError, Scheme, StreamConfig};
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_unreadable_list_is_refused_with_the_position() {
        let list = |samples: &[u32], batches| EpochList { samples: samples.to_vec(), batches };
        let error = list(&[1, 7], Batching::Ends(vec![2])).check(3, 7).unwrap_err().to_string();
        for part in ["epoch 3", "sample 7", "position 1", "7 samples"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(list(&[1, 2], Batching::Ends(vec![2, 1])).check(0, 7).is_err());
        assert!(list(&[1, 2], Batching::Ends(vec![3])).check(0, 7).is_err());
        assert!(list(&[1, 2], Batching::Every { batch: 0, drop_last: false }).check(0, 7).is_err());
        assert!(list(&[1, 2], Batching::Ends(vec![0, 1, 1])).check(0, 7).is_ok());
    }

    /// Has no provided method.
    #[derive(Debug)]
    struct Plain(Lists);

    impl OrderProvider for Plain {
        fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
            self.0.epoch(epoch)
        }
    }

    #[test]
    fn provided_methods_answer_unknown() {
        let list = EpochList::of_batches([vec![0, 1, 2], vec![3]]);
        let lists = Lists(vec![list.clone()]);
        assert_eq!((lists.ahead(), lists.largest_batch()), (true, Some(3)));
        let plain = Plain(lists);
        assert_eq!((plain.ahead(), plain.largest_batch(), plain.place()), (false, None, None));
        assert_eq!((plain.number(4), plain.all_ranks(0).unwrap()), (4, Some(vec![list.clone()])));
        assert_eq!(plain.all_ranks(1).unwrap(), None);
        assert!(!list.is_empty() && EpochList::of_batches([[0; 0]; 0]).is_empty());
    }

    /// The order of each rank.
    type OfRank = Box<dyn Fn(u32) -> Arc<dyn OrderProvider>>;

    /// The orders of three ranks: drawn, mixed, and dealt from an access stream.
    fn orders_of_ranks() -> Vec<(&'static str, OfRank)> {
        let share = |rank| RankShare {
            rank,
            ranks: 3,
            batch: 4,
            sampler_drop_last: false,
            drop_last: false,
        };
        let weighted = move |rank| -> Arc<dyn OrderProvider> {
            let drawn = Replacement::With;
            Arc::new(WeightedOrders::new(&[1.0; 9], 31, drawn, 5, share(rank)).unwrap())
        };
        let mixture = move |rank| -> Arc<dyn OrderProvider> {
            let parts = [2.0, 3.0].map(|weight| MixturePart { samples: 9, weight });
            Arc::new(MixtureOrders::new(&parts, 31, 5, share(rank)).unwrap())
        };
        let dealt = |rank| -> Arc<dyn OrderProvider> {
            Arc::new(RankOrders::new(rank, 4, stream()).unwrap())
        };
        vec![
            ("weighted", Box::new(weighted)),
            ("mixture", Box::new(mixture)),
            ("rank", Box::new(dealt)),
        ]
    }

    fn stream() -> StreamConfig {
        StreamConfig {
            samples: 31,
            ranks: 3,
            batch: 0,
            order: Order::Permutation,
            scheme: Scheme::Uniform,
            seed: 5,
            sampler_drop_last: false,
            drop_last: false,
        }
    }

    /// What an order gives for all ranks is what each rank's order gives.
    fn agree(name: &str, of: &dyn Fn(u32) -> Arc<dyn OrderProvider>) {
        let epochs = 0..3;
        for rank in 0..3 {
            let own = of(rank);
            assert_eq!(own.place(), Some(RankPlace { rank, ranks: 3 }), "{name}");
            assert!(own.ahead(), "{name}");
            for epoch in epochs.clone() {
                let each = (0..3).map(|rank| of(rank).epoch(epoch).unwrap().unwrap()).collect();
                assert_eq!(own.all_ranks(epoch).unwrap(), Some(each), "{name}, epoch {epoch}");
            }
            let lists: Vec<EpochList> =
                epochs.clone().map(|epoch| own.epoch(epoch).unwrap().unwrap()).collect();
            let longest = lists.iter().flat_map(EpochList::batches).map(|it| it.len() as u32).max();
            assert_eq!(own.largest_batch(), longest, "{name}");
        }
    }

    #[test]
    fn orders_know_their_place_and_what_every_rank_reads() {
        for (name, of) in orders_of_ranks() {
            agree(name, &*of);
            agree(&format!("first of {name}"), &|rank| {
                Arc::new(FirstBatches { orders: of(rank), batches: 2 })
            });
            for batch in [0, 1] {
                agree(&format!("{name} from {batch} on"), &|rank| {
                    Arc::new(StartAt { orders: of(rank), epoch: 1, batch })
                });
            }
        }
        let plain = Order::Provided(Arc::new(Plain(Lists(vec![]))));
        let unknown = StreamConfig { ranks: 1, order: plain, ..stream() };
        let unknown = RankOrders::new(0, 4, unknown).unwrap();
        assert_eq!((unknown.largest_batch(), unknown.ahead()), (None, false));
    }

    #[test]
    fn a_wrapper_answers_what_the_wrapped_order_answers() {
        let list = EpochList::of_batches([vec![0, 1, 2], vec![3]]);
        let plain: Arc<dyn OrderProvider> = Arc::new(Plain(Lists(vec![list])));
        let sampler = RandomSampler::from_state(10, Draws::ThroughLoader, 4, Mt19937::new(1));
        let loader: Arc<dyn OrderProvider> =
            Arc::new(LoaderOrders::new(sampler, 3, false).unwrap());
        assert_eq!((loader.number(3), loader.ahead(), loader.largest_batch()), (7, true, Some(3)));
        for (orders, ahead, largest, number) in
            [(plain, false, None, 3), (loader, true, Some(3), 7)]
        {
            let first = FirstBatches { orders: orders.clone(), batches: 1 };
            assert_eq!((first.ahead(), first.largest_batch()), (ahead, largest));
            assert_eq!((first.number(3), first.place()), (number, None));
            let start = StartAt { orders, epoch: 2, batch: 1 };
            assert_eq!((start.ahead(), start.largest_batch()), (ahead, largest));
            assert_eq!((start.number(1), start.place()), (number, None));
        }
        let few = RandomSampler::new(2, 1, Draws::ThroughLoader);
        assert_eq!(LoaderOrders::new(few, 3, false).unwrap().largest_batch(), Some(2));
    }

    #[test]
    fn a_share_of_no_ranks_is_refused() {
        let share = RankShare { ranks: 0, ..RankShare::whole(1, false) };
        assert_eq!(share.check().unwrap_err(), SamplerError::NoRanks);
    }

    #[test]
    fn a_providers_own_error_can_be_downcast() {
        let error =
            OrderError::failed(4, "the sampler has no more ideas".parse::<u32>().unwrap_err());
        assert!(error.to_string().contains("epoch 4"), "{error}");
        let OrderError::Failed { error, .. } = error else { panic!("{error}") };
        assert!(error.downcast::<std::num::ParseIntError>().is_ok());
    }

    proptest! {
        #[test]
        fn batches_are_those_the_list_was_made_of(
            batches in prop::collection::vec(prop::collection::vec(0u32..9, 0..5), 0..9),
        ) {
            let list = EpochList::of_batches(&batches);
            list.check(0, 9).unwrap();
            prop_assert_eq!(list.len(), batches.len());
            prop_assert_eq!(list.batches(), batches);
        }

        #[test]
        fn equal_batches_are_chunks(length in 0u32..40, batch in 1u32..9, drop_last: bool) {
            let samples: Vec<u32> = (0..length).collect();
            let list = EpochList { samples, batches: Batching::Every { batch, drop_last } };
            let naive: Vec<&[u32]> = if drop_last {
                list.samples.chunks_exact(batch as usize).collect()
            } else {
                list.samples.chunks(batch as usize).collect()
            };
            prop_assert_eq!(list.len(), naive.len());
            prop_assert_eq!(list.batches(), naive);
        }
    }
}
