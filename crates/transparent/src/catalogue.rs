//! What lies in the levels when a run begins.
//!
//! Only the local disk is read here. Whether a copy is still like its source is looked at when the program
//! first uses it.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use belady_board::{Facts, FileId, Kind, NewRecord, Revalidate};
use rustix::fs::{AtFlags, Mode};
use xxhash_rust::xxh3::Xxh3;

use crate::copy::{CHUNK, STICKY};
use crate::meta::{Meta, this_boot};
use crate::shelf::{Shelf, path_of, remove};

/// A copy of an earlier boot, whose bytes have to be looked at first.
#[derive(Debug)]
pub struct Unchecked {
    pub level: usize,
    pub name: Box<[u8]>,
}

impl Shelf {
    /// Publishes what the levels hold; what has to be checked first is handed to `later`.
    ///
    /// # Errors
    /// If a level cannot be read.
    pub fn load(&self, later: &mut dyn FnMut(Unchecked)) -> io::Result<()> {
        for level in 0..self.levels.len() {
            self.load_below(level, &self.levels[level].files.clone(), later)?;
        }
        Ok(())
    }

    fn load_below(
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
                self.load_below(level, &path, later)?;
            } else if let Ok(name) = path.strip_prefix(&self.levels[level].files) {
                self.load_one(level, name.as_os_str().as_bytes(), later)?;
            }
        }
        Ok(())
    }

    fn load_one(&self, at: usize, name: &[u8], later: &mut dyn FnMut(Unchecked)) -> io::Result<()> {
        let Some(_claim) = self.claim(name) else { return Ok(()) };
        let level = &self.levels[at];
        let Ok(copy) = File::open(path_of(&level.files, name)) else { return Ok(()) };
        let found = Facts::of(&copy, c"", AtFlags::empty())?;
        let id = FileId { dev: found.dev, ino: found.ino };
        let meta = Meta::read(&copy);
        let whole = found.is_regular()
            && found.mode & STICKY != 0
            && meta.is_some_and(|meta| meta.size() == found.size);
        let Some(meta) = meta.filter(|_| whole && !self.has(name)) else {
            // Not whole, or in a level before this one as well.
            return remove(level, name, Some(id)).map(drop);
        };
        if meta.boot == this_boot() {
            self.publish_loaded(at, name, &found, &meta);
        } else {
            later(Unchecked { level: at, name: name.into() });
        }
        Ok(())
    }

    fn publish_loaded(&self, level: usize, name: &[u8], found: &Facts, meta: &Meta) {
        let copy = FileId { dev: found.dev, ino: found.ino };
        // A copy with several names has those of links among them; which ones, only the source knows.
        let is_link = meta.is_link || found.links > 1;
        let never = self.board.head().revalidate() == Revalidate::Never;
        let proved = never.then(|| self.board.seen());
        let kind = Kind::Copy { level, copy };
        let path = self.board.key(name);
        let facts = meta.facts(self.source_dev);
        self.publish(name, &NewRecord { path, kind, facts, is_link, proved });
    }

    /// Reads a copy of an earlier boot. If its bytes are those that were copied it is used from now on.
    ///
    /// # Errors
    /// If it cannot be read or removed.
    pub fn check(&self, unchecked: &Unchecked, buffer: &mut Vec<u8>) -> io::Result<()> {
        let Unchecked { level: at, name } = unchecked;
        let level = &self.levels[*at];
        let Some(_claim) = self.claim(name) else { return Ok(()) };
        if self.has(name) {
            return Ok(());
        }
        let path = path_of(&level.files, name);
        let Ok(copy) = File::open(&path) else { return Ok(()) };
        let Some(meta) = Meta::read(&copy) else { return Ok(()) };
        let found = Facts::of(&copy, c"", AtFlags::empty())?;
        let id = FileId { dev: found.dev, ino: found.ino };
        if self.is_intact(&copy, meta, found.mode, buffer)? {
            self.publish_loaded(*at, name, &found, &meta);
        } else if !self.is_stopping() {
            remove(level, name, Some(id))?;
        }
        Ok(())
    }

    /// Whether a copy has the bytes that were copied. One of an earlier boot is read, once.
    pub fn is_intact(
        &self,
        copy: &File,
        mut meta: Meta,
        mode: u32,
        buffer: &mut Vec<u8>,
    ) -> io::Result<bool> {
        if meta.boot == this_boot() {
            return Ok(true);
        }
        let intact = checksum(copy, buffer, &|| self.is_stopping())? == Some(meta.checksum);
        if intact {
            meta.boot = this_boot();
            renew(copy, &meta, mode)?;
        }
        Ok(intact)
    }
}

/// Writes what is beside a copy anew; a copy of a read-only file is read-only itself.
fn renew(copy: &File, meta: &Meta, mode: u32) -> io::Result<()> {
    let set = |mode| rustix::fs::fchmod(copy, Mode::from_raw_mode(mode & 0o7777));
    set(mode | 0o200)?;
    let written = meta.write(copy);
    set(mode)?;
    Ok(written?)
}

/// Of all bytes of a file; None if it was told to stop.
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
