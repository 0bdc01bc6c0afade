//! A selection of a source's samples as a dataset, in any order.
//!
//! Sample k is the k-th selected one; a sample that is selected twice is two samples. Classes and
//! labels are those of the source. The fingerprint depends on the source and on the selection.

use std::collections::BTreeMap;
use std::sync::Arc;

use belady_base::SampleId;
use xxhash_rust::xxh3::xxh3_64;

use super::{
    Begin, Catalog, CatalogBuilder, Operations, ReadError, SampleEntry, SampleLocation, Source,
    Version, Want,
};

/// Why samples cannot be selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("sample {sample} cannot be selected: the dataset has {samples} samples")]
pub struct SubsetError {
    /// The number that is out of range.
    pub sample: SampleId,
    /// The number of samples of the source.
    pub samples: u32,
}

/// Selected samples of a source.
#[derive(Debug)]
pub struct Subset {
    catalog: Catalog,
    source: Arc<dyn Source>,
    /// The number of each sample in the source.
    of: Box<[SampleId]>,
}

impl Subset {
    /// Selects samples by their numbers in the source.
    ///
    /// # Errors
    ///
    /// If a number is out of range.
    pub fn new(source: Arc<dyn Source>, of: Vec<SampleId>) -> Result<Self, SubsetError> {
        let samples = source.catalog().len();
        if let Some(&sample) = of.iter().find(|&&sample| sample >= samples) {
            return Err(SubsetError { sample, samples });
        }
        let ids: Vec<u8> = of.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let fingerprints = [source.catalog().fingerprint(), xxh3_64(&ids)];
        let catalog = rows(source.catalog(), &of).finish().of_parts(fingerprints.into_iter());
        Ok(Self { catalog, source, of: of.into() })
    }

    fn of(&self, sample: SampleId) -> SampleId {
        self.of[sample as usize]
    }
}

fn rows(catalog: &Catalog, of: &[SampleId]) -> CatalogBuilder {
    let mut builder = CatalogBuilder { classes: catalog.classes(), ..CatalogBuilder::default() };
    let is_whole = |&sample: &SampleId| {
        let SampleLocation { file, offset, length } = catalog.location(sample);
        offset == 0 && length == catalog.file_size(file)
    };
    // Files of one sample each stay so; of packed files only those with selected samples are kept.
    let whole = catalog.files() > 0 && of.iter().all(is_whole);
    let mut files: BTreeMap<u32, u32> = BTreeMap::new();
    if !whole && catalog.files() > 0 {
        files = of.iter().map(|&sample| (catalog.location(sample).file, 0)).collect();
        for (number, (&file, new)) in (0..).zip(&mut files) {
            builder.files.push(catalog.file(file));
            *new = number;
        }
    }
    for (at, &sample) in (0..).zip(of) {
        let location = catalog.location(sample);
        if whole {
            builder.files.push(catalog.file(location.file));
        }
        let file = files.get(&location.file).copied().unwrap_or(at);
        let location = SampleLocation { file, ..location };
        builder.samples.push(SampleEntry { location, label: catalog.label(sample) });
    }
    builder
}

impl Source for Subset {
    fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    fn read(&self, wants: &mut [Want<'_>]) -> Result<(), ReadError> {
        let selected: Vec<SampleId> = wants.iter().map(|want| want.sample).collect();
        for want in wants.iter_mut() {
            want.sample = self.of(want.sample);
        }
        let read = self.source.read(wants);
        for (want, &sample) in wants.iter_mut().zip(&selected) {
            want.sample = sample;
        }
        let here = |there| selected.into_iter().find(|&sample| self.of(sample) == there);
        read.map_err(|error| error.renumbered(|there| here(there).unwrap_or(there)))
    }

    fn together(&self) -> usize {
        self.source.together()
    }

    fn operations(&self) -> Operations {
        self.source.operations()
    }

    fn compare(&self, sample: SampleId) -> Result<(), ReadError> {
        let compared = self.source.compare(self.of(sample));
        compared.map_err(|error| error.renumbered(|_| sample))
    }

    fn is_compared(&self, sample: SampleId) -> bool {
        self.source.is_compared(self.of(sample))
    }

    fn version(&self, sample: SampleId) -> Version {
        self.source.version(self.of(sample))
    }

    fn begin(&self, what: Begin) {
        self.source.begin(what);
    }
}
