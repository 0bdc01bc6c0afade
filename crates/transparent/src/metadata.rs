//! A copy's metadata: the source's stat, a checksum, and the boot in which the copy was made.
//!
//! It is an extended attribute of the copy, so both are removed together.

use std::os::fd::AsFd;
use std::sync::LazyLock;

use belady_board::FileStat;
use belady_board::file_stat::ENCODED;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

const NAME: &str = "user.belady";
const VERSION: [u8; 4] = *b"BLD\x01";
const LENGTH: usize = VERSION.len() + ENCODED + 1 + 8 + 16;

/// Identifies a boot of the machine. After a crash a file may have its name but not its bytes, so a
/// copy from another boot is verified once before it is used.
pub type Boot = [u8; 16];

static THIS_BOOT: LazyLock<Boot> = LazyLock::new(|| {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hash = xxhash_rust::xxh3::xxh3_128(text.trim().as_bytes());
    hash.to_le_bytes()
});

pub fn this_boot() -> Boot {
    *THIS_BOOT
}

/// The metadata of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyMetadata {
    /// With device 0 for the dataset's own device, whose number can change with each mount.
    stat: FileStat,
    /// Whether the source's name is a symbolic link.
    pub is_link: bool,
    /// xxh3 of the bytes.
    pub checksum: u64,
    pub boot: Boot,
}

impl CopyMetadata {
    /// Describes a new copy. `dataset_dev` is the device of the dataset.
    pub fn new(stat: &FileStat, dataset_dev: u64, is_link: bool, checksum: u64) -> Self {
        let dev = if stat.dev == dataset_dev { 0 } else { stat.dev };
        Self { stat: FileStat { dev, ..*stat }, is_link, checksum, boot: this_boot() }
    }

    /// Returns the source's stat at the time of the copy.
    pub fn stat(&self, dataset_dev: u64) -> FileStat {
        let dev = if self.stat.dev == 0 { dataset_dev } else { self.stat.dev };
        FileStat { dev, ..self.stat }
    }

    pub fn size(&self) -> u64 {
        self.stat.size
    }

    fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let (version, rest) = bytes.split_at_mut(VERSION.len());
        let (stat, rest) = rest.split_at_mut(ENCODED);
        let (is_link, rest) = rest.split_at_mut(1);
        let (checksum, boot) = rest.split_at_mut(8);
        version.copy_from_slice(&VERSION);
        stat.copy_from_slice(&self.stat.encode());
        is_link[0] = self.is_link.into();
        checksum.copy_from_slice(&self.checksum.to_le_bytes());
        boot.copy_from_slice(&self.boot);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&VERSION)?;
        let (stat, rest) = rest.split_first_chunk::<ENCODED>()?;
        let (is_link, rest) = rest.split_first()?;
        let (checksum, rest) = rest.split_first_chunk::<8>()?;
        let boot = rest.try_into().ok()?;
        let checksum = u64::from_le_bytes(*checksum);
        Some(Self { stat: FileStat::decode(stat), is_link: *is_link != 0, checksum, boot })
    }

    /// Writes the metadata of a copy.
    ///
    /// # Errors
    /// If the attribute cannot be written, for example without extended attributes.
    pub fn write(&self, copy: impl AsFd) -> rustix::io::Result<()> {
        rustix::fs::fsetxattr(copy, NAME, &self.encode(), XattrFlags::empty())
    }

    /// Reads the metadata of a copy; None if there is none of this version.
    pub fn read(copy: impl AsFd) -> Option<Self> {
        // One byte more, to recognise an attribute that is too long.
        let mut bytes = [0; LENGTH + 1];
        let length = rustix::fs::fgetxattr(copy, NAME, &mut bytes[..]).ok()?;
        Self::decode(&bytes[..length])
    }
}

/// Returns whether files in this directory can have metadata.
///
/// # Errors
/// If no file can be created there.
pub fn is_supported(directory: &std::path::Path) -> std::io::Result<bool> {
    let probe = directory.join(format!(".probe-{}", std::process::id()));
    let file = std::fs::File::create(&probe)?;
    let meta =
        CopyMetadata { stat: FileStat::default(), is_link: false, checksum: 0, boot: [0; 16] };
    let answer = meta.write(&file);
    std::fs::remove_file(&probe)?;
    Ok(match answer {
        Ok(()) => true,
        Err(Errno::NOTSUP | Errno::PERM | Errno::NOSPC | Errno::TOOBIG) => false,
        Err(error) => return Err(error.into()),
    })
}

/// Changes a copy's metadata as if it was made in an earlier boot.
#[cfg(test)]
pub fn age(copy: &std::path::Path) {
    let file = std::fs::File::open(copy).unwrap();
    let meta = CopyMetadata::read(&file).unwrap();
    CopyMetadata { boot: [7; 16], ..meta }.write(&file).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_metadata_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        if !is_supported(folder.path()).unwrap() {
            return belady_testing::not_run("the temporary directory has no extended attributes");
        }
        let file = std::fs::File::create(folder.path().join("copy")).unwrap();
        assert_eq!(CopyMetadata::read(&file), None);
        let stat = FileStat { size: 7, ino: 8, ..FileStat::default() };
        let meta = CopyMetadata { stat, is_link: true, checksum: 9, boot: this_boot() };
        meta.write(&file).unwrap();
        assert_eq!(CopyMetadata::read(&file), Some(meta));
        rustix::fs::fsetxattr(&file, NAME, b"BLD\x02something else", XattrFlags::empty()).unwrap();
        assert_eq!(CopyMetadata::read(&file), None);
    }

    #[test]
    fn only_the_exact_length_is_decoded() {
        let whole =
            CopyMetadata { stat: FileStat::default(), is_link: false, checksum: 1, boot: [2; 16] }
                .encode();
        for end in 0..whole.len() {
            assert_eq!(CopyMetadata::decode(&whole[..end]), None);
        }
        assert!(CopyMetadata::decode(&whole).is_some());
        assert_eq!(CopyMetadata::decode(&[&whole[..], b"x"].concat()), None);
    }
}
