//! A list of files in reading order, given by the user or learnt in an earlier run.
//!
//! Plain text, one name per line, absolute or relative to the dataset. Blank lines and lines that
//! begin with `#` are skipped; a file whose name begins with `#` is written `./#name`. A file may
//! be listed more than once. Reading the list does not check that the files exist: to ask the
//! source for a million files would take longer than to read the first thousand.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use belady_board::DatasetPaths;
use belady_board::path::{PathBuffer, PathLocation};

/// The last line of a learnt list. A list without it is incomplete.
const END: &[u8] = b"# end";

/// Names below the dataset in reading order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileOrder {
    pub names: Vec<Box<[u8]>>,
}

/// Why a list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileOrderError {
    /// The list cannot be read.
    #[error("{path} cannot be read: {source}", path = path.display())]
    Read {
        /// The list.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The list is empty.
    #[error("{path} lists no file; write names of files below the dataset, one per line", path = path.display())]
    Empty {
        /// The list.
        path: PathBuf,
    },
    /// A name leads elsewhere.
    #[error("line {line} of {path}: `{name}` is not below the dataset; write names below it, one per line", path = path.display())]
    Elsewhere {
        /// The list.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// As it is written there.
        name: String,
    },
    /// A name is ambiguous.
    #[error("line {line} of {path}: `{name}` is not a plain file name; write it without `..` and without a slash at its end", path = path.display())]
    Ambiguous {
        /// The list.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// As it is written there.
        name: String,
    },
}

impl FileOrder {
    /// Reads a user's list.
    ///
    /// # Errors
    /// If the list cannot be read, or a line is wrong.
    pub fn read(path: &Path, dataset: &DatasetPaths<'_>) -> Result<Self, FileOrderError> {
        let text = std::fs::read(path)
            .map_err(|source| FileOrderError::Read { path: path.to_owned(), source })?;
        let order = Self::parse(&text, path, dataset)?;
        if order.names.is_empty() {
            return Err(FileOrderError::Empty { path: path.to_owned() });
        }
        Ok(order)
    }

    fn parse(text: &[u8], path: &Path, dataset: &DatasetPaths<'_>) -> Result<Self, FileOrderError> {
        let mut names = vec![];
        let mut buffer = PathBuffer::default();
        for (line, text) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            if is_skipped(text) {
                continue;
            }
            let shown = || (path.to_owned(), String::from_utf8_lossy(text).into_owned());
            // No path contains a NUL.
            let location = if text.contains(&0) {
                PathLocation::Ambiguous
            } else {
                dataset.locate_from(dataset.real, text, &mut buffer)
            };
            match location {
                PathLocation::Below(name) => names.push(name.into()),
                PathLocation::Elsewhere => {
                    let (path, name) = shown();
                    return Err(FileOrderError::Elsewhere { path, line, name });
                }
                PathLocation::Ambiguous => {
                    let (path, name) = shown();
                    return Err(FileOrderError::Ambiguous { path, line, name });
                }
            }
        }
        Ok(Self { names })
    }

    /// Loads a learnt list; None if there is none, or it is incomplete.
    pub fn load(path: &Path, dataset: &DatasetPaths<'_>) -> Option<Self> {
        let text = std::fs::read(path).ok()?;
        let lines = text.strip_suffix(b"\n")?;
        lines.rsplit(|&byte| byte == b'\n').next().filter(|&line| line == END)?;
        match Self::parse(&text, path, dataset) {
            Ok(order) => Some(order).filter(|order| !order.names.is_empty()),
            Err(error) => {
                tracing::debug!("the learnt order is not used: {error}");
                None
            }
        }
    }

    /// Saves a learnt list for the next run by a rename; only the user can read it.
    ///
    /// # Errors
    /// If the list cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{}", std::process::id()));
        let new = PathBuf::from(new);
        // Left by a killed process that had the same id.
        let _ = std::fs::remove_file(&new);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&new)?;
        let saved = self.write(file).and_then(|()| std::fs::rename(&new, path));
        if saved.is_err() {
            let _ = std::fs::remove_file(&new);
        }
        saved
    }

    fn write(&self, file: File) -> io::Result<()> {
        let mut file = BufWriter::new(file);
        file.write_all(b"# Files in the order in which a program opened them.\n")?;
        for name in &self.names {
            // Such a name does not fit on a line.
            if name.contains(&b'\n') || name.ends_with(b"\r") {
                continue;
            }
            if is_skipped(name) {
                file.write_all(b"./")?;
            }
            file.write_all(name)?;
            file.write_all(b"\n")?;
        }
        file.write_all(END)?;
        file.write_all(b"\n")?;
        file.into_inner().map(drop).map_err(io::IntoInnerError::into_error)
    }
}

