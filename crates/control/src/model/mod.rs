//! What things cost: typed quantities, throughput curves, the system's
//! description, and the formulas of the papers on top of them.

pub mod curve;
pub mod frequency;
pub mod lobster;
pub mod nopfs;
pub mod system;
pub mod units;

pub use curve::Curve;
pub use system::{Pipeline, Readers, Sharing, Source, System, Tier};
pub use units::{Bytes, Rate, Seconds};
