//! After its first samples a thread allocates no memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use belady_transform::{Chain, Draw, Scratch, TransformStep};

mod encode;

thread_local! {
    static TAKEN: Cell<usize> = const { Cell::new(0) };
}

/// Counts this thread's allocations.
struct Counting;

// SAFETY: the system's allocator does all of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.set(TAKEN.get() + 1);
        // SAFETY: the caller satisfies the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: the caller satisfies the contract of `dealloc`.
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        TAKEN.set(TAKEN.get() + 1);
        // SAFETY: the caller satisfies the contract of `realloc`.
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns the number of allocations for samples after the first ones.
fn taken(json: &str, sample: &[u8]) -> usize {
    let chain = Chain::new(TransformStep::list(json).unwrap()).unwrap();
    let mut into = vec![0; chain.output().bytes().unwrap()];
    let mut scratch = Scratch::default();
    let mut run = |sample_id| {
        let draw = Draw { seed: 1, epoch: 0, sample: sample_id };
        chain.run_into(sample, draw, &mut scratch, &mut into).unwrap();
    };
    (0..200).for_each(&mut run);
    let before = TAKEN.get();
    // The same draws again, so that no crop is larger than before.
    (0..200).for_each(&mut run);
    TAKEN.get() - before
}

#[test]
fn image_chains_allocate_nothing_after_the_first_samples() {
    let decode = r#"{"op": "Decode", "mode": "RGB", "apply_exif_orientation": false, "max_pixels": 1000000}"#;
    let tensor = r#"{"op": "ToTensor", "dtype": "float32", "layout": "CHW"},
        {"op": "Normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}"#;
    let train = format!(
        r#"[{decode}, {{"op": "RandomResizedCrop", "size": [64], "scale": [0.08, 1], "ratio": [0.75, 1.3333], "interpolation": "bilinear", "antialias": true}},
        {{"op": "RandomHorizontalFlip", "p": 0.5}},
        {{"op": "ColorJitter", "brightness": [0.6, 1.4], "contrast": [0.6, 1.4], "saturation": [0.6, 1.4], "hue": [-0.1, 0.1]}}, {tensor}]"#
    );
    let eval = format!(
        r#"[{decode}, {{"op": "Resize", "size": [72], "interpolation": "bilinear", "max_size": null, "antialias": true}},
        {{"op": "CenterCrop", "size": [64]}}, {tensor}]"#
    );
    let small = format!(
        r#"[{decode}, {{"op": "RandomCrop", "size": [64], "padding": [4, 4, 4, 4], "pad_if_needed": false, "fill": [1, 2, 3], "padding_mode": "constant"}},
        {{"op": "RandomVerticalFlip", "p": 0.5}}, {tensor}]"#
    );
    let sample = encode::jpeg(100, 75, encode::PLAIN, 1);
    for (name, json) in [("train", train), ("eval", eval), ("small", small)] {
        assert_eq!(taken(&json, &sample), 0, "{name}");
    }
}

#[test]
fn number_chains_allocate_nothing_after_the_first_samples() {
    let json = r#"[{"op": "Raw", "dtype": "int16", "shape": [4, 1000]},
        {"op": "ToDtype", "dtype": "float32"}, {"op": "Log", "offset": 1},
        {"op": "ToDtype", "dtype": "float16"}]"#;
    assert_eq!(taken(json, &[3; 8000]), 0);
    assert_eq!(taken(r#"[{"op": "Int"}]"#, b"42"), 0);
}
