//! WebDataset: samples in tar archives, each a group of neighbouring members.
//!
//! Members belong together if they follow each other and have the same key: their path up to the
//! first dot of the file name. The rest behind that dot, in lower case, is the member's name
//! (`jpg`, `cls`, `json`). As in WebDataset, members without a dot or with a leading dot belong to
//! no sample, nor do paths whose first component is like `__name__`; directories, links and devices
//! are skipped.
//!
//! A sample is one range of bytes: from the first header of its first member to the end of its last
//! member, padding included. So it is itself a small tar archive without an end mark, which
//! [`members`] splits. Nothing is ever extracted, so paths are only names; dangerous ones
//! (absolute, with `..`) are refused all the same.
//!
//! Python's `tarfile` ends silently where a file was truncated between two members, and at the
//! first end mark of concatenated archives. Here both are errors, since samples would be lost.

mod tar;

use std::io::{Read, Seek};
use std::ops::Range;
use std::path::Path;

use self::tar::{Archive, ArchiveStep, TarEntry};
use super::Operations;
use super::packed::{self, Flaw, IndexFileError, PackedRecord, ReadAt, ReadWindow};

/// A member of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The part of the file name behind the first dot, in lower case: `jpg`, `seg.png`.
    pub name: String,
    /// Its bytes in the sample.
    pub range: Range<usize>,
}

/// Finds the samples of an archive, and counts the calls.
///
/// # Errors
///
/// If the file cannot be read or is no archive that can be used.
pub fn index_file(
    path: &Path,
    operations: &mut Operations,
) -> Result<Vec<PackedRecord>, IndexFileError> {
    packed::index_file(path, operations, walk)
}

/// Finds the samples in `length` bytes of an archive.
///
/// # Errors
///
/// If the bytes are no archive that can be used.
pub fn index<R: Read + Seek>(reader: R, length: u64) -> Result<Vec<PackedRecord>, Flaw> {
    walk(&mut ReadWindow::new(reader), length)
}

/// Splits a sample into its members.
///
/// # Errors
///
/// If the bytes are not a sample as [`index`] finds them.
pub fn members(sample: &[u8]) -> Result<Vec<Member>, Flaw> {
    let mut bytes = sample;
    let mut archive = Archive::new(&mut bytes, sample.len() as u64);
    let mut members = Vec::new();
    while let ArchiveStep::Entry(entry) = archive.next()? {
        if let Some(name) = MemberName::of(&entry)? {
            let start = entry.data as usize;
            let name = String::from_utf8_lossy(&name.name).into_owned();
            members.push(Member { name, range: start..start + entry.size as usize });
        }
    }
    Ok(members)
}

fn walk(bytes: &mut impl ReadAt, length: u64) -> Result<Vec<PackedRecord>, Flaw> {
    let mut archive = Archive::new(bytes, length);
    let mut samples = Samples::default();
    loop {
        let whole = samples.closed.len();
        match archive.next() {
            Ok(ArchiveStep::Entry(entry)) => {
                samples.add(&entry, &mut archive).map_err(|flaw| flaw.after(whole))?;
            }
            Ok(ArchiveStep::Mark) => {
                archive.expect_nothing_more().map_err(|flaw| flaw.after(whole))?;
                return Ok(samples.finish());
            }
            Ok(ArchiveStep::Bare) => {
                return Err(Flaw::NoEnd { offset: length, whole: whole as u64 });
            }
            Err(flaw) if archive.is_at_start() => {
                return Err(packed::compression(archive.bytes()).map_or(flaw, Flaw::Compressed));
            }
            Err(flaw) => return Err(flaw.after(whole)),
        }
    }
}

/// Groups members into samples.
#[derive(Debug, Default)]
struct Samples {
    closed: Vec<PackedRecord>,
    open: Option<MemberGroup>,
}

/// Successive members with the same key.
#[derive(Debug)]
struct MemberGroup {
    key: Vec<u8>,
    names: Vec<Vec<u8>>,
    start: u64,
    end: u64,
    label: Option<u32>,
}

impl Samples {
    fn add(
        &mut self,
        entry: &TarEntry,
        archive: &mut Archive<'_, impl ReadAt>,
    ) -> Result<(), Flaw> {
        let Some(name) = MemberName::of(entry)? else { return Ok(()) };
        if self.open.as_ref().is_none_or(|group| group.key != name.key) {
            self.close();
        }
        let group = self.open.get_or_insert_with(|| MemberGroup {
            key: name.key.to_vec(),
            names: Vec::new(),
            start: entry.start,
            end: entry.end,
            label: None,
        });
        if group.names.contains(&name.name) {
            let name = shortened(&entry.name);
            let what = format!("the second member `{name}` of one sample");
            return Err(Flaw::Unsupported { offset: entry.start, what });
        }
        group.end = entry.end;
        if name.name == b"cls" {
            group.label = read_label(entry, archive.bytes())?;
        }
        group.names.push(name.name);
        Ok(())
    }

