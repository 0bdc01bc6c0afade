//! The window of a chain describes what the chain does.

use belady_transform::codec::{DecodeRequest, Decoder};
use belady_transform::image::{Pixels, Rect};
use belady_transform::ops::{self, resize::Resizer};
use belady_transform::{
    Chain, CropWindow, Draw, Interpolation, Mode, Scratch, Size, TransformStep,
};
use proptest::prelude::*;

mod encode;

const MAX_PIXELS: u64 = 1 << 20;

fn decode() -> TransformStep {
    TransformStep::Decode {
        mode: Mode::Rgb,
        apply_exif_orientation: false,
        max_pixels: MAX_PIXELS,
        dct_scaling: false,
    }
}

fn random_resized_crop(size: Vec<u32>, scale: [f64; 2]) -> TransformStep {
    TransformStep::RandomResizedCrop {
        size: Size(size),
        scale,
        ratio: [0.75, 4.0 / 3.0],
        interpolation: Interpolation::Bilinear,
        antialias: true,
    }
}

fn resize(size: Vec<u32>) -> TransformStep {
    TransformStep::Resize {
        size: Size(size),
        interpolation: Interpolation::Bilinear,
        max_size: None,
        antialias: true,
    }
}

fn chain() -> impl Strategy<Value = Vec<TransformStep>> {
    let sides = || prop::collection::vec(4_u32..40, 1..3);
    let middle = prop_oneof![
        (sides(), 0.05_f64..0.5, 0.5_f64..1.0)
            .prop_map(|(size, a, b)| vec![random_resized_crop(size, [a, b])]),
        (12_u32..40).prop_map(|side| vec![resize(vec![side])]),
        (20_u32..40, 4_u32..20).prop_map(|(a, b)| vec![
            resize(vec![a]),
            TransformStep::CenterCrop { size: Size(vec![b]) }
        ]),
        (4_u32..20).prop_map(|side| vec![TransformStep::CenterCrop { size: Size(vec![side]) }]),
        Just(vec![]),
    ];
    (middle, 0.0..=1.0, 0.0..=1.0).prop_map(|(middle, across, down)| {
        let flips = [
            TransformStep::RandomHorizontalFlip { p: across },
            TransformStep::RandomVerticalFlip { p: down },
        ];
        std::iter::once(decode()).chain(middle).chain(flips).collect()
    })
}

/// Applies a window to a whole image, as a kernel would.
fn taken(image: &Pixels, window: &CropWindow, width: u32, height: u32) -> Pixels {
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
    fn a_window_has_the_result_of_the_chain(
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
        let wanted = DecodeRequest {
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
fn a_chain_that_is_no_window_names_the_step() {
    let refused = |steps: Vec<TransformStep>| {
        Chain::new(steps).unwrap().check_window().unwrap_err().to_string()
    };
    let flip = TransformStep::RandomHorizontalFlip { p: 0.5 };
    let twice = refused(vec![decode(), resize(vec![9]), resize(vec![8])]);
    assert!(twice.starts_with("step 3 (Resize): it has to be the only resize"), "{twice}");
    let flipped = refused(vec![decode(), flip, resize(vec![8])]);
    assert!(flipped.starts_with("step 3 (Resize)"), "{flipped}");
    let grey = TransformStep::Decode {
        mode: Mode::Gray,
        apply_exif_orientation: false,
        max_pixels: 9,
        dct_scaling: false,
    };
    assert!(refused(vec![grey]).starts_with("step 1 (Decode): the GPU decodes to RGB"));
}

#[test]
fn an_image_that_has_to_be_padded_has_no_window() {
    let chain =
        Chain::new(vec![decode(), TransformStep::CenterCrop { size: Size(vec![50]) }]).unwrap();
    let draw = Draw { seed: 0, epoch: 0, sample: 0 };
    assert!(chain.window(draw, 60, 60).unwrap().is_some());
    assert!(chain.window(draw, 60, 40).unwrap().is_none());
}
