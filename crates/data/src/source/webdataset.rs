//! WebDataset: samples in tar archives, each a group of neighbouring members.
//!
//! Members belong together if they follow each other and have the same key: their path up
//! to the first dot of the file name. What is behind that dot, in lower case, says what the
//! member is (`jpg`, `cls`, `json`). As in WebDataset, members without a dot or with a dot
//! first are no part of any sample, nor is what begins with `__name__`; directories, links
//! and devices are skipped.
//!
//! A sample is one range of bytes: from the first header of its first member to the end of
//! its last member, padding included. It is thus a small tar archive itself, without the
//! mark at the end, and [`members`] takes it apart. Nothing is ever extracted, so paths are
//! only names; those that could do harm elsewhere (absolute, with `..`) are refused all the
//! same.
//!
//! Python's `tarfile` ends silently where a file was cut off between two members, and at the
//! first end mark of joined archives. Here both are errors, since samples would be lost.

mod tar;

use std::io::{Read, Seek};
use std::ops::Range;
use std::path::Path;

use self::tar::{Archive, Entry, Step};
use super::Operations;
use super::packed::{self, Flaw, IndexError, ReadAt, Record, Window};

/// A part of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// What is behind the first dot of the file name, in lower case: `jpg`, `seg.png`.
    pub name: String,
    /// Where it lies in the sample's bytes.
    pub range: Range<usize>,
}

/// Finds the samples of an archive, and counts what that took.
pub fn index_file(path: &Path, operations: &mut Operations) -> Result<Vec<Record>, IndexError> {
    packed::index_file(path, operations, walk)
}

/// Finds the samples in `length` bytes of an archive.
pub fn index<R: Read + Seek>(reader: R, length: u64) -> Result<Vec<Record>, Flaw> {
    walk(&mut Window::new(reader), length)
}

/// Takes a sample apart.
pub fn members(sample: &[u8]) -> Result<Vec<Member>, Flaw> {
    let mut bytes = sample;
    let mut archive = Archive::new(&mut bytes, sample.len() as u64);
    let mut members = Vec::new();
    while let Step::Entry(entry) = archive.next()? {
        if let Some(part) = Part::of(&entry)? {
            let start = entry.data as usize;
            let name = String::from_utf8_lossy(&part.name).into_owned();
            members.push(Member { name, range: start..start + entry.size as usize });
        }
    }
    Ok(members)
}

fn walk(bytes: &mut impl ReadAt, length: u64) -> Result<Vec<Record>, Flaw> {
    let mut archive = Archive::new(bytes, length);
    let mut samples = Samples::default();
    loop {
        let whole = samples.closed.len();
        match archive.next() {
            Ok(Step::Entry(entry)) => {
                samples.add(&entry, &mut archive).map_err(|flaw| flaw.after(whole))?;
            }
            Ok(Step::Mark) => {
                archive.expect_nothing_more().map_err(|flaw| flaw.after(whole))?;
                return Ok(samples.finish());
            }
            Ok(Step::Bare) => return Err(Flaw::NoEnd { offset: length, whole: whole as u64 }),
            Err(flaw) if archive.is_at_start() => {
                return Err(packed::compression(archive.bytes()).map_or(flaw, Flaw::Compressed));
            }
            Err(flaw) => return Err(flaw.after(whole)),
        }
    }
}

/// Samples as they are put together.
#[derive(Debug, Default)]
struct Samples {
    closed: Vec<Record>,
    open: Option<Group>,
}

/// Members with the same key, one behind the other.
#[derive(Debug)]
struct Group {
    key: Vec<u8>,
    names: Vec<Vec<u8>>,
    start: u64,
    end: u64,
    label: Option<u32>,
}

impl Samples {
    fn add(&mut self, entry: &Entry, archive: &mut Archive<'_, impl ReadAt>) -> Result<(), Flaw> {
        let Some(part) = Part::of(entry)? else { return Ok(()) };
        if self.open.as_ref().is_none_or(|group| group.key != part.key) {
            self.close();
        }
        let group = self.open.get_or_insert_with(|| Group {
            key: part.key.to_vec(),
            names: Vec::new(),
            start: entry.start,
            end: entry.end,
            label: None,
        });
        if group.names.contains(&part.name) {
            let name = shortened(&entry.name);
            let what = format!("the second member `{name}` of one sample");
            return Err(Flaw::Unsupported { offset: entry.start, what });
        }
        group.end = entry.end;
        if part.name == b"cls" {
            group.label = read_label(entry, archive.bytes())?;
        }
        group.names.push(part.name);
        Ok(())
    }

    fn close(&mut self) {
        self.closed.extend(self.open.take().map(|group| Record {
            offset: group.start,
            length: group.end - group.start,
            key: Some(String::from_utf8_lossy(&group.key).into_owned()),
            label: group.label,
        }));
    }

    fn finish(mut self) -> Vec<Record> {
        self.close();
        self.closed
    }
}

/// The longest a label may be: the digits of a 32-bit number. It lies right behind its
/// header, so reading it costs nothing more.
const LABEL: usize = 10;

/// The number that a `cls` member holds, if it holds one.
fn read_label(entry: &Entry, bytes: &mut impl ReadAt) -> Result<Option<u32>, Flaw> {
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

/// What a member's path says of it.
#[derive(Debug, PartialEq, Eq)]
struct Part<'a> {
    key: &'a [u8],
    name: Vec<u8>,
}

impl<'a> Part<'a> {
    /// The part of a sample that an entry is, if it is any.
    fn of(entry: &'a Entry) -> Result<Option<Self>, Flaw> {
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

/// Whether a path's first component is like `__this__`, which WebDataset keeps for itself.
fn is_metadata(path: &[u8]) -> bool {
    let first = path.split(|&byte| byte == b'/').next().unwrap_or_default();
    first.len() >= 4 && first.starts_with(b"__") && first.ends_with(b"__")
}

/// Linux takes no longer path.
const LONGEST_NAME: usize = 4096;

/// Why a name is not one of a dataset's.
fn hostility(name: &[u8]) -> Option<&'static str> {
    if name.first() == Some(&b'/') {
        Some("is absolute")
    } else if name.split(|&byte| byte == b'/').any(|component| component == b"..") {
        Some("leads out of the archive")
    } else if name.contains(&0) {
        Some("holds a zero byte")
    } else if name.len() > LONGEST_NAME {
        Some("is longer than any path may be")
    } else {
        None
    }
}

/// A name as an error shows it.
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
        let part = Part::split(path.as_bytes())?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Some((text(part.key), text(&part.name)))
    }

    #[test]
    fn the_key_ends_at_the_first_dot_of_the_file_name() {
        let pair = |key: &str, name: &str| Some((key.to_owned(), name.to_owned()));
        assert_eq!(split("a/b.c/0001.seg.PNG"), pair("a/b.c/0001", "seg.png"));
        assert_eq!(split("./0001.jpg"), pair("./0001", "jpg"));
        assert_eq!(split("0001."), pair("0001", ""));
    }

    #[test]
    fn what_has_no_key_is_no_part_of_a_sample() {
        for path in ["README", "a.b/README", ".hidden.jpg", "a/.jpg", "__index__.json/x.y"] {
            let metadata = path.starts_with("__index__.json");
            assert_eq!(split(path).is_none(), !metadata, "{path}");
        }
        assert_eq!(split("__meta__/x.json"), None);
        assert_eq!(split("__meta__"), None);
        assert!(split("___.json").is_some());
    }
}
