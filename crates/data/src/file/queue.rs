//! Many cold reads at once, by one thread.
//!
//! A disk is at its best with dozens of requests under way. A thread for each of them costs
//! more in switching between them than the reads themselves; the kernel's queue (io_uring)
//! takes them from one thread. Each thread that reads has a queue of its own, made when it is
//! first needed. Where the kernel has no queue, or a container forbids it, callers read one
//! after the other.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use super::{BLOCK, OfThisProcess};

/// Requests that one thread has under way.
pub(crate) const DEPTH: usize = 16;

/// How long to wait when the kernel takes nothing more.
const PAUSE: Duration = Duration::from_millis(1);

/// A direct read that goes straight into its place.
#[derive(Debug)]
pub(super) struct Straight<'a> {
    pub file: BorrowedFd<'a>,
    pub offset: u64,
    /// Both begin at a block.
    pub into: &'a mut [u8],
}

thread_local! {
    /// Has no queue where the kernel gives none.
    static QUEUE: RefCell<Option<OfThisProcess<Option<Box<Queue>>>>> = const { RefCell::new(None) };
}

struct Queue {
    ring: IoUring,
    /// For the last block of each request, of which only a part is wanted.
    ends: Box<[End; DEPTH]>,
    pieces: Box<[[libc::iovec; 2]; DEPTH]>,
}

#[derive(Clone, Copy)]
#[repr(C, align(512))]
struct End([u8; BLOCK]);

impl Queue {
    fn new() -> io::Result<Self> {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Ok(Self {
            ring: IoUring::new(DEPTH as u32)?,
            ends: Box::new([End([0; BLOCK]); DEPTH]),
            pieces: Box::new([[none; 2]; DEPTH]),
        })
    }

    /// How many bytes each request brought, or why it brought none.
    fn read(&mut self, reads: &mut [Straight<'_>]) -> Vec<io::Result<usize>> {
        let mut outcomes: Vec<io::Result<usize>> = Vec::with_capacity(reads.len());
        for (at, read) in reads.iter_mut().enumerate() {
            outcomes.push(self.submit(at, read).map(|()| 0));
        }
        let mut under_way = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        while under_way > 0 {
            if let Err(error) = self.ring.submit_and_wait(1)
                && error.kind() != io::ErrorKind::Interrupted
            {
                // The kernel is short of something. Requests may be under way, so nobody can
                // have the memory back before they are done.
                std::thread::sleep(PAUSE);
            }
            for done in self.ring.completion() {
                let result = done.result();
                outcomes[done.user_data() as usize] = usize::try_from(result)
                    .map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()));
                under_way -= 1;
            }
        }
        for (at, (read, outcome)) in reads.iter_mut().zip(&mut outcomes).enumerate() {
            if let Ok(came) = outcome {
                *came = take_end(read.into, &self.ends[at].0, *came);
            }
        }
        outcomes
    }

    fn submit(&mut self, at: usize, read: &mut Straight<'_>) -> io::Result<()> {
        let whole = read.into.len() / BLOCK * BLOCK;
        let count = if whole == read.into.len() { 1 } else { 2 };
        let end: *mut u8 = self.ends[at].0.as_mut_ptr();
        self.pieces[at] = [
            libc::iovec { iov_base: read.into.as_mut_ptr().cast(), iov_len: whole },
            libc::iovec { iov_base: end.cast(), iov_len: BLOCK },
        ];
        let file = types::Fd(read.file.as_raw_fd());
        let entry = opcode::Readv::new(file, self.pieces[at].as_ptr(), count)
            .offset(read.offset)
            .build()
            .user_data(at as u64);
        // SAFETY: descriptor, pieces and memory stay where they are until the request is done,
        // and `read` does not return before all are.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))
    }
}

/// Copies what is wanted of the last block; how many bytes came of those that are wanted.
fn take_end(into: &mut [u8], end: &[u8], came: usize) -> usize {
    let (whole, rest) = into.split_at_mut(into.len() / BLOCK * BLOCK);
    let of_rest = came.saturating_sub(whole.len()).min(rest.len());
    rest[..of_rest].copy_from_slice(&end[..of_rest]);
    came.min(whole.len()) + of_rest
}

/// Reads at most [`DEPTH`] requests at once; how many bytes each brought.
pub(super) fn read(reads: &mut [Straight<'_>]) -> Vec<io::Result<usize>> {
    QUEUE.with_borrow_mut(|queue| {
        match OfThisProcess::in_place(queue, || Queue::new().ok().map(Box::new)) {
            Some(queue) => queue.read(reads),
            None => reads.iter().map(|_| Err(io::ErrorKind::Unsupported.into())).collect(),
        }
    })
}
