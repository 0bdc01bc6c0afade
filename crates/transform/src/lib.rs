//! From a sample's bytes to the tensor that a model reads.
//!
//! A [`Chain`] is a list of [`Step`]s, plain data that Python writes and anyone can print. It is
//! checked once, when it is made: an order of steps that makes no sense, or a shape that cannot
//! come out, is an error that names the step. Then it is run on one sample at a time, by any
//! number of threads, each with a [`Scratch`] of its own so that nothing is allocated a sample,
//! and writes straight into the sample's place in a batch.
//!
//! Names, arguments, sampling rules and pixels are those of `torchvision.transforms.v2`. What is
//! drawn at random depends on the [`Draw`] alone: the seed, the epoch and the sample, never on
//! threads or ranks.

mod array;
mod chain;
mod check;
pub mod codec;
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
pub use draw::{Dice, Draw};
pub use error::{ChainError, TransformError};
pub use random::{Choice, Drawn, Jitter};
pub use run::Scratch;
pub use step::{Fill, Interpolation, Layout, Mode, PaddingMode, Size, Step};
