//! Fused chains against the same steps one after another.

use proptest::prelude::*;

use crate::array::{Array, Dtype};
use crate::chain::Chain;
use crate::draw::Draw;
use crate::error::TransformError;
use crate::run::Scratch;
use crate::run::image::ExecutionMode;
use crate::step::{AxisLayout, Interpolation, Mode, PadFill, PaddingMode, Size, TransformStep};

#[path = "../../tests/encode/mod.rs"]
mod encode;

fn size() -> impl Strategy<Value = Size> {
    prop::collection::vec(1_u32..24, 1..3).prop_map(Size)
}

fn interpolation() -> impl Strategy<Value = Interpolation> {
    use Interpolation::{Bicubic, Bilinear, Nearest};
    prop::sample::select(vec![Nearest, Bilinear, Bicubic])
}

fn padding_mode() -> impl Strategy<Value = PaddingMode> {
    use PaddingMode::{Constant, Edge, Reflect, Symmetric};
    prop::sample::select(vec![Constant, Edge, Reflect, Symmetric])
}

fn image_step() -> impl Strategy<Value = TransformStep> {
    let range =
        |low: f64, high: f64| (low..high, low..high).prop_map(|(a, b)| [a.min(b), a.max(b)]);
    let factors = prop::option::of(range(0.0, 2.0));
    prop_oneof![
        (size(), prop::option::of(24_u32..40), interpolation(), any::<bool>()).prop_map(
            |(size, max_size, interpolation, antialias)| {
                let max_size = max_size.filter(|_| size.0.len() == 1);
                TransformStep::Resize { size, interpolation, max_size, antialias }
            }
        ),
        size().prop_map(|size| TransformStep::CenterCrop { size }),
        (size(), range(0.05, 1.0), range(0.3, 3.0), interpolation(), any::<bool>()).prop_map(
            |(size, scale, ratio, interpolation, antialias)| TransformStep::RandomResizedCrop {
                size,
                scale,
                ratio,
                interpolation,
                antialias,
            }
        ),
        (size(), prop::option::of([0_u32..4, 0..4, 0..4, 0..4]), padding_mode()).prop_map(
            |(size, padding, padding_mode)| TransformStep::RandomCrop {
                size,
                padding,
                pad_if_needed: true,
                fill: PadFill(vec![9]),
                padding_mode,
            }
        ),
        ([0_u32..5, 0..5, 0..5, 0..5], padding_mode()).prop_map(|(padding, padding_mode)| {
            TransformStep::Pad { padding, fill: PadFill(vec![77]), padding_mode }
        }),
        (0.0..=1.0).prop_map(|p| TransformStep::RandomHorizontalFlip { p }),
        (0.0..=1.0).prop_map(|p| TransformStep::RandomVerticalFlip { p }),
        (factors.clone(), factors.clone(), factors, prop::option::of(range(-0.5, 0.5))).prop_map(
            |(brightness, contrast, saturation, hue)| TransformStep::ColorJitter {
                brightness,
                contrast,
                saturation,
                hue,
            }
        ),
    ]
}

fn number_step(channels: usize) -> impl Strategy<Value = TransformStep> {
    let factors = prop::collection::vec(0.1_f64..3.0, channels);
    prop_oneof![
        (factors.clone(), factors.clone())
            .prop_map(|(mean, std)| TransformStep::Normalize { mean, std }),
        (factors, 0.1_f64..3.0)
            .prop_map(|(scale, shift)| TransformStep::ScaleShift { scale, shift: vec![shift] }),
        (0.0_f64..2.0).prop_map(|offset| TransformStep::Log { offset }),
        prop::sample::select(Dtype::ALL.to_vec())
            .prop_map(|dtype| TransformStep::ToDtype { dtype }),
        Just(TransformStep::Reshape { shape: vec![None] }),
    ]
}

fn to_tensor() -> impl Strategy<Value = TransformStep> {
    use Dtype::{Bfloat16, Float16, Float32, Uint8};
    (
        prop::sample::select(vec![Uint8, Float16, Bfloat16, Float32]),
        prop::sample::select(vec![AxisLayout::Chw, AxisLayout::Hwc]),
    )
        .prop_map(|(dtype, layout)| TransformStep::ToTensor { dtype, layout })
}

/// Steps of an image chain; some chains are refused.
fn steps(channels: usize) -> impl Strategy<Value = Vec<TransformStep>> {
    let images = prop::collection::vec(image_step(), 0..5);
    let numbers = (to_tensor(), prop::collection::vec(number_step(channels), 0..4));
    (images, prop::option::of(numbers)).prop_map(|(mut steps, numbers)| {
        if let Some((to_tensor, numbers)) = numbers {
            steps.push(to_tensor);
            steps.extend(numbers);
        }
        steps
    })
}

fn decode(mode: Mode) -> TransformStep {
    TransformStep::Decode {
        mode,
        apply_exif_orientation: true,
        max_pixels: 1_000_000,
        dct_scaling: false,
    }
}

fn both_ways(
    chain: &Chain,
    make: impl Fn(&Chain, ExecutionMode, &mut Scratch) -> Result<Array, TransformError>,
) -> (Result<Array, TransformError>, Result<Array, TransformError>) {
    let mut scratch = Scratch::default();
    // With memory that another run has used.
    let _ = make(chain, ExecutionMode::Fused, &mut scratch);
    (
        make(chain, ExecutionMode::Fused, &mut scratch),
        make(chain, ExecutionMode::StepByStep, &mut scratch),
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_jpeg_in_part_and_fused_is_as_one_step_after_another(
        width in 1_u32..60, height in 1_u32..60, sampling in 0..6, seed in any::<u32>(),
        rest in steps(3),
    ) {
        let kind = encode::Kind { sampling, ..encode::PLAIN };
        let file = encode::jpeg(width, height, kind, seed);
        let mut steps = vec![decode(Mode::Rgb)];
        steps.extend(rest);
        let Ok(chain) = Chain::new(steps) else { return Ok(()) };
        let draw = Draw { seed: u64::from(seed), epoch: 1, sample: 2 };
        let (fused, plain) = both_ways(&chain, |chain, way, scratch| {
            chain.make(&chain.open(&file)?, draw, way, scratch)
        });
        prop_assert_eq!(&fused, &plain);
        // An output of fixed shape is written into the batch.
        if let (Some(length), Ok(array)) = (chain.output().bytes(), &fused) {
            let mut into = vec![0; length];
            chain.run_into(&file, draw, &mut Scratch::default(), &mut into).unwrap();
            prop_assert_eq!(&into, &array.bytes);
            prop_assert_eq!(chain.output().shape.as_ref(), Some(&array.shape));
        }
    }

    #[test]
    fn an_array_fused_is_as_one_step_after_another(
        width in 1_usize..30, height in 1_usize..30, channels in 1_usize..5, seed in any::<u32>(),
        rest in steps(3),
    ) {
        let bytes = encode::noise(width as u32, height as u32, channels as u32, seed);
        let array = Array { dtype: Dtype::Uint8, shape: vec![height, width, channels], bytes };
        let Ok(chain) = Chain::after(&crate::Output::default(), 3, rest) else { return Ok(()) };
        let draw = Draw { seed: 3, epoch: 1, sample: seed };
        let (fused, plain) = both_ways(&chain, |chain, way, scratch| {
            chain.make(&crate::run::open::Opened::array(chain.steps().first(), &array)?, draw, way, scratch)
        });
        prop_assert_eq!(fused, plain);
    }
}
