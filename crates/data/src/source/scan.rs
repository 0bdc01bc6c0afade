//! Scans a dataset: lists its files and finds their samples.

use std::path::{Path, PathBuf};

use belady_control::model::Bytes;

use super::counters::OperationCounters;
use super::error::OpenError;
use super::extensions::{self, Extensions};
use super::listing::{self, ListedDirectory};
use super::options::{OpenOptions, index_file};
use super::progress::ListingProgress;
use super::versions::Freshness;
use super::{CatalogBuilder, DatasetFormat, FileEntry, index};

/// How many empty classes an error names.
const NAMED: usize = 5;

/// A dataset's path and format.
pub(super) struct DatasetPath {
    path: PathBuf,
    /// The directory that the files' paths are relative to.
    pub root: PathBuf,
    pub is_file: bool,
    pub format: DatasetFormat,
}

impl DatasetPath {
    pub fn at(path: &Path, format: DatasetFormat, is_table: bool) -> Result<Self, OpenError> {
        let metadata =
            std::fs::metadata(path).map_err(|error| OpenError::unreadable(path, error))?;
        let path = path.to_owned();
        if metadata.is_dir() {
            return Ok(Self { root: path.clone(), path, is_file: false, format });
        }
        if !format.is_packed() && !is_table {
            return Err(OpenError::NotADirectory { path, format });
        }
        Ok(Self { root: directory_of(&path), path, is_file: true, format })
    }

    /// Lists the files, finds their samples and checks that the result is a usable dataset.
    pub fn scan(
        &self,
        options: &OpenOptions,
        progress: &ListingProgress<'_>,
        counters: &OperationCounters,
    ) -> Result<CatalogBuilder, OpenError> {
        let builder = match &options.manifest {
            Some(manifest) => {
                let builder = manifest.list(&self.root, progress, counters)?;
                if options.freshness != Freshness::Never {
                    listing::settle(&builder.files);
                }
                builder
            }
            None => self.index(self.list(options, progress, counters)?, progress, counters)?,
        };
        self.check(&builder, options)?;
        Ok(builder)
    }

    fn list(
        &self,
        options: &OpenOptions,
        progress: &ListingProgress<'_>,
        counters: &OperationCounters,
    ) -> Result<Vec<ListedDirectory>, OpenError> {
        let mut directories = if self.is_file {
            let files = vec![listing::single(&self.path, counters)?];
            progress.listed(1);
            vec![ListedDirectory { path: PathBuf::new(), modified: 0, files }]
        } else {
            listing::list(&self.root, &options.extensions, progress, counters)?
        };
        let count: usize = directories.iter().map(|directory| directory.files.len()).sum();
        if u32::try_from(count).is_err() {
            return Err(OpenError::TooMany { path: self.path.clone(), what: "files" });
        }
        if options.freshness != Freshness::Never {
            listing::settle(directories.iter().flat_map(|directory| &directory.files));
        }
        if self.format == DatasetFormat::Folder && options.extensions == Extensions::Usual {
            listing::keep_images(&self.root, &mut directories);
        }
        Ok(directories)
    }

    fn index(
        &self,
        directories: Vec<ListedDirectory>,
        progress: &ListingProgress<'_>,
        counters: &OperationCounters,
    ) -> Result<CatalogBuilder, OpenError> {
        if self.format == DatasetFormat::Folder {
            return Ok(index::folder(directories));
        }
        if self.format == DatasetFormat::Flat {
            return Ok(index::flat(directories));
        }
        let (mut times, mut files) = (Vec::new(), Vec::new());
        for directory in directories {
            times.push((directory.path, directory.modified));
            files.extend(directory.files);
        }
        if self.is_file {
            // Its directory may hold anything; a snapshot compares the file itself.
            times.clear();
        }
        keep_claimed(self.format, &mut files);
        let builder = match (index_file(self.format), self.format) {
            (Some(index), _) => index::packed(&self.root, files, index, progress, counters)?,
            (None, DatasetFormat::Records(Bytes(size))) => index::records(&self.root, files, size)?,
            (None, _) => CatalogBuilder::default(),
        };
        Ok(CatalogBuilder { directories: times, ..builder })
    }

    fn check(&self, builder: &CatalogBuilder, options: &OpenOptions) -> Result<(), OpenError> {
        if !builder.samples.is_empty() {
            if options.format.is_none() && options.manifest.is_none() {
                self.refuse_unsupported(builder)?;
            }
            if self.format == DatasetFormat::Folder && !options.allow_empty {
                self.refuse_empty_classes(builder)?;
            }
            return Ok(());
        }
        let in_folders = builder.directories.len() > 1;
        let hint = match self.format {
            DatasetFormat::Folder if in_folders => "its folders hold no files that count",
            DatasetFormat::Folder => "it has no folders; use format flat for files without classes",
            DatasetFormat::Flat => "it holds no files that count; hidden files do not",
            DatasetFormat::Records(_) => "its files are shorter than a record",
            _ => "its files hold no records",
        };
        Err(OpenError::Empty { path: self.path.clone(), format: self.format, hint })
    }

    /// Refuses files of unsupported packed formats, unless the user has named a format.
    fn refuse_unsupported(&self, builder: &CatalogBuilder) -> Result<(), OpenError> {
        if self.format.is_packed() {
            return Ok(());
        }
        let own_name = Path::new(self.path.file_name().unwrap_or_default());
        if let Some(what) = extensions::unsupported(own_name) {
            return Err(OpenError::Unsupported { path: self.path.clone(), what });
        }
        for FileEntry { path, .. } in &builder.files {
            if let Some(what) = extensions::unsupported(path) {
                return Err(OpenError::Unsupported { path: self.root.join(path), what });
            }
        }
        Ok(())
    }

    fn refuse_empty_classes(&self, builder: &CatalogBuilder) -> Result<(), OpenError> {
        let mut empty = vec![true; builder.classes.len()];
        for label in builder.samples.iter().filter_map(|sample| sample.label) {
            empty[label as usize] = false;
        }
        let classes = builder.classes.iter().zip(empty).filter(|(_, empty)| *empty);
        let mut names: Vec<String> = classes.map(|(name, _)| name.display().to_string()).collect();
        if names.is_empty() {
            return Ok(());
        }
        if names.len() > NAMED {
            let more = names.len() - NAMED;
            names.truncate(NAMED);
            names.push(format!("{more} more"));
        }
        Err(OpenError::EmptyClasses { path: self.path.clone(), classes: names.join(", ") })
    }
}

/// Returns the directory of a dataset that is one file.
pub(super) fn directory_of(file: &Path) -> PathBuf {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

/// Leaves out other files if the names of some say that they have the format.
fn keep_claimed(format: DatasetFormat, files: &mut Vec<FileEntry>) {
    if files.iter().any(|file| format.claims(&file.path)) {
        files.retain(|file| format.claims(&file.path));
    }
}
