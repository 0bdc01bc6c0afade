//! A source whose reads wait until it is opened.

use std::sync::{Arc, Condvar, Mutex};

use belady_data::source::{Catalog, Operations, ReadError, Source, Synthetic, Want};

/// Counts the reads that wait, by the rank that uses their first sample.
#[derive(Debug)]
pub struct Gate {
    inner: Arc<Synthetic>,
    /// By sample.
    rank_of: Vec<usize>,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug)]
struct GateState {
    is_open: bool,
    /// By rank.
    reads: Vec<u32>,
}

impl Gate {
    pub fn new(inner: Arc<Synthetic>, rank_of: Vec<usize>) -> Arc<Self> {
        let ranks = rank_of.iter().max().map_or(1, |most| most + 1);
        let state = Mutex::new(GateState { is_open: false, reads: vec![0; ranks] });
        Arc::new(Self { inner, rank_of, state, changed: Condvar::new() })
    }

    /// Waits for so many reads; returns how many there are of each rank.
    pub fn wait_for_reads(&self, all: u32) -> Vec<u32> {
        let mut state = self.state.lock().unwrap();
        while state.reads.iter().sum::<u32>() < all {
            state = self.changed.wait(state).unwrap();
        }
        state.reads.clone()
    }

    pub fn open(&self) {
        self.state.lock().unwrap().is_open = true;
        self.changed.notify_all();
    }
}

impl Source for Gate {
    fn catalog(&self) -> &Catalog {
        self.inner.catalog()
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        let rank = self.rank_of[wants[0].sample as usize];
        let mut state = self.state.lock().unwrap();
        state.reads[rank] += 1;
        self.changed.notify_all();
        while !state.is_open {
            state = self.changed.wait(state).unwrap();
        }
        drop(state);
        self.inner.read(wants)
    }

    fn operations(&self) -> Operations {
        self.inner.operations()
    }
}
