//! From a sample's bytes to the tensor that a model reads.
//!
//! A [`Chain`] is a list of [`TransformStep`]s, which are plain data. It is checked once, when it
//! is made: an impossible order of steps or shape is an error that names the step. Then any number
//! of threads run it, one sample at a time. Each thread has a [`Scratch`], so that no sample
//! allocates memory, and writes straight into the sample's row of a batch.
//!
//! Names, arguments, sampling rules and pixels are those of `torchvision.transforms.v2`. Random
//! draws depend on the [`Draw`] only (the seed, the epoch and the sample), never on threads or
//! ranks.
//!
//! ```text
//! parse, step        steps as JSON and as data
//! check, flow        whether steps fit together; the types between them
//! chain              a checked list of steps
//! random, draw       what random steps draw; geometry: sizes
//! run                one sample: open, fuse image operations, execute, numbers
//! codec              image files to pixels;  npy: NumPy files
//! ops                operations on pixels;   numbers: arithmetic on arrays
//! crop_window        a chain as one crop and resize, for GPUs
//! ```

mod array;
mod chain;
mod check;
pub mod codec;
mod crop_window;
mod draw;
mod error;
mod flow;
mod geometry;
pub mod image;
mod npy;
mod numbers;
pub mod ops;
mod parse;
mod random;
mod run;
mod step;

pub use array::{Array, Dtype, Output};
pub use chain::Chain;
pub use crop_window::CropWindow;
pub use draw::{Draw, StepRng};
pub use error::{ChainError, TransformError};
pub use random::{Drawn, Jitter, RandomChoice};
pub use run::Scratch;
pub use step::{AxisLayout, Interpolation, Mode, PadFill, PaddingMode, Size, TransformStep};
