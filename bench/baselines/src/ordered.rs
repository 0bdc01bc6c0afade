//! A window of samples between threads that read ahead and a consumer that wants them in
//! order.
//!
//! A thread claims the next index once its bytes fit into what the window may hold, reads,
//! and puts the sample in; the consumer takes index after index. Bytes are held from the
//! claim until the consumer has released them.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub struct Window {
    sizes: Vec<u64>,
    capacity: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    claimed: usize,
    held: u64,
    ready: HashMap<usize, Vec<u8>>,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
    stopped: bool,
}

impl Window {
    /// A sample larger than `capacity` may enter an empty window, so that nothing blocks.
    pub fn new(sizes: Vec<u64>, capacity: u64) -> Self {
        Self { sizes, capacity, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next sample to read and a buffer for it; none when all are claimed or the window
    /// was stopped.
    pub fn claim(&self) -> Option<(usize, Vec<u8>)> {
        let mut state = self.lock();
        loop {
            let size = *self.sizes.get(state.claimed)?;
            if state.stopped {
                return None;
            }
            if state.held == 0 || state.held + size <= self.capacity {
                let index = state.claimed;
                state.claimed += 1;
                state.held += size;
                return Some((index, state.spare.pop().unwrap_or_default()));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn put(&self, index: usize, sample: Vec<u8>) {
        self.lock().ready.insert(index, sample);
        self.changed.notify_all();
    }

    /// Waits for sample `index`; none if the window was stopped.
    pub fn take(&self, index: usize) -> Option<Vec<u8>> {
        let mut state = self.lock();
        loop {
            if let Some(sample) = state.ready.remove(&index) {
                return Some(sample);
            }
            if state.stopped {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The consumer is done with sample `index`.
    pub fn let_go(&self, index: usize, sample: Vec<u8>) {
        let mut state = self.lock();
        state.held -= self.sizes[index];
        state.spare.push(sample);
        drop(state);
        self.changed.notify_all();
    }

    /// A reader failed, so no thread waits any longer.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn delivers_all_in_order_for_any_sizes_and_capacity(
            sizes in proptest::collection::vec(0u64..100, 0..60),
            capacity in 0u64..300,
            threads in 1usize..5,
        ) {
            let window = Window::new(sizes.clone(), capacity);
            thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(|| {
                        while let Some((index, mut buffer)) = window.claim() {
                            buffer.resize(sizes[index] as usize, 0);
                            buffer.fill(index as u8);
                            window.put(index, buffer);
                        }
                    });
                }
                for (index, &size) in sizes.iter().enumerate() {
                    let sample = window.take(index).unwrap();
                    assert_eq!(sample, vec![index as u8; size as usize]);
                    window.let_go(index, sample);
                }
            });
            prop_assert_eq!(window.lock().held, 0);
        }
    }

    #[test]
    fn a_stopped_window_wakes_who_waits() {
        let window = Window::new(vec![10, 10], 10);
        window.claim().unwrap();
        thread::scope(|scope| {
            let reader = scope.spawn(|| window.claim());
            let consumer = scope.spawn(|| window.take(0));
            window.stop();
            assert!(reader.join().unwrap().is_none());
            assert!(consumer.join().unwrap().is_none());
        });
    }
}
