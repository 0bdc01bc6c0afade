//! Reading a file at an offset, as fast as its file system allows.
//!
//! What the page cache holds is copied from there. What it does not hold, on a local disk
//! and from [`DIRECT_FROM`] bytes up, is read with `O_DIRECT`: straight into its place if that
//! lies right, else the aligned bytes around what is wanted go into a buffer of the thread and
//! are copied from there. A cold random read is twice as fast that way, and a dataset larger
//! than memory does not push everything else out of the page cache. Wherever a file system or
//! kernel does not go along with this, the read ends as a plain one.
//!
//! Which of the two it is, `cachestat` tells without moving anything. Where the kernel does not
//! have it (before 6.5), a read that must not wait (`RWF_NOWAIT`) tries; newer kernels would
//! begin to read the pages in at that, and a cold sample would be read twice.

mod queue;

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::OnceLock;

use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use crate::fork::generation;
use crate::memory::Memory;

/// Below this a plain read is as fast as a direct one: four pages.
const DIRECT_FROM: usize = 16 << 10;

/// What offset, length and address of a direct read are multiples of: the largest block
/// that local disks ask for.
const ALIGNMENT: usize = 4096;

/// What they are multiples of on most: enough for reading straight into memory, if the disk
/// agrees.
pub(crate) const BLOCK: usize = 512;

const PAGE: u64 = 4096;

/// A direct read fetches at most this much at once: enough for a disk's full rate, little
/// enough to stay in a core's cache until it is copied.
const BOUNCE: usize = 512 << 10;

/// The kernel takes no longer lists than this (`IOV_MAX`).
const MOST_PIECES: usize = 1024;

/// How to read what the page cache does not hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cold<'a> {
    /// Through the page cache.
    Buffered,
    /// Directly, through a second descriptor.
    Through(&'a Direct),
}

/// A second descriptor of a file, for reads past the page cache: other threads read through the
/// first one at the same time, so that one cannot be switched over. Opened when first needed.
#[derive(Debug, Default)]
pub(crate) struct Direct(OnceLock<Option<File>>);

impl Direct {
    /// The very same file, whatever lies at its path by now; `None` where the file system has no
    /// direct reads.
    fn of(&self, file: &File) -> Option<BorrowedFd<'_>> {
        let reopen = || {
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let flags = OFlags::DIRECT.bits().cast_signed();
            OpenOptions::new().read(true).custom_flags(flags).open(path).ok()
        };
        self.0.get_or_init(reopen).as_ref().map(AsFd::as_fd)
    }
}

/// One range of a file for [`read_many`].
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub file: &'a File,
    pub cold: Cold<'a>,
    pub offset: u64,
    pub into: &'a mut [u8],
}

/// How many requests [`read_many`] has under way at most.
pub(crate) const TOGETHER: usize = queue::DEPTH;

