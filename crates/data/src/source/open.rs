//! Opening a dataset: its snapshot if that still holds, else a listing.

use std::io;
use std::path::{Path, PathBuf};

use belady_control::model::Bytes;

use super::counters::{Counters, Progress};
use super::listing::{self, Directory};
use super::packed::{IndexError, IndexFile};
use super::reader::{Files, Opening, Trailer};
use super::snapshot::{Place, Snapshots};
use super::versions::Freshness;
use super::{
    Catalog, CatalogBuilder, FileEntry, Format, Listed, Source, index, tfrecord, waiting,
    webdataset,
};

/// How to open a dataset.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// `None` looks at the names of the files ([`Format::guess`]).
    pub format: Option<Format>,
    /// Only files with one of these extensions, without the dot and in any case; all files
    /// if there are none.
    pub extensions: Vec<String>,
    pub snapshots: Snapshots,
    /// Whether to read past the page cache what it does not hold, on local disks; `None` for
    /// datasets that would fill more than half of the memory. Smaller ones are better off in
    /// the page cache, which serves the next epoch.
    pub direct: Option<bool>,
    /// Whether a file whose time of modification has changed counts as changed. Without it
    /// only its size does, for storage whose times mean nothing.
    pub verify_times: bool,
    /// When copies of files in caches are compared with the files.
    pub freshness: Freshness,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            format: None,
            extensions: Vec::new(),
            snapshots: Snapshots::default(),
            direct: None,
            verify_times: true,
            freshness: Freshness::default(),
        }
    }
}

/// Why a dataset cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("there is no dataset at {}: check the path", path.display())]
    Missing { path: PathBuf },
    #[error(
        "{} is a file and format {format} needs a directory: name the directory, or a format \
         that packs samples into files (records:SIZE, tfrecord, webdataset)", path.display()
    )]
    NotADirectory { path: PathBuf, format: Format },
    #[error("cannot list {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("no samples in {} as format {format}: {hint}", path.display())]
    Empty { path: PathBuf, format: Format, hint: &'static str },
    #[error(
        "{} has {length} bytes, which is no multiple of the record size {size}: check the \
         size, or move the file out of the dataset", path.display()
    )]
    RecordSize { path: PathBuf, length: u64, size: u64 },
    #[error("{} holds more than 2^32 {what}: split the dataset", path.display())]
    TooMany { path: PathBuf, what: &'static str },
    #[error(
        "cannot tell the format of {} from its name: give it, such as records:4096",
        path.display()
    )]
    CannotGuess { path: PathBuf },
    #[error(transparent)]
    Index(#[from] IndexError),
}

impl OpenError {
    pub(super) fn unreadable(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing { path },
            _ => Self::Unreadable { path, error },
        }
    }
}

/// Opens a dataset: a directory, or one file of a packed format.
pub fn open(
    path: &Path,
    options: &OpenOptions,
    progress: &Progress<'_>,
) -> Result<Box<dyn Source>, OpenError> {
    open_for_others(path, options, progress).map(|(source, _)| source)
}

/// As [`open`]; also says what another process needs to open it without a look at its storage
/// ([`open_listed`](super::open_listed)).
pub fn open_for_others(
    path: &Path,
    options: &OpenOptions,
    progress: &Progress<'_>,
) -> Result<(Box<dyn Source>, Listed), OpenError> {
    let counters = Counters::default();
    let work = || look_at(path, options, progress, &counters);
    let Looked { dataset, format, place, catalog } = waiting::while_listing(path, &counters, work)?;
    let snapshot = place.map(Place::into_path);
    let name = snapshot.as_deref().and_then(Path::file_name);
    let listed = Listed {
        format,
        is_file: dataset.is_file,
        is_local: false,
        snapshot: name.map(|name| name.to_string_lossy().into_owned()),
    };
    let opening = opening(format, options, &catalog, snapshot);
    let source = Files::new(dataset.root, catalog, counters, opening)?;
    let listed = Listed { is_local: source.is_local(), ..listed };
    Ok((Box::new(source), listed))
}

/// How files of a format are read.
pub(super) fn opening(
    format: Format,
    options: &OpenOptions,
    catalog: &Catalog,
    snapshot: Option<PathBuf>,
) -> Opening {
    Opening {
        keep_open: format.is_packed(),
        direct: options.direct.unwrap_or_else(|| is_large(catalog)),
        verify_times: options.verify_times,
        freshness: options.freshness,
        trailer: trailer(format),
        index: index_file(format),
        snapshot,
    }
}

/// What opening a dataset needs of its storage.
struct Looked {
    dataset: Dataset,
    format: Format,
    place: Option<Place>,
    catalog: Catalog,
}

fn look_at(
    path: &Path,
    options: &OpenOptions,
    progress: &Progress<'_>,
    counters: &Counters,
) -> Result<Looked, OpenError> {
    let format = options.format.map_or_else(|| Format::guess_counted(path, counters), Ok)?;
    let dataset = Dataset::at(path, format)?;
    let place = options.snapshots.place(path, &key(format, &options.extensions));
    let kept =
        place.as_ref().and_then(|place| place.load(&dataset.root, options.freshness, counters));
    let catalog = if let Some(catalog) = kept {
        catalog
    } else {
        let begun = std::time::SystemTime::now();
        let builder = dataset.list(options, progress, counters)?;
        let catalog = dataset.check(builder)?.finish();
        if let Some(place) = &place {
            place.keep(&catalog, begun);
        }
        catalog
    };
    Ok(Looked { dataset, format, place, catalog })
}

