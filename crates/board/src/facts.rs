//! What `stat` says of a source file, kept beside its copy.

use std::ffi::CStr;

use rustix::fd::AsFd;
use rustix::fs::{AtFlags, Statx, StatxFlags, StatxTimestamp};

/// Bytes of [`Facts`] as they lie in a file.
pub const ENCODED: usize = 17 * 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Time {
    pub seconds: i64,
    pub nanos: u64,
}

/// All that a `stat` or `statx` of a file is answered with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Facts {
    pub size: u64,
    pub ino: u64,
    /// As in `st_dev`.
    pub dev: u64,
    pub blocks: u64,
    pub attributes: u64,
    pub attributes_mask: u64,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    pub born: Time,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub block_size: u32,
    /// Which of these the file system knew, as in `stx_mask`.
    pub mask: u32,
}

impl Facts {
    /// Of the file at `path`, or of `at` itself if the path is empty.
    ///
    /// # Errors
    /// As of `statx`.
    pub fn of(at: impl AsFd, path: &CStr, flags: AtFlags) -> rustix::io::Result<Self> {
        let mut flags = flags;
        flags.set(AtFlags::EMPTY_PATH, path.is_empty());
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        rustix::fs::statx(at, path, flags, wanted).map(|stat| Self::from_statx(&stat))
    }

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

    pub fn is_regular(&self) -> bool {
        rustix::fs::FileType::from_raw_mode(self.mode) == rustix::fs::FileType::RegularFile
    }

    /// Whether a copy made when the source was `earlier` still has its bytes, and `stat` still the
    /// same answers. What reading changes does not count.
    pub fn is_still(&self, earlier: &Self) -> bool {
        let content = |facts: &Self| (facts.size, facts.dev, facts.ino, facts.modified);
        let manner = |facts: &Self| (facts.changed, facts.mode, facts.links, facts.uid, facts.gid);
        content(self) == content(earlier) && manner(self) == manner(earlier)
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

    /// Little-endian, whatever the machine.
    pub fn encode(&self) -> [u8; ENCODED] {
        let mut bytes = [0; ENCODED];
        for (place, number) in bytes.chunks_exact_mut(8).zip(self.numbers()) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub fn decode(bytes: &[u8; ENCODED]) -> Self {
        let mut numbers = [0; ENCODED / 8];
        for (number, place) in numbers.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *number = u64::from_le_bytes(*place);
        }
        let time = |at: usize| Time { seconds: numbers[at].cast_signed(), nanos: numbers[at + 1] };
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

fn time(stamp: StatxTimestamp) -> Time {
    Time { seconds: stamp.tv_sec, nanos: stamp.tv_nsec.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_after_a_journey_through_bytes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "twelve bytes").unwrap();
        let facts = Facts::of(file.as_file(), c"", AtFlags::empty()).unwrap();
        assert_eq!(facts.size, 12);
        assert!(facts.is_regular() && facts.ino != 0 && facts.modified.seconds > 0);
        assert_eq!(Facts::decode(&facts.encode()), facts);
        assert!(Facts { accessed: Time::default(), ..facts }.is_still(&facts));
        let others = [
            Facts { size: 13, ..facts },
            Facts { ino: facts.ino + 1, ..facts },
            Facts { modified: Time::default(), ..facts },
            Facts { mode: 0o100_777, ..facts },
        ];
        assert!(others.iter().all(|other| !other.is_still(&facts)));
    }
}
