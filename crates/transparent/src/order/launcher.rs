//! The interface between the prefetcher and the launcher.

use std::os::fd::OwnedFd;

/// How a file is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchKind {
    /// To keep it, on the first level with space.
    Keep,
    /// Into the window, with at most so many bytes. If the file already has a copy to keep, the
    /// outcome is [`FetchOutcome::Failed`], because the planner would evict it.
    Transient { bytes: u64 },
}

/// The result of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchOutcome {
    /// The file has a copy.
    Kept { bytes: u64 },
    /// No level has space to keep a copy.
    NoSpace { bytes: u64 },
    /// The file does not exist, or can never have a copy.
    Absent,
    /// The fetch failed; a later one may succeed.
    Failed,
}

/// What the board says about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyState {
    Unknown,
    HasCopy,
    /// No level has space to keep a copy.
    Refused {
        bytes: u64,
    },
}

/// The counters of the prefetcher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefetchTally {
    /// Files fetched before the program opened them, to keep.
    pub kept: u64,
    /// Transient copies made in the window.
    pub passed: u64,
    /// Files of the order that do not exist.
    pub absent: u64,
}

/// Read access to the board.
pub trait BoardView: Send + Sync + 'static {
    /// Returns the opens of all levels and of the source.
    fn all_opens(&self) -> u64;
    /// Returns the opens of a record; None beyond the last record.
    fn opens(&self, record: u32) -> Option<u32>;
    /// Returns the name of a record's file, also if the file was refused.
    fn name(&self, record: u32) -> Option<Box<[u8]>>;
    /// Returns what the board says about a file.
    fn copy_state(&self, name: &[u8]) -> CopyState;
}

/// What the launcher does for the prefetcher. No method may wait for the source.
pub trait CopyFetcher: Send + Sync + 'static {
    /// Starts to fetch a file. The launcher reports the outcome exactly once, by
    /// [`super::PrefetchEvents::fetched`].
    fn fetch(&self, name: &[u8], kind: FetchKind);

    /// Evicts a copy from the window: drops it from the board and unlinks it. Its bytes still
    /// count. Returns the copy, open for reading by this descriptor only, if there was one.
    fn evict(&self, name: &[u8]) -> Option<OwnedFd>;

    /// Releases the bytes of an evicted copy that no process has open any more.
    fn release(&self, name: &[u8], bytes: u64);
}
