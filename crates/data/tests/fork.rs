//! A forked child inherits of its parent's caches only what was lent.

mod tier_support;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use belady_base::fork::{FileLock, Loan, Mapping, OwnDescriptor, generation};
use belady_base::memory::Memory;
use belady_control::Sizes;
use belady_control::model::Bytes;
use belady_control::sampler::Step;
use belady_data::stage::{RingConfig, Take, ring};
use belady_data::tier::{Put, RamTier, Tier};
use tempfile::tempdir;
use tier_support::*;

/// A forked child, which is killed and waited for when this is dropped.
struct Child(libc::pid_t);

impl Child {
    /// Runs `work` in a child and returns its exit status. The child has only the calling thread,
    /// so `work` must neither print nor wait for other threads.
    fn run(work: impl FnOnce() -> i32) -> i32 {
        let child = Self::fork(work);
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child.0, &raw mut status, 0) }, child.0);
        std::mem::forget(child);
        assert!(libc::WIFEXITED(status), "the child was killed: {status}");
        libc::WEXITSTATUS(status)
    }

    fn that_sleeps() -> Self {
        Self::fork(|| {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
            0
        })
    }

    fn fork(work: impl FnOnce() -> i32) -> Self {
        // SAFETY: what children do here takes no lock but the allocator's.
        match unsafe { libc::fork() } {
            0 => {
                let status = work();
                // SAFETY: ends the child without running the parent's exit handlers.
                unsafe { libc::_exit(status) }
            }
            child => Self(child),
        }
    }

    /// Whether an address is part of its memory.
    fn has(&self, address: usize) -> bool {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.0)).unwrap();
        maps.lines().any(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let [start, end] = [start, end].map(|at| usize::from_str_radix(at, 16).unwrap());
            (start..end).contains(&address)
        })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: our own child, which is waited for here alone.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// A child closes what it inherited as the first thing it does, which may take a moment.
fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("not in ten seconds: {what}");
}

const MIB: usize = 1 << 20;

#[test]
fn a_child_inherits_what_is_lent_and_nothing_else_of_a_mapping() {
    let mapping = Mapping::new(4 * MIB).unwrap();
    let start = mapping.start().as_ptr();
    // SAFETY: our own memory, which nothing else points to.
    unsafe { start.write_bytes(7, 4 * MIB) };
    // SAFETY: as above.
    let lent = unsafe { start.add(MIB + 100) };
    let loan = Loan::of([(lent.cast_const(), 5000)]);
    for _ in 0..2 {
        let child = Child::that_sleeps();
        let places = [0, MIB - 1, MIB + 100, MIB + 5099, 3 * MIB];
        assert_eq!(
            places.map(|at| child.has(start as usize + at)),
            [false, false, true, true, false]
        );
    }
    let seen = Child::run(|| {
        // SAFETY: what is lent is there, and is the child's own.
        let bytes = unsafe { std::slice::from_raw_parts_mut(lent, 5000) };
        let right = bytes.iter().all(|&byte| byte == 7);
        bytes.fill(8);
        i32::from(!right)
    });
    assert_eq!(seen, 0, "the bytes as they were at the fork");
    // SAFETY: nothing writes to it now.
    let bytes = unsafe { std::slice::from_raw_parts(lent, 5000) };
    assert!(bytes.iter().all(|&byte| byte == 7), "what the child writes is its own");
    drop(loan);
    assert!(!Child::that_sleeps().has(lent as usize));
}

#[test]
fn a_child_inherits_what_is_lent_at_the_limit_of_mappings() {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    if limit.trim().parse::<usize>().unwrap() > 2_000_000 {
        return belady_testing::not_run("vm.max_map_count is too large to be reached");
    }
    // In a child, since a process at this limit is of no use for anything else.
    let seen = Child::run(|| {
        let mapping = Mapping::new(4 * MIB).unwrap();
        let start = mapping.start().as_ptr();
        // SAFETY: our own memory.
        let lent = unsafe { start.add(MIB) };
        // SAFETY: as above.
        unsafe { lent.write_bytes(7, 5000) };
        let _loan = Loan::of([(lent.cast_const(), 5000)]);
        take_all_mappings();
        let child = Child::fork(|| {
            // SAFETY: what is lent is there.
            i32::from(unsafe { lent.read() } != 7)
        });
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        unsafe { libc::waitpid(child.0, &raw mut status, 0) };
        std::mem::forget(child);
        i32::from(status != 0)
    });
    assert_eq!(seen, 0, "the child reads what it was lent");
}

