//! Scans the levels for copies when a run begins.
//!
//! The scan reads the local disk only. A copy is compared with its source when the program first
//! uses it.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use belady_board::{FileStat, NewRecord, RecordKind, Revalidate};
use rustix::fs::{AtFlags, Mode};
use xxhash_rust::xxh3::Xxh3;

use crate::copy::{CHUNK, STICKY};
use crate::copy_store::{CopyStore, path_of, remove};
use crate::metadata::{CopyMetadata, this_boot};

/// A copy from an earlier boot, whose bytes have to be verified before it is used.
#[derive(Debug)]
pub struct Unchecked {
    pub level: usize,
    pub name: Box<[u8]>,
}

impl CopyStore {
    /// Publishes the copies on the levels, and passes those to verify first to `later`.
    ///
    /// # Errors
    /// If a level cannot be read.
    pub fn scan(&self, later: &mut dyn FnMut(Unchecked)) -> io::Result<()> {
        for level in 0..self.levels.len() {
            self.scan_below(level, &self.levels[level].files.clone(), later)?;
        }
        Ok(())
    }

    fn scan_below(
        &self,
        level: usize,
        directory: &Path,
        later: &mut dyn FnMut(Unchecked),
    ) -> io::Result<()> {
        for entry in std::fs::read_dir(directory)? {
            if self.is_stopping() {
                return Ok(());
            }
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                self.scan_below(level, &path, later)?;
            } else if let Ok(name) = path.strip_prefix(&self.levels[level].files) {
                self.scan_one(level, name.as_os_str().as_bytes(), later)?;
            }
        }
        Ok(())
    }

    fn scan_one(&self, at: usize, name: &[u8], later: &mut dyn FnMut(Unchecked)) -> io::Result<()> {
        let Some(_claim) = self.claim(name) else { return Ok(()) };
        let level = &self.levels[at];
        let Ok(copy) = File::open(path_of(&level.files, name)) else { return Ok(()) };
        let found = FileStat::of(&copy, c"", AtFlags::empty())?;
        let id = found.id();
        let meta = CopyMetadata::read(&copy);
        let complete = found.is_regular()
            && found.mode & STICKY != 0
            && meta.is_some_and(|meta| meta.size() == found.size);
        let Some(meta) = meta.filter(|_| complete && !self.has(name)) else {
            // Incomplete, or also on a level before this one.
            return remove(level, name, Some(id)).map(drop);
        };
        if meta.boot == this_boot() {
            self.publish_found(at, name, &found, &meta);
        } else {
            later(Unchecked { level: at, name: name.into() });
        }
        Ok(())
    }

    fn publish_found(&self, level: usize, name: &[u8], found: &FileStat, meta: &CopyMetadata) {
        self.watch(name);
        let copy = found.id();
        // At most one name of a copy is not a link; only the source shows which.
        let is_link = meta.is_link || found.links > 1;
        let never = self.board.header().revalidate() == Revalidate::Never;
        let validated = never.then(|| self.board.change_snapshot());
        let kind = RecordKind::Copy { level, copy };
        let path = self.board.key(name);
        let stat = meta.stat(self.source_dev);
        self.publish(name, &NewRecord { path, kind, stat, is_link, validated });
    }

    /// Verifies a copy from an earlier boot, and publishes or removes it.
    ///
    /// # Errors
    /// If the copy cannot be read or removed.
    pub fn verify(&self, unchecked: &Unchecked, buffer: &mut Vec<u8>) -> io::Result<()> {
        let Unchecked { level: at, name } = unchecked;
        let level = &self.levels[*at];
        let Some(_claim) = self.claim(name) else { return Ok(()) };
        if self.has(name) {
            return Ok(());
        }
        let path = path_of(&level.files, name);
        let Ok(copy) = File::open(&path) else { return Ok(()) };
        let Some(meta) = CopyMetadata::read(&copy) else { return Ok(()) };
        let found = FileStat::of(&copy, c"", AtFlags::empty())?;
        let id = found.id();
        if self.is_intact(&copy, meta, found.mode, buffer)? {
            self.publish_found(*at, name, &found, &meta);
        } else if !self.is_stopping() {
            remove(level, name, Some(id))?;
        }
        Ok(())
    }

    /// Returns whether a copy's bytes match their checksum. Reads a copy from an earlier boot,
    /// once.
    pub fn is_intact(
        &self,
        copy: &File,
        mut meta: CopyMetadata,
        mode: u32,
        buffer: &mut Vec<u8>,
    ) -> io::Result<bool> {
        if meta.boot == this_boot() {
            return Ok(true);
        }
        let intact = checksum(copy, buffer, &|| self.is_stopping())? == Some(meta.checksum);
        if intact {
            meta.boot = this_boot();
            write_metadata(copy, &meta, mode)?;
        }
        Ok(intact)
    }
}

/// Rewrites a copy's metadata. The copy of a read-only file is read-only itself.
fn write_metadata(copy: &File, meta: &CopyMetadata, mode: u32) -> io::Result<()> {
    let set = |mode| rustix::fs::fchmod(copy, Mode::from_raw_mode(mode & 0o7777));
    set(mode | 0o200)?;
    let written = meta.write(copy);
    set(mode)?;
    Ok(written?)
}

/// Returns the checksum of a file; None if `stop` returned true.
pub fn checksum(
    mut file: &File,
    buffer: &mut Vec<u8>,
    stop: &dyn Fn() -> bool,
) -> io::Result<Option<u64>> {
    use std::io::Read as _;
    buffer.resize(CHUNK, 0);
    let mut hash = Xxh3::new();
    loop {
        if stop() {
            return Ok(None);
        }
        match file.read(buffer) {
            Ok(0) => return Ok(Some(hash.digest())),
            Ok(length) => hash.update(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