    fn close(&mut self) {
        self.closed.extend(self.open.take().map(|group| PackedRecord {
            offset: group.start,
            length: group.end - group.start,
            key: Some(String::from_utf8_lossy(&group.key).into_owned()),
            label: group.label,
        }));
    }

    fn finish(mut self) -> Vec<PackedRecord> {
        self.close();
        self.closed
    }
}

/// The longest label: the digits of a 32-bit number. It lies right behind its header, so it is in
/// the window already.
const LABEL: usize = 10;

/// Reads the number in a `cls` member, if it holds one.
fn read_label(entry: &TarEntry, bytes: &mut impl ReadAt) -> Result<Option<u32>, Flaw> {
    if entry.size > LABEL as u64 {
        return Ok(None);
    }
    let mut digits = [0; LABEL];
    let digits = &mut digits[..entry.size as usize];
    if bytes.read_at(entry.data, digits)? < digits.len() {
        return Err(Flaw::Truncated { offset: entry.start, whole: 0 });
    }
    let digits = digits.trim_ascii_end();
    let number = digits.iter().all(u8::is_ascii_digit).then(|| str::from_utf8(digits).ok());
    Ok(number.flatten().and_then(|digits| digits.parse().ok()))
}

/// A member's path, split into the sample's key and the member's name.
#[derive(Debug, PartialEq, Eq)]
struct MemberName<'a> {
    key: &'a [u8],
    name: Vec<u8>,
}

impl<'a> MemberName<'a> {
    /// Returns the key and name of an entry, if it belongs to a sample.
    fn of(entry: &'a TarEntry) -> Result<Option<Self>, Flaw> {
        if !entry.regular {
            return Ok(None);
        }
        match hostility(&entry.name) {
            None => Ok(Self::split(&entry.name)),
            Some(why) => {
                Err(Flaw::Hostile { offset: entry.start, name: shortened(&entry.name), why })
            }
        }
    }

    fn split(path: &'a [u8]) -> Option<Self> {
        if is_metadata(path) {
            return None;
        }
        let base = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let dot = path[base..].iter().position(|&byte| byte == b'.')?;
        let (key, rest) = path.split_at(base + dot);
        (dot > 0).then(|| Self { key, name: rest[1..].to_ascii_lowercase() })
    }
}

/// Whether a path's first component is like `__this__`, which WebDataset reserves.
fn is_metadata(path: &[u8]) -> bool {
    let first = path.split(|&byte| byte == b'/').next().unwrap_or_default();
    first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__")
}

/// The longest path of Linux.
const LONGEST_NAME: usize = 4096;

/// Returns why a name is refused, if it is.
fn hostility(name: &[u8]) -> Option<&'static str> {
    if name.first() == Some(&b'/') {
        Some("is absolute")
    } else if name.split(|&byte| byte == b'/').any(|component| component == b"..") {
        Some("leads out of the archive")
    } else if name.contains(&0) {
        Some("holds a zero byte")
    } else if name.len() > LONGEST_NAME {
        Some("is longer than a path may be")
    } else {
        None
    }
}

/// Shortens a name for an error text.
fn shortened(name: &[u8]) -> String {
    const SHOWN: usize = 100;
    let shown = String::from_utf8_lossy(&name[..name.len().min(SHOWN)]);
    let more = if name.len() > SHOWN { "…" } else { "" };
    format!("{}{more}", shown.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(path: &str) -> Option<(String, String)> {
        let name = MemberName::split(path.as_bytes())?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Some((text(name.key), text(&name.name)))
    }

    #[test]
    fn the_key_ends_at_the_first_dot_of_the_file_name() {
        let pair = |key: &str, name: &str| Some((key.to_owned(), name.to_owned()));
        assert_eq!(split("a/b.c/0001.seg.PNG"), pair("a/b.c/0001", "seg.png"));
        assert_eq!(split("./0001.jpg"), pair("./0001", "jpg"));
        assert_eq!(split("0001."), pair("0001", ""));
    }

    #[test]
    fn a_path_without_a_key_belongs_to_no_sample() {
        for path in ["README", "a.b/README", ".hidden.jpg", "a/.jpg", "__index__.json/x.y"] {
            let metadata = path.starts_with("__index__.json");
            assert_eq!(split(path).is_none(), !metadata, "{path}");
        }
        assert_eq!(split("__meta__/x.json"), None);
        assert_eq!(split("__meta__"), None);
        assert!(split("___.json").is_some());
    }
}
