//! Delivers batches to the consumer, in order.

mod batch;
mod job_guard;
mod loader;
mod monitor;

pub use batch::{Batch, BatchOwner, DeliveredBytes, MappedMemory, MappedPlace, Sample};
pub use job_guard::JobGuard;
pub use loader::{ConsumerSide, Delivery, Loader, SharedRegion};
pub use monitor::LoaderMonitor;
