//! The orders of the epochs in the window between what is consumed and what is
//! staged, each made once, on a thread of its own while the world goes on.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use belady_control::Job;
use belady_control::sampler::EpochOrder;

#[derive(Debug)]
pub struct Orders {
    job: Arc<Job>,
    epochs: u32,
    /// The epoch of the front of `ready`.
    first: u32,
    ready: VecDeque<Arc<EpochOrder>>,
    coming: Option<JoinHandle<EpochOrder>>,
}

impl Orders {
    pub fn new(job: &Arc<Job>, epochs: u32) -> Self {
        let mut orders =
            Self { job: job.clone(), epochs, first: 0, ready: VecDeque::new(), coming: None };
        orders.prepare();
        orders
    }

    fn prepare(&mut self) {
        let next = self.first + self.ready.len() as u32;
        if self.coming.is_none() && next < self.epochs {
            let job = self.job.clone();
            self.coming = Some(std::thread::spawn(move || job.stream.epoch(next)));
        }
    }

    /// `None` past the last epoch.
    pub fn get(&mut self, epoch: u32) -> Option<Arc<EpochOrder>> {
        if epoch >= self.epochs {
            return None;
        }
        while epoch - self.first >= self.ready.len() as u32 {
            let next = self.first + self.ready.len() as u32;
            let order = match self.coming.take().map(JoinHandle::join) {
                Some(Ok(order)) => order,
                _ => self.job.stream.epoch(next),
            };
            self.ready.push_back(Arc::new(order));
        }
        Some(self.ready[(epoch - self.first) as usize].clone())
    }

    /// Epochs before `epoch` will not be asked for again.
    pub fn forget_before(&mut self, epoch: u32) {
        while self.first < epoch && !self.ready.is_empty() {
            self.ready.pop_front();
            self.first += 1;
        }
        self.prepare();
    }
}
