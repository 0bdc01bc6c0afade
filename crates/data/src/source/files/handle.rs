//! Opens a source's files, or finds them among those kept open.

use std::fs::File;
use std::io;

use belady_base::open_files;
use belady_base::sync::Arc;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::FileSource;
use super::descriptors::OpenFile;
use crate::file::Cold;

/// An open file.
pub(super) enum FileHandle {
    /// Opened for one read.
    Owned(File),
    Kept {
        file: Arc<OpenFile>,
        /// Just opened by its path.
        fresh: bool,
    },
}

impl FileHandle {
    pub fn file(&self) -> &File {
        match self {
            Self::Owned(file) => file,
            Self::Kept { file, .. } => &file.file,
        }
    }

    /// Whether it was opened just now.
    pub fn is_fresh(&self) -> bool {
        matches!(self, Self::Owned(_) | Self::Kept { fresh: true, .. })
    }

    /// Returns how to read what the page cache does not hold. Direct reads need a second
    /// descriptor, so only files that are kept open have them.
    pub fn cold(&self) -> Cold<'_> {
        match self {
            Self::Owned(_) => Cold::Buffered,
            Self::Kept { file, .. } => file.cold(),
        }
    }
}

impl FileSource {
    pub(super) fn find_or_open(&self, number: u32) -> io::Result<FileHandle> {
        if !self.options.keep_open {
            return Ok(FileHandle::Owned(self.open(number)?));
        }
        let before = self.descriptors.get(number);
        // Another file may have taken the path of one that is kept open, for example by a rename of
        // its folder. So each file is opened by its path once in every round.
        if let Some(file) = before.as_ref().filter(|_| self.versions.is_compared(number)) {
            return Ok(FileHandle::Kept { file: Arc::clone(file), fresh: false });
        }
        let file = OpenFile::new(self.open(number)?, self.options.direct);
        let file = self.descriptors.insert(number, file, before.as_ref());
        Ok(FileHandle::Kept { file, fresh: true })
    }

    fn open(&self, number: u32) -> io::Result<File> {
        self.counters.opened();
        // Non-blocking, so that a pipe in the place of the file does not block.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let path = self.catalog.path(number);
        let open = || rustix::fs::openat(self.root()?, path, flags, Mode::empty());
        match open() {
            // A read needs a descriptor more than files that are only kept open to save time.
            Err(Errno::MFILE | Errno::NFILE) => {
                self.descriptors.clear();
                open_files::close_idle();
                Ok(open()?.into())
            }
            opened => Ok(opened?.into()),
        }
    }
}
