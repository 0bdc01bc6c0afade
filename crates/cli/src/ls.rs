//! `belady ls`: prints a dataset's samples, sizes and classes.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use belady_data::source::{Catalog, DatasetFormat, snapshot_path};
use clap::Args;
use serde_json::{Value, json};

use crate::dataset::DatasetArgs;
use crate::text::{bytes, chart, grouped, table};

/// Rows of the chart of sizes.
const ROWS: usize = 16;
/// Classes that are shown by name.
const CLASSES: usize = 12;

/// The options of `belady ls`.
#[derive(Args, Clone, Debug)]
pub struct LsArgs {
    #[command(flatten)]
    dataset: DatasetArgs,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &LsArgs) -> anyhow::Result<()> {
    let options = args.dataset.options(None, None);
    let source = args.dataset.open(&options)?;
    let snapshot = snapshot_path(&args.dataset.dataset, &options).filter(|path| path.exists());
    let format = options.format.map_or_else(|| DatasetFormat::guess(&args.dataset.dataset), Ok)?;
    let summary = DatasetSummary::new(source.catalog(), format, snapshot);
    // Not `println`, which panics when the reader of a pipe has gone.
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{:#}", summary.json(&args.dataset.dataset))?;
    } else {
        out.write_all(summary.text()?.as_bytes())?;
    }
    Ok(())
}

struct DatasetSummary {
    format: String,
    samples: u64,
    files: u64,
    bytes: u64,
    smallest: u64,
    largest: u64,
    /// Samples of each class, in the order of labels.
    classes: Vec<(String, u64)>,
    sizes: SizeHistogram,
    snapshot: Option<PathBuf>,
    fingerprint: u64,
}

impl DatasetSummary {
    fn new(catalog: &Catalog, format: DatasetFormat, snapshot: Option<PathBuf>) -> Self {
        let names = catalog.classes().into_iter().map(|name| name.display().to_string());
        let mut classes: Vec<(String, u64)> = names.map(|name| (name, 0)).collect();
        let mut sizes = SizeHistogram::default();
        let (mut bytes, mut smallest, mut largest) = (0, u64::MAX, 0);
        for sample in 0..catalog.len() {
            let size = catalog.size(sample);
            sizes.add(size);
            bytes += size;
            smallest = smallest.min(size);
            largest = largest.max(size);
            let label = catalog.label(sample).map(|label| label as usize);
            if let Some((_, count)) = label.and_then(|label| classes.get_mut(label)) {
                *count += 1;
            }
        }
        Self {
            format: format.to_string(),
            samples: catalog.len().into(),
            files: catalog.files().into(),
            bytes,
            smallest: smallest.min(largest),
            largest,
            classes,
            sizes,
            snapshot,
            fingerprint: catalog.fingerprint(),
        }
    }

    fn mean(&self) -> f64 {
        self.bytes as f64 / self.samples.max(1) as f64
    }

    fn json(&self, dataset: &Path) -> Value {
        let class = |(name, samples): &(String, u64)| json!({ "name": name, "samples": samples });
        let size = |&(from, to, samples): &(u64, u64, u64)| json!({ "from": from, "to": to, "samples": samples });
        json!({
            "dataset": dataset,
            "format": self.format,
            "samples": self.samples,
            "files": self.files,
            "bytes": self.bytes,
            "smallest": self.smallest,
            "mean": self.mean(),
            "largest": self.largest,
            "classes": self.classes.iter().map(class).collect::<Vec<_>>(),
            "sizes": self.sizes.rows(ROWS).iter().map(size).collect::<Vec<_>>(),
            "snapshot": self.snapshot,
            "fingerprint": format!("{:016x}", self.fingerprint),
        })
    }

