//! The class `Orders`.

mod callback;
mod generator;

use std::sync::Arc;

use belady_control::sampler::mt19937::Mt19937;
use belady_control::sampler::orders::{
    FirstBatches, Lists, LoaderOrders, MixtureOrders, MixturePart, RankOrders, RankShare,
    Replacement, StartAt, WeightedOrders,
};
use belady_control::sampler::torch::{Draws, RandomSampler};
use belady_control::sampler::{
    EpochList, Order, OrderError, OrderProvider, SamplerError, Scheme, StreamConfig,
};
use belady_peer::JobWorld;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arguments::{no_type, positive, wrong};
use crate::cluster::PyCluster;
use crate::errors::ordering;
use callback::{Callback, EpochShape};

pub use callback::CallbackFeed;
pub use generator::{PyGeneratorState, randperm_words};

/// An order, and the feed to stop when the job ends.
pub type Provided = (Arc<dyn OrderProvider>, Option<Arc<CallbackFeed>>);

/// The samples of each batch of each epoch, for one rank.
#[pyclass(name = "Orders", frozen, module = "belady._native")]
#[derive(Debug)]
pub struct PyOrders(OrderKind);

#[derive(Debug)]
enum OrderKind {
    /// A computed order; every epoch has this many batches.
    Native {
        orders: Arc<dyn OrderProvider>,
        batches: u32,
    },
    /// torch's order of one generator, with the state that `get_state()` returned.
    Loader {
        orders: Arc<LoaderOrders>,
        batches: u32,
        state: Vec<u8>,
    },
    Python(Callback),
    /// The rest of another order.
    From {
        base: Py<PyOrders>,
        epoch: u32,
        batch: u32,
    },
}

