//! The catalog against plain rows, and against hostile bytes.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;

fn path() -> impl Strategy<Value = PathBuf> {
    prop::collection::vec(1u8.., 0..30).prop_map(|bytes| OsString::from_vec(bytes).into())
}

fn files() -> impl Strategy<Value = Vec<FileEntry>> {
    let file = (path(), 0u64.., any::<i64>(), any::<i64>());
    let file = file.prop_map(|(path, size, modified, changed)| FileEntry {
        path,
        size,
        modified,
        changed,
    });
    prop::collection::vec(file, 0..20)
}

/// A range within one of the files.
fn range(files: &[FileEntry], pick: (usize, u64, u64)) -> SampleLocation {
    let file = pick.0 % files.len();
    let offset = pick.1 % files[file].size.saturating_add(1).max(1);
    let length = pick.2 % (files[file].size - offset).saturating_add(1).max(1);
    SampleLocation { file: file as u32, offset, length }
}

fn builder() -> impl Strategy<Value = CatalogBuilder> {
    let picks = prop::collection::vec((any::<(usize, u64, u64)>(), any::<Option<u32>>()), 0..40);
    let others = (
        prop::collection::vec(".{0,8}", 0..5),
        prop::collection::vec((path(), any::<i64>()), 0..5),
        any::<bool>(),
        any::<bool>(),
    );
    (files(), picks, others).prop_map(|(files, picks, others)| {
        let (classes, directories, whole, labelled) = others;
        let classes: Vec<OsString> = classes.into_iter().map(OsString::from).collect();
        let named = if classes.is_empty() { NO_LABEL } else { classes.len() as u32 };
        let label = |label: Option<u32>| label.filter(|_| labelled).map(|at| at % named);
        let samples = if whole || files.is_empty() {
            let all = files.iter().enumerate().map(|(at, file)| SampleEntry {
                location: SampleLocation { file: at as u32, offset: 0, length: file.size },
                label: label(Some(at as u32)),
            });
            all.collect()
        } else {
            let picked = picks
                .into_iter()
                .map(|(pick, at)| SampleEntry { location: range(&files, pick), label: label(at) });
            picked.collect()
        };
        CatalogBuilder { files, samples, classes, directories }
    })
}

fn assert_same(catalog: &Catalog, rows: &CatalogBuilder) {
    assert_eq!(catalog.len() as usize, rows.samples.len());
    for (sample, row) in (0..).zip(&rows.samples) {
        assert_eq!(catalog.location(sample), row.location);
        assert_eq!(catalog.size(sample), row.location.length);
        assert_eq!(catalog.label(sample), row.label);
    }
    let files: Vec<_> = (0..catalog.files()).map(|file| catalog.file(file)).collect();
    assert_eq!(files, rows.files);
    assert_eq!(catalog.classes(), rows.classes);
    let directories = (0..catalog.directories()).map(|at| catalog.directory(at));
    let directories: Vec<_> = directories.map(|(path, time)| (path.to_owned(), time)).collect();
    assert_eq!(directories, rows.directories);
    let sizes: Vec<u64> = rows.samples.iter().map(|row| row.location.length).collect();
    assert!((0..).zip(&sizes).all(|(sample, &size)| catalog.sizes().get(sample) == size));
}

/// Calls everything that a catalog offers.
fn touch(catalog: &Catalog) {
    let classes = catalog.classes().len();
    for sample in 0..catalog.len() {
        let location = catalog.location(sample);
        let label = catalog.label(sample);
        assert!(classes == 0 || label.is_none_or(|label| (label as usize) < classes));
        assert_eq!(catalog.size(sample), location.length);
        if catalog.files() > 0 {
            let end = location.offset + location.length;
            assert!(end <= catalog.file_size(location.file));
        }
    }
    (0..catalog.files()).for_each(|file| drop(catalog.file(file)));
    (0..catalog.directories()).for_each(|at| drop(catalog.directory(at).0.to_owned()));
    let _ = catalog.fingerprint();
}

proptest! {
    #[test]
    fn columns_hold_what_the_rows_held(rows in builder()) {
        let catalog = rows.clone().finish();
        assert_same(&catalog, &rows);
        let again = Catalog::from_bytes(catalog.as_bytes().to_vec()).expect("its own bytes");
        assert_same(&again, &rows);
        prop_assert_eq!(again.fingerprint(), catalog.fingerprint());
    }

    #[test]
    fn any_changed_byte_is_noticed(rows in builder(), at in any::<usize>(), bit in 0u8..8) {
        let mut bytes = rows.finish().as_bytes().to_vec();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        prop_assert!(Catalog::from_bytes(bytes).is_err());
    }

    #[test]
    fn any_cut_is_noticed(rows in builder(), at in any::<usize>()) {
        let mut bytes = rows.finish().as_bytes().to_vec();
        bytes.truncate(at % bytes.len());
        prop_assert!(Catalog::from_bytes(bytes).is_err());
    }

    #[test]
    fn hostile_bytes_with_a_right_checksum_never_lead_outside(
        rows in builder(),
        edits in prop::collection::vec((any::<usize>(), prop_oneof![any::<u8>(), Just(0), Just(255)]), 1..6),
    ) {
        let mut bytes = rows.finish().as_bytes().to_vec();
        for (at, value) in edits {
            // Half of the edits go to the header.
            let reach = if at % 2 == 0 { 128 } else { bytes.len() };
            bytes[16 + at / 2 % (reach - 16)] = value;
        }
        Catalog::seal(&mut bytes);
        if let Ok(catalog) = Catalog::from_bytes(bytes) {
            touch(&catalog);
        }
    }
}

