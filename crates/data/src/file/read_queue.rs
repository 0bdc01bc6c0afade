//! Many direct reads in flight at once from one thread, by io_uring.
//!
//! A disk is fastest with dozens of requests in flight. A thread for each request costs more in
//! context switches than the reads themselves. Each reading thread has its own queue, created when
//! first needed. Where the kernel has no io_uring, or a container forbids it, callers read one
//! request after another.
//!
//! Hand-written on the `io-uring` crate because async runtimes over it own the event loop, while
//! this is one blocking call of an engine thread.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use super::direct::{BLOCK, copy_last_block};
use super::per_process::PerProcess;

/// The most requests that a thread has in flight.
pub(crate) const DEPTH: usize = 16;

/// How long to wait when the kernel accepts no more requests.
const PAUSE: Duration = Duration::from_millis(1);

/// A direct read straight into memory.
#[derive(Debug)]
pub(super) struct DirectRead<'a> {
    pub file: BorrowedFd<'a>,
    pub offset: u64,
    /// Aligned to a block, as the offset is.
    pub into: &'a mut [u8],
}

thread_local! {
    /// `None` inside if the kernel has no io_uring.
    static QUEUE: RefCell<Option<PerProcess<Option<Box<ReadQueue>>>>> = const { RefCell::new(None) };
}

struct ReadQueue {
    ring: IoUring,
    /// For the last block of each request, if only a part of it is wanted.
    last_blocks: Box<[LastBlock; DEPTH]>,
    pieces: Box<[[libc::iovec; 2]; DEPTH]>,
}

#[derive(Clone, Copy)]
#[repr(C, align(512))]
struct LastBlock([u8; BLOCK]);

impl ReadQueue {
    fn new() -> io::Result<Self> {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Ok(Self {
            ring: IoUring::new(DEPTH as u32)?,
            last_blocks: Box::new([LastBlock([0; BLOCK]); DEPTH]),
            pieces: Box::new([[none; 2]; DEPTH]),
        })
    }

    /// Reads all requests, and returns how many bytes each brought.
    fn read(&mut self, reads: &mut [DirectRead<'_>]) -> Vec<io::Result<usize>> {
        let mut outcomes: Vec<io::Result<usize>> = Vec::with_capacity(reads.len());
        for (at, read) in reads.iter_mut().enumerate() {
            outcomes.push(self.submit(at, read).map(|()| 0));
        }
        let mut in_flight = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        while in_flight > 0 {
            if let Err(error) = self.ring.submit_and_wait(1)
                && error.kind() != io::ErrorKind::Interrupted
            {
                // The kernel is short of a resource. Requests may be in flight, so this cannot
                // return before they are done: they write to the memory.
                std::thread::sleep(PAUSE);
            }
            for done in self.ring.completion() {
                let result = done.result();
                outcomes[done.user_data() as usize] = usize::try_from(result)
                    .map_err(|_| io::Error::from_raw_os_error(result.saturating_neg()));
                in_flight -= 1;
            }
        }
        for (at, (read, outcome)) in reads.iter_mut().zip(&mut outcomes).enumerate() {
            if let Ok(came) = outcome {
                *came = copy_last_block(read.into, &self.last_blocks[at].0, *came);
            }
        }
        outcomes
    }

    fn submit(&mut self, at: usize, read: &mut DirectRead<'_>) -> io::Result<()> {
        let whole = read.into.len() / BLOCK * BLOCK;
        let count = if whole == read.into.len() { 1 } else { 2 };
        let end: *mut u8 = self.last_blocks[at].0.as_mut_ptr();
        self.pieces[at] = [
            libc::iovec { iov_base: read.into.as_mut_ptr().cast(), iov_len: whole },
            libc::iovec { iov_base: end.cast(), iov_len: BLOCK },
        ];
        let file = types::Fd(read.file.as_raw_fd());
        let entry = opcode::Readv::new(file, self.pieces[at].as_ptr(), count)
            .offset(read.offset)
            .build()
            .user_data(at as u64);
        // SAFETY: descriptor, pieces and memory stay in place until the request is done, and `read`
        // does not return before all requests are.
        unsafe { self.ring.submission().push(&entry) }
            .map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))
    }
}

/// Reads at most [`DEPTH`] requests at once, and returns how many bytes each brought.
pub(super) fn read(reads: &mut [DirectRead<'_>]) -> Vec<io::Result<usize>> {
    QUEUE.with_borrow_mut(|queue| {
        match PerProcess::get_or_make(queue, || ReadQueue::new().ok().map(Box::new)) {
            Some(queue) => queue.read(reads),
            None => reads.iter().map(|_| Err(io::ErrorKind::Unsupported.into())).collect(),
        }
    })
}