/// Maps single pages, each unlike its neighbours, until the kernel allows no more.
fn take_all_mappings() {
    for page in 0.. {
        let access = if page % 2 == 0 { libc::PROT_NONE } else { libc::PROT_READ };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which is never used.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return;
        }
    }
}

thread_local! {
    static FORKS_WHEN_IT_ENDS: ForksWhenDropped = const { ForksWhenDropped };
}

struct ForksWhenDropped;

impl Drop for ForksWhenDropped {
    fn drop(&mut self) {
        assert_eq!(Child::run(|| 0), 0);
    }
}

#[test]
fn a_thread_that_forks_while_it_ends_takes_its_loans_back() {
    let mapping = Mapping::new(MIB).unwrap();
    let start = mapping.start().as_ptr();
    let loan = Loan::of([(start.cast_const(), 5000)]);
    std::thread::spawn(|| {
        FORKS_WHEN_IT_ENDS.with(|_| ());
        // After the variable above, so that what a fork needs would be dropped before it.
        assert_eq!(Child::run(|| 0), 0);
    })
    .join()
    .unwrap();
    drop(loan);
    assert!(!Child::that_sleeps().has(start as usize));
}

#[test]
fn a_child_may_drop_the_mappings_and_loans_of_its_parent() {
    let mapping = Mapping::new(MIB).unwrap();
    let loan = Loan::of([(mapping.start().as_ptr().cast_const(), MIB)]);
    let status = Child::run(move || {
        let before = generation();
        drop((mapping, loan));
        // The child's own mappings work as in any process, and so do those of its child.
        let own = Mapping::new(MIB).unwrap();
        let start = own.start().as_ptr() as usize;
        let child = Child::that_sleeps();
        i32::from(child.has(start) || generation() != before)
    });
    assert_eq!(status, 0);
}

#[test]
fn a_forked_child_keeps_no_copy_of_ram_tier_ring_and_large_memory() {
    let sizes = Arc::new(Sizes::Equal { bytes: 64 << 10, samples: 16 });
    let tier = RamTier::new(Bytes(2 << 20), Arc::clone(&sizes));
    assert_eq!(tier.put(3, &vec![3; 64 << 10], 0), Put::Stored);
    let pinned = tier.pin(3).unwrap();
    let memory = Memory::from(&vec![1; MIB][..]);
    let config = RingConfig { capacity: 4 * MIB, batches: 4, align: 512 };
    let (mut producer, mut consumer) = ring(&config).unwrap();
    let step = Step { epoch: 0, iteration: 0 };
    let block = producer.reserve(step, &[3], &[64 << 10]).unwrap().unwrap();
    // SAFETY: the only one that fills this block.
    unsafe { block.slot(0) }.fill(3);
    block.publish();
    let Take::Batch(batch) = consumer.take(None) else { panic!("published") };

    let addresses = [pinned.start as usize, memory.as_ptr() as usize, batch.as_ptr() as usize];
    assert_eq!(addresses.map(|at| Child::that_sleeps().has(at)), [false; 3]);
    // The ends of the ring tell that they belong to the parent without touching its memory.
    let status = Child::run(move || {
        let ended = matches!(consumer.take(None), Take::Ended);
        drop((batch, consumer, producer));
        i32::from(!ended)
    });
    assert_eq!(status, 0);
    tier.unpin(3);
}

#[test]
fn a_lent_batch_shares_no_page_with_direct_reads() {
    let config = RingConfig { capacity: MIB, batches: 4, align: 512 };
    let (mut producer, _consumer) = ring(&config).unwrap();
    let starts = [0, 1].map(|iteration| {
        let step = Step { epoch: 0, iteration };
        let block = producer.reserve(step, &[1], &[20_000]).unwrap().unwrap();
        // SAFETY: only its address is looked at.
        unsafe { block.slot(0) }.as_ptr() as usize
    });
    assert!(starts[1] / 4096 > (starts[0] + 20_000) / 4096);
}

fn lock_file(path: &Path) -> std::io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