#[pymethods]
impl PyOrders {
    /// The order of `DistributedSampler(seed=seed)`, or the order "sequential" or "permutation".
    /// `batch` is the size of the rank's own batches.
    #[staticmethod]
    #[pyo3(signature = (*, samples, batch, order="torch", scheme="uniform", seed=0, rank=0,
        ranks=1, drop_last=false, sampler_drop_last=false))]
    #[allow(clippy::too_many_arguments)]
    fn distributed(
        samples: i64,
        batch: i64,
        order: &str,
        scheme: &str,
        seed: u64,
        rank: u32,
        ranks: u32,
        drop_last: bool,
        sampler_drop_last: bool,
    ) -> PyResult<Self> {
        let config = StreamConfig {
            samples: positive("samples", samples)?,
            ranks,
            batch: 1,
            order: named("order", order, &ORDERS)?,
            scheme: named("scheme", scheme, &SCHEMES)?,
            seed,
            sampler_drop_last,
            drop_last,
        };
        let orders = RankOrders::new(rank, positive("batch", batch)?, config).map_err(wrong)?;
        let batches = orders.stream().iterations();
        Ok(Self(OrderKind::Native { orders: Arc::new(orders), batches }))
    }

    /// The order of `DataLoader(shuffle=True, generator=g)`. `state` is g's state
    /// (`torch.Generator.get_state()`) at the beginning of epoch `first_epoch`; without it, g was
    /// seeded with `seed`. `draws` is "loader", "persistent-loader" or "sampler".
    #[staticmethod]
    #[pyo3(signature = (*, samples, batch, seed=None, state=None, first_epoch=0, draws="loader",
        drop_last=false))]
    fn loader(
        samples: i64,
        batch: i64,
        seed: Option<u64>,
        state: Option<Vec<u8>>,
        first_epoch: u32,
        draws: &str,
        drop_last: bool,
    ) -> PyResult<Self> {
        let (samples, batch) = (positive("samples", samples)?, positive("batch", batch)?);
        let draws = named("draws", draws, &DRAWS)?;
        let (generator, state) = generator(seed, state)?;
        let sampler = RandomSampler::from_state(samples, draws, first_epoch.into(), generator);
        let batches = batches(samples, batch, drop_last)?;
        let orders = Arc::new(LoaderOrders::new(sampler, batch, drop_last).map_err(wrong)?);
        Ok(Self(OrderKind::Loader { orders, batches, state }))
    }

    #[staticmethod]
    #[pyo3(signature = (weights, *, batch, num_samples, replacement=true, seed=0, rank=0, ranks=1,
        drop_last=false))]
    #[allow(clippy::too_many_arguments)]
    fn weighted(
        weights: Vec<f64>,
        batch: i64,
        num_samples: i64,
        replacement: bool,
        seed: u64,
        rank: u32,
        ranks: u32,
        drop_last: bool,
    ) -> PyResult<Self> {
        let length = positive("num_samples", num_samples)?;
        let share = share(rank, ranks, batch, drop_last)?;
        let replacement = if replacement { Replacement::With } else { Replacement::Without };
        let orders = WeightedOrders::new(&weights, length, replacement, seed, share);
        Self::shared(length, share, orders)
    }

    /// Each position takes the next sample of a dataset drawn by weight; each dataset is shuffled
    /// again after each pass.
    #[staticmethod]
    #[pyo3(signature = (lengths, weights, *, batch, num_samples, seed=0, rank=0, ranks=1,
        drop_last=false))]
    #[allow(clippy::too_many_arguments)]
    fn mixture(
        lengths: Vec<u32>,
        weights: Vec<f64>,
        batch: i64,
        num_samples: i64,
        seed: u64,
        rank: u32,
        ranks: u32,
        drop_last: bool,
    ) -> PyResult<Self> {
        if lengths.len() != weights.len() {
            return Err(PyValueError::new_err(format!(
                "a mixture of {} datasets needs one weight for each, not {} weights",
                lengths.len(),
                weights.len()
            )));
        }
        let length = positive("num_samples", num_samples)?;
        let share = share(rank, ranks, batch, drop_last)?;
        let parts = lengths.into_iter().zip(weights);
        let parts: Vec<_> =
            parts.map(|(samples, weight)| MixturePart { samples, weight }).collect();
        Self::shared(length, share, MixtureOrders::new(&parts, length, seed, share))
    }

    /// The order that a callback returns for each epoch.
    #[staticmethod]
    #[pyo3(signature = (epoch, *, samples, batch=None, drop_last=false, largest_batch=None))]
    fn python(
        epoch: &Bound<'_, PyAny>,
        samples: i64,
        batch: Option<i64>,
        drop_last: bool,
        largest_batch: Option<u32>,
    ) -> PyResult<Self> {
        if !epoch.is_callable() {
            return Err(no_type("an order must be a function", epoch));
        }
        let batch = batch.map(|batch| positive("batch", batch)).transpose()?;
        let samples = positive("samples", samples)?;
        let shape = EpochShape { samples, batch, drop_last, largest_batch };
        Ok(Self(OrderKind::Python(Callback::new(epoch.clone().unbind(), shape))))
    }

    /// The first `cut` batches of every epoch, for computed orders.
    fn first_batches(&self, cut: u32) -> PyResult<Self> {
        match &self.0 {
            OrderKind::Native { orders, batches } => {
                let orders = Arc::new(FirstBatches { orders: orders.clone(), batches: cut });
                Ok(Self(OrderKind::Native { orders, batches: cut.min(*batches) }))
            }
            _ => {
                Err(PyValueError::new_err("only computed orders can be cut to their first batches"))
            }
        }
    }

    /// The rank and the number of ranks, if the accesses of the other ranks are known.
    fn rank_and_size(&self) -> Option<(u32, u32)> {
        match &self.0 {
            OrderKind::Native { orders, .. } => orders.place().map(|it| (it.rank, it.ranks)),
            OrderKind::From { base, .. } => base.get().rank_and_size(),
            OrderKind::Loader { .. } | OrderKind::Python(_) => None,
        }
    }

    /// The rest of this order: epoch 0 of the result is `epoch` without its first `batch` batches.
    fn start_at(slf: &Bound<'_, Self>, epoch: u32, batch: u32) -> Self {
        Self(OrderKind::From { base: slf.clone().unbind(), epoch, batch })
    }

    /// Samples and ends of batches of an epoch.
    fn epoch(&self, py: Python<'_>, epoch: u32) -> PyResult<Option<(Vec<u32>, Vec<u32>)>> {
        let Some(list) = self.list(py, epoch)? else { return Ok(None) };
        let mut end = 0;
        let ends: Vec<u32> = list
            .batches()
            .iter()
            .map(|batch| {
                end += batch.len() as u32;
                end
            })
            .collect();
        let EpochList { mut samples, .. } = list;
        samples.truncate(end as usize);
        Ok(Some((samples, ends)))
    }

    /// Samples of an epoch as native uint32; empty after the last epoch.
    fn ids<'py>(&self, py: Python<'py>, epoch: u32) -> PyResult<Bound<'py, PyBytes>> {
        let list = self.list(py, epoch)?;
        let samples = list.as_ref().map_or(&[][..], |list| &list.samples);
        PyBytes::new_with(py, samples.len() * 4, |bytes| {
            for (into, sample) in bytes.chunks_exact_mut(4).zip(samples) {
                into.copy_from_slice(&sample.to_ne_bytes());
            }
            Ok(())
        })
    }

    /// Number of batches of an epoch; None if that is not known in advance.
    fn batches(&self, epoch: u32) -> Option<u32> {
        match &self.0 {
            OrderKind::Native { batches, .. } | OrderKind::Loader { batches, .. } => Some(*batches),
            OrderKind::Python(_) => None,
            OrderKind::From { base, epoch: from, batch } => {
                let all = base.get().batches(from.saturating_add(epoch))?;
                Some(if epoch == 0 { all.saturating_sub(*batch) } else { all })
            }
        }
    }

    /// The generator's state at an epoch's beginning, where there is one generator.
    fn state<'py>(&self, py: Python<'py>, epoch: u32) -> Option<Bound<'py, PyBytes>> {
        match &self.0 {
            OrderKind::Loader { orders, state, .. } => {
                let mut state = state.clone();
                let sampler = py.detach(|| orders.before(epoch));
                sampler.state().write_torch(&mut state);
                Some(PyBytes::new(py, &state))
            }
            OrderKind::From { base, epoch: from, .. } => {
                base.get().state(py, from.saturating_add(epoch))
            }
            OrderKind::Native { .. } | OrderKind::Python(_) => None,
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match &self.0 {
            OrderKind::Python(callback) => callback.traverse(visit),
            OrderKind::From { base, .. } => visit.call(base),
            OrderKind::Native { .. } | OrderKind::Loader { .. } => Ok(()),
        }
    }

    fn __clear__(&self) {
        if let OrderKind::Python(callback) = &self.0 {
            callback.clear();
        }
    }
}

