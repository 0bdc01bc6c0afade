//! Names of files: is a path below the dataset, and what is it called there?
//!
//! Names are told apart as text, since asking the kernel costs as much as opening. So `..` after a
//! name is left alone ([`Place::Odd`]): with symbolic links it may lead anywhere.

use std::mem::MaybeUninit;

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// As long as any path may be, with the 0 at its end.
pub const LONGEST: usize = 4096;

/// A file's name below the dataset, as a number. No two files of a dataset have the same, as far as
/// 128 bits go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathKey(pub [u64; 2]);

impl PathKey {
    pub fn of(relative: &[u8], seed: u64) -> Self {
        let hash = xxh3_128_with_seed(relative, seed);
        Self([hash as u64, (hash >> 64) as u64])
    }
}

/// The dataset's directory: as it was given, and without symbolic links. Both are absolute, without
/// `.`, `..`, doubled slashes, or a slash at the end.
#[derive(Clone, Copy, Debug)]
pub struct Dataset<'a> {
    pub given: &'a [u8],
    pub real: &'a [u8],
}

/// Where a path leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// To this file or directory below the dataset.
    Below(&'a [u8]),
    /// Elsewhere, as far as its text tells.
    Elsewhere,
    /// That cannot be told from its text.
    Odd,
}

/// Room for a path. It is not cleared: that would take as long as all the rest of looking a file up.
#[derive(Debug)]
pub struct Buffer {
    bytes: [MaybeUninit<u8>; LONGEST],
    /// So many were written.
    length: usize,
}

impl Default for Buffer {
    #[inline]
    fn default() -> Self {
        // In two steps: as one value, the compiler would take it for zeros and clear all of it.
        let mut buffer = MaybeUninit::<Self>::uninit();
        // SAFETY: the length is written, and the bytes need not be.
        unsafe {
            (&raw mut (*buffer.as_mut_ptr()).length).write(0);
            buffer.assume_init()
        }
    }
}

impl Buffer {
    fn push(&mut self, text: &[u8]) -> Option<()> {
        let end = self.length.checked_add(text.len())?;
        // There is always room for a 0 at the end.
        if end >= LONGEST {
            return None;
        }
        self.bytes[self.length..end].write_copy_of_slice(text);
        self.length = end;
        Some(())
    }

    fn push_component(&mut self, component: &[u8]) -> Option<()> {
        self.push(b"/")?;
        self.push(component)
    }

    /// Takes the last component away; none is left of `/`.
    fn pop_component(&mut self) {
        let slash = self.as_bytes().iter().rposition(|&byte| byte == b'/');
        self.length = slash.unwrap_or(0);
    }

    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: so many were written, and it only ever gets less without writing more.
        unsafe { self.bytes[..self.length].assume_init_ref() }
    }

    /// `directory/name` with a 0 at its end, if there is room.
    pub fn joined(&mut self, directory: &[u8], name: &[u8]) -> Option<&std::ffi::CStr> {
        self.length = 0;
        self.push(directory)?;
        self.push_component(name)?;
        // There is room: see `push`.
        self.bytes[self.length].write(0);
        self.length += 1;
        std::ffi::CStr::from_bytes_with_nul(self.as_bytes()).ok()
    }
}

impl Dataset<'_> {
    /// Where an absolute `path` leads. Most paths of most programs lead elsewhere, which the first
    /// comparison tells.
    pub fn place<'b>(&self, path: &[u8], buffer: &'b mut Buffer) -> Place<'b> {
        debug_assert!(path.starts_with(b"/"));
        if !self.may_be_below(path) {
            return if has_parent(path) { Place::Odd } else { Place::Elsewhere };
        }
        self.place_from(b"", path, buffer)
    }

    /// Where `path` leads from `directory`, which is absolute and has no symbolic links: the kernel's
    /// own word for a directory.
    pub fn place_from<'b>(
        &self,
        directory: &[u8],
        path: &[u8],
        buffer: &'b mut Buffer,
    ) -> Place<'b> {
        buffer.length = 0;
        let absolute = path.starts_with(b"/");
        if !absolute && buffer.push(directory).is_none() {
            return Place::Odd;
        }
        if buffer.as_bytes() == b"/" {
            buffer.length = 0;
        }
        // A name that ends like this has to be a directory.
        if path.is_empty() || path.ends_with(b"/") || path.ends_with(b"/.") || path == b"." {
            return Place::Odd;
        }
        let mut named = absolute;
        for component in path.split(|&byte| byte == b'/') {
            match component {
                b"" | b"." => {}
                // The parent of a directory without symbolic links is what its name says.
                b".." if !named => buffer.pop_component(),
                b".." => return Place::Odd,
                name => {
                    named = true;
                    if buffer.push_component(name).is_none() {
                        return Place::Odd;
                    }
                }
            }
        }
        for root in [self.given, self.real] {
            if let Some(below) = below(root, buffer.as_bytes()) {
                return Place::Below(below);
            }
        }
        Place::Elsewhere
    }

    /// Whether an absolute path may lead below the dataset: it begins like one of its names, or its
    /// first slashes and dots have to be looked at.
    fn may_be_below(&self, path: &[u8]) -> bool {
        path.starts_with(self.given)
            || path.starts_with(self.real)
            || path.windows(2).any(|pair| pair == b"//" || pair == b"/.")
    }
}

