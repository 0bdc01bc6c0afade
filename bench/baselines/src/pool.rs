//! The bare pread pool: threads that open, read and close shuffled files, in no order.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, ensure};
use belady_control::model::Bytes;

use crate::parse_bytes;
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
    /// Keep this many samples at a time, as a loader that makes batches must
    #[arg(long, default_value_t = 0)]
    keep: usize,
    /// Read files in pieces of this size, as readers of records do; without it, at once
    #[arg(long, value_parser = parse_bytes)]
    piece: Option<Bytes>,
    /// A file with JSON, which is shown as it was when an epoch began and when it ended
    #[arg(long)]
    counter: Option<PathBuf>,
    /// After the first epoch, make `reached` in this folder and wait until `open` is there
    #[arg(long)]
    gate: Option<PathBuf>,
}

pub fn run(options: &Options) -> anyhow::Result<Report> {
    ensure!(options.threads > 0, "--threads has to be above zero");
    ensure!(options.piece != Some(Bytes(0)), "--piece has to be above zero");
    let mut files = list(&options.dataset)?;
    let mut random = Random::new(options.seed);
    let all = Watch::start();
    let mut epochs = Vec::new();
    for epoch in 0..options.epochs {
        random.shuffle(&mut files);
        if let (1, Some(gate)) = (epoch, &options.gate) {
            pass(gate)?;
        }
        let before = counters(options)?;
        let watch = Watch::start();
        let bytes = read_all(&files, options)?;
        let work = watch.work(files.len() as u64, bytes);
        let counters = before.zip(counters(options)?).map(<[_; 2]>::from);
        epochs.push(Epoch { number: epoch, work, stall_seconds: None, counters });
    }
    let samples = epochs.iter().map(|epoch| epoch.work.samples).sum();
    let bytes = epochs.iter().map(|epoch| epoch.work.bytes).sum();
    Ok(Report { total: all.work(samples, bytes), epochs })
}

fn counters(options: &Options) -> anyhow::Result<Option<serde_json::Value>> {
    let read = |path: &PathBuf| {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", path.display()))
    };
    options.counter.as_ref().map(read).transpose()
}

fn pass(gate: &Path) -> anyhow::Result<()> {
    let reached = gate.join("reached");
    fs::write(&reached, "").with_context(|| format!("cannot write {}", reached.display()))?;
    while !gate.join("open").exists() {
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
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

/// Opens, reads one piece after the other and closes.
fn read_pieces(file: &Listed, piece: u64, buffer: &mut Vec<u8>) -> anyhow::Result<()> {
    buffer.resize(piece.min(file.size) as usize, 0);
    let read = File::open(&file.path).and_then(|open| {
        (0..file.size).step_by(piece as usize).try_for_each(|at| {
            let length = piece.min(file.size - at) as usize;
            open.read_exact_at(&mut buffer[..length], at)
        })
    });
    read.with_context(|| format!("cannot read {}", file.path.display()))
}

fn read_all(files: &[Listed], options: &Options) -> anyhow::Result<u64> {
    let &Options { threads, keep, piece, .. } = options;
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    let worker = || -> anyhow::Result<()> {
        let mut buffers = vec![Vec::new(); keep.div_ceil(threads).max(1)];
        let mut turn = 0;
        while let Some(file) = files.get(next.fetch_add(1, Relaxed)) {
            let buffer = &mut buffers[turn];
            turn = (turn + 1) % keep.div_ceil(threads).max(1);
            match piece {
                Some(piece) => read_pieces(file, piece.0, buffer)?,
                None => read(file, buffer)?,
            }
            bytes.fetch_add(file.size, Relaxed);
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

    fn options(dataset: &Path) -> Options {
        Options {
            dataset: dataset.to_owned(),
            threads: 3,
            epochs: 2,
            seed: 0,
            keep: 8,
            piece: None,
            counter: None,
            gate: None,
        }
    }

    #[test]
    fn reads_every_file_once_an_epoch() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("deeper")).unwrap();
        for index in 0..50usize {
            let name = if index % 2 == 0 { format!("{index}") } else { format!("deeper/{index}") };
            fs::write(folder.path().join(name), vec![1; index * 10]).unwrap();
        }
        for piece in [None, Some(Bytes(1)), Some(Bytes(7)), Some(Bytes(1_000))] {
            let report = run(&Options { piece, ..options(folder.path()) }).unwrap();
            assert_eq!((report.total.samples, report.total.bytes), (100, 2 * 10 * 49 * 50 / 2));
            assert_eq!(report.epochs.len(), 2);
        }
    }

    #[test]
    fn shows_counters_at_both_ends_of_an_epoch_and_waits_at_the_gate() {
        let folder = tempfile::tempdir().unwrap();
        let [dataset, counter, gate] =
            ["dataset", "counter", "gate"].map(|name| folder.path().join(name));
        fs::create_dir(&dataset).unwrap();
        fs::create_dir(&gate).unwrap();
        fs::write(dataset.join("a"), "x").unwrap();
        fs::write(&counter, "{\"open\": 1}").unwrap();
        let options = Options {
            counter: Some(counter.clone()),
            gate: Some(gate.clone()),
            ..options(&dataset)
        };
        let report = thread::scope(|scope| {
            let running = scope.spawn(|| run(&options));
            // Whole at any time, since the first epoch may be looking.
            let next = folder.path().join("next");
            fs::write(&next, "{\"open\": 2}").unwrap();
            fs::rename(&next, &counter).unwrap();
            fs::write(gate.join("open"), "").unwrap();
            running.join().unwrap().unwrap()
        });
        let last = report.epochs[1].counters.as_ref().unwrap();
        assert_eq!((&last[0]["open"], &last[1]["open"]), (&2.into(), &2.into()));
        assert!(report.epochs[0].counters.is_some());
        assert!(gate.join("reached").exists());
    }

    #[test]
    fn an_empty_or_missing_dataset_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(list(folder.path()).unwrap_err().to_string().contains("holds no files"));
        let missing = folder.path().join("missing");
        assert!(list(&missing).unwrap_err().to_string().contains("missing"));
    }
}
