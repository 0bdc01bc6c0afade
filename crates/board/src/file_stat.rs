//! The `stat` of a source file, kept beside its copy.

use std::ffi::CStr;

use rustix::fd::AsFd;
use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp};

/// The length of an encoded [`FileStat`].
pub const ENCODED: usize = 17 * 8;

/// Identifies a file: its device and its inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FileId {
    /// As `st_dev`.
    pub dev: u64,
    /// As `st_ino`.
    pub ino: u64,
}

/// A time of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FileTime {
    /// Since the epoch.
    pub seconds: i64,
    /// Less than a second.
    pub nanos: u64,
}

/// The answer to a `stat` or `statx` call; fields are as in `statx`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct FileStat {
    /// In bytes.
    pub size: u64,
    /// The inode.
    pub ino: u64,
    /// As in `st_dev`.
    pub dev: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// As `stx_attributes`.
    pub attributes: u64,
    /// As `stx_attributes_mask`.
    pub attributes_mask: u64,
    /// The last access.
    pub accessed: FileTime,
    /// The last change of the bytes.
    pub modified: FileTime,
    /// The last change of bytes or status.
    pub changed: FileTime,
    /// The creation.
    pub born: FileTime,
    /// Type and permissions.
    pub mode: u32,
    /// The number of hard links.
    pub links: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The preferred size of reads.
    pub block_size: u32,
    /// The fields that the file system knows, as in `stx_mask`.
    pub mask: u32,
}

impl FileStat {
    /// Returns the stat of the file at `path`, or of `at` itself if the path is empty.
    ///
    /// # Errors
    /// Those of `statx`.
    pub fn of(at: impl AsFd, path: &CStr, flags: AtFlags) -> rustix::io::Result<Self> {
        let mut flags = flags;
        flags.set(AtFlags::EMPTY_PATH, path.is_empty());
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        rustix::fs::statx(at, path, flags, wanted).map(|stat| Self::from_statx(&stat))
    }

    /// Converts what the kernel returned.
    pub fn from_statx(stat: &Statx) -> Self {
        Self {
            size: stat.stx_size,
            ino: stat.stx_ino,
            dev: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            blocks: stat.stx_blocks,
            attributes: stat.stx_attributes.bits(),
            attributes_mask: stat.stx_attributes_mask.bits(),
            accessed: time(stat.stx_atime),
            modified: time(stat.stx_mtime),
            changed: time(stat.stx_ctime),
            born: time(stat.stx_btime),
            mode: stat.stx_mode.into(),
            links: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            block_size: stat.stx_blksize,
            mask: stat.stx_mask,
        }
    }

    /// Returns the file's identity.
    pub fn id(&self) -> FileId {
        FileId { dev: self.dev, ino: self.ino }
    }

    /// Returns whether this is a regular file.
    pub fn is_regular(&self) -> bool {
        rustix::fs::FileType::from_raw_mode(self.mode) == rustix::fs::FileType::RegularFile
    }

    /// Returns whether a copy made when the source was `earlier` is still valid: the same bytes,
    /// and the same answers to `stat`. Fields that reading changes are ignored.
    pub fn is_unchanged_since(&self, earlier: &Self) -> bool {
        let content = |stat: &Self| (stat.size, stat.dev, stat.ino, stat.modified);
        let status = |stat: &Self| (stat.changed, stat.mode, stat.links, stat.uid, stat.gid);
        content(self) == content(earlier) && status(self) == status(earlier)
    }

    fn numbers(&self) -> [u64; ENCODED / 8] {
        let pair = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        [
            self.size,
            self.ino,
            self.dev,
            self.blocks,
            self.attributes,
            self.attributes_mask,
            self.accessed.seconds.cast_unsigned(),
            self.accessed.nanos,
            self.modified.seconds.cast_unsigned(),
            self.modified.nanos,
            self.changed.seconds.cast_unsigned(),
            self.changed.nanos,
            self.born.seconds.cast_unsigned(),
            self.born.nanos,
            pair(self.mode, self.links),
            pair(self.uid, self.gid),
            pair(self.block_size, self.mask),
        ]
    }

    /// Encodes the fields in little-endian order.
    pub fn encode(&self) -> [u8; ENCODED] {
        let mut bytes = [0; ENCODED];
        for (into, number) in bytes.chunks_exact_mut(8).zip(self.numbers()) {
            into.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// Decodes what [`FileStat::encode`] returned.
    pub fn decode(bytes: &[u8; ENCODED]) -> Self {
        let mut numbers = [0; ENCODED / 8];
        for (number, from) in numbers.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *number = u64::from_le_bytes(*from);
        }
        let time =
            |at: usize| FileTime { seconds: numbers[at].cast_signed(), nanos: numbers[at + 1] };
        let low = |at: usize| numbers[at] as u32;
        let high = |at: usize| (numbers[at] >> 32) as u32;
        Self {
            size: numbers[0],
            ino: numbers[1],
            dev: numbers[2],
            blocks: numbers[3],
            attributes: numbers[4],
            attributes_mask: numbers[5],
            accessed: time(6),
            modified: time(8),
            changed: time(10),
            born: time(12),
            mode: low(14),
            links: high(14),
            uid: low(15),
            gid: high(15),
            block_size: low(16),
            mask: high(16),
        }
    }
}

fn time(stamp: StatxTimestamp) -> FileTime {
    FileTime { seconds: stamp.tv_sec, nanos: stamp.tv_nsec.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_survives_encoding_and_notices_changes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "twelve bytes").unwrap();
        let stat = FileStat::of(file.as_file(), c"", AtFlags::empty()).unwrap();
        assert_eq!(stat.size, 12);
        assert!(stat.is_regular() && stat.ino != 0 && stat.modified.seconds > 0);
        assert_eq!(FileStat::decode(&stat.encode()), stat);
        assert!(FileStat { accessed: FileTime::default(), ..stat }.is_unchanged_since(&stat));
        let others = [
            FileStat { size: 13, ..stat },
            FileStat { ino: stat.ino + 1, ..stat },
            FileStat { modified: FileTime::default(), ..stat },
            FileStat { mode: 0o100_777, ..stat },
        ];
        assert!(others.iter().all(|other| !other.is_unchanged_since(&stat)));
    }
}
