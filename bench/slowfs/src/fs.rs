//! The file system: a read-only view of a folder whose reads go through the link.
//!
//! Metadata is answered at once, or after `metadata_latency`, and the kernel may cache it for
//! `metadata_cache`. A read is admitted to the link when it arrives; meanwhile its bytes are read
//! from the backing file, and the pacer sends the answer.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, Request,
};

use crate::handles::{Handle, Handles};
use crate::inodes::{Inodes, ROOT, STATS};
use crate::pacer::Pacer;
use crate::stats::{Stats, count};

/// Not listed, so that it is no sample; not counted.
pub const STATS_NAME: &str = ".slowfs-stats";

/// What readdir says where a number was not handed out yet, as libfuse does.
const UNKNOWN_INODE: INodeNo = INodeNo(0xffff_ffff);

/// Buffers that are kept for the next read: as many as readers in a large test.
const SPARE_BUFFERS: usize = 64;

#[derive(Debug)]
pub struct SlowFs {
    inodes: Inodes,
    handles: Handles,
    pacer: Pacer,
    stats: Arc<Stats>,
    buffers: Arc<Mutex<Vec<Vec<u8>>>>,
    metadata: Metadata,
    page_cache: bool,
}

/// How names and attributes are answered.
#[derive(Clone, Copy, Debug)]
pub struct Metadata {
    /// How long an answer takes.
    pub latency: Duration,
    /// For how long the kernel may answer by itself then.
    pub keep: Duration,
}

impl SlowFs {
    pub fn new(
        source: PathBuf,
        pacer: Pacer,
        stats: Arc<Stats>,
        metadata: Metadata,
        page_cache: bool,
    ) -> Self {
        Self {
            inodes: Inodes::new(source),
            handles: Handles::default(),
            pacer,
            stats,
            buffers: Arc::default(),
            metadata,
            page_cache,
        }
    }

    fn wait_for_metadata(&self) {
        if !self.metadata.latency.is_zero() {
            thread::sleep(self.metadata.latency);
        }
    }

    fn attributes(&self, inode: u64) -> Result<FileAttr, Errno> {
        let path = self.inodes.path(inode).ok_or(Errno::ENOENT)?;
        attributes(inode, &fs::metadata(path)?)
    }

    fn look_up(&self, parent: u64, name: &OsStr) -> Result<FileAttr, Errno> {
        let path = self.inodes.path(parent).ok_or(Errno::ENOENT)?.join(name);
        let metadata = fs::metadata(path)?;
        attributes(self.inodes.number(parent, name), &metadata)
    }

    fn open_file(&self, inode: u64) -> Result<FileHandle, Errno> {
        let file = File::open(self.inodes.path(inode).ok_or(Errno::ENOENT)?)?;
        let size = file.metadata()?.len();
        Ok(self.handles.add(Handle::File { file, size }))
    }

    fn list(&self, inode: u64) -> Result<FileHandle, Errno> {
        let path = self.inodes.path(inode).ok_or(Errno::ENOENT)?;
        let mut entries: Vec<(OsString, FileType)> =
            [".", ".."].map(|name| (name.into(), FileType::Directory)).into();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let kind = match entry.file_type()? {
                link if link.is_symlink() => fs::metadata(entry.path())?.file_type(),
                kind => kind,
            };
            entries.extend(FileType::from_std(kind).map(|kind| (entry.file_name(), kind)));
        }
        Ok(self.handles.add(Handle::Directory(entries)))
    }

    fn buffer(&self, size: usize) -> Vec<u8> {
        let spare = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut buffer = spare.unwrap_or_default();
        buffer.resize(size, 0);
        buffer
    }

    fn read_file(&self, file: &File, size: u64, offset: u64, wanted: u32, reply: ReplyData) {
        let expected = size.saturating_sub(offset).min(u64::from(wanted));
        let ticket = self.pacer.admit(expected);
        let mut buffer = self.buffer(expected as usize);
        let outcome = read_fully(file, &mut buffer, offset);
        if let Ok(read) = outcome {
            self.stats.bytes.fetch_add(read as u64, Relaxed);
        }
        let buffers = Arc::clone(&self.buffers);
        let answer = move || {
            match outcome {
                Ok(read) => reply.data(&buffer[..read]),
                Err(error) => reply.error(error),
            }
            let mut spare = buffers.lock().unwrap_or_else(PoisonError::into_inner);
            if spare.len() < SPARE_BUFFERS {
                spare.push(buffer);
            }
        };
        self.pacer.answer(ticket, Box::new(answer));
    }
}

