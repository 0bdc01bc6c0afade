//! Walks a tar archive from entry to entry without reading the members' contents.
//!
//! An entry is a header of 512 bytes and the member's bytes, padded to whole blocks. Entries that
//! only describe the next one may precede it: a long name (GNU, types `L` and `K`) or a list of
//! `key=value` (POSIX pax, types `x` and `g`), of which name and size matter here. A block of zeros
//! marks the end.
//!
//! Hand-written because the `tar` crate neither skips contents with few reads over a slow file
//! system, nor reports the offset of a flaw, nor works alike on a file and on a sample in memory.

use super::super::packed::{Flaw, ReadAt};

pub(super) const BLOCK: u64 = 512;
/// No name or list of pax values comes near this length.
const LONGEST_DESCRIPTION: u64 = 1 << 20;

/// What the next step of a walk finds.
#[derive(Debug)]
pub(super) enum ArchiveStep {
    Entry(TarEntry),
    /// The block of zeros that marks the end.
    Mark,
    /// The end of the bytes, without a mark.
    Bare,
}

#[derive(Debug)]
pub(super) struct TarEntry {
    /// Where the first header of this entry begins, including those that describe it.
    pub start: u64,
    /// Where the member's bytes begin.
    pub data: u64,
    pub size: u64,
    /// Where the next entry begins.
    pub end: u64,
    pub name: Vec<u8>,
    /// Whether it is a file, not a link, directory or device.
    pub regular: bool,
}

#[derive(Debug)]
pub(super) struct Archive<'a, B> {
    bytes: &'a mut B,
    at: u64,
    length: u64,
}

impl<'a, B: ReadAt> Archive<'a, B> {
    pub(super) fn new(bytes: &'a mut B, length: u64) -> Self {
        Self { bytes, at: 0, length }
    }

    pub(super) fn bytes(&mut self) -> &mut B {
        self.bytes
    }

    /// Whether no header was parsed yet.
    pub(super) fn is_at_start(&self) -> bool {
        self.at == 0
    }

    /// Returns the next entry. Not called again after an error or an end.
    pub(super) fn next(&mut self) -> Result<ArchiveStep, Flaw> {
        let start = self.at;
        let mut described = Description::default();
        loop {
            if self.at == self.length && described.is_empty() {
                return Ok(ArchiveStep::Bare);
            }
            let mut block = [0; BLOCK as usize];
            self.fill(start, self.at, &mut block)?;
            if block.iter().all(|&byte| byte == 0) {
                if described.is_empty() {
                    return Ok(ArchiveStep::Mark);
                }
                return Err(damaged(self.at, "a description without a member ends"));
            }
            let header = TarHeader::parse(&block).map_err(|damage| damaged(self.at, damage))?;
            if !header.describes_another() {
                return self.entry(start, &header, described).map(ArchiveStep::Entry);
            }
            let body = self.description(start, header.size)?;
            described.take(&header, &body).map_err(|flaw| flaw.at(start))?;
        }
    }

