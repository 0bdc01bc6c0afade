//! A cache of the names of directories that the program opens files from by descriptor.
//!
//! The kernel returns the path of a descriptor through `/proc`, which takes longer than opening a
//! file. Programs that walk trees (`find`, `tar`) open hundreds of files from one descriptor. So
//! the names of a few directories are cached by device and inode, which one `fstat` returns.
//!
//! A renamed or replaced directory is recognised by its change time. If the job renames a directory
//! above it, that starts a new generation of the board.
//!
//! A slot is a seqlock: its sequence number is odd while a thread writes. A reader that finds an
//! odd or changed number asks the kernel. If a process forks or dies while it writes, the slot
//! stays odd and unused.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use rustix::fs::FileType;

use super::borrow;
use super::kernel_path::{KernelPath, path_of};
use crate::attached_job::AttachedJob;

/// Enough for several threads that walk several trees at once.
const SLOTS: usize = 64;
/// Words of a name. Longer names are not cached.
const WORDS: usize = 32;

/// Identifies a directory. The inode alone may have belonged to a removed one.
#[derive(Clone, Copy)]
struct DirectoryId {
    dev: u64,
    ino: u64,
    /// Seconds, and nanoseconds in the last 30 bits.
    changed: u64,
}

struct NameSlot {
    sequence: AtomicU32,
    generation: AtomicU32,
    dev: AtomicU64,
    ino: AtomicU64,
    changed: AtomicU64,
    length: AtomicU32,
    name: [AtomicU64; WORDS],
}

impl NameSlot {
    const fn empty() -> Self {
        Self {
            sequence: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            dev: AtomicU64::new(0),
            ino: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            length: AtomicU32::new(0),
            name: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// Copies the name and returns its length, if the slot holds this directory.
    fn read(
        &self,
        directory: DirectoryId,
        generation: u32,
        buffer: &mut KernelPath,
    ) -> Option<usize> {
        let sequence = self.sequence.load(Acquire);
        let length = self.length.load(Relaxed) as usize;
        let is_same = self.dev.load(Relaxed) == directory.dev
            && self.ino.load(Relaxed) == directory.ino
            && self.changed.load(Relaxed) == directory.changed
            && self.generation.load(Relaxed) == generation;
        if sequence % 2 == 1 || !is_same || length == 0 || length > WORDS * 8 {
            return None;
        }
        for (into, word) in buffer.chunks_exact_mut(8).zip(&self.name[..length.div_ceil(8)]) {
            into.copy_from_slice(&word.load(Relaxed).to_ne_bytes().map(MaybeUninit::new));
        }
        fence(Acquire);
        (self.sequence.load(Relaxed) == sequence).then_some(length)
    }

    fn write(&self, directory: DirectoryId, generation: u32, name: &[u8]) {
        let sequence = self.sequence.load(Relaxed);
        if name.len() > WORDS * 8
            || sequence % 2 == 1
            || self
                .sequence
                .compare_exchange(sequence, sequence.wrapping_add(1), Acquire, Relaxed)
                .is_err()
        {
            return;
        }
        fence(Release);
        self.dev.store(directory.dev, Relaxed);
        self.ino.store(directory.ino, Relaxed);
        self.changed.store(directory.changed, Relaxed);
        self.generation.store(generation, Relaxed);
        self.length.store(name.len() as u32, Relaxed);
        for (word, part) in self.name.iter().zip(name.chunks(8)) {
            let mut bytes = [0; 8];
            bytes[..part.len()].copy_from_slice(part);
            word.store(u64::from_ne_bytes(bytes), Relaxed);
        }
        self.sequence.store(sequence.wrapping_add(2), Release);
    }
}

static NAMES: [NameSlot; SLOTS] = [const { NameSlot::empty() }; SLOTS];

/// Returns the absolute path of an open directory.
pub fn name_of_directory<'r>(
    job: &AttachedJob,
    descriptor: c_int,
    buffer: &'r mut KernelPath,
) -> Option<&'r [u8]> {
    let stat = rustix::fs::fstat(borrow(descriptor)?).ok()?;
    // No file can be opened from a removed directory.
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory || stat.st_nlink == 0 {
        return None;
    }
    let changed = stat.st_ctime.cast_unsigned() << 30 | stat.st_ctime_nsec as u64;
    let id = DirectoryId { dev: stat.st_dev, ino: stat.st_ino, changed };
    let generation = job.board.header().generation.load(SeqCst);
    let slot = &NAMES[(id.ino ^ id.dev) as usize % SLOTS];
    if let Some(length) = slot.read(id, generation, buffer) {
        // SAFETY: `read` has written these bytes.
        return Some(unsafe { buffer.get(..length)?.assume_init_ref() });
    }
    let name = path_of(descriptor, buffer)?;
    slot.write(id, generation, name);
    Some(name)
}
