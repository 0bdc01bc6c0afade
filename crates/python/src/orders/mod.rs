//! Which samples come in which batch of which epoch, for one rank.

mod callback;

use std::sync::Arc;

use belady_control::sampler::mt19937::Mt19937;
use belady_control::sampler::orders::{
    FirstBatches, Lists, LoaderOrders, MixtureOrders, MixturePart, RankOrders, RankShare,
    Replacement, StartAt, WeightedOrders,
};
use belady_control::sampler::torch::{Draws, RandomSampler};
use belady_control::sampler::{
    EpochList, Order, OrderError, Orders as Provider, SamplerError, Scheme, StreamConfig,
};
use belady_peer::World;
use pyo3::exceptions::PyValueError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::cluster::Cluster;
use crate::errors::{no_type, ordering, positive, wrong};
use callback::{Callback, Shape};

pub use callback::Feed;

/// What an engine asks, and what has to be stopped when nobody listens any more.
pub type Provided = (Arc<dyn Provider>, Option<Arc<Feed>>);

/// Which samples come in which batch of which epoch, for one rank.
#[pyclass(frozen, module = "belady._native")]
#[derive(Debug)]
pub struct Orders(Kind);

#[derive(Debug)]
enum Kind {
    /// Every epoch has so many batches.
    Native {
        orders: Arc<dyn Provider>,
        batches: u32,
    },
    /// torch's, of one generator. With bytes as `get_state()` gives them.
    Loader {
        orders: Arc<LoaderOrders>,
        batches: u32,
        state: Vec<u8>,
    },
    Python(Callback),
    /// Another one from there on.
    From {
        base: Py<Orders>,
        epoch: u32,
        batch: u32,
    },
}

/// Bytes of `torch.Generator.get_state()`.
const STATE: usize = 5056;

#[pymethods]
impl Orders {
    /// As `DistributedSampler(seed=seed)` deals them out, or the order "sequential" or
    /// "permutation". `batch` is the rank's own.
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
        Ok(Self(Kind::Native { orders: Arc::new(orders), batches }))
    }

    /// As `DataLoader(shuffle=True, generator=g)` draws them. `state` is g's state
    /// (`torch.Generator.get_state()`) at the beginning of epoch `first_epoch`; without it g was
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
        Ok(Self(Kind::Loader { orders, batches, state }))
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

    /// Each position comes from a dataset drawn by weight; each dataset is gone through in
    /// shuffled order, again and again.
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
                "a mixture of {} datasets needs as many weights, not {}",
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

    /// A callback gives epoch after epoch.
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
            return Err(no_type("an order is given by a function", epoch));
        }
        let batch = batch.map(|batch| positive("batch", batch)).transpose()?;
        let samples = positive("samples", samples)?;
        let shape = Shape { samples, batch, drop_last, largest_batch };
        Ok(Self(Kind::Python(Callback::new(epoch.clone().unbind(), shape))))
    }

    /// Of every epoch the first so many batches, where any epoch can be computed.
    fn first_batches(&self, cut: u32) -> PyResult<Self> {
        match &self.0 {
            Kind::Native { orders, batches } => {
                let orders = Arc::new(FirstBatches { orders: orders.clone(), batches: cut });
                Ok(Self(Kind::Native { orders, batches: cut.min(*batches) }))
            }
            _ => Err(PyValueError::new_err("only orders that are computed can be cut")),
        }
    }

    /// Rank and ranks, where it is known what the others read.
    fn place(&self) -> Option<(u32, u32)> {
        match &self.0 {
            Kind::Native { orders, .. } => orders.place().map(|it| (it.rank, it.ranks)),
            Kind::From { base, .. } => base.get().place(),
            Kind::Loader { .. } | Kind::Python(_) => None,
        }
    }

    /// The same from there on: epoch 0 of the result is `epoch` without its first `batch`
    /// batches.
    fn start_at(slf: &Bound<'_, Self>, epoch: u32, batch: u32) -> Self {
        Self(Kind::From { base: slf.clone().unbind(), epoch, batch })
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

    /// Samples of an epoch, as an array of numbers of 32 bits; nothing after the last epoch.
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

    /// How many batches an epoch has, if that is known without running anything.
    fn batches(&self, epoch: u32) -> Option<u32> {
        match &self.0 {
            Kind::Native { batches, .. } | Kind::Loader { batches, .. } => Some(*batches),
            Kind::Python(_) => None,
            Kind::From { base, epoch: from, batch } => {
                let all = base.get().batches(from.saturating_add(epoch))?;
                Some(if epoch == 0 { all.saturating_sub(*batch) } else { all })
            }
        }
    }

    /// The generator's state at an epoch's beginning, where there is one generator.
    fn state<'py>(&self, py: Python<'py>, epoch: u32) -> Option<Bound<'py, PyBytes>> {
        match &self.0 {
            Kind::Loader { orders, state, .. } => {
                let mut state = state.clone();
                let sampler = py.detach(|| orders.before(epoch));
                sampler.state().write_torch(&mut state);
                Some(PyBytes::new(py, &state))
            }
            Kind::From { base, epoch: from, .. } => {
                base.get().state(py, from.saturating_add(epoch))
            }
            Kind::Native { .. } | Kind::Python(_) => None,
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match &self.0 {
            Kind::Python(callback) => callback.traverse(visit),
            Kind::From { base, .. } => visit.call(base),
            Kind::Native { .. } | Kind::Loader { .. } => Ok(()),
        }
    }

    fn __clear__(&self) {
        if let Kind::Python(callback) = &self.0 {
            callback.clear();
        }
    }
}

