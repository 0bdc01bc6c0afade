//! Several sources laid end to end as one dataset.
//!
//! Sample 0 of the second part follows the last one of the first. Files keep their own paths, put
//! behind a name for each part, such as the directory it lies in. Classes are told apart by
//! name: a class that two parts have is one class, and a label is an index into the classes of
//! all parts together, in the order in which they first come. Where all parts have the same
//! classes, labels are what they were.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use super::{
    Begin, Catalog, CatalogBuilder, FileEntry, Location, Operations, ReadError, SampleEntry,
    Source, Version, Want,
};
use crate::SampleId;

/// Why sources cannot be joined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    #[error("there is nothing to join; give at least one dataset")]
    Nothing,
    #[error("the joined datasets have {0} samples together, which is more than 2^32: join fewer")]
    TooMany(u64),
}

/// Several sources as one.
#[derive(Debug)]
pub struct Joined {
    catalog: Catalog,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    source: Arc<dyn Source>,
    /// Number of its first sample.
    first: SampleId,
}

impl Joined {
    /// Lays the parts end to end; each comes with what its files' paths are put behind.
    pub fn new(parts: Vec<(PathBuf, Arc<dyn Source>)>) -> Result<Self, JoinError> {
        if parts.is_empty() {
            return Err(JoinError::Nothing);
        }
        let samples = parts.iter().map(|(_, source)| u64::from(source.catalog().len())).sum();
        let files = parts.iter().map(|(_, source)| files(source.catalog())).sum();
        if u32::try_from(u64::max(samples, files)).is_err() {
            return Err(JoinError::TooMany(u64::max(samples, files)));
        }
        let mut builder = CatalogBuilder::default();
        let mut classes = HashMap::new();
        // Samples of a part without files are files of their own if others have files.
        let any_files = parts.iter().any(|(_, source)| source.catalog().files() > 0);
        let mut joined = Vec::with_capacity(parts.len());
        for (name, source) in parts {
            let first = builder.samples.len() as SampleId;
            append(&mut builder, &mut classes, &name, source.catalog(), any_files);
            joined.push(Part { source, first });
        }
        let fingerprints = joined.iter().map(|part| part.source.catalog().fingerprint());
        let catalog = builder.finish().of_parts(fingerprints);
        Ok(Self { catalog, parts: joined })
    }

    /// The part that a sample lies in.
    fn part(&self, sample: SampleId) -> &Part {
        let after = self.parts.partition_point(|part| part.first <= sample);
        // Empty parts begin where the one after them does, and the last of these has it.
        &self.parts[after - 1]
    }

    /// Reads wants that lie in one part.
    fn read_part(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        let Some(want) = wants.first() else { return Ok(()) };
        let Part { source, first } = self.part(want.sample);
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
        let Location { file, offset, length } = part.location(sample);
        let location = Location { file: first_file + file, offset, length };
        // A label without a name stays what it is.
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

    /// As many as every part can: a slow part must not have them one after the other.
    fn together(&self) -> usize {
        let filled = self.parts.iter().filter(|part| !part.source.catalog().is_empty());
        filled.map(|part| part.source.together()).min().unwrap_or(1)
    }

    fn compare(&self, sample: SampleId) -> Result<(), ReadError> {
        let Part { source, first } = self.part(sample);
        let compared = source.compare(sample - first);
        compared.map_err(|error| error.renumbered(|sample| sample + first))
    }

    fn is_compared(&self, sample: SampleId) -> bool {
        let Part { source, first } = self.part(sample);
        source.is_compared(sample - first)
    }

    fn version(&self, sample: SampleId) -> Version {
        let Part { source, first } = self.part(sample);
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
