//! Opening a dataset: its snapshot if that still holds, else a listing.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use belady_control::model::Bytes;

use super::counters::{Counters, Progress};
use super::extensions::{self, Extensions};
use super::listing::{self, Directory};
use super::manifest::Manifest;
use super::packed::{IndexError, IndexFile};
use super::reader::{Files, Opening, Trailer};
use super::snapshot::{Place, Snapshots};
use super::versions::Freshness;
use super::{
    Catalog, CatalogBuilder, FileEntry, Format, Listed, Source, index, tfrecord, waiting,
    webdataset,
};

/// Empty classes that are named in an error.
const NAMED: usize = 5;

/// How to open a dataset.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// `None` looks at the names of the files ([`Format::guess`]).
    pub format: Option<Format>,
    pub extensions: Extensions,
    /// Whether class folders may hold no file that counts. Otherwise such a dataset is refused, as
    /// torchvision's ImageFolder refuses it.
    pub allow_empty: bool,
    /// The samples, file by file, instead of what is found: the dataset is the directory that they are
    /// relative to, or a table that lies there.
    pub manifest: Option<Arc<Manifest>>,
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
            extensions: Extensions::default(),
            allow_empty: false,
            manifest: None,
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
        "{} has class folders without a file that counts ({classes}): remove them, or allow it \
         (allow_empty=True, --allow-empty), and they keep their numbers", path.display()
    )]
    EmptyClasses { path: PathBuf, classes: String },
    #[error(
        "{} is {what}, which belady does not read: unpack or convert it, or name the format flat to \
         take every file as a sample, as it is", path.display()
    )]
    Unread { path: PathBuf, what: &'static str },
    #[error("cannot read {}, number {position} in the list of files: {error}", path.display())]
    NoFile { path: PathBuf, position: usize, error: io::Error },
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
    let format = match options.format {
        Some(format) => format,
        None if options.manifest.is_some() => Format::Flat,
        None => Format::guess_counted(path, counters)?,
    };
    let dataset = Dataset::at(path, format, options.manifest.is_some())?;
    let place = options.snapshots.place(path, &key(format, options));
    let kept =
        place.as_ref().and_then(|place| place.load(&dataset.root, options.freshness, counters));
    let catalog = if let Some(catalog) = kept {
        catalog
    } else {
        let begun = std::time::SystemTime::now();
        let builder = dataset.list(options, progress, counters)?;
        let catalog = dataset.check(builder, options)?.finish();
        if let Some(place) = &place {
            place.keep(&catalog, begun);
        }
        catalog
    };
    if let Format::Records(Bytes(size)) = format {
        tell_of_rests(&dataset.root, &catalog, size);
    }
    Ok(Looked { dataset, format, place, catalog })
}

/// Says that files end in less than a record, which is no sample.
fn tell_of_rests(root: &Path, catalog: &Catalog, size: u64) {
    let rest = |file: u32| catalog.file_size(file) % size;
    let odd: Vec<u32> = (0..catalog.files()).filter(|&file| rest(file) > 0).collect();
    if let Some(&first) = odd.first() {
        tracing::warn!(
            files = odd.len(), first = %root.join(catalog.path(first)).display(), bytes = rest(first),
            "left out the ends of files, which are shorter than a record of {size} bytes"
        );
    }
}

/// Where the listing of a dataset is kept, if it is: what [`open`] looks for.
pub fn snapshot_path(path: &Path, options: &OpenOptions) -> Option<PathBuf> {
    let format = options.format.or_else(|| Format::guess(path).ok())?;
    options.snapshots.place(path, &key(format, options)).map(Place::into_path)
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
fn key(format: Format, options: &OpenOptions) -> String {
    if let Some(manifest) = &options.manifest {
        return manifest.key();
    }
    let empty = if options.allow_empty { ", classes may be empty" } else { "" };
    // What was guessed was also looked at for formats that are not read.
    let guessed = if options.format.is_none() { ", guessed" } else { "" };
    format!("{format}, extensions {}{empty}{guessed}", options.extensions)
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
    fn at(path: &Path, format: Format, is_table: bool) -> Result<Self, OpenError> {
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

    fn list(
        &self,
        options: &OpenOptions,
        progress: &Progress<'_>,
        counters: &Counters,
    ) -> Result<CatalogBuilder, OpenError> {
        if let Some(manifest) = &options.manifest {
            let builder = manifest.list(&self.root, progress, counters)?;
            if options.freshness != Freshness::Never {
                listing::settle(&builder.files);
            }
            return Ok(builder);
        }
        let mut directories = if self.is_file {
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
            listing::settle(directories.iter().flat_map(|directory| &directory.files));
        }
        if self.format == Format::Folder && options.extensions == Extensions::Usual {
            listing::keep_images(&self.root, &mut directories);
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

    fn check(
        &self,
        builder: CatalogBuilder,
        options: &OpenOptions,
    ) -> Result<CatalogBuilder, OpenError> {
        if !builder.samples.is_empty() {
            if options.format.is_none() && options.manifest.is_none() {
                self.refuse_unread(&builder)?;
            }
            if self.format == Format::Folder && !options.allow_empty {
                self.refuse_empty_classes(&builder)?;
            }
            return Ok(builder);
        }
        let in_folders = builder.directories.len() > 1;
        let hint = match self.format {
            Format::Folder if in_folders => "its folders hold no files that count",
            Format::Folder => "it has no folders; for files without classes use format flat",
            Format::Flat => "it holds no files that count; hidden ones do not",
            Format::Records(_) => "its files are shorter than a record",
            _ => "its files hold no records",
        };
        Err(OpenError::Empty { path: self.path.clone(), format: self.format, hint })
    }

    /// Files that hold many samples in a way that is not read are no samples, if the user has not said
    /// that they are.
    fn refuse_unread(&self, builder: &CatalogBuilder) -> Result<(), OpenError> {
        if self.format.is_packed() {
            return Ok(());
        }
        let own_name = Path::new(self.path.file_name().unwrap_or_default());
        if let Some(what) = extensions::unread(own_name) {
            return Err(OpenError::Unread { path: self.path.clone(), what });
        }
        for FileEntry { path, .. } in &builder.files {
            if let Some(what) = extensions::unread(path) {
                return Err(OpenError::Unread { path: self.root.join(path), what });
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

/// Where some names are clearly of the format, leaves out what lies beside them.
fn keep_claimed(format: Format, files: &mut Vec<FileEntry>) {
    if files.iter().any(|file| format.claims(&file.path)) {
        files.retain(|file| format.claims(&file.path));
    }
}
