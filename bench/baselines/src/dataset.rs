//! Makes datasets: the same options make the same bytes, on any machine.
//!
//! Sizes are drawn from a normal distribution. A sample's bytes are a piece of one block of
//! noise at a place that depends on its index, with the index in front, so that no two
//! samples are alike and writing is all the work.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, bail, ensure};
use belady_control::model::Bytes;

use crate::parse_bytes;
use crate::random::Random;
use crate::report::{Report, Watch};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Made unless it exists
    folder: PathBuf,
    #[arg(long)]
    samples: usize,
    #[arg(long, default_value = "110KB", value_parser = parse_bytes)]
    mean: Bytes,
    #[arg(long, default_value = "0B", value_parser = parse_bytes)]
    stddev: Bytes,
    /// `flat`, `folder:CLASSES` or `records:FILES` (of samples that are all of the mean size)
    #[arg(long, default_value = "flat", value_parser = parse_layout)]
    layout: Layout,
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    Flat,
    Folder { classes: usize },
    Records { files: usize },
}

fn parse_layout(text: &str) -> Result<Layout, String> {
    let count = |text: &str| match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("`{text}` has to be a number above zero")),
    };
    match text.split_once(':') {
        None if text == "flat" => Ok(Layout::Flat),
        Some(("folder", classes)) => Ok(Layout::Folder { classes: count(classes)? }),
        Some(("records", files)) => Ok(Layout::Records { files: count(files)? }),
        _ => Err(format!("`{text}` is none of flat, folder:CLASSES, records:FILES")),
    }
}

/// More than most samples, so that pieces of it differ.
const NOISE: usize = 16 << 20;

pub fn run(options: &Options) -> anyhow::Result<Report> {
    ensure!(options.samples > 0, "--samples has to be above zero");
    if matches!(options.layout, Layout::Records { .. }) && options.stddev.0 > 0 {
        bail!("records are all of one size: leave out --stddev");
    }
    let sizes = sizes(options);
    let watch = Watch::start();
    let report = |watch: &Watch| Report {
        total: watch.work(sizes.len() as u64, sizes.iter().sum()),
        epochs: Vec::new(),
    };
    // Beside the folder, since all in it are samples. Written last: half a dataset is made
    // anew.
    let marker = marker(&options.folder);
    let made = format!("{options:?}\n");
    if fs::read_to_string(&marker).is_ok_and(|text| text == made) {
        return Ok(report(&watch));
    }
    if options.folder.exists() {
        bail!(
            "{} exists and was not made by these options; remove it first",
            options.folder.display()
        );
    }
    write(options, &sizes)?;
    fs::write(&marker, made).with_context(|| format!("cannot write {}", marker.display()))?;
    Ok(report(&watch))
}

fn marker(folder: &Path) -> PathBuf {
    let mut name = folder.as_os_str().to_owned();
    name.push(".made");
    name.into()
}

fn sizes(options: &Options) -> Vec<u64> {
    let mut random = Random::new(options.seed);
    let (mean, stddev) = (options.mean.as_f64(), options.stddev.as_f64());
    let mut draw = || loop {
        let size = random.normal(mean, stddev).round();
        if size >= 0.0 {
            return size as u64;
        }
    };
    (0..options.samples).map(|_| if stddev == 0.0 { options.mean.0 } else { draw() }).collect()
}

fn write(options: &Options, sizes: &[u64]) -> anyhow::Result<()> {
    let mut noise = vec![0; NOISE];
    Random::new(options.seed ^ 1).fill(&mut noise);
    let folder = &options.folder;
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    match options.layout {
        Layout::Flat => write_files(sizes, &noise, |index| folder.join(format!("{index:08}.bin"))),
        Layout::Folder { classes } => {
            for class in 0..classes.min(sizes.len()) {
                fs::create_dir(folder.join(format!("class{class:04}")))
                    .with_context(|| format!("cannot make folders in {}", folder.display()))?;
            }
            write_files(sizes, &noise, |index| {
                folder.join(format!("class{:04}/{index:08}.bin", index % classes))
            })
        }
        Layout::Records { files } => {
            let each = sizes.len().div_ceil(files);
            in_parallel(sizes.len().div_ceil(each), |file| {
                let path = folder.join(format!("{file:05}.rec"));
                let samples = file * each..((file + 1) * each).min(sizes.len());
                write_samples(&path, samples, sizes, &noise)
            })
        }
    }
}

