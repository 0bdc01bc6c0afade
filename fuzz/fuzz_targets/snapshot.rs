//! Snapshots: whatever the bytes are, a catalog that is made of them can be asked for all
//! that it says it holds, its samples lie in its files and have its classes, and it can be
//! built again from what it answers.
//!
//! Fuzzers do not guess checksums. So the first byte chooses whether the rest is a snapshot
//! as it is, or one that gets the length and the checksum that belong to it first.

#![no_main]

use belady_data::source::{Catalog, CatalogBuilder, SampleEntry};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else { return };
    let mut bytes = rest.to_vec();
    if choice & 1 != 0 && bytes.len() >= 32 {
        let length = bytes.len() as u64;
        bytes[24..32].copy_from_slice(&length.to_le_bytes());
        Catalog::seal(&mut bytes);
    }
    let Ok(catalog) = Catalog::from_bytes(bytes) else { return };
    check_samples(&catalog);
    check_rebuilt(&catalog);
});

fn check_samples(catalog: &Catalog) {
    let classes = catalog.classes().len();
    for sample in 0..catalog.len() {
        let location = catalog.location(sample);
        assert_eq!(catalog.size(sample), location.length);
        if catalog.files() > 0 {
            let end = location.offset.checked_add(location.length).expect("64 bits hold its end");
            assert!(end <= catalog.file_size(location.file));
        }
        let label = catalog.label(sample);
        assert!(classes == 0 || label.is_none_or(|label| (label as usize) < classes));
    }
}

fn check_rebuilt(catalog: &Catalog) {
    let directories = (0..catalog.directories()).map(|at| catalog.directory(at));
    let rebuilt = CatalogBuilder {
        files: (0..catalog.files()).map(|file| catalog.file(file)).collect(),
        samples: (0..catalog.len())
            .map(|sample| SampleEntry {
                location: catalog.location(sample),
                label: catalog.label(sample),
            })
            .collect(),
        classes: catalog.classes(),
        directories: directories.map(|(path, time)| (path.to_owned(), time)).collect(),
    }
    .finish();
    assert_eq!(rebuilt.len(), catalog.len());
    for sample in 0..catalog.len() {
        assert_eq!(rebuilt.location(sample), catalog.location(sample));
        assert_eq!(rebuilt.label(sample), catalog.label(sample));
    }
    for file in 0..catalog.files() {
        assert_eq!(rebuilt.file(file), catalog.file(file));
    }
    Catalog::from_bytes(rebuilt.as_bytes().to_vec()).expect("what was built can be read");
}
