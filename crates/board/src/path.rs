//! Paths: whether one is below the dataset, and its name there.
//!
//! Paths are compared as text, because asking the kernel costs as much as opening the file. So a
//! `..` after a name is not resolved ([`PathLocation::Ambiguous`]): with symbolic links it may lead
//! anywhere.

use std::mem::MaybeUninit;

use xxhash_rust::xxh3::xxh3_128_with_seed;

/// The longest path, with its terminating NUL.
pub const LONGEST: usize = 4096;

/// A 128-bit hash of a path below the dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PathKey(pub [u64; 2]);

impl PathKey {
    /// Hashes a path below the dataset.
    pub fn of(relative: &[u8], seed: u64) -> Self {
        let hash = xxh3_128_with_seed(relative, seed);
        Self([hash as u64, (hash >> 64) as u64])
    }
}

/// The paths of the dataset's directory. Both are absolute, without `.`, `..`, doubled slashes, or
/// a slash at the end.
#[derive(Clone, Copy, Debug)]
pub struct DatasetPaths<'a> {
    /// As the user gave it.
    pub given: &'a [u8],
    /// Without symbolic links.
    pub real: &'a [u8],
}

/// Where a path leads, by its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathLocation<'a> {
    /// To this path below the dataset.
    Below(&'a [u8]),
    /// Not below the dataset.
    Elsewhere,
    /// The text does not show it.
    Ambiguous,
}

/// A buffer for a path. It is not zeroed, which would take as long as the rest of a lookup.
#[derive(Debug)]
pub struct PathBuffer {
    bytes: [MaybeUninit<u8>; LONGEST],
    /// The number of initialised bytes.
    length: usize,
}

impl Default for PathBuffer {
    #[inline]
    fn default() -> Self {
        // In two steps: the compiler zeroes all of it if it is built as one value.
        let mut buffer = MaybeUninit::<Self>::uninit();
        // SAFETY: the length is written, and the bytes are `MaybeUninit`.
        unsafe {
            (&raw mut (*buffer.as_mut_ptr()).length).write(0);
            buffer.assume_init()
        }
    }
}

impl PathBuffer {
    fn push(&mut self, text: &[u8]) -> Option<()> {
        let end = self.length.checked_add(text.len())?;
        // Leaves space for a terminating NUL.
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

    /// Removes the last component; `/` becomes empty.
    fn pop_component(&mut self) {
        let slash = self.as_bytes().iter().rposition(|&byte| byte == b'/');
        self.length = slash.unwrap_or(0);
    }

    /// Returns the bytes that were pushed.
    pub fn as_bytes(&self) -> &[u8] {
        // SAFETY: `length` bytes are initialised; it grows only after writing.
        unsafe { self.bytes[..self.length].assume_init_ref() }
    }

    /// Writes `directory/name` with a terminating NUL; None if it is too long.
    pub fn join(&mut self, directory: &[u8], name: &[u8]) -> Option<&std::ffi::CStr> {
        self.length = 0;
        self.push(directory)?;
        self.push_component(name)?;
        // `push` left space for it.
        self.bytes[self.length].write(0);
        self.length += 1;
        std::ffi::CStr::from_bytes_with_nul(self.as_bytes()).ok()
    }
}

impl DatasetPaths<'_> {
    /// Returns where an absolute `path` leads. The first comparison excludes most paths of most
    /// programs.
    pub fn locate<'b>(&self, path: &[u8], buffer: &'b mut PathBuffer) -> PathLocation<'b> {
        debug_assert!(path.starts_with(b"/"));
        if !self.may_be_below(path) {
            return if has_parent(path) {
                PathLocation::Ambiguous
            } else {
                PathLocation::Elsewhere
            };
        }
        self.locate_from(b"", path, buffer)
    }

    /// Returns where `path` leads from `directory`, which is the kernel's name of a directory:
    /// absolute and without symbolic links.
    pub fn locate_from<'b>(
        &self,
        directory: &[u8],
        path: &[u8],
        buffer: &'b mut PathBuffer,
    ) -> PathLocation<'b> {
        buffer.length = 0;
        let absolute = path.starts_with(b"/");
        if !absolute && buffer.push(directory).is_none() {
            return PathLocation::Ambiguous;
        }
        if buffer.as_bytes() == b"/" {
            buffer.length = 0;
        }
        // A path that ends like this names a directory.
        if path.is_empty() || path.ends_with(b"/") || path.ends_with(b"/.") || path == b"." {
            return PathLocation::Ambiguous;
        }
        let mut named = absolute;
        for component in path.split(|&byte| byte == b'/') {
            match component {
                b"" | b"." => {}
                // The directory has no symbolic links, so its parent is known from its text.
                b".." if !named => buffer.pop_component(),
                b".." => return PathLocation::Ambiguous,
                name => {
                    named = true;
                    if buffer.push_component(name).is_none() {
                        return PathLocation::Ambiguous;
                    }
                }
            }
        }
        for root in [self.given, self.real] {
            if let Some(below) = below(root, buffer.as_bytes()) {
                return PathLocation::Below(below);
            }
        }
        PathLocation::Elsewhere
    }

    /// Returns whether an absolute path may lead below the dataset: it begins with one of the
    /// dataset's paths, or it contains slashes and dots to normalise.
    fn may_be_below(&self, path: &[u8]) -> bool {
        path.starts_with(self.given)
            || path.starts_with(self.real)
            || path.windows(2).any(|pair| pair == b"//" || pair == b"/.")
    }
}

