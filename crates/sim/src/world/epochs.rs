//! The orders of the epochs from the one consumed to the one staged.
//!
//! Each epoch is prepared on a separate thread while the world simulates the one before: the order
//! of its successor is drawn, and the plan receives both.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use belady_control::Job;
use belady_control::policy::PolicyPlan;
use belady_control::sampler::EpochOrder;

pub struct EpochWindow {
    job: Arc<Job>,
    plan: Arc<dyn PolicyPlan>,
    epochs: u32,
    /// The epoch of the front of `begun`.
    first: u32,
    /// Epochs that the plan has received.
    begun: VecDeque<Arc<EpochOrder>>,
    /// The epoch after the last of `begun`, being prepared.
    coming: Option<JoinHandle<Begun>>,
    /// Its order, drawn already when the epoch before it was begun.
    drawn: Option<Arc<EpochOrder>>,
}

/// A prepared epoch, and the order of the one after it.
struct Begun {
    order: Arc<EpochOrder>,
    next: Option<Arc<EpochOrder>>,
}

impl EpochWindow {
    pub fn new(job: &Arc<Job>, plan: &Arc<dyn PolicyPlan>, epochs: u32) -> Self {
        let mut orders = Self {
            job: job.clone(),
            plan: plan.clone(),
            epochs,
            first: 0,
            begun: VecDeque::new(),
            coming: None,
            drawn: None,
        };
        orders.prepare();
        orders
    }

    /// Returns the iterations of an epoch. A stream of drawn orders does not know them, so they are
    /// taken from its first epoch: all epochs of a scenario are equally long.
    pub fn iterations(&mut self) -> u32 {
        match self.job.stream.iterations() {
            0 => self.get(0).map_or(0, |order| order.iterations()),
            iterations => iterations,
        }
    }

    /// Returns the work that prepares the next epoch.
    fn work(&mut self) -> impl FnOnce() -> Begun + Send + 'static {
        let epoch = self.first + self.begun.len() as u32;
        let (job, plan, epochs) = (self.job.clone(), self.plan.clone(), self.epochs);
        let drawn = self.drawn.take();
        move || {
            let order = drawn.unwrap_or_else(|| Arc::new(job.stream.epoch(epoch)));
            let next = (epoch + 1 < epochs).then(|| Arc::new(job.stream.epoch(epoch + 1)));
            plan.begin_epoch(epoch, &order, next.as_ref());
            Begun { order, next }
        }
    }

    fn prepare(&mut self) {
        if self.coming.is_none() && self.first + (self.begun.len() as u32) < self.epochs {
            let work = self.work();
            self.coming = Some(std::thread::spawn(work));
        }
    }

    /// Returns the order of an epoch, which the plan has received by then; `None` past the last
    /// one.
    pub fn get(&mut self, epoch: u32) -> Option<Arc<EpochOrder>> {
        if epoch >= self.epochs {
            return None;
        }
        while epoch - self.first >= self.begun.len() as u32 {
            let begun = match self.coming.take() {
                Some(thread) => match thread.join() {
                    Ok(begun) => begun,
                    Err(panic) => std::panic::resume_unwind(panic),
                },
                None => self.work()(),
            };
            self.begun.push_back(begun.order);
            self.drawn = begun.next;
            // One ahead: a plan keeps no more epochs.
            if epoch - self.first < self.begun.len() as u32 && self.begun.len() <= 2 {
                self.prepare();
            }
        }
        Some(self.begun[(epoch - self.first) as usize].clone())
    }

    /// Drops the epochs before `epoch`.
    pub fn forget_before(&mut self, epoch: u32) {
        while self.first < epoch && !self.begun.is_empty() {
            self.begun.pop_front();
            self.first += 1;
        }
    }
}

impl std::fmt::Debug for EpochWindow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EpochWindow").field("first", &self.first).finish_non_exhaustive()
    }
}
