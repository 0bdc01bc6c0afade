//! The bare pread pool: threads that open, read and close shuffled files, in no order.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, ensure};

use crate::random::Random;
use crate::report::{Epoch, Report, Watch};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Its files, at any depth
    dataset: PathBuf,
    #[arg(long, default_value_t = 16)]
    threads: usize,
    #[arg(long, default_value_t = 1)]
    epochs: u32,
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Keep this many samples at a time, as one must who makes batches of them
    #[arg(long, default_value_t = 0)]
    keep: usize,
}

pub fn run(options: &Options) -> anyhow::Result<Report> {
    ensure!(options.threads > 0, "--threads has to be above zero");
    let mut files = list(&options.dataset)?;
    let mut random = Random::new(options.seed);
    let all = Watch::start();
    let mut epochs = Vec::new();
    for epoch in 0..options.epochs {
        random.shuffle(&mut files);
        let watch = Watch::start();
        let bytes = read_all(&files, options.threads, options.keep)?;
        let work = watch.work(files.len() as u64, bytes);
        epochs.push(Epoch { number: epoch, work, stall_seconds: None });
    }
    let samples = epochs.iter().map(|epoch| epoch.work.samples).sum();
    let bytes = epochs.iter().map(|epoch| epoch.work.bytes).sum();
    Ok(Report { total: all.work(samples, bytes), epochs })
}

/// A file with the size it had when it was listed, so that a read needs no stat.
#[derive(Clone, Debug)]
pub struct Listed {
    pub path: PathBuf,
    pub size: u64,
}

/// All files below `root`, sorted by path.
pub fn list(root: &Path) -> anyhow::Result<Vec<Listed>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", folder.display()))?;
            let path = entry.path();
            let metadata =
                fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
            if metadata.is_dir() {
                folders.push(path);
            } else {
                files.push(Listed { path, size: metadata.len() });
            }
        }
    }
    ensure!(!files.is_empty(), "{} holds no files", root.display());
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// Opens, reads and closes.
pub fn read(file: &Listed, buffer: &mut Vec<u8>) -> anyhow::Result<()> {
    buffer.resize(file.size as usize, 0);
    let read = File::open(&file.path).and_then(|open| open.read_exact_at(buffer, 0));
    read.with_context(|| format!("cannot read {}", file.path.display()))
}

fn read_all(files: &[Listed], threads: usize, keep: usize) -> anyhow::Result<u64> {
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let worker = || -> anyhow::Result<()> {
        let mut buffers = vec![Vec::new(); keep.div_ceil(threads).max(1)];
        let mut turn = 0;
        while let Some(file) = files.get(next.fetch_add(1, Relaxed)) {
            let buffer = &mut buffers[turn];
            turn = (turn + 1) % keep.div_ceil(threads).max(1);
            read(file, buffer)?;
            bytes.fetch_add(buffer.len() as u64, Relaxed);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        running.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    Ok(bytes.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_file_once_an_epoch() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deeper")).unwrap();
        for index in 0..50usize {
            let name = if index % 2 == 0 { format!("{index}") } else { format!("deeper/{index}") };
            fs::write(folder.path().join(name), vec![1; index * 10]).unwrap();
        }
        let options =
            Options { dataset: folder.path().to_owned(), threads: 3, epochs: 2, seed: 0, keep: 8 };
        let report = run(&options).unwrap();
        assert_eq!((report.total.samples, report.total.bytes), (100, 2 * 10 * 49 * 50 / 2));
        assert_eq!(report.epochs.len(), 2);
    }

    #[test]
    fn an_empty_or_missing_dataset_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(list(folder.path()).unwrap_err().to_string().contains("holds no files"));
        let missing = folder.path().join("missing");
        assert!(list(&missing).unwrap_err().to_string().contains("missing"));
    }
}