/// Reads requests, those that wait for the disk all at once; what became of each, as
/// [`read_exact_at`] tells it.
pub(crate) fn read_many(requests: &mut [Request<'_>]) -> Vec<io::Result<usize>> {
    let mut outcomes: Vec<Option<usize>> = vec![None; requests.len()];
    for (requests, outcomes) in requests.chunks_mut(TOGETHER).zip(outcomes.chunks_mut(TOGETHER)) {
        let (which, mut reads): (Vec<usize>, Vec<queue::Straight<'_>>) =
            requests.iter_mut().enumerate().filter_map(|(at, r)| Some((at, straight(r)?))).unzip();
        // Waiting for one is simpler without a queue.
        if reads.len() > 1 {
            let wanted: Vec<usize> = reads.iter().map(|read| read.into.len()).collect();
            let came = queue::read(&mut reads);
            for ((at, wanted), came) in which.into_iter().zip(wanted).zip(came) {
                outcomes[at] = came.ok().filter(|&came| came == wanted);
            }
        }
    }
    // What did not come whole comes one by one, with all the care that needs.
    let alone = |(request, outcome): (&mut Request<'_>, Option<usize>)| match outcome {
        Some(came) => Ok(came),
        None => read_exact_at(request.file, request.offset, request.into, request.cold),
    };
    requests.iter_mut().zip(outcomes).map(alone).collect()
}

/// A request as a direct read into its place, if it is one that the disk has to answer.
fn straight<'a>(request: &'a mut Request<'_>) -> Option<queue::Straight<'a>> {
    let Cold::Through(direct) = request.cold else { return None };
    let (offset, into) = (request.offset, &mut *request.into);
    if into.len() < DIRECT_FROM || !lies_right(offset, into) {
        return None;
    }
    if residency(request.file, offset, into.len() as u64) != Residency::Partial {
        return None;
    }
    Some(queue::Straight { file: direct.of(request.file)?, offset, into })
}

fn lies_right(offset: u64, into: &[u8]) -> bool {
    offset.is_multiple_of(BLOCK as u64) && into.as_ptr().addr().is_multiple_of(BLOCK)
}

/// Reads until `into` is full or the file ends; how many bytes came.
pub(crate) fn read_exact_at(
    file: &File,
    offset: u64,
    into: &mut [u8],
    cold: Cold<'_>,
) -> io::Result<usize> {
    read_vectored_at(file, offset, &mut [IoSliceMut::new(into)], cold)
}

/// As [`read_exact_at`], one range of the file into many pieces of memory.
pub(crate) fn read_vectored_at(
    file: &File,
    offset: u64,
    mut into: &mut [IoSliceMut<'_>],
    cold: Cold<'_>,
) -> io::Result<usize> {
    let wanted: usize = into.iter().map(|piece| piece.len()).sum();
    let mut got = 0;
    if !matches!(cold, Cold::Buffered) && wanted >= DIRECT_FROM {
        let cached = match residency(file, offset, wanted as u64) {
            Residency::Whole | Residency::Secret => true,
            Residency::Partial => false,
            Residency::Unknown => {
                got = read_cached(file, offset, &mut into)?;
                false
            }
        };
        if !cached && wanted - got >= DIRECT_FROM {
            let offset = offset + got as u64;
            got += match cold {
                Cold::Buffered => 0,
                Cold::Through(direct) => match direct.of(file) {
                    Some(direct) => read_direct(direct, offset, &mut into)?,
                    None => 0,
                },
            };
        }
    }
    Ok(got + read_plain(file, offset + got as u64, &mut into)?)
}

/// Pieces of memory still to be filled: each way of reading moves past what it filled.
type Pieces<'a, 'b> = &'a mut [IoSliceMut<'b>];

/// Whether direct reads are worth trying: on file systems that lie on a local disk.
pub(crate) fn is_on_local_disk(file: impl AsFd) -> bool {
    const EXT: u32 = 0xEF53; // ext2, ext3 and ext4 alike
    const XFS: u32 = 0x5846_5342;
    const BTRFS: u32 = 0x9123_683E;
    rustix::fs::fstatfs(file).is_ok_and(|system| matches!(system.f_type as u32, EXT | XFS | BTRFS))
}

/// What the page cache holds of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Residency {
    Whole,
    Partial,
    /// The kernel cannot say.
    Unknown,
    /// The kernel does not tell us, since the file is not ours.
    Secret,
}

fn residency(file: &File, offset: u64, length: u64) -> Residency {
    /// On all architectures that Linux numbers alike.
    const CACHESTAT: libc::c_long = 451;
    let range = [offset, length];
    // Pages cached, dirty, written back, evicted, evicted lately.
    let mut counts = [0_u64; 5];
    // SAFETY: the descriptor is open; the kernel reads two words and writes five.
    let asked = unsafe {
        libc::syscall(CACHESTAT, file.as_raw_fd(), range.as_ptr(), counts.as_mut_ptr(), 0)
    };
    if asked != 0 {
        let error = io::Error::last_os_error();
        let denied = matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES));
        return if denied { Residency::Secret } else { Residency::Unknown };
    }
    // Beyond the end of the file there is nothing to cache: a tail counts as its pages.
    let pages = (offset + length).div_ceil(PAGE) - offset / PAGE;
    if counts[0] >= pages { Residency::Whole } else { Residency::Partial }
}