fn two_files() -> CatalogBuilder {
    let file = |name: &str| FileEntry { path: name.into(), size: 10, modified: 5, changed: 7 };
    let range = |file, offset| SampleEntry {
        location: SampleLocation { file, offset, length: 5 },
        label: None,
    };
    CatalogBuilder {
        files: vec![file("a"), file("b")],
        samples: vec![range(0, 0), range(0, 5), range(1, 0)],
        ..Default::default()
    }
}

#[test]
fn the_fingerprint_sees_all_that_identifies_a_dataset() {
    let original = two_files().finish().fingerprint();
    let changed = |change: fn(&mut CatalogBuilder)| {
        let mut builder = two_files();
        change(&mut builder);
        builder.finish().fingerprint()
    };
    assert_eq!(changed(|_| ()), original);
    assert_eq!(changed(|it| it.directories.push(("d".into(), 1))), original);
    assert_eq!(changed(|it| it.files[0].changed = 8), original, "copies elsewhere have others");
    let others = [
        changed(|it| it.files[0].path = "c".into()),
        changed(|it| it.files[0].size = 11),
        changed(|it| it.files[0].modified = 6),
        changed(|it| it.samples[1].location.offset = 4),
        changed(|it| it.samples[1].location.file = 1),
        changed(|it| it.samples[1].label = Some(0)),
        changed(|it| it.samples.truncate(2)),
        changed(|it| it.files.push(it.files[0].clone())),
    ];
    for (at, other) in others.iter().enumerate() {
        assert_ne!(*other, original);
        assert!(!others[..at].contains(other));
    }
}

#[test]
fn sizes_alone_make_a_catalog() {
    let catalog = Catalog::of_sizes([3, 0, u64::MAX]);
    assert_eq!(catalog.len(), 3);
    assert_eq!(catalog.files(), 0);
    assert_eq!(catalog.location(2), SampleLocation { file: 2, offset: 0, length: u64::MAX });
    assert_eq!(catalog.label(0), None);
    assert_ne!(catalog.fingerprint(), Catalog::of_sizes([3, 0, 1]).fingerprint());
    assert!(Catalog::of_sizes([]).is_empty());
}

#[test]
fn each_way_of_being_wrong_has_its_error() {
    let good = two_files().finish().as_bytes().to_vec();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        Catalog::from_bytes(bytes).expect_err("refused")
    };
    assert_eq!(with(&|bytes| bytes[0] = 0), SnapshotError::Foreign);
    assert_eq!(with(&|bytes| bytes[16] = 9), SnapshotError::Version { found: 9 });
    let found = good.len() as u64 + 8;
    let torn = SnapshotError::Torn { expected: found - 8, found };
    assert_eq!(with(&|bytes| bytes.extend([0; 8])), torn);
    assert_eq!(with(&|bytes| *bytes.last_mut().expect("a byte") ^= 1), SnapshotError::Checksum);
    let outside = with(&|bytes| {
        let at = CatalogLayout::check(&good).expect("good").sample_files.start;
        bytes[at] = 2;
        Catalog::seal(bytes);
    });
    assert!(outside.to_string().contains("outside its file"), "{outside}");
}

#[test]
fn blocks_of_many_pieces_are_checked_to_the_end() {
    let files = 4;
    let samples = 1_500_000u32;
    let range = |sample: u32| SampleEntry {
        location: SampleLocation { file: sample % files, offset: u64::from(sample), length: 7 },
        label: None,
    };
    let file = |at: u32| FileEntry {
        path: at.to_string().into(),
        size: 1_500_006,
        modified: 1,
        changed: 1,
    };
    let catalog = CatalogBuilder {
        files: (0..files).map(file).collect(),
        samples: (0..samples).map(range).collect(),
        ..Default::default()
    }
    .finish();
    let good = catalog.as_bytes().to_vec();
    let layout = CatalogLayout::check(&good).expect("good");
    assert!((0..samples).step_by(997).all(|it| catalog.location(it) == range(it).location));
    for at in [0, good.len() / 2, good.len() - 1] {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        assert!(Catalog::from_bytes(bytes).is_err());
    }
    for sample in [0, samples as usize / 2, samples as usize - 1] {
        let mut bytes = good.clone();
        bytes[layout.sample_files.start + 4 * sample] = 4;
        Catalog::seal(&mut bytes);
        let error = Catalog::from_bytes(bytes).expect_err("outside");
        assert_eq!(error, SnapshotError::Broken { what: "a sample lies outside its file" });
    }
}
