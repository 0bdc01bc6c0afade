//! A list of files in the order in which they are read: given by the user, or learnt in an earlier run.
//!
//! Plain text, one name a line: below the dataset, or absolute. Blank lines and those that begin with `#` are
//! skipped; a file whose name begins with `#` is written `./#name`. A file may stand there more than
//! once. Whether a file is there is seen when its turn comes: to ask the source for each of a million
//! would take longer than to read the first thousand.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use belady_board::Dataset;
use belady_board::path::{Buffer, Place};

/// Ends a list that was learnt: a list without it is not whole.
const END: &[u8] = b"# end";

/// Names below the dataset, in the order in which they are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Order {
    pub names: Vec<Box<[u8]>>,
}

#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    #[error("{path} cannot be read: {source}", path = path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} names no file; write the names of files below the dataset, one a line", path = path.display())]
    Empty { path: PathBuf },
    #[error("line {line} of {path}: {name} is not below the dataset; write names below it, one a line", path = path.display())]
    Elsewhere { path: PathBuf, line: usize, name: String },
    #[error("line {line} of {path}: {name} is no plain name of a file; write it without `..`, and without a slash at its end", path = path.display())]
    Odd { path: PathBuf, line: usize, name: String },
}

impl Order {
    /// What a user wrote.
    ///
    /// # Errors
    /// One sentence, with the line.
    pub fn read(path: &Path, dataset: &Dataset<'_>) -> Result<Self, OrderError> {
        let text = std::fs::read(path)
            .map_err(|source| OrderError::Read { path: path.to_owned(), source })?;
        let order = Self::parse(&text, path, dataset)?;
        if order.names.is_empty() {
            return Err(OrderError::Empty { path: path.to_owned() });
        }
        Ok(order)
    }

    fn parse(text: &[u8], path: &Path, dataset: &Dataset<'_>) -> Result<Self, OrderError> {
        let mut names = vec![];
        let mut buffer = Buffer::default();
        for (line, text) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            if is_skipped(text) {
                continue;
            }
            let told = || (path.to_owned(), String::from_utf8_lossy(text).into_owned());
            // What no path can hold is no name either.
            let place = if text.contains(&0) {
                Place::Odd
            } else {
                dataset.place_from(dataset.real, text, &mut buffer)
            };
            match place {
                Place::Below(name) => names.push(name.into()),
                Place::Elsewhere => {
                    let (path, name) = told();
                    return Err(OrderError::Elsewhere { path, line, name });
                }
                Place::Odd => {
                    let (path, name) = told();
                    return Err(OrderError::Odd { path, line, name });
                }
            }
        }
        Ok(Self { names })
    }

    /// What an earlier run has learnt; nothing if there is none, or it is not whole.
    pub fn load(path: &Path, dataset: &Dataset<'_>) -> Option<Self> {
        let text = std::fs::read(path).ok()?;
        let lines = text.strip_suffix(b"\n")?;
        lines.rsplit(|&byte| byte == b'\n').next().filter(|&line| line == END)?;
        match Self::parse(&text, path, dataset) {
            Ok(order) => Some(order).filter(|order| !order.names.is_empty()),
            Err(error) => {
                tracing::debug!("what was learnt is not used: {error}");
                None
            }
        }
    }

    /// For the next run. It appears whole, by a rename; only its user can read it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{}", std::process::id()));
        let new = PathBuf::from(new);
        // Left by a process that had our number and was killed.
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
            // Such names cannot stand in a line.
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

    const DATA: Dataset = Dataset { given: b"/data/set", real: b"/mnt/set" };

    fn read(text: &[u8]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("order");
        std::fs::write(&path, text).unwrap();
        let order = Order::read(&path, &DATA)
            .map_err(|error| error.to_string().replace(&path.display().to_string(), "FILE"))?;
        Ok(order.names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect())
    }

    #[test]
    fn names_are_below_the_dataset_or_absolute() {
        let text = b"# mine\n\na/b.jpg\r\n/data/set/c\n  \n/mnt/set//./d\n./#e\na/b.jpg";
        assert_eq!(read(text).unwrap(), ["a/b.jpg", "c", "d", "#e", "a/b.jpg"]);
        assert_eq!(read(b" leading space").unwrap(), [" leading space"]);
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        assert_eq!(
            read(b"a\n/data/other/b\n").unwrap_err(),
            "line 2 of FILE: /data/other/b is not below the dataset; write names below it, one a line"
        );
        assert!(read(b"../b").unwrap_err().starts_with("line 1 of FILE: ../b is not below"));
        for odd in [&b"x\n#\na/../b"[..], b"\n\na/", b"\n\n.", b"\n\na\0b"] {
            let error = read(odd).unwrap_err();
            assert!(error.starts_with("line 3 of FILE: "), "{error}");
            assert!(error.contains("is no plain name of a file"), "{error}");
        }
        assert!(read(b"# nothing\n\n").unwrap_err().starts_with("FILE names no file"));
    }

    #[test]
    fn a_file_that_is_not_there_is_told() {
        let error = Order::read(Path::new("/no/such/order"), &DATA).unwrap_err().to_string();
        assert!(error.starts_with("/no/such/order cannot be read: "), "{error}");
    }

    #[test]
    fn half_of_what_was_learnt_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("order");
        assert_eq!(Order::load(&path, &DATA), None);
        let order = Order { names: vec![b"a"[..].into(), b"b"[..].into()] };
        order.save(&path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert_eq!(Order::load(&path, &DATA), None, "{length} bytes of {}", whole.len());
        }
    }

    proptest! {
        #[test]
        fn what_is_saved_is_loaded(
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
            let order = Order { names };
            order.save(&path).unwrap();
            prop_assert_eq!(Order::load(&path, &DATA), Some(order));
            prop_assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
            prop_assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        }
    }
}
