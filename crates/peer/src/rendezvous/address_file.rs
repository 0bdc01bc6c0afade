//! The file by which rank 0 tells the other ranks of a directory rendezvous where it listens.
//!
//! The file holds the job's key, so only the user may read it. It appears by a rename, as a whole
//! or not at all, and is removed when the job ends.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::{RendezvousAddress, RendezvousError};
use crate::JobKey;

const FIRST_LINE: &str = "belady meeting 2";
/// Longer files are not read: an address file is far shorter.
const LONGEST: u64 = 4096;

/// The contents of an address file.
#[derive(Clone, Debug)]
pub struct AddressRecord {
    /// Where rank 0 listens.
    pub address: RendezvousAddress,
    /// The job's key.
    pub key: JobKey,
    /// The job's name, on one line.
    pub job: String,
}

impl AddressRecord {
    /// Reads an address file that belongs to this user and that no other user may read.
    pub fn read(path: &Path) -> io::Result<Self> {
        let nofollow = OFlags::NOFOLLOW.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(nofollow).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() || !is_private(&metadata) {
            return Err(io::Error::other("it is not a file that only you can read"));
        }
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text)?;
        Self::parse(&text).ok_or_else(|| io::Error::other("it is not an address file of belady"))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let first = lines.next()?;
        let address = lines.next()?.strip_prefix("place ")?.parse().ok()?;
        let key = JobKey::from_text(lines.next()?.strip_prefix("key ")?).ok()?;
        let job = lines.next()?.strip_prefix("job ")?.to_owned();
        (first == FIRST_LINE && lines.next() == Some("end")).then_some(Self { address, key, job })
    }
}

/// Returns whether the file or directory belongs to this user and no other user has access to it.
pub fn is_private(metadata: &Metadata) -> bool {
    metadata.uid() == rustix::process::geteuid().as_raw() && metadata.mode().trailing_zeros() >= 6
}

/// An address file that is removed on drop, together with its directory if that is empty then.
#[derive(Debug)]
pub struct AddressFile {
    path: PathBuf,
    address: RendezvousAddress,
}

impl AddressFile {
    pub fn write(path: PathBuf, record: &AddressRecord) -> Result<Self, RendezvousError> {
        let AddressRecord { address, key, job } = record;
        let text =
            format!("{FIRST_LINE}\nplace {address}\nkey {}\njob {job}\nend\n", key.to_text());
        let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
        let written = write(&unfinished, &text).and_then(|()| std::fs::rename(&unfinished, &path));
        if let Err(error) = written {
            let _ = std::fs::remove_file(&unfinished);
            let shown = path.display();
            return Err(RendezvousError::Other(format!("cannot write {shown}: {error}")));
        }
        Ok(Self { path, address: address.clone() })
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    // A killed process with the same process id may have left one.
    let _ = std::fs::remove_file(path);
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

impl Drop for AddressFile {
    fn drop(&mut self) {
        // A process that was started since may have replaced the file: then it stays.
        if AddressRecord::read(&self.path).is_ok_and(|record| record.address == self.address) {
            let _ = std::fs::remove_file(&self.path);
            let _ = self.path.parent().map(std::fs::remove_dir);
        }
    }
}
