//! The faults, and the victim's counters that show them.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use crate::node::Vitals;
use crate::proxy::Proxy;
use crate::random::Random;

/// Space on a full disk: enough for an index and a few samples.
const LEFT: u64 = 128 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Connections from one node to another end, and no new ones pass for a while.
    Cut,
    /// A link is slow for a while.
    Delay,
    /// Bits are flipped on a link.
    Flip,
    /// A node's disk tier is overwritten.
    Damage,
    /// A node is killed, and restarts on a disk that is full for a while.
    FullDisk,
    Kill,
    /// A node's process is stopped for a while.
    Stop,
    /// No byte passes to or from a node for a while, and no connection ends.
    Isolate,
}

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Cut,
        Self::Delay,
        Self::Flip,
        Self::Damage,
        Self::FullDisk,
        Self::Kill,
        Self::Stop,
        Self::Isolate,
    ];

    /// Kills are rare: each removes a node for long.
    pub fn draw(random: &mut Random) -> Self {
        match random.between(0, 28) {
            0..=7 => Self::Cut,
            8..=12 => Self::Delay,
            13..=18 => Self::Flip,
            19..=21 => Self::Damage,
            22..=23 => Self::FullDisk,
            24..=25 => Self::Stop,
            26..=27 => Self::Isolate,
            _ => Self::Kill,
        }
    }

    /// Returns the counter of the victim that shows the fault. Kills, stops and delays show
    /// elsewhere.
    pub fn counter(self, vitals: &Vitals) -> u64 {
        match self {
            Self::Cut | Self::Isolate => vitals.failures,
            Self::Flip => vitals.failures + vitals.damaged,
            Self::Damage => vitals.tier_damaged,
            Self::FullDisk => vitals.puts_refused,
            Self::Delay | Self::Kill | Self::Stop => 0,
        }
    }
}

/// Overwrites a part of every sample file in a disk tier; returns whether there was one.
pub fn damage(tier: &Path, random: &mut Random) -> bool {
    let mut any = false;
    for file in files(tier) {
        let Ok(open) = OpenOptions::new().read(true).write(true).open(&file) else { continue };
        let length = open.metadata().map_or(0, |meta| meta.len());
        // The index is small and not a target.
        if length < 1 << 16 || !file.to_string_lossy().contains("segment") {
            continue;
        }
        for _ in 0..20 {
            let at = random.between(0, length - 1);
            let mut byte = [0];
            if open.read_exact_at(&mut byte, at).is_ok() {
                any |= open.write_all_at(&[byte[0] ^ 0x40], at).is_ok();
            }
        }
    }
    any
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    let Ok(entries) = std::fs::read_dir(directory) else { return found };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// Fills the disk of a tier: the tier can be opened, and cannot grow.
pub fn fill(disk: &Path) {
    let ballast = vec![0; 1 << 12];
    let Ok(mut file) = OpenOptions::new().create(true).append(true).open(disk.join("ballast"))
    else {
        return;
    };
    let mut length = 0u64;
    while std::io::Write::write_all(&mut file, &ballast).is_ok() {
        length += ballast.len() as u64;
    }
    let _ = file.set_len(length.saturating_sub(LEFT));
}

pub fn empty(disk: &Path) {
    let _ = std::fs::remove_file(disk.join("ballast"));
}

pub fn delayed(proxy: &Proxy) -> u64 {
    proxy.state.delayed.load(Ordering::SeqCst)
}
