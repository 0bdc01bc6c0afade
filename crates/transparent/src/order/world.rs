//! What the prefetcher needs of the launcher, and what they tell each other.

use std::os::fd::OwnedFd;

/// How a file is to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// To stay, in the first level with room.
    Keep,
    /// For a while, into the window: so many bytes and no more. If it has a copy by now, which is to stay,
    /// that is [`Outcome::Failed`]: what passed is removed later.
    Pass { bytes: u64 },
}

/// What came of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is a copy, or was one already.
    Kept { bytes: u64 },
    /// No level has room for it to stay.
    NoRoom { bytes: u64 },
    /// There is no such file, or it can never have a copy.
    Absent,
    /// Not this time.
    Failed,
}

/// What the board says of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Unknown,
    HasCopy,
    /// No level has room for it to stay.
    Refused {
        bytes: u64,
    },
}

/// What the prefetcher did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Files fetched ahead of the reader to stay.
    pub kept: u64,
    /// Files that passed through the window.
    pub passed: u64,
    /// Files of the order that are not there.
    pub absent: u64,
}

/// The board, as the launcher knows it.
pub trait Sight: Send + Sync + 'static {
    /// Opens of all levels and of the source.
    fn all_opens(&self) -> u64;
    /// Of the record of this number; None beyond the last record.
    fn opens(&self, record: u32) -> Option<u32>;
    /// Of this record, also if its file was refused, and if possible also once it was dropped.
    fn name(&self, record: u32) -> Option<Box<[u8]>>;
    /// What the board says of this file.
    fn standing(&self, name: &[u8]) -> Standing;
}

/// What the launcher does for the prefetcher. No method may wait for the source.
pub trait Hands: Send + Sync + 'static {
    /// Begins to fetch a file. What comes of it is told by [`super::Notes::fetched`], exactly once.
    fn fetch(&self, name: &[u8], wish: Wish);

    /// Takes a file out of the window: its copy gets lost to the program, and loses its name. Its bytes
    /// still count. Gives the copy, open for reading by this descriptor only, if there was one.
    fn let_go(&self, name: &[u8]) -> Option<OwnedFd>;

    /// Nobody has this file open any more that was let go: its bytes no longer count.
    fn freed(&self, name: &[u8], bytes: u64);
}
