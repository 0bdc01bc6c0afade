//! Where and with which priority threads run.
//!
//! Threads that transform compete with training for processors, so they run with a higher nice
//! value. A thread may raise its own; to lower it again takes a privilege (`CAP_SYS_NICE`, or
//! `RLIMIT_NICE`). Without it, a thread that is to load again ends, and another one takes its
//! place.
//!
//! On a machine with several NUMA nodes they run on the processors of their rank's node, since they
//! read the rank's staging buffer and write the batch that it gets.

use rustix::process::{getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::duty::Duty;
use super::numa::NumaTopology;

/// The highest nice value.
pub const MOST_NICE: u8 = 19;

/// How the threads of a pool that transform are placed.
#[derive(Clone, Debug, Default)]
pub struct ThreadPlacement {
    nice: u8,
    topology: NumaTopology,
}

impl ThreadPlacement {
    /// `nice` is added to the nice value of threads that transform.
    pub fn new(nice: u8, topology: NumaTopology) -> Self {
        Self { nice: nice.min(MOST_NICE), topology }
    }
}

/// The placement of one thread, which alone uses this.
#[derive(Debug)]
pub struct PlacedThread {
    placement: ThreadPlacement,
    /// The nice value before any duty.
    usual: i32,
    /// The NUMA node that it is bound to.
    bound: Option<usize>,
}

impl PlacedThread {
    /// Returns the placement of the calling thread.
    pub fn of_this_thread(placement: ThreadPlacement) -> Self {
        Self { placement, usual: getpriority_process(None).unwrap_or(0), bound: None }
    }

    /// Prepares the calling thread for a duty; returns false if it has not got the right to.
    pub fn turn_to(&mut self, duty: Duty) -> bool {
        let nice = match duty {
            Duty::Load => 0,
            Duty::Transform => i32::from(self.placement.nice),
        };
        if duty == Duty::Load && self.bound.is_some() {
            self.bind(None);
        }
        let nice = (self.usual + nice).min(i32::from(MOST_NICE));
        getpriority_process(None).is_ok_and(|now| now == nice)
            || setpriority_process(None, nice).is_ok()
    }

    /// Binds the calling thread to the NUMA node of a rank, if there are several.
    pub fn work_for(&mut self, rank: usize, ranks: usize) {
        let node = self.placement.topology.node_of_rank(rank, ranks);
        if node != self.bound {
            self.bind(node);
        }
    }

    fn bind(&mut self, node: Option<usize>) {
        let mut set = CpuSet::new();
        let cpus = self.placement.topology.cpus(node);
        cpus.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU).for_each(|&cpu| set.set(cpu));
        // A thread that cannot be bound runs anywhere, as before.
        let _ = sched_setaffinity(None, &set);
        self.bound = node;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_transforms_yields_and_one_that_loads_does_not() {
        let placement = ThreadPlacement::new(5, NumaTopology::default());
        let seen = std::thread::spawn(move || {
            let before = getpriority_process(None).unwrap();
            let mut thread = PlacedThread::of_this_thread(placement);
            assert!(thread.turn_to(Duty::Load));
            assert_eq!(getpriority_process(None).unwrap(), before);
            assert!(thread.turn_to(Duty::Transform));
            assert_eq!(getpriority_process(None).unwrap(), (before + 5).min(19));
            // It says so if it may not return.
            let returned = thread.turn_to(Duty::Load);
            assert_eq!(returned, getpriority_process(None).unwrap() == before);
        });
        seen.join().unwrap();
    }
}
