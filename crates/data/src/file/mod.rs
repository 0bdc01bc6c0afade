//! Reads a file at an offset, as fast as its file system allows.
//!
//! What the page cache holds is copied from there. The rest, on a local disk and from
//! [`DIRECT_FROM`] bytes on, is read with `O_DIRECT` ([`direct`]). A cold random read is twice as
//! fast that way, and a dataset larger than memory does not evict everything else from the page
//! cache. Where a file system or kernel does not support this, the read falls back to a plain one.
//!
//! `cachestat` tells what the page cache holds ([`page_cache`]). On kernels without it (before 6.5)
//! a non-blocking read (`RWF_NOWAIT`) is tried; newer kernels would start to load the pages for it,
//! and a cold sample would be read twice.

mod direct;
mod page_cache;
mod per_process;
mod read_queue;

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;

use rustix::io::retry_on_intr;

pub(crate) use self::direct::{BLOCK, DirectFile};
use self::direct::{is_aligned, read_direct};
use self::page_cache::{Residency, read_cached, residency};
use self::read_queue::DirectRead;

/// Below this size a plain read is as fast as a direct one: four pages.
const DIRECT_FROM: usize = 16 << 10;

/// The kernel accepts no longer lists (`IOV_MAX`).
const MOST_PIECES: usize = 1024;

/// How to read what the page cache does not hold.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cold<'a> {
    /// Through the page cache.
    Buffered,
    /// Directly, through a second descriptor.
    Direct(&'a DirectFile),
}

/// One range of a file for [`read_many`].
#[derive(Debug)]
pub(crate) struct ReadRequest<'a> {
    pub file: &'a File,
    pub cold: Cold<'a>,
    pub offset: u64,
    pub into: &'a mut [u8],
}

/// The most requests that [`read_many`] has in flight.
pub(crate) const TOGETHER: usize = read_queue::DEPTH;

/// Reads requests, with those that need the disk in flight at once. Returns the result of
/// [`read_exact_at`] for each.
pub(crate) fn read_many(requests: &mut [ReadRequest<'_>]) -> Vec<io::Result<usize>> {
    let mut outcomes: Vec<Option<usize>> = vec![None; requests.len()];
    for (requests, outcomes) in requests.chunks_mut(TOGETHER).zip(outcomes.chunks_mut(TOGETHER)) {
        let (which, mut reads): (Vec<usize>, Vec<DirectRead<'_>>) = requests
            .iter_mut()
            .enumerate()
            .filter_map(|(at, r)| Some((at, direct_read(r)?)))
            .unzip();
        // A single read needs no queue.
        if reads.len() > 1 {
            let wanted: Vec<usize> = reads.iter().map(|read| read.into.len()).collect();
            let came = read_queue::read(&mut reads);
            for ((at, wanted), came) in which.into_iter().zip(wanted).zip(came) {
                outcomes[at] = came.ok().filter(|&came| came == wanted);
            }
        }
    }
    // The others, and those that failed or came short, are read one by one.
    let alone = |(request, outcome): (&mut ReadRequest<'_>, Option<usize>)| match outcome {
        Some(came) => Ok(came),
        None => read_exact_at(request.file, request.offset, request.into, request.cold),
    };
    requests.iter_mut().zip(outcomes).map(alone).collect()
}

/// Returns a request as a direct read, if it needs the disk and its memory is aligned.
fn direct_read<'a>(request: &'a mut ReadRequest<'_>) -> Option<DirectRead<'a>> {
    let Cold::Direct(direct) = request.cold else { return None };
    let (offset, into) = (request.offset, &mut *request.into);
    if into.len() < DIRECT_FROM || !is_aligned(offset, into) {
        return None;
    }
    if residency(request.file, offset, into.len() as u64) != Residency::Partial {
        return None;
    }
    Some(DirectRead { file: direct.of(request.file)?, offset, into })
}

/// Reads until `into` is full or the file ends, and returns how many bytes came.
pub(crate) fn read_exact_at(
    file: &File,
    offset: u64,
    into: &mut [u8],
    cold: Cold<'_>,
) -> io::Result<usize> {
    read_vectored_at(file, offset, &mut [IoSliceMut::new(into)], cold)
}

/// Reads as [`read_exact_at`] does, one range of the file into many pieces of memory.
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
            Residency::Whole | Residency::Denied => true,
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
                Cold::Direct(direct) => match direct.of(file) {
                    Some(direct) => read_direct(direct, offset, &mut into)?,
                    None => 0,
                },
            };
        }
    }
    Ok(got + read_plain(file, offset + got as u64, &mut into)?)
}