    fn text(&self) -> Result<String, std::fmt::Error> {
        let number = |count: u64| grouped(count as f64, 0);
        let mut out = String::new();
        writeln!(out, "format    {}", self.format)?;
        writeln!(out, "samples   {}", number(self.samples))?;
        writeln!(out, "files     {}", number(self.files))?;
        writeln!(out, "bytes     {}", bytes(self.bytes))?;
        let [smallest, mean, largest] =
            [self.smallest, self.mean().round() as u64, self.largest].map(bytes);
        writeln!(out, "a sample  {smallest} to {largest}, {mean} on average")?;
        match &self.snapshot {
            Some(path) => writeln!(out, "snapshot  {}", path.display())?,
            None => writeln!(out, "snapshot  none")?,
        }
        let rows = self.sizes.rows(ROWS);
        writeln!(out, "\nSizes")?;
        let all = self.samples.max(1) as f64;
        let label = |from: u64, to: u64| match to - from {
            0 => power_of_two(from),
            // Up to the next power of two, which a size may not reach.
            _ => format!("{} to {}", power_of_two(from), power_of_two(to.saturating_add(1))),
        };
        chart(
            &mut out,
            rows.iter().map(|&(from, to, count)| (label(from, to), count as f64 / all)),
        )?;
        if !self.classes.is_empty() {
            writeln!(out, "\n{} classes", number(self.classes.len() as u64))?;
            let shown = self.classes.iter().take(CLASSES);
            let rows: Vec<Vec<String>> =
                shown.map(|(name, count)| vec![format!("  {name}"), number(*count)]).collect();
            out += &table(&["  class", "samples"], &rows);
            if self.classes.len() > CLASSES {
                let more = number((self.classes.len() - CLASSES) as u64);
                writeln!(out, "  and {more} more; --json has them")?;
            }
        }
        Ok(out)
    }
}

/// Formats a power of two, such as 512 B or 64 KiB.
fn power_of_two(size: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (size.checked_ilog2().unwrap_or(0) / 10) as usize;
    format!("{} {}", size >> (10 * unit), UNITS[unit])
}

/// Counts of samples by size: one for empty samples, and one for each power of two.
#[derive(Clone, Debug)]
struct SizeHistogram([u64; 65]);

impl Default for SizeHistogram {
    fn default() -> Self {
        Self([0; 65])
    }
}

impl SizeHistogram {
    fn add(&mut self, size: u64) {
        self.0[size.checked_ilog2().map_or(0, |power| power as usize + 1)] += 1;
    }

    /// Returns at most `most` rows, from the first to the last count that is not zero. A row is the
    /// smallest size, the largest size and the number of samples.
    fn rows(&self, most: usize) -> Vec<(u64, u64, u64)> {
        let used = |&(_, &count): &(usize, &u64)| count > 0;
        let Some((first, _)) = self.0.iter().enumerate().find(used) else { return vec![] };
        let last = self.0.iter().rposition(|&count| count > 0).unwrap_or(first);
        let at_once = (last + 1 - first).div_ceil(most);
        (first..=last)
            .step_by(at_once)
            .map(|from| {
                let to = (from + at_once - 1).min(last);
                (Self::least(from), Self::most(to), self.0[from..=to].iter().sum())
            })
            .collect()
    }

    fn least(index: usize) -> u64 {
        if index == 0 { 0 } else { 1 << (index - 1) }
    }

    fn most(index: usize) -> u64 {
        // One less than 2^index, also where that is 2^64.
        u64::MAX.checked_shr(64 - index as u32).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(sizes: &[u64], most: usize) -> Vec<(u64, u64, u64)> {
        let mut histogram = SizeHistogram::default();
        for &size in sizes {
            histogram.add(size);
        }
        histogram.rows(most)
    }

    #[test]
    fn sizes_fall_between_powers_of_two() {
        assert_eq!(rows(&[], 4), []);
        assert_eq!(rows(&[0, 0], 4), [(0, 0, 2)]);
        assert_eq!(rows(&[0, 1, 2, 3, 4], 4), [(0, 0, 1), (1, 1, 1), (2, 3, 2), (4, 7, 1)]);
        assert_eq!(
            rows(&[100, 1000], 4),
            [(64, 127, 1), (128, 255, 0), (256, 511, 0), (512, 1023, 1)]
        );
        assert_eq!(rows(&[u64::MAX], 4), [(1 << 63, u64::MAX, 1)]);
    }

    #[test]
    fn many_powers_share_rows() {
        let sizes: Vec<u64> = (0..40).map(|power| 1 << power).collect();
        let rows = rows(&sizes, 16);
        assert!(rows.len() <= 16);
        assert_eq!(rows.iter().map(|row| row.2).sum::<u64>(), 40);
        assert!(rows.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0));
    }
}