fn has_parent(path: &[u8]) -> bool {
    path.windows(3).any(|three| three == b"/..")
}

/// What is left of a clean `path` after `root`.
fn below<'a>(root: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let rest = if root == b"/" { path } else { path.strip_prefix(root)? };
    rest.strip_prefix(b"/").filter(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DATA: Dataset = Dataset { given: b"/data/set", real: b"/mnt/pfs/set" };

    fn absolute(path: &str) -> Option<String> {
        told(DATA.place(path.as_bytes(), &mut Buffer::default()))
    }

    fn from(directory: &str, path: &str) -> Option<String> {
        told(DATA.place_from(directory.as_bytes(), path.as_bytes(), &mut Buffer::default()))
    }

    fn told(place: Place) -> Option<String> {
        match place {
            Place::Below(name) => Some(String::from_utf8(name.to_vec()).unwrap()),
            Place::Elsewhere => None,
            Place::Odd => Some("?".to_owned()),
        }
    }

    #[test]
    fn both_names_of_the_dataset_count() {
        assert_eq!(absolute("/data/set/a/b.jpg").as_deref(), Some("a/b.jpg"));
        assert_eq!(absolute("/mnt/pfs/set/a/b.jpg").as_deref(), Some("a/b.jpg"));
        assert_eq!(absolute("/data//./set///a/./b.jpg").as_deref(), Some("a/b.jpg"));
    }

    #[test]
    fn neighbours_are_elsewhere() {
        assert_eq!(absolute("/data/settings/a"), None);
        assert_eq!(absolute("/data/set"), None);
        assert_eq!(absolute("/etc/passwd"), None);
        assert_eq!(absolute("/data/.set/a"), None);
    }

    #[test]
    fn parents_after_a_name_are_odd() {
        assert_eq!(absolute("/data/set/a/../b").as_deref(), Some("?"));
        assert_eq!(absolute("/elsewhere/../data/set/b").as_deref(), Some("?"));
        assert_eq!(from("/mnt/pfs/set", "a/../b").as_deref(), Some("?"));
    }

    #[test]
    fn what_has_to_be_a_directory_is_left_alone() {
        assert_eq!(absolute("/data/set/a/").as_deref(), Some("?"));
        assert_eq!(absolute("/data/set/a/.").as_deref(), Some("?"));
        assert_eq!(from("/mnt/pfs/set", ".").as_deref(), Some("?"));
    }

    #[test]
    fn directories_are_left_upwards_and_entered() {
        assert_eq!(from("/mnt/pfs/set/train", "x").as_deref(), Some("train/x"));
        assert_eq!(from("/mnt/pfs/set/train", "../val/x").as_deref(), Some("val/x"));
        assert_eq!(from("/mnt/pfs/set/train", "./.././val/x").as_deref(), Some("val/x"));
        assert_eq!(from("/mnt", "pfs/set/x").as_deref(), Some("x"));
        assert_eq!(from("/", "mnt/pfs/set/x").as_deref(), Some("x"));
        assert_eq!(from("/", "../mnt/pfs/set/x").as_deref(), Some("x"));
        assert_eq!(from("/mnt/pfs", "settle/x"), None);
        assert_eq!(from("/home", "/data/set/x").as_deref(), Some("x"));
    }

    #[test]
    fn paths_that_are_too_long_are_odd() {
        let long = format!("/data/set/{}", "x/".repeat(3000) + "y");
        assert_eq!(absolute(&long).as_deref(), Some("?"));
    }

    #[test]
    fn the_root_of_everything_can_be_a_dataset() {
        let all = Dataset { given: b"/", real: b"/" };
        assert_eq!(all.place(b"/etc/passwd", &mut Buffer::default()), Place::Below(b"etc/passwd"));
    }

    /// The same by lists of components.
    fn naive(directory: &str, path: &str) -> Option<String> {
        if path.ends_with('/') || path.ends_with("/.") || path == "." || path.is_empty() {
            return Some("?".to_owned());
        }
        let mut at: Vec<&str> =
            if path.starts_with('/') { vec![] } else { directory.split('/').collect() };
        at.retain(|part| !part.is_empty());
        let mut named = path.starts_with('/');
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." if named => return Some("?".to_owned()),
                ".." => drop(at.pop()),
                name => {
                    named = true;
                    at.push(name);
                }
            }
        }
        [["data", "set"].as_slice(), &["mnt", "pfs", "set"]].into_iter().find_map(|root| {
            at.strip_prefix(root).filter(|rest| !rest.is_empty()).map(|rest| rest.join("/"))
        })
    }

    proptest! {
        #[test]
        fn text_is_understood_as_a_list_of_components(
            directory in "(/(data|mnt|pfs|set|a)){0,4}",
            path in "/?((data|mnt|pfs|set|a|\\.|\\.\\.|)/){0,6}(set|a|b|\\.|\\.\\.|)",
        ) {
            let directory = if directory.is_empty() { "/" } else { &directory };
            prop_assert_eq!(from(directory, &path), naive(directory, &path));
            // Of paths elsewhere it is not asked whether they have to be directories.
            if path.starts_with('/') && absolute(&path).is_some() {
                prop_assert_eq!(absolute(&path), naive("/", &path));
            }
            if path.starts_with('/') && !path.ends_with(['/', '.']) {
                prop_assert_eq!(absolute(&path), naive("/", &path));
            }
        }
    }
}
