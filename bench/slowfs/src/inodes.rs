//! Inode numbers and the paths they stand for.
//!
//! The kernel names files by numbers that this file system assigns. A number is never reused: the
//! tree is read-only and a run is short.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

pub const ROOT: u64 = 1;
/// The file of counters in the root.
pub const STATS: u64 = 2;
const FIRST: u64 = 3;

#[derive(Debug)]
pub struct Inodes {
    root: PathBuf,
    table: RwLock<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_name: HashMap<(u64, OsString), u64>,
    /// Parent and name of inode `FIRST + index`.
    names: Vec<(u64, OsString)>,
}

impl Inodes {
    pub fn new(root: PathBuf) -> Self {
        Self { root, table: RwLock::default() }
    }

    /// Returns the path of an inode in the backing folder; `None` if it was never assigned.
    pub fn path(&self, inode: u64) -> Option<PathBuf> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let mut names = Vec::new();
        let mut inode = inode;
        while inode != ROOT {
            let (parent, name) = table.names.get(inode.checked_sub(FIRST)? as usize)?;
            names.push(name);
            inode = *parent;
        }
        Some(names.iter().rev().fold(self.root.clone(), |path, name| path.join(Path::new(name))))
    }

    /// Returns the number of `name` in `parent`, always the same.
    pub fn number(&self, parent: u64, name: &OsStr) -> u64 {
        let key = (parent, name.to_owned());
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(&inode) = table.by_name.get(&key) {
            return inode;
        }
        let inode = FIRST + table.names.len() as u64;
        table.names.push(key.clone());
        table.by_name.insert(key, inode);
        inode
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_stable_and_lead_back_to_paths() {
        let inodes = Inodes::new("/data".into());
        let class = inodes.number(ROOT, "class".as_ref());
        let file = inodes.number(class, "file".as_ref());
        let other = inodes.number(ROOT, "file".as_ref());
        assert_ne!(file, other);
        assert_eq!(inodes.number(class, "file".as_ref()), file);
        assert_eq!(inodes.path(ROOT).unwrap(), Path::new("/data"));
        assert_eq!(inodes.path(file).unwrap(), Path::new("/data/class/file"));
        assert_eq!(inodes.path(STATS), None);
        assert_eq!(inodes.path(99), None);
    }
}
