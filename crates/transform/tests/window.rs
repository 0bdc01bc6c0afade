//! What a chain says it does to an image as a window is what it does.

use belady_transform::codec::{Decoder, Wanted};
use belady_transform::image::{Pixels, Rect};
use belady_transform::ops::{self, resize::Resizer};
use belady_transform::{Chain, Draw, Interpolation, Mode, Scratch, Size, Step, Window};
use proptest::prelude::*;

mod encode;

const MAX_PIXELS: u64 = 1 << 20;

fn decode() -> Step {
    Step::Decode {
        mode: Mode::Rgb,
        apply_exif_orientation: false,
        max_pixels: MAX_PIXELS,
        dct_scaling: false,
    }
}

fn random_resized_crop(size: Vec<u32>, scale: [f64; 2]) -> Step {
    Step::RandomResizedCrop {
        size: Size(size),
        scale,
        ratio: [0.75, 4.0 / 3.0],
        interpolation: Interpolation::Bilinear,
        antialias: true,
    }
}

fn resize(size: Vec<u32>) -> Step {
    Step::Resize {
        size: Size(size),
        interpolation: Interpolation::Bilinear,
        max_size: None,
        antialias: true,
    }
}

fn chain() -> impl Strategy<Value = Vec<Step>> {
    let sides = || prop::collection::vec(4_u32..40, 1..3);
    let middle = prop_oneof![
        (sides(), 0.05_f64..0.5, 0.5_f64..1.0)
            .prop_map(|(size, a, b)| vec![random_resized_crop(size, [a, b])]),
        (12_u32..40).prop_map(|side| vec![resize(vec![side])]),
        (20_u32..40, 4_u32..20)
            .prop_map(|(a, b)| vec![resize(vec![a]), Step::CenterCrop { size: Size(vec![b]) }]),
        (4_u32..20).prop_map(|side| vec![Step::CenterCrop { size: Size(vec![side]) }]),
        Just(vec![]),
    ];
    (middle, 0.0..=1.0, 0.0..=1.0).prop_map(|(middle, across, down)| {
        let flips =
            [Step::RandomHorizontalFlip { p: across }, Step::RandomVerticalFlip { p: down }];
        std::iter::once(decode()).chain(middle).chain(flips).collect()
    })
}

/// What a kernel would make of the whole image.
fn taken(image: &Pixels, window: &Window, width: u32, height: u32) -> Pixels {
    let (mut resized, mut made) = (Pixels::default(), Pixels::default());
    Resizer::default()
        .resize(
            image,
            window.part,
            window.resized_width,
            window.resized_height,
            Interpolation::Bilinear,
            true,
            &mut resized,
        )
        .unwrap();
    let part = Rect { left: window.from_left, top: window.from_top, width, height };
    ops::crop(&resized, part, &mut made).unwrap();
    ops::flip(&mut made, window.flip);
    made
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_window_is_what_the_chain_does(
        steps in chain(),
        width in 24_u32..90,
        height in 24_u32..90,
        seed in any::<u32>(),
    ) {
        let chain = Chain::new(steps).unwrap();
        chain.check_window().unwrap();
        let file = encode::jpeg(width, height, encode::PLAIN, seed);
        let draw = Draw { seed: u64::from(seed), epoch: 3, sample: seed };
        let made = chain.run(&file, draw, &mut Scratch::default()).unwrap();
        let mut image = Pixels::default();
        let wanted = Wanted {
            mode: Mode::Rgb,
            apply_exif_orientation: false,
            max_pixels: MAX_PIXELS,
            region: None,
        };
        Decoder::default().decode(&file, &wanted, &mut image).unwrap();
        let window = chain.window(draw, width, height).unwrap().unwrap();
        let (rows, columns) = (made.shape[0] as u32, made.shape[1] as u32);
        prop_assert_eq!(taken(&image, &window, columns, rows).bytes, made.bytes);
    }
}

#[test]
fn what_is_no_window_is_named() {
    let refused =
        |steps: Vec<Step>| Chain::new(steps).unwrap().check_window().unwrap_err().to_string();
    let flip = Step::RandomHorizontalFlip { p: 0.5 };
    let twice = refused(vec![decode(), resize(vec![9]), resize(vec![8])]);
    assert!(twice.starts_with("step 3 (Resize): it has to be the only one"), "{twice}");
    let flipped = refused(vec![decode(), flip, resize(vec![8])]);
    assert!(flipped.starts_with("step 3 (Resize)"), "{flipped}");
    let grey = Step::Decode {
        mode: Mode::Gray,
        apply_exif_orientation: false,
        max_pixels: 9,
        dct_scaling: false,
    };
    assert!(refused(vec![grey]).starts_with("step 1 (Decode): only RGB"));
}

#[test]
fn an_image_that_has_to_be_padded_has_no_window() {
    let chain = Chain::new(vec![decode(), Step::CenterCrop { size: Size(vec![50]) }]).unwrap();
    let draw = Draw { seed: 0, epoch: 0, sample: 0 };
    assert!(chain.window(draw, 60, 60).unwrap().is_some());
    assert!(chain.window(draw, 60, 40).unwrap().is_none());
}
