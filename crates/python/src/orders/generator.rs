//! The class `GeneratorState`: the state of torch's CPU generator.

use belady_control::sampler::mt19937::Mt19937;
use belady_control::sampler::torch::randperm_draws;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Bytes of `torch.Generator.get_state()`.
pub const TORCH_BYTES: usize = 5056;
/// The offset of the flag that the generator was seeded.
const SEEDED: usize = 12;
const WORDS: usize = 624;
/// The limit of [`PyGeneratorState::words_until`], some milliseconds of work.
const FAR: usize = 1 << 20;

/// A state of torch's CPU generator: 624 words, and the number of used ones.
#[pyclass(name = "GeneratorState", frozen, eq, module = "belady._native")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PyGeneratorState(Mt19937);

#[pymethods]
impl PyGeneratorState {
    /// From the bytes of `torch.Generator.get_state()`.
    #[staticmethod]
    fn from_torch(state: &[u8]) -> PyResult<Self> {
        Mt19937::from_torch(state).map(Self).ok_or_else(|| {
            PyValueError::new_err(format!(
                "these {} bytes are not a state of torch's CPU generator, which has {TORCH_BYTES}; \
                 give a torch.Generator of the device cpu",
                state.len()
            ))
        })
    }

    /// The bytes for `torch.Generator.set_state()`. Everything but the words, such as the seed, is
    /// copied from `like`.
    #[pyo3(signature = (like=None))]
    fn to_torch<'py>(&self, py: Python<'py>, like: Option<&[u8]>) -> PyResult<Bound<'py, PyBytes>> {
        let mut state = like.map_or_else(seeded, <[u8]>::to_vec);
        if !self.0.write_torch(&mut state) {
            return Err(PyValueError::new_err(format!(
                "`like` has {} bytes, but a state of torch's CPU generator has {TORCH_BYTES}",
                state.len()
            )));
        }
        Ok(PyBytes::new(py, &state))
    }

    /// From the result of `to_bytes`.
    #[staticmethod]
    fn from_bytes(packed: &[u8]) -> PyResult<Self> {
        let unpacked = packed.split_last_chunk::<2>().and_then(|(words, used)| {
            let (words, rest) = words.as_chunks::<4>();
            let words: Vec<u32> = words.iter().map(|&word| u32::from_le_bytes(word)).collect();
            let words = words.try_into().ok().filter(|_| rest.is_empty())?;
            Mt19937::from_words(words, u16::from_le_bytes(*used).into())
        });
        unpacked.map(Self).ok_or_else(|| {
            PyValueError::new_err(format!("{} bytes are not a generator's state", packed.len()))
        })
    }

    /// The words, four bytes each, then the number of used ones in two bytes.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let (words, used) = self.0.words();
        let mut packed: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        packed.extend((used as u16).to_le_bytes());
        PyBytes::new(py, &packed)
    }

    /// The state after drawing this many words.
    fn skip(&self, py: Python<'_>, words: u64) -> Self {
        let mut later = self.0.clone();
        py.detach(|| later.skip(words));
        Self(later)
    }

    /// The number that `torch.empty((), dtype=torch.int64).random_()` draws next.
    fn next_int64(&self) -> u64 {
        self.0.clone().random64() % (1 << 63)
    }

    /// Number of words drawn between this state and a later one; None above a limit.
    fn words_until(&self, py: Python<'_>, later: &Self) -> Option<usize> {
        let ((words, used), (later, later_used)) = (self.0.words(), later.0.words());
        if words == later && used <= later_used {
            return Some(later_used - used);
        }
        let mut state = Mt19937::from_words(*words, WORDS)?;
        py.detach(|| {
            (1..FAR / WORDS).find_map(|rounds| {
                state.skip(WORDS as u64);
                (state.words().0 == later).then(|| rounds * WORDS + later_used - used)
            })
        })
    }
}

/// Returns the bytes of a seeded `get_state()`, with all words zero.
pub fn seeded() -> Vec<u8> {
    let mut state = vec![0; TORCH_BYTES];
    state[SEEDED] = 1;
    state
}

/// Number of words that `torch.randperm(samples)` draws.
#[pyfunction]
pub fn randperm_words(samples: u32) -> u64 {
    randperm_draws(samples)
}
