//! Memory that messages are received into.
//!
//! Fresh memory costs a page fault for each 4 KiB, as much as the message itself on a fast link. So
//! large buffers are used again.

use std::ops::Deref;

use belady_data::sync::{Arc, Mutex, lock};

/// Below this the allocator is good enough.
const SMALL: usize = 64 << 10;
/// Buffers that are kept, and how large they are at most: 64 MiB together.
const KEPT: usize = 16;
const LARGEST: usize = 4 << 20;

#[derive(Debug, Default)]
pub struct Buffers(Mutex<Vec<Vec<u8>>>);

/// A message. It goes back when it is dropped.
#[derive(Debug)]
pub struct Buffer {
    /// At least as long as the message, and all of it written once, so that it is never unset.
    memory: Vec<u8>,
    length: usize,
    home: Arc<Buffers>,
}

impl Buffers {
    pub fn take(self: &Arc<Self>, length: usize) -> Buffer {
        let kept = if length < SMALL { None } else { self.kept(length) };
        let memory = kept.unwrap_or_else(|| {
            vec![0; if length < SMALL { length } else { length.next_power_of_two() }]
        });
        Buffer { memory, length, home: self.clone() }
    }

    fn kept(&self, length: usize) -> Option<Vec<u8>> {
        let mut kept = lock(&self.0);
        let at = kept.iter().rposition(|memory| memory.len() >= length)?;
        Some(kept.swap_remove(at))
    }
}

impl Buffer {
    /// Where the message is written.
    pub fn start(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.length]
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if (SMALL..=LARGEST).contains(&self.memory.len()) {
            let mut kept = lock(&self.home.0);
            if kept.len() < KEPT {
                kept.push(std::mem::take(&mut self.memory));
            }
        }
    }
}
