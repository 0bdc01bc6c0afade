//! Delivers batches to the consumer, in order.

mod batch;
mod loader;
mod monitor;

pub use batch::{Batch, Sample};
pub use loader::{ConsumerSide, Delivery, Loader, SharedRegion};
pub use monitor::LoaderMonitor;
