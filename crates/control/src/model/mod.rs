//! What actions cost: typed quantities, throughput curves, the system's description, and the
//! papers' formulas on top of them.

pub mod curve;
pub mod frequency;
pub mod lobster;
pub mod nopfs;
pub mod preprocess;
pub mod online;
pub mod system;

pub use belady_base::units::{Bytes, Rate, Seconds};
pub use curve::Curve;
pub use preprocess::{Portfolio, PreprocessModel, PreprocessWork};
pub use system::{ComputeCost, Pipeline, Readers, Sharing, SourceModel, System, TierModel};