impl Orders {
    /// What an engine asks.
    pub fn provide(&self, py: Python<'_>) -> PyResult<Provided> {
        Ok(match &self.0 {
            Kind::Native { orders, .. } => (orders.clone(), None),
            Kind::Loader { orders, .. } => (orders.clone(), None),
            Kind::Python(callback) => {
                let feed = callback.feed(py)?;
                (feed.clone(), Some(feed))
            }
            &Kind::From { ref base, epoch, batch } => {
                let (orders, feed) = base.get().provide(py)?;
                (Arc::new(StartAt { orders, epoch, batch }), feed)
            }
        })
    }

    /// Whether it is known what each rank of a cluster reads.
    pub fn is_known_to(&self, cluster: &Cluster) -> PyResult<bool> {
        let World { rank, size } = cluster.native()?.world();
        Ok(self.place() == Some((rank, size)))
    }

    /// The same for a job that has no peers.
    pub fn alone(orders: Arc<dyn Provider>) -> Arc<dyn Provider> {
        Arc::new(Alone(orders))
    }

    fn list(&self, py: Python<'_>, epoch: u32) -> PyResult<Option<EpochList>> {
        let ask = |orders: &dyn Provider, epoch| {
            py.detach(|| orders.epoch(epoch)).map_err(|error| ordering(py, &error))
        };
        match &self.0 {
            Kind::Native { orders, .. } => ask(&**orders, epoch),
            Kind::Loader { orders, .. } => ask(&**orders, epoch),
            Kind::Python(callback) => callback.ask(py, epoch),
            &Kind::From { ref base, epoch: from, batch } => {
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

    /// An order of so many samples that ranks share.
    fn shared(
        length: u32,
        share: RankShare,
        orders: Result<impl Provider + 'static, SamplerError>,
    ) -> PyResult<Self> {
        let orders = Arc::new(orders.map_err(wrong)?);
        let own = length.div_ceil(share.ranks);
        Ok(Self(Kind::Native { orders, batches: batches(own, share.batch, share.drop_last)? }))
    }
}

/// An order that knows nothing of other ranks.
#[derive(Debug)]
struct Alone(Arc<dyn Provider>);

impl Provider for Alone {
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

/// A generator, and the bytes of one in its state.
fn generator(seed: Option<u64>, state: Option<Vec<u8>>) -> PyResult<(Mt19937, Vec<u8>)> {
    match (seed, state) {
        (None, Some(state)) => {
            let generator = Mt19937::from_torch(&state).ok_or_else(|| {
                PyValueError::new_err(format!(
                    "state is not one of torch's CPU generator: {} bytes instead of what \
                     torch.Generator.get_state() gives",
                    state.len()
                ))
            })?;
            Ok((generator, state))
        }
        (Some(seed), None) => {
            let mut state = vec![0; STATE];
            state[..8].copy_from_slice(&seed.to_le_bytes());
            // It is seeded.
            state[12] = 1;
            Ok((Mt19937::new(seed), state))
        }
        _ => Err(PyValueError::new_err("give a seed or a state, one of them")),
    }
}
