//! What is written beside a copy: the source's facts, a checksum, and the boot of the machine in which
//! it was made. It lies in an extended attribute of the copy, so it comes and goes with it.

use std::os::fd::AsFd;
use std::sync::LazyLock;

use belady_board::Facts;
use belady_board::facts::ENCODED;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

const NAME: &str = "user.belady";
const VERSION: [u8; 4] = *b"BLD\x01";
const LENGTH: usize = VERSION.len() + ENCODED + 1 + 8 + 16;

/// Tells boots of the machine apart. What was not yet on the disk when the machine went down is
/// lost, though its name may be there; so copies of another boot are read once before they are used.
pub type Boot = [u8; 16];

static THIS_BOOT: LazyLock<Boot> = LazyLock::new(|| {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hash = xxhash_rust::xxh3::xxh3_128(text.trim().as_bytes());
    hash.to_le_bytes()
});

pub fn this_boot() -> Boot {
    *THIS_BOOT
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The device is 0 if it is that of the dataset, whose number is another after each mount.
    facts: Facts,
    /// The name is that of a symbolic link.
    pub is_link: bool,
    /// xxh3 of the bytes.
    pub checksum: u64,
    pub boot: Boot,
}

impl Meta {
    /// Of a copy that was made just now. `home` is the device of the dataset.
    pub fn new(facts: &Facts, home: u64, is_link: bool, checksum: u64) -> Self {
        let dev = if facts.dev == home { 0 } else { facts.dev };
        Self { facts: Facts { dev, ..*facts }, is_link, checksum, boot: this_boot() }
    }

    /// What the source was like.
    pub fn facts(&self, home: u64) -> Facts {
        let dev = if self.facts.dev == 0 { home } else { self.facts.dev };
        Facts { dev, ..self.facts }
    }

    pub fn size(&self) -> u64 {
        self.facts.size
    }

    fn encode(&self) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let (version, rest) = bytes.split_at_mut(VERSION.len());
        let (facts, rest) = rest.split_at_mut(ENCODED);
        let (is_link, rest) = rest.split_at_mut(1);
        let (checksum, boot) = rest.split_at_mut(8);
        version.copy_from_slice(&VERSION);
        facts.copy_from_slice(&self.facts.encode());
        is_link[0] = self.is_link.into();
        checksum.copy_from_slice(&self.checksum.to_le_bytes());
        boot.copy_from_slice(&self.boot);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&VERSION)?;
        let (facts, rest) = rest.split_first_chunk::<ENCODED>()?;
        let (is_link, rest) = rest.split_first()?;
        let (checksum, rest) = rest.split_first_chunk::<8>()?;
        let boot = rest.try_into().ok()?;
        let checksum = u64::from_le_bytes(*checksum);
        Some(Self { facts: Facts::decode(facts), is_link: *is_link != 0, checksum, boot })
    }

    /// # Errors
    /// If the file system has no extended attributes, for one.
    pub fn write(&self, copy: impl AsFd) -> rustix::io::Result<()> {
        rustix::fs::fsetxattr(copy, NAME, &self.encode(), XattrFlags::empty())
    }

    /// None if there is none, or none that is understood.
    pub fn read(copy: impl AsFd) -> Option<Self> {
        // One byte more: what is too long is not ours.
        let mut bytes = [0; LENGTH + 1];
        let length = rustix::fs::fgetxattr(copy, NAME, &mut bytes[..]).ok()?;
        Self::decode(&bytes[..length])
    }
}

/// Whether files in this directory can have what is written beside copies.
///
/// # Errors
/// If no file can be made there.
pub fn is_supported(directory: &std::path::Path) -> std::io::Result<bool> {
    let probe = directory.join(format!(".probe-{}", std::process::id()));
    let file = std::fs::File::create(&probe)?;
    let meta = Meta { facts: Facts::default(), is_link: false, checksum: 0, boot: [0; 16] };
    let answer = meta.write(&file);
    std::fs::remove_file(&probe)?;
    Ok(match answer {
        Ok(()) => true,
        Err(Errno::NOTSUP | Errno::PERM | Errno::NOSPC | Errno::TOOBIG) => false,
        Err(error) => return Err(error.into()),
    })
}

/// Makes a copy look as if it was made before the machine was last started.
#[cfg(test)]
pub fn age(copy: &std::path::Path) {
    let file = std::fs::File::open(copy).unwrap();
    let meta = Meta::read(&file).unwrap();
    Meta { boot: [7; 16], ..meta }.write(&file).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_beside_a_copy_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        if !is_supported(folder.path()).unwrap() {
            println!("no extended attributes in {}, so nothing to test", folder.path().display());
            return;
        }
        let file = std::fs::File::create(folder.path().join("copy")).unwrap();
        assert_eq!(Meta::read(&file), None);
        let facts = Facts { size: 7, ino: 8, ..Facts::default() };
        let meta = Meta { facts, is_link: true, checksum: 9, boot: this_boot() };
        meta.write(&file).unwrap();
        assert_eq!(Meta::read(&file), Some(meta));
        rustix::fs::fsetxattr(&file, NAME, b"BLD\x02something else", XattrFlags::empty()).unwrap();
        assert_eq!(Meta::read(&file), None);
    }

    #[test]
    fn bytes_of_any_length_are_survived() {
        let whole =
            Meta { facts: Facts::default(), is_link: false, checksum: 1, boot: [2; 16] }.encode();
        for end in 0..whole.len() {
            assert_eq!(Meta::decode(&whole[..end]), None);
        }
        assert!(Meta::decode(&whole).is_some());
        assert_eq!(Meta::decode(&[&whole[..], b"x"].concat()), None);
    }
}