/// Where the listing of a dataset is kept, if it is: what [`open`] looks for.
pub fn snapshot_path(path: &Path, options: &OpenOptions) -> Option<PathBuf> {
    let format = options.format.or_else(|| Format::guess(path).ok())?;
    options.snapshots.place(path, &key(format, &options.extensions)).map(Place::into_path)
}

/// Whether a dataset is too large to expect it in the page cache.
fn is_large(catalog: &Catalog) -> bool {
    let files = (0..catalog.files()).map(|file| catalog.file_size(file));
    let memory = rustix::system::sysinfo();
    files.sum::<u64>() > memory.totalram as u64 * u64::from(memory.mem_unit) / 2
}

fn trailer(format: Format) -> Option<Trailer> {
    let damage = |payload: &[u8], footer: &[u8]| match footer.try_into() {
        Ok(footer) => tfrecord::damage(payload, footer),
        Err(_) => Some("its checksum is missing".to_owned()),
    };
    (format == Format::TfRecord).then_some(Trailer { length: tfrecord::FOOTER, damage })
}

/// How samples are found in a file, where that takes reading it.
fn index_file(format: Format) -> Option<IndexFile> {
    match format {
        Format::TfRecord => Some(tfrecord::index_file),
        Format::WebDataset => Some(webdataset::index_file),
        Format::Folder | Format::Flat | Format::Records(_) => None,
    }
}

/// What a snapshot holds besides the dataset's place.
fn key(format: Format, extensions: &[String]) -> String {
    let mut extensions = extensions.to_vec();
    for extension in &mut extensions {
        extension.make_ascii_lowercase();
    }
    extensions.sort_unstable();
    format!("{format} {extensions:?}")
}

/// What the path of a dataset that is one file is relative to.
pub(super) fn directory_of(file: &Path) -> PathBuf {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new(".")).to_owned()
}

struct Dataset {
    path: PathBuf,
    /// What the files' paths are relative to.
    root: PathBuf,
    is_file: bool,
    format: Format,
}

impl Dataset {
    fn at(path: &Path, format: Format) -> Result<Self, OpenError> {
        let metadata =
            std::fs::metadata(path).map_err(|error| OpenError::unreadable(path, error))?;
        let path = path.to_owned();
        if metadata.is_dir() {
            return Ok(Self { root: path.clone(), path, is_file: false, format });
        }
        if !format.is_packed() {
            return Err(OpenError::NotADirectory { path, format });
        }
        Ok(Self { root: directory_of(&path), path, is_file: true, format })
    }

    fn list(
        &self,
        options: &OpenOptions,
        progress: &Progress<'_>,
        counters: &Counters,
    ) -> Result<CatalogBuilder, OpenError> {
        let directories = if self.is_file {
            let files = vec![listing::single(&self.path, counters)?];
            progress.listed(1);
            vec![Directory { path: PathBuf::new(), modified: 0, files }]
        } else {
            listing::list(&self.root, &options.extensions, progress, counters)?
        };
        let count: usize = directories.iter().map(|directory| directory.files.len()).sum();
        if u32::try_from(count).is_err() {
            return Err(OpenError::TooMany { path: self.path.clone(), what: "files" });
        }
        if options.freshness != Freshness::Never {
            listing::settle(&directories);
        }
        let root = &self.root;
        let packed = |files, index_file: IndexFile| {
            index::packed(root, files, index_file, progress, counters)
        };
        match self.format {
            Format::Folder => Ok(index::folder(directories)),
            Format::Flat => Ok(index::flat(directories)),
            Format::Records(Bytes(size)) => {
                self.pack(directories, |files| index::records(root, files, size))
            }
            Format::TfRecord => self.pack(directories, |files| packed(files, tfrecord::index_file)),
            Format::WebDataset => {
                self.pack(directories, |files| packed(files, webdataset::index_file))
            }
        }
    }

    /// Indexes the files of a packed format.
    fn pack(
        &self,
        directories: Vec<Directory>,
        index: impl FnOnce(Vec<FileEntry>) -> Result<CatalogBuilder, OpenError>,
    ) -> Result<CatalogBuilder, OpenError> {
        let (mut times, mut files) = (Vec::new(), Vec::new());
        for directory in directories {
            times.push((directory.path, directory.modified));
            files.extend(directory.files);
        }
        if self.is_file {
            // Its directory may hold anything; the file itself is looked at.
            times.clear();
        }
        keep_claimed(self.format, &mut files);
        Ok(CatalogBuilder { directories: times, ..index(files)? })
    }

    fn check(&self, builder: CatalogBuilder) -> Result<CatalogBuilder, OpenError> {
        if !builder.samples.is_empty() {
            return Ok(builder);
        }
        let in_folders = builder.directories.len() > 1;
        let hint = match self.format {
            Format::Folder if in_folders => "its folders hold no files that count",
            Format::Folder => "it has no folders; for files without classes use format flat",
            Format::Flat => "it holds no files that count; hidden ones do not",
            _ => "its files hold no records",
        };
        Err(OpenError::Empty { path: self.path.clone(), format: self.format, hint })
    }
}

/// Where some names are clearly of the format, leaves out what lies beside them.
fn keep_claimed(format: Format, files: &mut Vec<FileEntry>) {
    if files.iter().any(|file| format.claims(&file.path)) {
        files.retain(|file| format.claims(&file.path));
    }
}
