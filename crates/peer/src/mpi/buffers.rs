//! Memory for messages that are received.
//!
//! New memory costs a page fault for each 4 KiB, as much as the message itself on a fast link. So
//! large buffers are reused.

use std::ops::Deref;

use belady_base::sync::{Arc, Mutex, lock};

/// Below this size the allocator is fast enough.
const SMALL: usize = 64 << 10;
/// How many buffers are kept, and their largest size: 64 MiB together.
const KEPT: usize = 16;
const LARGEST: usize = 4 << 20;

#[derive(Debug, Default)]
pub struct MessageBuffers(Mutex<Vec<Vec<u8>>>);

/// A received message; dropping it returns the buffer.
#[derive(Debug)]
pub struct MessageBuffer {
    /// At least as long as the message, and initialised.
    memory: Vec<u8>,
    length: usize,
    home: Arc<MessageBuffers>,
}

impl MessageBuffers {
    pub fn take(self: &Arc<Self>, length: usize) -> MessageBuffer {
        let kept = if length < SMALL { None } else { self.kept(length) };
        let memory = kept.unwrap_or_else(|| {
            vec![0; if length < SMALL { length } else { length.next_power_of_two() }]
        });
        MessageBuffer { memory, length, home: self.clone() }
    }

    fn kept(&self, length: usize) -> Option<Vec<u8>> {
        let mut kept = lock(&self.0);
        let at = kept.iter().rposition(|memory| memory.len() >= length)?;
        Some(kept.swap_remove(at))
    }
}

impl MessageBuffer {
    /// Returns where MPI writes the message.
    pub fn start(&mut self) -> *mut u8 {
        self.memory.as_mut_ptr()
    }
}

impl Deref for MessageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.length]
    }
}

impl Drop for MessageBuffer {
    fn drop(&mut self) {
        if (SMALL..=LARGEST).contains(&self.memory.len()) {
            let mut kept = lock(&self.home.0);
            if kept.len() < KEPT {
                kept.push(std::mem::take(&mut self.memory));
            }
        }
    }
}
