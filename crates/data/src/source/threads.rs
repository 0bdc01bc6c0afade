//! Short-lived threads for work that waits for the storage.

/// Listing waits for the storage, not for the processor: threads beyond the cores help.
const THREADS: usize = 32;

/// Runs work on a thread pool that ends with the call: a forked child must never depend on threads
/// of its parent.
pub(super) fn on_many_threads<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    match rayon::ThreadPoolBuilder::new().num_threads(THREADS).build() {
        Ok(pool) => pool.install(work),
        Err(_) => work(),
    }
}
