//! The sizes of a real dataset: every file below a directory, sorted by path so that sample numbers
//! are the same on every machine.

use std::fs;
use std::path::{Path, PathBuf};

use super::{MOST_BYTES, ScenarioError};

pub fn sizes(root: &Path) -> Result<Vec<u64>, ScenarioError> {
    let mut files = Vec::new();
    let real = root.canonicalize().map_err(|source| unreadable(root, source))?;
    walk(root, &mut vec![real], &mut files)?;
    let total: u128 = files.iter().map(|&(_, size)| u128::from(size)).sum();
    if total == 0 {
        let reason = format!("is {}, which has no file that is not empty", root.display());
        return Err(ScenarioError::invalid("dataset.path", reason));
    }
    if u32::try_from(files.len()).is_err() || total > MOST_BYTES {
        let reason = format!("is {}, which holds more than can be simulated", root.display());
        return Err(ScenarioError::invalid("dataset.path", reason));
    }
    files.sort();
    Ok(files.into_iter().map(|(_, size)| size).collect())
}

fn unreadable(path: &Path, source: std::io::Error) -> ScenarioError {
    ScenarioError::Directory { path: path.to_owned(), source }
}

/// Follows links, as loaders do, except into a directory that contains the link (`above`, as real
/// paths), which would never end.
fn walk(
    directory: &Path,
    above: &mut Vec<PathBuf>,
    files: &mut Vec<(PathBuf, u64)>,
) -> Result<(), ScenarioError> {
    let entries = fs::read_dir(directory).map_err(|source| unreadable(directory, source))?;
    for entry in entries {
        let path = entry.map_err(|source| unreadable(directory, source))?.path();
        let metadata = fs::metadata(&path).map_err(|source| unreadable(&path, source))?;
        if metadata.is_file() {
            files.push((path, metadata.len()));
        } else if metadata.is_dir() {
            let real = path.canonicalize().map_err(|source| unreadable(&path, source))?;
            if !above.contains(&real) {
                above.push(real);
                walk(&path, above, files)?;
                above.pop();
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_come_sorted_by_path() {
        let root = tempfile::tempdir().unwrap();
        for (name, size) in [("b/2", 3), ("b/1", 2), ("a/9", 1), ("c", 4)] {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, vec![0; size]).unwrap();
        }
        assert_eq!(sizes(root.path()).unwrap(), [1, 2, 3, 4]);
    }

    #[cfg(unix)]
    #[test]
    fn links_to_a_parent_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("a")).unwrap();
        fs::write(root.path().join("a/1"), "x").unwrap();
        std::os::unix::fs::symlink(root.path(), root.path().join("a/up")).unwrap();
        assert_eq!(sizes(root.path()).unwrap(), [1]);
    }

    #[test]
    fn a_missing_or_empty_directory_is_named() {
        let root = tempfile::tempdir().unwrap();
        assert!(sizes(root.path()).unwrap_err().to_string().contains("dataset.path"));
        let error = sizes(&root.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("none") && error.contains("dataset.path"), "{error}");
    }
}