fn read_fully(file: &File, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(read)
}

fn attributes(inode: u64, metadata: &fs::Metadata) -> Result<FileAttr, Errno> {
    let time = |time: std::io::Result<SystemTime>| time.unwrap_or(SystemTime::UNIX_EPOCH);
    Ok(FileAttr {
        ino: INodeNo(inode),
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: time(metadata.accessed()),
        mtime: time(metadata.modified()),
        ctime: time(metadata.modified()),
        crtime: time(metadata.created()),
        kind: FileType::from_std(metadata.file_type()).ok_or(Errno::EIO)?,
        perm: (metadata.mode() & 0o7777) as u16,
        nlink: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: metadata.blksize() as u32,
        flags: 0,
    })
}

fn stats_attributes() -> FileAttr {
    FileAttr {
        ino: INodeNo(STATS),
        size: 0,
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0o444,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for SlowFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Lookups in one folder may be in flight together. Old kernels cannot; they work.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent.0 == ROOT && name == STATS_NAME {
            return reply.entry(&self.metadata.keep, &stats_attributes(), Generation(0));
        }
        count(&self.stats.lookup);
        self.wait_for_metadata();
        match self.look_up(parent.0, name) {
            Ok(attributes) => reply.entry(&self.metadata.keep, &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if inode.0 == STATS {
            return reply.attr(&self.metadata.keep, &stats_attributes());
        }
        count(&self.stats.getattr);
        self.wait_for_metadata();
        // Reading the counters looks the root up, which should not be counted.
        let keep = if inode.0 == ROOT { Duration::from_hours(24) } else { self.metadata.keep };
        match self.attributes(inode.0) {
            Ok(attributes) => reply.attr(&keep, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if inode.0 == STATS {
            let handle = self.handles.add(Handle::Stats(self.stats.to_json().into_bytes()));
            return reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO);
        }
        count(&self.stats.open);
        self.wait_for_metadata();
        let flags = if self.page_cache {
            FopenFlags::FOPEN_KEEP_CACHE
        } else {
            FopenFlags::FOPEN_DIRECT_IO
        };
        match self.open_file(inode.0) {
            Ok(handle) => reply.opened(handle, flags),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.handles.get(handle).as_deref() {
            Some(Handle::Stats(text)) => {
                let rest = text.get(offset as usize..).unwrap_or_default();
                reply.data(&rest[..rest.len().min(size as usize)]);
            }
            Some(Handle::File { file, size: file_size }) => {
                count(&self.stats.read);
                self.read_file(file, *file_size, offset, size, reply);
            }
            _ => reply.error(Errno::EBADF),
        }
    }

    fn release(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        if inode.0 != STATS {
            count(&self.stats.release);
        }
        self.handles.remove(handle);
        reply.ok();
    }

    fn opendir(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        count(&self.stats.opendir);
        self.wait_for_metadata();
        match self.list(inode.0) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        count(&self.stats.readdir);
        self.wait_for_metadata();
        let handle = self.handles.get(handle);
        let Some(Handle::Directory(entries)) = handle.as_deref() else {
            return reply.error(Errno::EBADF);
        };
        for (index, (name, kind)) in entries.iter().enumerate().skip(offset as usize) {
            if reply.add(UNKNOWN_INODE, index as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.handles.remove(handle);
        reply.ok();
    }
}
