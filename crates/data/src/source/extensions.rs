//! Which files count as samples, by their extensions, and the extensions of unsupported formats.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The extensions of images, from torchvision's `ImageFolder` (`IMG_EXTENSIONS`).
const IMAGES: [&str; 9] =
    [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// Files that hold many samples in a format that is not supported.
const UNSUPPORTED: [(&str, &str); 20] = [
    (".parquet", "Parquet"),
    (".arrow", "Arrow"),
    (".feather", "Arrow"),
    (".orc", "ORC"),
    (".avro", "Avro"),
    (".lance", "Lance"),
    (".zarr", "Zarr"),
    (".lmdb", "LMDB"),
    (".mdb", "LMDB"),
    (".beton", "FFCV"),
    (".mds", "MDS"),
    (".sqlite", "SQLite"),
    (".zip", "a zip archive"),
    (".7z", "a 7z archive"),
    (".rar", "a rar archive"),
    (".tgz", "a compressed tar archive"),
    (".tar.gz", "a compressed tar archive"),
    (".tar.bz2", "a compressed tar archive"),
    (".tar.xz", "a compressed tar archive"),
    (".tar.zst", "a compressed tar archive"),
];

/// Which files of a dataset count as samples. Upper and lower case are equal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Extensions {
    /// In class folders only images if there are any, elsewhere all files.
    #[default]
    Usual,
    /// All files.
    All,
    /// Files with these extensions: in lower case, with the dot, sorted ([`Extensions::only`]).
    Only(Vec<String>),
}

impl Extensions {
    /// Selects files with these extensions, where `jpg` and `.JPG` are the same; all files if there
    /// are none.
    pub fn only(extensions: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let end = |given: &str| format!(".{}", given.trim_start_matches('.').to_ascii_lowercase());
        let mut ends: Vec<String> = extensions.into_iter().map(|it| end(it.as_ref())).collect();
        ends.sort_unstable();
        ends.dedup();
        if ends.is_empty() { Self::All } else { Self::Only(ends) }
    }

    /// Whether a file may count. [`Extensions::Usual`] decides after all files are listed.
    pub(super) fn allow(&self, name: &[u8]) -> bool {
        match self {
            Self::Usual | Self::All => true,
            Self::Only(ends) => ends.iter().any(|end| has_extension(name, end)),
        }
    }
}

/// The text is part of a snapshot's name, and ranks compare it.
impl fmt::Display for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual => f.write_str("as usual"),
            Self::All => f.write_str("all"),
            Self::Only(ends) => f.write_str(&ends.join(" ")),
        }
    }
}

pub(super) fn is_image(path: &Path) -> bool {
    IMAGES.iter().any(|end| has_extension(path.as_os_str().as_bytes(), end))
}

/// Returns the format of an unsupported file, by its name or that of a directory above it.
pub(super) fn unsupported(path: &Path) -> Option<&'static str> {
    path.components().find_map(|name| {
        let name = name.as_os_str().as_bytes();
        UNSUPPORTED.iter().find(|(end, _)| has_extension(name, end)).map(|&(_, what)| what)
    })
}

fn has_extension(name: &[u8], end: &str) -> bool {
    let at = name.len().checked_sub(end.len());
    at.is_some_and(|at| name[at..].eq_ignore_ascii_case(end.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extensions_may_be_written_with_and_without_a_dot() {
        let only = Extensions::only(["jpg", ".JPG", "tar.gz"]);
        assert_eq!(only, Extensions::Only(vec![".jpg".into(), ".tar.gz".into()]));
        assert!(only.allow(b"a.JPG") && only.allow(b"a.tar.gz"));
        assert!(!only.allow(b"ajpg") && !only.allow(b"a.gz") && !only.allow(b"g"));
        assert_eq!(Extensions::only([""; 0]), Extensions::All);
    }

    #[test]
    fn an_unsupported_format_is_recognised_in_any_part_of_the_path() {
        assert_eq!(unsupported(Path::new("train/0.parquet")), Some("Parquet"));
        assert_eq!(unsupported(Path::new("data.ZARR/c/0")), Some("Zarr"));
        assert_eq!(unsupported(Path::new("scan.nii.gz")), None);
        assert_eq!(unsupported(Path::new("parquet")), None);
    }
}
