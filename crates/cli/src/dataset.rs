//! Opens the dataset that a command names, and shows the progress of listing it.

use std::path::PathBuf;
use std::sync::Arc;

use belady_data::source::{
    DatasetFormat, Extensions, ListingCounts, ListingProgress, OpenOptions, Snapshots, Source, open,
};
use belady_peer::{Cluster, open_together};
use belady_scenario::Snapshot;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::text::grouped;
use belady_base::logging;

/// The options of all commands that open a dataset.
#[derive(Args, Clone, Debug)]
pub struct DatasetArgs {
    /// The dataset: a directory, or one file of a packed format
    #[arg(value_name = "DATASET")]
    pub dataset: PathBuf,
    /// Format: folder, flat, records:SIZE, tfrecord or webdataset [default: guessed from the files'
    /// names]
    #[arg(long, value_name = "F")]
    format: Option<DatasetFormat>,
    /// Only files with these extensions, such as jpg,png; all files if empty [default: images in
    /// class folders that have any, otherwise all files]
    #[arg(long, value_name = "E,...", value_delimiter = ',')]
    extensions: Option<Vec<String>>,
    /// Allow class folders without a matching file
    #[arg(long)]
    allow_empty: bool,
    /// Directory of dataset listings [default: see `belady help environment`]
    #[arg(long, value_name = "DIR")]
    snapshots: Option<PathBuf>,
    /// List the dataset again, and store no listing
    #[arg(long, conflicts_with = "snapshots")]
    no_snapshot: bool,
}

impl DatasetArgs {
    /// Returns how to open the dataset. `described` is the system file's setting of snapshots.
    pub fn options(&self, direct: Option<bool>, described: Option<&Snapshot>) -> OpenOptions {
        let snapshots = match (&self.snapshots, described) {
            _ if self.no_snapshot => Snapshots::Off,
            (Some(directory), _) | (None, Some(Snapshot::In(directory))) => {
                Snapshots::In(directory.clone())
            }
            (None, Some(Snapshot::Off)) => Snapshots::Off,
            (None, Some(Snapshot::On) | None) => Snapshots::Usual,
        };
        let extensions = self.extensions.as_ref().map_or(Extensions::Usual, |given| {
            Extensions::only(given.iter().filter(|one| !one.is_empty()))
        });
        OpenOptions {
            format: self.format,
            extensions,
            allow_empty: self.allow_empty,
            snapshots,
            direct,
            ..OpenOptions::default()
        }
    }

    /// Returns the dataset's name in caches and warnings.
    pub fn name(&self) -> String {
        let whole = self.dataset.canonicalize();
        let path = whole.as_deref().unwrap_or(&self.dataset);
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| path.display().to_string())
    }

    /// Opens the dataset.
    pub fn open(&self, options: &OpenOptions) -> anyhow::Result<Box<dyn Source>> {
        showing_progress(|progress| Ok(open(&self.dataset, options, progress)?))
    }

    /// Opens the dataset on all ranks of a cluster; only rank 0 lists the storage.
    pub fn open_together(
        &self,
        cluster: &Cluster,
        options: &OpenOptions,
    ) -> anyhow::Result<Arc<dyn Source>> {
        showing_progress(|progress| Ok(open_together(cluster, &self.dataset, options, progress)?))
    }
}

fn showing_progress<T>(
    work: impl FnOnce(&ListingProgress<'_>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let bar = logging::progress(ProgressBar::new_spinner());
    if let Ok(style) = ProgressStyle::with_template("{spinner} listing: {msg}") {
        bar.set_style(style);
    }
    let tell = |seen: ListingCounts| bar.set_message(listed(seen));
    let opened = if bar.is_hidden() {
        work(&ListingProgress::silent())
    } else {
        work(&ListingProgress::reporting(&tell))
    };
    bar.finish_and_clear();
    opened
}

fn listed(ListingCounts { directories, files, indexed }: ListingCounts) -> String {
    let number = |count: u64| grouped(count as f64, 0);
    let found = format!("{} files in {} folders", number(files), number(directories));
    if indexed == 0 { found } else { format!("{found}, {} indexed", number(indexed)) }
}