fn is_skipped(line: &[u8]) -> bool {
    line.starts_with(b"#") || line.trim_ascii().is_empty()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use proptest::prelude::*;

    use super::*;

    const DATA: DatasetPaths = DatasetPaths { given: b"/data/set", real: b"/mnt/set" };

    fn read(text: &[u8]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("order");
        std::fs::write(&path, text).unwrap();
        let order = FileOrder::read(&path, &DATA)
            .map_err(|error| error.to_string().replace(&path.display().to_string(), "FILE"))?;
        Ok(order.names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    #[test]
    fn names_are_relative_to_the_dataset_or_absolute() {
        let text = b"# mine\n\na/b.jpg\r\n/data/set/c\n  \n/mnt/set//./d\n./#e\na/b.jpg";
        assert_eq!(read(text).unwrap(), ["a/b.jpg", "c", "d", "#e", "a/b.jpg"]);
        assert_eq!(read(b" leading space").unwrap(), [" leading space"]);
    }

    #[test]
    fn an_error_names_the_line() {
        assert_eq!(
            read(b"a\n/data/other/b\n").unwrap_err(),
            "line 2 of FILE: `/data/other/b` is not below the dataset; write names below it, one per line"
        );
        assert!(read(b"../b").unwrap_err().starts_with("line 1 of FILE: `../b` is not below"));
        for odd in [&b"x\n#\na/../b"[..], b"\n\na/", b"\n\n.", b"\n\na\0b"] {
            let error = read(odd).unwrap_err();
            assert!(error.starts_with("line 3 of FILE: "), "{error}");
            assert!(error.contains("is not a plain file name"), "{error}");
        }
        assert!(read(b"# nothing\n\n").unwrap_err().starts_with("FILE lists no file"));
    }

    #[test]
    fn a_missing_list_is_an_error() {
        let error = FileOrder::read(Path::new("/no/such/order"), &DATA).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/order cannot be read: "), "{error}");
    }

    #[test]
    fn an_incomplete_learnt_list_is_not_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("order");
        assert_eq!(FileOrder::load(&path, &DATA), None);
        let order = FileOrder { names: vec![b"a"[..].into(), b"b"[..].into()] };
        order.save(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(FileOrder::load(&path, &DATA), None, "{length} bytes of {}", whole.len());
        }
    }

    proptest! {
        #[test]
        fn a_saved_list_is_loaded(
            names in prop::collection::vec("[ #a.\\t]{0,3}[a-z# ]{1,3}(/[a-z#]{1,2}){0,2}", 1..20),
        ) {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("order");
            let names: Vec<Box<[u8]>> = names
                .iter()
                .filter(|name| name.split('/').all(|part| !["", ".", ".."].contains(&part)))
                .map(|name| name.as_bytes().into())
                .collect();
            prop_assume!(!names.is_empty());
            let order = FileOrder { names };
            order.save(&path).unwrap();
            prop_assert_eq!(FileOrder::load(&path, &DATA), Some(order));
            prop_assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
            prop_assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        }
    }
}