fn write_files(
    sizes: &[u64],
    noise: &[u8],
    path: impl Fn(usize) -> PathBuf + Sync,
) -> anyhow::Result<()> {
    in_parallel(sizes.len(), |index| write_samples(&path(index), index..index + 1, sizes, noise))
}

fn write_samples(
    path: &Path,
    samples: std::ops::Range<usize>,
    sizes: &[u64],
    noise: &[u8],
) -> anyhow::Result<()> {
    let written = (|| -> std::io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        for index in samples {
            write_sample(&mut file, index, sizes[index] as usize, noise)?;
        }
        file.flush()
    })();
    written.with_context(|| format!("cannot write {}", path.display()))
}

fn write_sample(
    file: &mut impl Write,
    index: usize,
    size: usize,
    noise: &[u8],
) -> std::io::Result<()> {
    let head = (index as u64).to_le_bytes();
    file.write_all(&head[..size.min(8)])?;
    let mut left = size.saturating_sub(8);
    let mut at = Random::new(index as u64).below(noise.len() as u64) as usize;
    while left > 0 {
        let piece = left.min(noise.len() - at);
        file.write_all(&noise[at..at + piece])?;
        left -= piece;
        at = 0;
    }
    Ok(())
}

fn in_parallel(
    count: usize,
    work: impl Fn(usize) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let worker = || {
        loop {
            let index = next.fetch_add(1, Relaxed);
            if index >= count {
                return Ok(());
            }
            work(index)?;
        }
    };
    let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        running.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::list;

    fn options(folder: PathBuf, layout: &str, stddev: u64) -> Options {
        Options {
            folder,
            samples: 101,
            mean: Bytes(1_000),
            stddev: Bytes(stddev),
            layout: parse_layout(layout).unwrap(),
            seed: 3,
        }
    }

    fn contents(folder: &Path) -> Vec<Vec<u8>> {
        let files = list(folder).unwrap();
        files.iter().map(|file| fs::read(&file.path).unwrap()).collect()
    }

    #[test]
    fn the_same_options_make_the_same_bytes_in_every_layout() {
        let root = tempfile::tempdir().unwrap();
        for (layout, files) in [("flat", 101), ("folder:7", 101), ("records:4", 4)] {
            let make = |name: &str| {
                let folder = root.path().join(format!("{name}-{}", &layout[..4]));
                run(&options(folder.clone(), layout, 0)).unwrap();
                contents(&folder)
            };
            let made = make("a");
            assert_eq!(made.len(), files, "{layout}");
            assert_eq!(made.iter().map(Vec::len).sum::<usize>(), 101_000);
            assert_eq!(made, make("b"));
        }
    }

    #[test]
    fn sizes_are_spread_and_no_two_samples_are_alike() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data");
        run(&options(folder.clone(), "flat", 300)).unwrap();
        let mut made = contents(&folder);
        assert!(made.iter().any(|sample| sample.len() != made[0].len()));
        made.sort();
        made.dedup();
        assert_eq!(made.len(), 101);
    }

    #[test]
    fn a_made_dataset_is_kept_and_another_in_its_place_refused() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("data");
        run(&options(folder.clone(), "flat", 0)).unwrap();
        let before = fs::metadata(&folder).unwrap().modified().unwrap();
        run(&options(folder.clone(), "flat", 0)).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().modified().unwrap(), before);
        let error = run(&options(folder, "folder:3", 0)).unwrap_err().to_string();
        assert!(error.contains("remove it first"), "{error}");
    }

    #[test]
    fn broken_options_are_refused() {
        let folder = PathBuf::from("unused");
        assert!(run(&options(folder, "records:2", 5)).is_err());
        for layout in ["tree", "folder:0", "records:x"] {
            assert!(parse_layout(layout).is_err(), "{layout}");
        }
    }
}