#[test]
fn a_lock_that_is_held_for_a_moment_is_waited_for() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("lock");
    for exclusive in [true, false] {
        let probe = FileLock::try_exclusive(|| lock_file(&path)).unwrap();
        let (mut probe, mut tries) = (Some(probe.expect("free")), 0);
        let open = || {
            tries += 1;
            // It has found the file locked once.
            drop(if tries == 2 { probe.take() } else { None });
            lock_file(&path)
        };
        let taken = if exclusive { FileLock::exclusive(open) } else { FileLock::shared(open) };
        assert!(taken.unwrap().is_some());
    }
    let _kept = FileLock::try_exclusive(|| lock_file(&path)).unwrap().expect("free");
    assert!(FileLock::exclusive(|| lock_file(&path)).unwrap().is_none());
}

#[test]
fn a_lock_ends_with_its_owner_while_a_forked_child_lives_on() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("lock");
    let take = || FileLock::try_exclusive(|| lock_file(&path)).unwrap();
    let lock = take().expect("free");
    let _child = Child::that_sleeps();
    assert!(take().is_none());
    drop(lock);
    assert!(take().is_some());
}

#[test]
fn a_lock_ends_when_its_owner_is_killed_while_a_forked_child_lives_on() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("lock");
    let take = || FileLock::try_exclusive(|| lock_file(&path)).unwrap();
    let ready = directory.path().join("ready");
    let owner = Child::fork(|| {
        let _lock = take();
        let sleeper = Child::that_sleeps();
        let _ = std::fs::write(&ready, sleeper.0.to_string());
        // SAFETY: waits for a signal.
        unsafe { libc::pause() };
        0
    });
    while std::fs::read_to_string(&ready).map_or(true, |text| text.is_empty()) {
        std::thread::yield_now();
    }
    assert!(take().is_none());
    let sleeper: libc::pid_t = std::fs::read_to_string(&ready).unwrap().parse().unwrap();
    // Kills the owner and waits for it; its child is left.
    drop(owner);
    // SAFETY: asks only whether it is there.
    assert_eq!(unsafe { libc::kill(sleeper, 0) }, 0, "the child lives");
    soon("the lock is free", || take().is_some());
    // SAFETY: the child that was made above.
    unsafe { libc::kill(sleeper, libc::SIGKILL) };
}

#[test]
fn a_child_that_drops_what_it_inherited_does_not_end_its_parents_lock() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("lock");
    let take = || FileLock::try_exclusive(|| lock_file(&path)).unwrap();
    let lock = take().expect("free");
    let mut lock = Some(lock);
    assert_eq!(
        Child::run(|| lock.take().map_or(1, |lock| {
            drop(lock);
            0
        })),
        0
    );
    assert!(lock.is_some() && take().is_none());
}

#[test]
fn a_lock_is_not_inherited_however_often_the_process_forks_meanwhile() {
    let directory = tempdir().unwrap();
    let path = directory.path().join("lock");
    let take = || FileLock::try_exclusive(|| lock_file(&path)).unwrap();
    std::thread::scope(|scope| {
        let forking = scope.spawn(|| (0..100).map(|_| Child::that_sleeps()).collect::<Vec<_>>());
        while !forking.is_finished() {
            let lock = take().expect("only this thread takes it");
            // Closed without an unlock, as when the process is killed.
            let descriptor = lock.as_raw_fd();
            std::mem::forget(lock);
            // SAFETY: its owner is forgotten.
            unsafe { libc::close(descriptor) };
            soon("no child has the lock", || take().is_some());
        }
        drop(forking.join().unwrap());
    });
}

#[test]
fn a_port_is_free_when_its_owner_is_gone_though_a_forked_child_lives() {
    let listener = OwnDescriptor::open(|| std::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let _child = Child::that_sleeps();
    drop(listener);
    soon("nothing listens", || std::net::TcpStream::connect(address).is_err());
    assert!(std::net::TcpListener::bind(address).is_ok());
}

#[test]
fn a_disk_cache_has_a_writer_again_while_a_forked_child_of_the_last_one_lives() {
    let sizes = mixed_sizes(20);
    let directory = tempdir().unwrap();
    let first = open(directory.path(), 1 << 20, &sizes);
    assert_eq!(first.put(1, &payload(1, &sizes), 0), Put::Stored);
    let _child = Child::that_sleeps();
    drop(first);
    let second = open(directory.path(), 1 << 20, &sizes);
    assert_eq!(second.status().degraded, None);
    assert_eq!(second.put(2, &payload(2, &sizes), 0), Put::Stored);
    drop(second);
    let cleared =
        belady_data::tier::disk::clear(directory.path(), belady_data::tier::disk::Which::All);
    assert_eq!(cleared.unwrap().len(), 1, "not in use either");
}
