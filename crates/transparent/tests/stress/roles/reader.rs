//! A reader: each thread reads all files in its own order, epoch after epoch, by various calls and
//! names, and compares every byte.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;

use xxhash_rust::xxh3::xxh3_64;

use super::Settings;
use crate::files;
use crate::processes::MARK;
use crate::random::Random;

const THREADS: u64 = 8;

pub fn read(settings: &Settings) {
    std::env::set_current_dir(&settings.dataset).unwrap();
    let expected = files::expected(&settings.dataset, settings.files);
    let before = descriptors();
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (expected, barrier) = (&expected, &barrier);
            scope.spawn(move || {
                let mut random = Random::new(settings.seed ^ number << 32);
                for epoch in settings.first_epoch..settings.epochs {
                    read_epoch(&settings.dataset, expected, &mut random, number == 0);
                    if barrier.wait().is_leader() {
                        println!("\n{MARK}epoch {epoch}");
                    }
                }
            });
        }
    });
    assert_eq!(descriptors(), before, "a descriptor was left open");
}

fn read_epoch(dataset: &Path, files: &[(String, u64)], random: &mut Random, prints: bool) {
    let mut order: Vec<_> = files.iter().collect();
    random.shuffle(&mut order);
    for (at, (name, right)) in order.iter().enumerate() {
        if prints && at % (order.len() / 4).max(1) == 0 {
            println!("\n{MARK}file {at}");
        }
        let path = spell(dataset, name, random);
        let bytes = read_file(&path, random);
        assert_eq!(xxh3_64(&bytes), *right, "{} has wrong bytes: {}", path.display(), bytes.len());
    }
}

/// Returns one of the file's names. The dataset is the working directory.
fn spell(dataset: &Path, name: &str, random: &mut Random) -> PathBuf {
    match random.below(4) {
        0 => name.into(),
        1 => format!("./{name}").into(),
        2 => dataset.join("class 0").join("..").join(name),
        _ => dataset.join(name),
    }
}

fn read_file(path: &Path, random: &mut Random) -> Vec<u8> {
    let by = random.below(4);
    if by == 0 {
        return fs::read(path).unwrap();
    }
    let named = fs::metadata(path).unwrap();
    let mut file = File::open(path).unwrap();
    let opened = file.metadata().unwrap();
    let metadata = |of: &fs::Metadata| (of.dev(), of.ino(), of.len(), of.mode(), of.mtime_nsec());
    assert_eq!(metadata(&named), metadata(&opened), "stat and fstat of {}", path.display());
    let mut bytes = vec![0; named.len() as usize];
    match by {
        1 => {
            for (at, piece) in bytes.chunks_mut(5_000).enumerate() {
                file.read_exact_at(piece, at as u64 * 5_000).unwrap();
            }
        }
        2 => {
            let (front, back) = bytes.split_at_mut(named.len() as usize / 2);
            file.seek(SeekFrom::Start(front.len() as u64)).unwrap();
            file.read_exact(back).unwrap();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_exact(front).unwrap();
        }
        _ => {
            // A duplicate shares the file position.
            let mut twin = file.try_clone().unwrap();
            let (front, back) = bytes.split_at_mut(named.len() as usize / 3);
            file.read_exact(front).unwrap();
            twin.read_exact(back).unwrap();
        }
    }
    bytes
}

/// Returns the number of open descriptors.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}
