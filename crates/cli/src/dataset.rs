//! Opening the dataset that a command names, with a line that says how listing goes.

use std::path::PathBuf;
use std::sync::Arc;

use belady_data::source::{
    Extensions, Format, OpenOptions, Progress, Seen, Snapshots, Source, open,
};
use belady_peer::{Cluster, open_together};
use belady_sim::scenario::Snapshot;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::logging;
use crate::text::grouped;

#[derive(Args, Clone, Debug)]
pub struct DatasetArgs {
    /// A directory, or one file of a packed format
    #[arg(value_name = "DATASET")]
    pub dataset: PathBuf,
    /// folder, flat, records:SIZE, tfrecord or webdataset [default: as the files' names look]
    #[arg(long, value_name = "F")]
    format: Option<Format>,
    /// Only files that end so, such as jpg,png; all if it is empty [default: in class folders images, if
    /// there are any]
    #[arg(long, value_name = "E,...", value_delimiter = ',')]
    extensions: Option<Vec<String>>,
    /// Class folders may hold no file that counts
    #[arg(long)]
    allow_empty: bool,
    /// Where lists of datasets are kept [default: see `belady help environment`]
    #[arg(long, value_name = "DIR")]
    snapshots: Option<PathBuf>,
    /// List the dataset anew and keep no list of it
    #[arg(long, conflicts_with = "snapshots")]
    no_snapshot: bool,
}

impl DatasetArgs {
    /// How to open it; `described` is what a system file says of snapshots.
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

    /// What the dataset is called in caches and warnings.
    pub fn name(&self) -> String {
        let whole = self.dataset.canonicalize();
        let path = whole.as_deref().unwrap_or(&self.dataset);
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        name.unwrap_or_else(|| path.display().to_string())
    }

    pub fn open(&self, options: &OpenOptions) -> anyhow::Result<Box<dyn Source>> {
        showing_progress(|progress| Ok(open(&self.dataset, options, progress)?))
    }

    /// By all ranks of a cluster, of which only the first looks at the storage.
    pub fn open_together(
        &self,
        cluster: &Cluster,
        options: &OpenOptions,
    ) -> anyhow::Result<Arc<dyn Source>> {
        showing_progress(|progress| Ok(open_together(cluster, &self.dataset, options, progress)?))
    }
}

fn showing_progress<T>(work: impl FnOnce(&Progress<'_>) -> anyhow::Result<T>) -> anyhow::Result<T> {
    let bar = logging::progress(ProgressBar::new_spinner());
    if let Ok(style) = ProgressStyle::with_template("{spinner} listing: {msg}") {
        bar.set_style(style);
    }
    let tell = |seen: Seen| bar.set_message(listed(seen));
    let opened =
        if bar.is_hidden() { work(&Progress::silent()) } else { work(&Progress::telling(&tell)) };
    bar.finish_and_clear();
    opened
}

fn listed(Seen { directories, files, indexed }: Seen) -> String {
    let number = |count: u64| grouped(count as f64, 0);
    let found = format!("{} files in {} folders", number(files), number(directories));
    if indexed == 0 { found } else { format!("{found}, {} indexed", number(indexed)) }
}