fn has_parent(path: &[u8]) -> bool {
    path.windows(3).any(|three| three == b"/..")
}

/// Returns what follows `root` in a normalised `path`.
fn below<'a>(root: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let rest = if root == b"/" { path } else { path.strip_prefix(root)? };
    rest.strip_prefix(b"/").filter(|rest| !rest.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DATA: DatasetPaths = DatasetPaths { given: b"/data/set", real: b"/mnt/pfs/set" };

    fn absolute(path: &str) -> Option<String> {
        shown(DATA.locate(path.as_bytes(), &mut PathBuffer::default()))
    }

    fn from(directory: &str, path: &str) -> Option<String> {
        shown(DATA.locate_from(directory.as_bytes(), path.as_bytes(), &mut PathBuffer::default()))
    }

    fn shown(location: PathLocation) -> Option<String> {
        match location {
            PathLocation::Below(name) => Some(String::from_utf8(name.to_vec()).unwrap()),
            PathLocation::Elsewhere => None,
            PathLocation::Ambiguous => Some("?".to_owned()),
        }
    }

    #[test]
    fn both_paths_of_the_dataset_are_recognised() {
        assert_eq!(absolute("/data/set/a/b.jpg").as_deref(), Some("a/b.jpg"));
        assert_eq!(absolute("/mnt/pfs/set/a/b.jpg").as_deref(), Some("a/b.jpg"));
        assert_eq!(absolute("/data//./set///a/./b.jpg").as_deref(), Some("a/b.jpg"));
    }

    #[test]
    fn similar_paths_are_elsewhere() {
        assert_eq!(absolute("/data/settings/a"), None);
        assert_eq!(absolute("/data/set"), None);
        assert_eq!(absolute("/etc/passwd"), None);
        assert_eq!(absolute("/data/.set/a"), None);
    }

    #[test]
    fn a_parent_after_a_name_is_ambiguous() {
        assert_eq!(absolute("/data/set/a/../b").as_deref(), Some("?"));
        assert_eq!(absolute("/elsewhere/../data/set/b").as_deref(), Some("?"));
        assert_eq!(from("/mnt/pfs/set", "a/../b").as_deref(), Some("?"));
    }

    #[test]
    fn a_path_that_names_a_directory_is_ambiguous() {
        assert_eq!(absolute("/data/set/a/").as_deref(), Some("?"));
        assert_eq!(absolute("/data/set/a/.").as_deref(), Some("?"));
        assert_eq!(from("/mnt/pfs/set", ".").as_deref(), Some("?"));
    }

    #[test]
    fn relative_paths_start_at_the_directory() {
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
    fn a_path_that_is_too_long_is_ambiguous() {
        let long = format!("/data/set/{}", "x/".repeat(3000) + "y");
        assert_eq!(absolute(&long).as_deref(), Some("?"));
    }

    #[test]
    fn the_root_directory_can_be_a_dataset() {
        let all = DatasetPaths { given: b"/", real: b"/" };
        assert_eq!(
            all.locate(b"/etc/passwd", &mut PathBuffer::default()),
            PathLocation::Below(b"etc/passwd")
        );
    }

    /// A naive version on lists of components.
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
        fn the_text_version_agrees_with_the_naive_one(
            directory in "(/(data|mnt|pfs|set|a)){0,4}",
            path in "/?((data|mnt|pfs|set|a|\\.|\\.\\.|)/){0,6}(set|a|b|\\.|\\.\\.|)",
        ) {
            let directory = if directory.is_empty() { "/" } else { &directory };
            prop_assert_eq!(from(directory, &path), naive(directory, &path));
            // Paths elsewhere are not checked for naming a directory.
            if path.starts_with('/') && absolute(&path).is_some() {
                prop_assert_eq!(absolute(&path), naive("/", &path));
            }
            if path.starts_with('/') && !path.ends_with(['/', '.']) {
                prop_assert_eq!(absolute(&path), naive("/", &path));
            }
        }
    }
}