    /// Checks that only zeros follow the end mark.
    pub(super) fn expect_nothing_more(&mut self) -> Result<(), Flaw> {
        let mut piece = [0; 4096];
        while self.at < self.length {
            let count = (self.length - self.at).min(piece.len() as u64) as usize;
            self.fill(self.at, self.at, &mut piece[..count])?;
            if let Some(at) = piece[..count].iter().position(|&byte| byte != 0) {
                let what = "the data behind the end-of-archive mark (concatenated archives?)";
                return Err(unsupported(self.at + at as u64, what));
            }
            self.at += count as u64;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        start: u64,
        header: &TarHeader<'_>,
        described: Description,
    ) -> Result<TarEntry, Flaw> {
        if header.kind == b'S' || described.sparse {
            return Err(unsupported(start, "the sparse member"));
        }
        let name = described.name.unwrap_or_else(|| header.name());
        // As in Python's tarfile: in old archives a name that ends in a slash is a directory.
        let regular = match header.kind {
            0 => !name.ends_with(b"/"),
            // Links, devices, directories and pipes have no content, whatever their size field
            // says.
            kind => !(b'1'..=b'6').contains(&kind),
        };
        let size = if regular { described.size.unwrap_or(header.size) } else { 0 };
        let data = self.at + BLOCK;
        let end = data.saturating_add(padded(size));
        if end > self.length {
            return Err(Flaw::Truncated { offset: start, whole: 0 });
        }
        self.at = end;
        // Other types, such as volume names, are no members, but their content is skipped.
        let regular = regular && matches!(header.kind, 0 | b'0' | b'7');
        Ok(TarEntry { start, data, size, end, name, regular })
    }

    /// Reads the content of an entry that describes another, and moves past it.
    fn description(&mut self, start: u64, size: u64) -> Result<Vec<u8>, Flaw> {
        if size > LONGEST_DESCRIPTION {
            return Err(damaged(self.at, "a name or description that is too long begins"));
        }
        let data = self.at + BLOCK;
        let end = data.saturating_add(padded(size));
        if end > self.length {
            return Err(Flaw::Truncated { offset: start, whole: 0 });
        }
        let mut body = vec![0; size as usize];
        self.fill(start, data, &mut body)?;
        self.at = end;
        Ok(body)
    }

    /// Fills `into` from `offset` on, for the entry that begins at `start`.
    fn fill(&mut self, start: u64, offset: u64, into: &mut [u8]) -> Result<(), Flaw> {
        let inside = offset.saturating_add(into.len() as u64) <= self.length;
        if inside && self.bytes.read_at(offset, into)? == into.len() {
            return Ok(());
        }
        Err(Flaw::Truncated { offset: start, whole: 0 })
    }
}

fn damaged(offset: u64, damage: impl Into<String>) -> Flaw {
    Flaw::Damaged { offset, whole: 0, damage: damage.into() }
}

fn unsupported(offset: u64, what: impl Into<String>) -> Flaw {
    Flaw::Unsupported { offset, what: what.into() }
}

fn padded(size: u64) -> u64 {
    size.div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// What preceding entries say about an entry.
#[derive(Debug, Default)]
struct Description {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
    /// Whether there was any, even one without a meaning here.
    any: bool,
}

/// A flaw of a description, whose offset the caller knows.
enum DescriptionFlaw {
    Unreadable,
    ForAll,
}

impl DescriptionFlaw {
    fn at(&self, offset: u64) -> Flaw {
        match self {
            Self::Unreadable => damaged(offset, "an unreadable pax description begins"),
            Self::ForAll => unsupported(offset, "the pax name or size for all members"),
        }
    }
}

impl Description {
    fn is_empty(&self) -> bool {
        !self.any
    }

    fn take(&mut self, header: &TarHeader<'_>, body: &[u8]) -> Result<(), DescriptionFlaw> {
        match header.kind {
            b'L' => {
                self.any = true;
                self.name = Some(until_zero(body).to_vec());
            }
            b'x' => {
                self.any = true;
                self.take_pax(body).ok_or(DescriptionFlaw::Unreadable)?;
            }
            // For all following members. It may precede the end mark, as in archives written by
            // git.
            b'g' => {
                let mut all = Self::default();
                all.take_pax(body).ok_or(DescriptionFlaw::Unreadable)?;
                if all.name.is_some() || all.size.is_some() || all.sparse {
                    return Err(DescriptionFlaw::ForAll);
                }
            }
            // `K`, a long link target.
            _ => self.any = true,
        }
        Ok(())
    }

    /// Parses lines of `length key=value`, where the length counts the whole line.
    fn take_pax(&mut self, mut body: &[u8]) -> Option<()> {
        while body.first().is_some_and(|&byte| byte != 0) {
            let space = body.iter().position(|&byte| byte == b' ')?;
            let length: usize = str::from_utf8(&body[..space]).ok()?.parse().ok()?;
            let (line, rest) = body.split_at_checked(length)?;
            let line = line.get(space + 1..)?.strip_suffix(b"\n")?;
            let equals = line.iter().position(|&byte| byte == b'=')?;
            self.take_value(&line[..equals], &line[equals + 1..])?;
            body = rest;
        }
        Some(())
    }

    fn take_value(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        match key {
            b"path" => self.name = Some(value.to_vec()),
            b"size" => self.size = Some(str::from_utf8(value).ok()?.parse().ok()?),
            key if key.starts_with(b"GNU.sparse.") => self.sparse = true,
            _ => {}
        }
        Some(())
    }
}

/// A header whose checksum matched.
struct TarHeader<'a> {
    block: &'a [u8; BLOCK as usize],
    kind: u8,
    size: u64,
}

impl<'a> TarHeader<'a> {
    fn parse(block: &'a [u8; BLOCK as usize]) -> Result<Self, &'static str> {
        if !checksum_matches(block) {
            return Err("a header does not match its checksum (not a tar archive, or damaged)");
        }
        let size = number(&block[124..136]).ok_or("a header with an unreadable size begins")?;
        Ok(Self { block, kind: block[156], size })
    }

    fn describes_another(&self) -> bool {
        matches!(self.kind, b'L' | b'K' | b'x' | b'g')
    }

    fn name(&self) -> Vec<u8> {
        let name = until_zero(&self.block[..100]);
        // GNU's format, `ustar` and a blank, has other fields in the place of POSIX's prefix.
        let prefix = match &self.block[257..263] {
            b"ustar\0" => until_zero(&self.block[345..500]),
            _ => &[],
        };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }
}

/// Checks the sum of all bytes, with blanks for the sum itself. Some old programs summed signed
/// bytes.
fn checksum_matches(block: &[u8; BLOCK as usize]) -> bool {
    const FIELD: std::ops::Range<usize> = 148..156;
    let Some(stored) = number(&block[FIELD]) else { return false };
    let others = || block[..FIELD.start].iter().chain(&block[FIELD.end..]);
    let blanks = [b' '; FIELD.end - FIELD.start].map(i64::from).iter().sum::<i64>();
    let unsigned: i64 = others().map(|&byte| i64::from(byte)).sum::<i64>() + blanks;
    let signed: i64 = others().map(|&byte| i64::from(byte.cast_signed())).sum::<i64>() + blanks;
    i64::try_from(stored).is_ok_and(|stored| stored == unsigned || stored == signed)
}

/// Parses octal digits, or with the highest bit set a binary number, as GNU writes large ones.
fn number(field: &[u8]) -> Option<u64> {
    let (&first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        let start = u64::from(first & 0x7f);
        return rest.iter().try_fold(start, |value, &byte| {
            (value >> 56 == 0).then_some(value << 8 | u64::from(byte))
        });
    }
    let digits = until_zero(field).trim_ascii();
    digits.iter().try_fold(0u64, |value, &digit| {
        let digit = digit.checked_sub(b'0').filter(|&digit| digit < 8)?;
        (value >> 61 == 0).then_some(value << 3 | u64::from(digit))
    })
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"00000000017\0"), Some(15));
        assert_eq!(number(b"  17 \0\0\0\0\0\0\0"), Some(15));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(b"0000018\0"), None);
        assert_eq!(number(b"\x80\0\0\0\0\0\0\x01\0\0\0\0"), Some(1 << 32));
        // Negative, and beyond 64 bits.
        assert_eq!(number(&[0xff; 12]), None);
        assert_eq!(number(b"\x80\0\0\x01\0\0\0\0\0\0\0\0"), None);
    }
}
