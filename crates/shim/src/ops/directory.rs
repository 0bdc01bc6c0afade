//! Names of directories that the program opens files from, by descriptor.
//!
//! The kernel tells the name of a descriptor through `/proc`, which takes longer than opening a file.
//! Programs that walk through trees (`find`, `tar`) ask about hundreds of files from the same
//! descriptor. So the names of the last few directories are remembered, by their device and number: to
//! ask for those is quick.
//!
//! A directory that somebody renamed or replaced is told by the time of its last change, which is
//! compared too. Renames of a directory above it by the job itself are heard of: they begin a new
//! generation of the board.
//!
//! No lock: a slot has a turn, which is odd while somebody writes. Who meets an odd one, or finds
//! another one after reading, asks the kernel. A process that dies while it writes, or forks, leaves
//! a slot that nobody uses any more.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use rustix::fs::FileType;

use super::borrow;
use super::place::{Room, name_of};
use crate::job::Job;

/// Several threads walk through several trees at once, seldom more.
const SLOTS: usize = 64;
/// Words of a name. Longer names are not remembered.
const WORDS: usize = 32;

/// What a directory is told by: its number alone may be that of one that was removed.
#[derive(Clone, Copy)]
struct Directory {
    dev: u64,
    ino: u64,
    /// Seconds, and nanoseconds in the last 30 bits.
    changed: u64,
}

struct Slot {
    turn: AtomicU32,
    generation: AtomicU32,
    dev: AtomicU64,
    ino: AtomicU64,
    changed: AtomicU64,
    length: AtomicU32,
    name: [AtomicU64; WORDS],
}

impl Slot {
    const fn empty() -> Self {
        Self {
            turn: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            dev: AtomicU64::new(0),
            ino: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            length: AtomicU32::new(0),
            name: [const { AtomicU64::new(0) }; WORDS],
        }
    }

    /// The length of the name, if it is that of this directory.
    fn read(&self, directory: Directory, generation: u32, room: &mut Room) -> Option<usize> {
        let turn = self.turn.load(Acquire);
        let length = self.length.load(Relaxed) as usize;
        let is_it = self.dev.load(Relaxed) == directory.dev
            && self.ino.load(Relaxed) == directory.ino
            && self.changed.load(Relaxed) == directory.changed
            && self.generation.load(Relaxed) == generation;
        if turn % 2 == 1 || !is_it || length == 0 || length > WORDS * 8 {
            return None;
        }
        for (place, word) in room.chunks_exact_mut(8).zip(&self.name[..length.div_ceil(8)]) {
            place.copy_from_slice(&word.load(Relaxed).to_ne_bytes().map(MaybeUninit::new));
        }
        fence(Acquire);
        (self.turn.load(Relaxed) == turn).then_some(length)
    }

    fn write(&self, directory: Directory, generation: u32, name: &[u8]) {
        let turn = self.turn.load(Relaxed);
        if name.len() > WORDS * 8
            || turn % 2 == 1
            || self.turn.compare_exchange(turn, turn.wrapping_add(1), Acquire, Relaxed).is_err()
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
        self.turn.store(turn.wrapping_add(2), Release);
    }
}

static NAMES: [Slot; SLOTS] = [const { Slot::empty() }; SLOTS];

/// The absolute name of an open directory.
pub fn directory<'r>(job: &Job, descriptor: c_int, room: &'r mut Room) -> Option<&'r [u8]> {
    let stat = rustix::fs::fstat(borrow(descriptor)?).ok()?;
    // Nothing can be opened from a directory that was removed.
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory || stat.st_nlink == 0 {
        return None;
    }
    let changed = stat.st_ctime.cast_unsigned() << 30 | stat.st_ctime_nsec as u64;
    let id = Directory { dev: stat.st_dev, ino: stat.st_ino, changed };
    let generation = job.board.head().generation.load(SeqCst);
    let slot = &NAMES[(id.ino ^ id.dev) as usize % SLOTS];
    if let Some(length) = slot.read(id, generation, room) {
        // SAFETY: so many bytes were written just now.
        return Some(unsafe { room.get(..length)?.assume_init_ref() });
    }
    let name = name_of(descriptor, room)?;
    slot.write(id, generation, name);
    Some(name)
}