/// Pieces of memory to fill; each way of reading advances past what it has filled.
type Pieces<'a, 'b> = &'a mut [IoSliceMut<'b>];

/// Whether a file lies on a file system of a local disk, where direct reads are worth trying.
pub(crate) fn is_on_local_disk(file: impl AsFd) -> bool {
    const EXT: u32 = 0xEF53; // ext2, ext3 and ext4 alike
    const XFS: u32 = 0x5846_5342;
    const BTRFS: u32 = 0x9123_683E;
    rustix::fs::fstatfs(file).is_ok_and(|system| matches!(system.f_type as u32, EXT | XFS | BTRFS))
}

fn read_plain(file: &File, offset: u64, into: &mut Pieces<'_, '_>) -> io::Result<usize> {
    let mut got = 0;
    // Advancing by zero drops empty pieces, for which a read would look like the end of the file.
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::ops::Range;

    use proptest::prelude::*;

    use super::direct::ALIGNMENT;
    use super::*;

    /// Creates a file of the given length that is not in the page cache.
    pub(super) fn cold_file(length: usize) -> (tempfile::NamedTempFile, Vec<u8>) {
        let bytes: Vec<u8> = (0..length).map(|at| (at * 7 + at / 251) as u8).collect();
        let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
        file.write_all(&bytes).expect("written");
        file.as_file().sync_all().expect("synced");
        drop_from_cache(file.as_file());
        (file, bytes)
    }

    fn drop_from_cache(file: &File) {
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
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
        fn every_way_of_reading_returns_the_bytes_of_the_file(
            length in 0usize..1_500_000,
            offset in 0u64..1_600_000,
            lengths in prop::collection::vec(prop_oneof![0usize..40, 0usize..700_000], 0..5),
        ) {
            let (named, bytes) = cold_file(length);
            let file = named.as_file();
            let start = (offset as usize).min(length);
            let end = (start + lengths.iter().sum::<usize>()).min(length);
            let expected = if offset as usize > length { &[][..] } else { &bytes[start..end] };
            let direct = DirectFile::default();
            prop_assert!(read_pieces(file, offset, &lengths, Cold::Direct(&direct)) == expected);
            prop_assert!(read_pieces(file, offset, &lengths, Cold::Buffered) == expected);
            prop_assert!(read_pieces(file, offset, &lengths, Cold::Direct(&direct)) == expected);
        }
    }

    /// Returns memory that begins `shift` bytes behind a block.
    fn memory(length: usize, shift: usize) -> (Vec<u8>, Range<usize>) {
        let memory = vec![0xEE; length + ALIGNMENT + shift];
        let start = memory.as_ptr().align_offset(ALIGNMENT) + shift;
        (memory, start..start + length)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn reading_many_at_once_equals_reading_one_by_one(
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
            let direct = DirectFile::default();
            let mut memories: Vec<_> =
                wants.iter().map(|&(_, length, shift)| memory(length, shift)).collect();
            let mut requests: Vec<ReadRequest<'_>> = wants
                .iter()
                .zip(&mut memories)
                .map(|(&(block, ..), (memory, range))| ReadRequest {
                    file,
                    cold: Cold::Direct(&direct),
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
    fn more_pieces_than_the_kernel_accepts_are_read_in_several_calls() {
        let (named, bytes) = cold_file(30_000);
        let direct = DirectFile::default();
        for cold in [Cold::Buffered, Cold::Direct(&direct)] {
            assert!(read_pieces(named.as_file(), 1, &vec![9; 3000], cold) == bytes[1..27_001]);
            drop_from_cache(named.as_file());
        }
    }

    #[test]
    fn a_file_system_without_direct_reads_is_read_through_the_page_cache() {
        let mut named = tempfile::NamedTempFile::new_in("/dev/shm").expect("a temporary file");
        named.write_all(&vec![7; 50_000]).expect("written");
        assert!(!is_on_local_disk(named.as_file()));
        let direct = DirectFile::default();
        let cold = Cold::Direct(&direct);
        assert_eq!(read_pieces(named.as_file(), 3, &[49_000], cold), vec![7; 49_000]);
    }

    #[test]
    fn a_descriptor_that_cannot_be_read_is_an_error() {
        let directory = File::open("/").expect("opened");
        let mut into = vec![0; 20_000];
        let direct = DirectFile::default();
        for cold in [Cold::Buffered, Cold::Direct(&direct)] {
            assert!(read_exact_at(&directory, 0, &mut into, cold).is_err());
        }
    }
}
