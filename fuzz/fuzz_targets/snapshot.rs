//! Snapshots: whatever the bytes are, a catalog that is made of them can be asked for
//! everything it says it holds.

#![no_main]

use belady_data::source::Catalog;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(catalog) = Catalog::from_bytes(bytes.to_vec()) else { return };
    let classes = catalog.classes().len();
    for sample in 0..catalog.len() {
        let location = catalog.location(sample);
        assert!(location.offset.checked_add(location.length).is_some());
        assert_eq!(catalog.size(sample), location.length);
        assert!(catalog.label(sample).is_none_or(|label| (label as usize) < classes));
    }
});
