//! Notices changes of the dataset by processes without the library: static programs, programs
//! without the environment, anything that runs beside the job on this machine.
//!
//! The kernel tells of changes in a directory (inotify) as long as they are made on this machine. A
//! directory is watched before the first of its files is copied, or the copy of an earlier run
//! published, so no change is missed. Where no more directories can be watched, such changes are
//! noticed as `--revalidate` says.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use belady_base::sync::{Mutex, lock};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

/// What changes a file, or which file a name leads to.
const CHANGES: WatchFlags = WatchFlags::MODIFY
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// The directories of the dataset that are watched.
#[derive(Debug)]
pub struct DatasetWatch {
    inotify: OwnedFd,
    directories: Mutex<Directories>,
}

#[derive(Debug, Default)]
struct Directories {
    /// Relative to the dataset.
    names: HashMap<i32, Box<[u8]>>,
    /// With none if the directory cannot be watched.
    descriptors: HashMap<Box<[u8]>, Option<i32>>,
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatasetChange {
    /// Of the file with this name.
    File(Box<[u8]>),
    /// Of any file: of a directory, or of more than the kernel remembers.
    Any,
}

impl DatasetWatch {
    /// Begins to watch a dataset; `None` if the kernel cannot.
    pub fn new(dataset: &Path) -> Option<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC).ok()?;
        let watch = Self { inotify, directories: Mutex::default() };
        watch.directory(dataset, b"").then_some(watch)
    }

    /// Watches the directory of a file.
    pub fn file(&self, dataset: &Path, name: &[u8]) {
        let end = name.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        self.directory(dataset, &name[..end]);
    }

    fn directory(&self, dataset: &Path, name: &[u8]) -> bool {
        let mut directories = lock(&self.directories);
        if let Some(Some(_)) = directories.descriptors.get(name) {
            return true;
        }
        self.add(&mut directories, dataset, name.into())
    }

    fn add(&self, directories: &mut Directories, dataset: &Path, name: Box<[u8]>) -> bool {
        let path = dataset.join(OsStr::from_bytes(&name));
        let added = inotify::add_watch(&self.inotify, &path, CHANGES).ok();
        if let Some(descriptor) = added {
            directories.names.insert(descriptor, name.clone());
        }
        directories.descriptors.insert(name, added);
        added.is_some()
    }

    /// Watches what is at the known names now: a directory was moved, removed or replaced.
    fn watch_again(&self, dataset: &Path) {
        let mut directories = lock(&self.directories);
        let known = std::mem::take(&mut *directories);
        for name in known.descriptors.into_keys() {
            self.add(&mut directories, dataset, name);
        }
        // A directory that stays has the same descriptor again.
        for old in known.names.keys().filter(|old| !directories.names.contains_key(old)) {
            let _ = inotify::remove_watch(&self.inotify, *old);
        }
    }

    /// Passes on changes until `is_over`, which is asked after each of them.
    pub fn follow(
        &self,
        dataset: &Path,
        mut on_change: impl FnMut(DatasetChange),
        is_over: impl Fn() -> bool,
    ) {
        let mut buffer = vec![MaybeUninit::uninit(); 64 << 10];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        while !is_over() {
            match reader.next() {
                Ok(event) => {
                    if let Some(change) = self.change(&event).filter(|_| !is_over()) {
                        if change == DatasetChange::Any {
                            self.watch_again(dataset);
                        }
                        on_change(change);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn change(&self, event: &inotify::Event<'_>) -> Option<DatasetChange> {
        // A watch was removed.
        if event.events().contains(ReadFlags::IGNORED) {
            return None;
        }
        let of_directory = ReadFlags::ISDIR | ReadFlags::QUEUE_OVERFLOW | ReadFlags::UNMOUNT;
        let Some(file) = event.file_name() else {
            // Of a directory itself: its mode and times are no concern of its files.
            let is_attribute = event.events() == ReadFlags::ATTRIB | ReadFlags::ISDIR;
            return (!is_attribute).then_some(DatasetChange::Any);
        };
        if event.events().intersects(of_directory) {
            // Mode and times of a directory inside of it.
            let is_attribute = event.events().contains(ReadFlags::ATTRIB);
            return (!is_attribute).then_some(DatasetChange::Any);
        }
        let directories = lock(&self.directories);
        let directory = directories.names.get(&event.wd())?;
        let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
        Some(DatasetChange::File([directory, separator, file.to_bytes()].concat().into()))
    }

    /// Ends [`Self::follow`].
    pub fn wake(&self) {
        // The kernel tells that a watch is gone.
        if let Some(&Some(dataset)) = lock(&self.directories).descriptors.get(&b""[..]) {
            let _ = inotify::remove_watch(&self.inotify, dataset);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;

    fn file(name: &str) -> DatasetChange {
        DatasetChange::File(name.as_bytes().into())
    }

    #[test]
    fn changes_of_watched_directories_are_passed_on_with_the_files_names() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("sub/deep")).unwrap();
        for name in ["a", "sub/b", "sub/deep/c"] {
            fs::write(at(name), "old").unwrap();
        }
        let watch = Arc::new(DatasetWatch::new(folder.path()).unwrap());
        watch.file(folder.path(), b"sub/b");
        watch.file(folder.path(), b"gone/file");
        let over = Arc::new(AtomicBool::new(false));
        let (send, receive) = mpsc::channel();
        let follower = {
            let (watch, over) = (watch.clone(), over.clone());
            let is_over = move || over.load(Ordering::SeqCst);
            let dataset = folder.path().to_owned();
            std::thread::spawn(move || {
                watch.follow(&dataset, |change| drop(send.send(change)), is_over);
            })
        };
        let next = || receive.recv_timeout(std::time::Duration::from_mins(1)).expect("an event");
        fs::read(at("a")).unwrap();
        fs::OpenOptions::new().append(true).open(at("a")).unwrap().set_len(1).unwrap();
        assert_eq!(next(), file("a"));
        fs::rename(at("sub/b"), at("sub/other")).unwrap();
        assert_eq!([next(), next()], [file("sub/b"), file("sub/other")]);
        fs::write(at("sub/deep/c"), "not watched").unwrap();
        fs::remove_file(at("a")).unwrap();
        assert_eq!(next(), file("a"));
        fs::rename(at("sub/deep"), at("sub/moved")).unwrap();
        assert_eq!(next(), DatasetChange::Any);
        // Another directory takes the name of one that was watched.
        fs::rename(at("sub"), at("before")).unwrap();
        fs::create_dir(at("sub")).unwrap();
        let mut last = DatasetChange::Any;
        while last == DatasetChange::Any {
            // Files are copied, and their directories watched, at any time.
            watch.file(folder.path(), b"sub/b");
            fs::write(at("sub/b"), "new").unwrap();
            last = next();
        }
        assert_eq!(last, file("sub/b"));
        over.store(true, Ordering::SeqCst);
        watch.wake();
        follower.join().unwrap();
    }
}
