//! Several sources concatenated into one dataset.
//!
//! Sample 0 of the second part follows the last sample of the first. Files keep their paths, with a
//! prefix for each part, such as its directory. Classes are identified by name: a class of two
//! parts is one class, and a label is an index into the classes of all parts, in the order of their
//! first appearance. If all parts have the same classes, labels do not change.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use belady_base::SampleId;

use super::{
    Begin, Catalog, CatalogBuilder, FileEntry, Operations, ReadError, SampleEntry, SampleLocation,
    Source, Version, Want,
};

/// Why sources cannot be joined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinSourcesError {
    /// No sources were given.
    #[error("there is nothing to join: give at least one dataset")]
    Nothing,
    /// Ids have 32 bits.
    #[error("the joined datasets have {0} samples, more than 2^32: join fewer")]
    TooMany(u64),
}

/// Several sources as one.
#[derive(Debug)]
pub struct Joined {
    catalog: Catalog,
    parts: Vec<JoinedPart>,
}

#[derive(Debug)]
struct JoinedPart {
    source: Arc<dyn Source>,
    /// The number of its first sample.
    first: SampleId,
}

impl Joined {
    /// Joins sources, each with a prefix for the paths of its files.
    ///
    /// # Errors
    ///
    /// If there is no source, or the samples exceed 2³².
    pub fn new(parts: Vec<(PathBuf, Arc<dyn Source>)>) -> Result<Self, JoinSourcesError> {
        if parts.is_empty() {
            return Err(JoinSourcesError::Nothing);
        }
        let samples = parts.iter().map(|(_, source)| u64::from(source.catalog().len())).sum();
        let files = parts.iter().map(|(_, source)| files(source.catalog())).sum();
        if u32::try_from(u64::max(samples, files)).is_err() {
            return Err(JoinSourcesError::TooMany(u64::max(samples, files)));
        }
        let mut builder = CatalogBuilder::default();
        let mut classes = HashMap::new();
        // If any part has files, each sample of a part without files becomes a file.
        let any_files = parts.iter().any(|(_, source)| source.catalog().files() > 0);
        let mut joined = Vec::with_capacity(parts.len());
        for (name, source) in parts {
            let first = builder.samples.len() as SampleId;
            append(&mut builder, &mut classes, &name, source.catalog(), any_files);
            joined.push(JoinedPart { source, first });
        }
        let fingerprints = joined.iter().map(|part| part.source.catalog().fingerprint());
        let catalog = builder.finish().of_parts(fingerprints);
        Ok(Self { catalog, parts: joined })
    }

    /// Returns the part of a sample.
    fn part(&self, sample: SampleId) -> &JoinedPart {
        let after = self.parts.partition_point(|part| part.first <= sample);
        // Empty parts have the same first sample as the part after them, which is the last of
        // these.
        &self.parts[after - 1]
    }

    /// Reads wants that lie in one part.
    fn read_part(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        let Some(want) = wants.first() else { return Ok(()) };
        let JoinedPart { source, first } = self.part(want.sample);
        for want in wants.iter_mut() {
            want.sample -= first;
        }
        let read = source.read(wants);
        for want in wants.iter_mut() {
            want.sample += first;
        }
        read.map_err(|error| error.renumbered(|sample| sample + first))
    }
}

fn files(catalog: &Catalog) -> u64 {
    u64::from(catalog.files().max(catalog.len()))
}

fn append(
    builder: &mut CatalogBuilder,
    classes: &mut HashMap<OsString, u32>,
    name: &std::path::Path,
    part: &Catalog,
    any_files: bool,
) {
    let labels: Vec<u32> = part
        .classes()
        .into_iter()
        .map(|class| {
            let next = builder.classes.len() as u32;
            *classes.entry(class).or_insert_with_key(|class| {
                builder.classes.push(class.clone());
                next
            })
        })
        .collect();
    let first_file = if any_files { builder.files.len() } else { builder.samples.len() } as u32;
    for file in 0..part.files() {
        let entry = part.file(file);
        builder.files.push(FileEntry { path: name.join(&entry.path), ..entry });
    }
    for sample in 0..part.len() {
        let SampleLocation { file, offset, length } = part.location(sample);
        let location = SampleLocation { file: first_file + file, offset, length };
        // A label without a name does not change.
        let label =
            part.label(sample).map(|label| labels.get(label as usize).map_or(label, |&it| it));
        builder.samples.push(SampleEntry { location, label });
        if any_files && part.files() == 0 {
            let path = name.join(format!("sample {sample}"));
            builder.files.push(FileEntry { path, size: length, modified: 0, changed: 0 });
        }
    }
}

impl Source for Joined {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        let first = |want: &Want<'_>| self.part(want.sample).first;
        wants.chunk_by_mut(|a, b| first(a) == first(b)).try_for_each(|wants| self.read_part(wants))
    }

    /// Returns the least number of all parts: a part that reads one by one would delay all wants.
    fn together(&self) -> usize {
        let filled = self.parts.iter().filter(|part| !part.source.catalog().is_empty());
        filled.map(|part| part.source.together()).min().unwrap_or(1)
    }

    fn compare(&self, sample: SampleId) -> Result<(), ReadError> {
        let JoinedPart { source, first } = self.part(sample);
        let compared = source.compare(sample - first);
        compared.map_err(|error| error.renumbered(|sample| sample + first))
    }

    fn is_compared(&self, sample: SampleId) -> bool {
        let JoinedPart { source, first } = self.part(sample);
        source.is_compared(sample - first)
    }

    fn version(&self, sample: SampleId) -> Version {
        let JoinedPart { source, first } = self.part(sample);
        source.version(sample - first)
    }

    fn begin(&self, what: Begin) {
        self.parts.iter().for_each(|part| part.source.begin(what));
    }

    fn operations(&self) -> Operations {
        let all = self.parts.iter().map(|part| part.source.operations());
        all.fold(Operations::default(), |sum, part| Operations {
            list: sum.list + part.list,
            open: sum.open + part.open,
            stat: sum.stat + part.stat,
            read: sum.read + part.read,
            bytes: sum.bytes + part.bytes,
        })
    }
}