impl PyOrders {
    /// What an engine asks.
    pub fn provide(&self, py: Python<'_>) -> PyResult<Provided> {
        Ok(match &self.0 {
            OrderKind::Native { orders, .. } => (orders.clone(), None),
            OrderKind::Loader { orders, .. } => (orders.clone(), None),
            OrderKind::Python(callback) => {
                let feed = callback.feed(py)?;
                (feed.clone(), Some(feed))
            }
            &OrderKind::From { ref base, epoch, batch } => {
                let (orders, feed) = base.get().provide(py)?;
                (Arc::new(StartAt { orders, epoch, batch }), feed)
            }
        })
    }

    /// Returns whether the accesses of each rank of a cluster are known.
    pub fn is_known_to(&self, cluster: &PyCluster) -> PyResult<bool> {
        let JobWorld { rank, size } = cluster.native()?.world();
        Ok(self.rank_and_size() == Some((rank, size)))
    }

    /// Returns the same order for a job without peers.
    pub fn alone(orders: Arc<dyn OrderProvider>) -> Arc<dyn OrderProvider> {
        Arc::new(Alone(orders))
    }

    fn list(&self, py: Python<'_>, epoch: u32) -> PyResult<Option<EpochList>> {
        let ask = |orders: &dyn OrderProvider, epoch| {
            py.detach(|| orders.epoch(epoch)).map_err(|error| ordering(py, &error))
        };
        match &self.0 {
            OrderKind::Native { orders, .. } => ask(&**orders, epoch),
            OrderKind::Loader { orders, .. } => ask(&**orders, epoch),
            OrderKind::Python(callback) => callback.ask(py, epoch),
            &OrderKind::From { ref base, epoch: from, batch } => {
                let list = base.get().list(py, from.saturating_add(epoch))?;
                match list {
                    Some(list) if epoch == 0 => {
                        let orders = Arc::new(Lists(vec![list]));
                        ask(&StartAt { orders, epoch: 0, batch }, 0)
                    }
                    list => Ok(list),
                }
            }
        }
    }