/// What the page cache holds of the start of the range; nothing where the kernel cannot say.
fn read_cached(file: &File, offset: u64, into: &mut Pieces<'_, '_>) -> io::Result<usize> {
    let count = into.len().min(MOST_PIECES);
    let batch = &mut into[..count];
    match retry_on_intr(|| rustix::io::preadv2(file, batch, offset, ReadWriteFlags::NOWAIT)) {
        Ok(got) => {
            IoSliceMut::advance_slices(into, got);
            Ok(got)
        }
        Err(Errno::AGAIN | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

fn read_plain(file: &File, offset: u64, into: &mut Pieces<'_, '_>) -> io::Result<usize> {
    let mut got = 0;
    // Moving past nothing drops empty pieces, for which a read would look like the end.
    IoSliceMut::advance_slices(into, 0);
    while !into.is_empty() {
        let count = into.len().min(MOST_PIECES);
        let batch = &mut into[..count];
        match retry_on_intr(|| rustix::io::preadv(file, batch, offset + got as u64))? {
            0 => break,
            more => {
                IoSliceMut::advance_slices(into, more);
                got += more;
            }
        }
    }
    Ok(got)
}

thread_local! {
    static BUFFER: RefCell<Option<OfThisProcess<Memory>>> = const { RefCell::new(None) };
}

/// What a thread has made for its reads. The thread that forks goes on in the child with a copy of
/// it, which the child cannot use: memory is not inherited, and a queue is the parent's.
struct OfThisProcess<T> {
    value: T,
    generation: u32,
}

impl<T> OfThisProcess<T> {
    fn new(value: T) -> Self {
        Self { value, generation: generation() }
    }

    /// The value in a place, which is made if there is none of this process.
    fn in_place(place: &mut Option<Self>, make: impl FnOnce() -> T) -> &mut T {
        let inherited = place.as_ref().is_some_and(|there| there.generation != generation());
        if inherited {
            *place = None;
        }
        &mut place.get_or_insert_with(|| Self::new(make())).value
    }
}

/// Reads the aligned bytes around the range and copies the range out. Ends early, without
/// an error, where the file system turns out not to read directly.
fn read_direct(file: BorrowedFd<'_>, offset: u64, into: &mut Pieces<'_, '_>) -> io::Result<usize> {
    BUFFER.with_borrow_mut(|buffer| {
        let make = || Memory::zeroed(BOUNCE + ALIGNMENT);
        let buffer = OfThisProcess::in_place(buffer, make);
        let start = buffer.as_ptr().align_offset(ALIGNMENT);
        let buffer = &mut buffer[start..start + BOUNCE];
        if let [piece] = &mut **into
            && let Some(got) = read_straight(file, offset, piece, buffer)?
        {
            IoSliceMut::advance_slices(into, got);
            return Ok(got);
        }
        bounce(file, offset, into, buffer)
    })
}

/// Reads directly into its place; the last block, of which only a part is wanted, goes through
/// the buffer. `None` where the place does not lie right.
fn read_straight(
    file: BorrowedFd<'_>,
    offset: u64,
    into: &mut [u8],
    buffer: &mut [u8],
) -> io::Result<Option<usize>> {
    if !lies_right(offset, into) {
        return Ok(None);
    }
    let (whole, rest) = into.split_at_mut(into.len() / BLOCK * BLOCK);
    let last = &mut buffer[..if rest.is_empty() { 0 } else { BLOCK }];
    let came = {
        let mut pieces = [IoSliceMut::new(whole), IoSliceMut::new(last)];
        let pieces = &mut pieces[..if rest.is_empty() { 1 } else { 2 }];
        match retry_on_intr(|| rustix::io::preadv(file, pieces, offset)) {
            Ok(came) => came,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    };
    let of_rest = came.saturating_sub(whole.len()).min(rest.len());
    rest[..of_rest].copy_from_slice(&last[..of_rest]);
    Ok(Some(came.min(whole.len()) + of_rest))
}

fn bounce(
    file: BorrowedFd<'_>,
    offset: u64,
    into: &mut Pieces<'_, '_>,
    buffer: &mut [u8],
) -> io::Result<usize> {
    let wanted: usize = into.iter().map(|piece| piece.len()).sum();
    let mut got = 0;
    while got < wanted {
        let at = offset + got as u64;
        let skip = (at % ALIGNMENT as u64) as usize;
        let length = (skip + wanted - got).next_multiple_of(ALIGNMENT).min(buffer.len());
        let came = match retry_on_intr(|| {
            rustix::io::pread(file, &mut buffer[..length], at - skip as u64)
        }) {
            Ok(came) => came,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => break,
            Err(error) => return Err(error.into()),
        };
        if came <= skip {
            break;
        }
        let useful = (came - skip).min(wanted - got);
        scatter(&buffer[skip..skip + useful], into);
        got += useful;
        if !came.is_multiple_of(ALIGNMENT) {
            break; // The file ends here.
        }
    }
    Ok(got)
}

/// Copies bytes into the first pieces and moves past what is filled.
fn scatter(mut bytes: &[u8], into: &mut Pieces<'_, '_>) {
    while !bytes.is_empty() {
        let count = bytes.len().min(into[0].len());
        into[0][..count].copy_from_slice(&bytes[..count]);
        bytes = &bytes[count..];
        IoSliceMut::advance_slices(into, count);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::ops::Range;

    use proptest::prelude::*;

    use super::*;

    /// A file of the given length that the page cache has let go of.
    fn cold_file(length: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(&bytes).expect("written");
        file.as_file().sync_all().expect("synced");
        chill(file.as_file());
        (file, bytes)
    }

    fn chill(file: &File) {
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
    }

    #[test]
    fn a_forked_child_reads_directly_into_memory_of_its_own() {
        let (file, bytes) = cold_file(40_000);
        let read = || {
            let mut memory = vec![0; bytes.len()];
            let mut pieces = [IoSliceMut::new(&mut memory)];
            let got = read_direct(file.as_file().as_fd(), 0, &mut &mut pieces[..]);
            got.is_ok_and(|got| got == bytes.len()) && memory == bytes
        };
        assert!(read());
        // SAFETY: the child reads, which takes no lock but the allocator's, and ends.
        let child = match unsafe { libc::fork() } {
            // SAFETY: ends the child without the parent's exit handlers.
            0 => unsafe { libc::_exit(i32::from(!read())) },
            child => child,
        };
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child has read other bytes, or none");
        assert!(read());
    }

    fn read_pieces(file: &File, offset: u64, lengths: &[usize], cold: Cold<'_>) -> Vec<u8> {
        let mut memory: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![0xEE; length]).collect();
        let mut pieces: Vec<_> = memory.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
        let got = read_vectored_at(file, offset, &mut pieces, cold).expect("read");
        let mut all = memory.concat();
        all.truncate(got);
        all
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn every_way_of_reading_gives_what_the_file_holds(
            length in 0usize..1_500_000,
            offset in 0u64..1_600_000,
            lengths in prop::collection::vec(prop_oneof![0usize..40, 0usize..700_000], 0..5),
        ) {
            let (named, bytes) = cold_file(length);
            let file = named.as_file();
            let start = (offset as usize).min(length);
            let end = (start + lengths.iter().sum::<usize>()).min(length);
            let expected = if offset as usize > length { &[][..] } else { &bytes[start..end] };
            let direct = Direct::default();
            prop_assert!(read_pieces(file, offset, &lengths, Cold::Through(&direct)) == expected);
            prop_assert!(read_pieces(file, offset, &lengths, Cold::Buffered) == expected);
            prop_assert!(read_pieces(file, offset, &lengths, Cold::Through(&direct)) == expected);
        }
    }

    /// Memory that begins at a block, `shift` bytes further on.
    fn memory(length: usize, shift: usize) -> (Vec<u8>, Range<usize>) {
        let memory = vec![0xEE; length + ALIGNMENT + shift];
        let start = memory.as_ptr().align_offset(ALIGNMENT) + shift;
        (memory, start..start + length)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn reading_many_at_once_gives_what_reading_one_by_one_gives(
            length in 0usize..1_500_000,
            wants in prop::collection::vec(
                (0u64..3000, prop_oneof![0usize..40, 0usize..200_000], prop_oneof![Just(0), 0usize..600]),
                0..40,
            ),
            warm in any::<bool>(),
        ) {
            let (named, bytes) = cold_file(length);
            let file = named.as_file();
            if warm {
                read_pieces(file, 0, &[length / 2], Cold::Buffered);
            }
            let direct = Direct::default();
            let mut memories: Vec<_> =
                wants.iter().map(|&(_, length, shift)| memory(length, shift)).collect();
            let mut requests: Vec<Request<'_>> = wants
                .iter()
                .zip(&mut memories)
                .map(|(&(block, ..), (memory, range))| Request {
                    file,
                    cold: Cold::Through(&direct),
                    offset: block * 512,
                    into: &mut memory[range.clone()],
                })
                .collect();
            let came = read_many(&mut requests);
            for ((&(block, ..), request), came) in wants.iter().zip(&requests).zip(came) {
                let start = (block as usize * 512).min(length);
                let end = (start + request.into.len()).min(length);
                prop_assert_eq!(came.expect("read"), end - start);
                prop_assert!(request.into[..end - start] == bytes[start..end]);
            }
        }
    }

    #[test]
    fn more_pieces_than_the_kernel_takes_at_once() {
        let (named, bytes) = cold_file(30_000);
        let direct = Direct::default();
        for cold in [Cold::Buffered, Cold::Through(&direct)] {
            assert!(read_pieces(named.as_file(), 1, &vec![9; 3000], cold) == bytes[1..27_001]);
            chill(named.as_file());
        }
    }

    #[test]
    fn a_file_system_without_direct_reads_is_read_plainly() {
        let mut named = tempfile::NamedTempFile::new_in("/dev/shm").expect("a temporary file");
        named.write_all(&vec![7; 50_000]).expect("written");
        assert!(!is_on_local_disk(named.as_file()));
        let direct = Direct::default();
        let cold = Cold::Through(&direct);
        assert_eq!(read_pieces(named.as_file(), 3, &[49_000], cold), vec![7; 49_000]);
    }

    #[test]
    fn a_descriptor_that_cannot_be_read_is_an_error() {
        let directory = File::open("/").expect("opened");
        let mut into = vec![0; 20_000];
        let direct = Direct::default();
        for cold in [Cold::Buffered, Cold::Through(&direct)] {
            assert!(read_exact_at(&directory, 0, &mut into, cold).is_err());
        }
    }
}