    /// Makes an order of `length` samples that ranks share.
    fn shared(
        length: u32,
        share: RankShare,
        orders: Result<impl OrderProvider + 'static, SamplerError>,
    ) -> PyResult<Self> {
        let orders = Arc::new(orders.map_err(wrong)?);
        let own = length.div_ceil(share.ranks);
        Ok(Self(OrderKind::Native { orders, batches: batches(own, share.batch, share.drop_last)? }))
    }
}

/// An order that hides the accesses of other ranks.
#[derive(Debug)]
struct Alone(Arc<dyn OrderProvider>);

impl OrderProvider for Alone {
    fn epoch(&self, epoch: u32) -> Result<Option<EpochList>, OrderError> {
        self.0.epoch(epoch)
    }

    fn ahead(&self) -> bool {
        self.0.ahead()
    }

    fn largest_batch(&self) -> Option<u32> {
        self.0.largest_batch()
    }

    fn number(&self, epoch: u32) -> u32 {
        self.0.number(epoch)
    }
}

const ORDERS: [(&str, Order); 3] = [
    ("torch", Order::Torch),
    ("sequential", Order::Sequential),
    ("permutation", Order::Permutation),
];
const SCHEMES: [(&str, Scheme); 5] = [
    ("uniform", Scheme::Uniform),
    ("parts", Scheme::Parts),
    ("contiguous", Scheme::Contiguous),
    ("whole", Scheme::Whole),
    ("imbalanced", Scheme::Imbalanced),
];
const DRAWS: [(&str, Draws); 3] = [
    ("loader", Draws::ThroughLoader),
    ("persistent-loader", Draws::ThroughPersistentLoader),
    ("sampler", Draws::SamplerAlone),
];

/// Returns the names of the schemes by which ranks share a batch.
pub fn schemes() -> [&'static str; 5] {
    SCHEMES.map(|(name, _)| name)
}

fn named<T: Clone>(what: &str, name: &str, known: &[(&str, T)]) -> PyResult<T> {
    let found = known.iter().find(|(other, _)| *other == name);
    found.map(|(_, value)| value.clone()).ok_or_else(|| {
        let names: Vec<_> = known.iter().map(|(name, _)| format!("{name:?}")).collect();
        PyValueError::new_err(format!("{what} must be {}, not {name:?}", names.join(" or ")))
    })
}

fn share(rank: u32, ranks: u32, batch: i64, drop_last: bool) -> PyResult<RankShare> {
    let batch = positive("batch", batch)?;
    let ranks = positive("ranks", ranks.into())?;
    Ok(RankShare { rank, ranks, batch, sampler_drop_last: false, drop_last })
}

fn batches(samples: u32, batch: u32, drop_last: bool) -> PyResult<u32> {
    match if drop_last { samples / batch } else { samples.div_ceil(batch) } {
        0 => Err(wrong(SamplerError::NoIterations { samples, batch })),
        batches => Ok(batches),
    }
}

/// Returns a generator and its state in torch's format.
fn generator(seed: Option<u64>, state: Option<Vec<u8>>) -> PyResult<(Mt19937, Vec<u8>)> {
    match (seed, state) {
        (None, Some(state)) => {
            let generator = Mt19937::from_torch(&state).ok_or_else(|| {
                PyValueError::new_err(format!(
                    "state has {} bytes, which is not a state of torch's CPU generator: give the \
                     result of torch.Generator.get_state()",
                    state.len()
                ))
            })?;
            Ok((generator, state))
        }
        (Some(seed), None) => {
            let mut state = generator::seeded();
            state[..8].copy_from_slice(&seed.to_le_bytes());
            Ok((Mt19937::new(seed), state))
        }
        _ => Err(PyValueError::new_err("give either a seed or a state")),
    }
}
