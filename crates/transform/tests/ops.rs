//! Operations on pixels against naive ones.

use belady_transform::image::{Pixels, Rect};
use belady_transform::ops::resize::Resizer;
use belady_transform::ops::tensor::{self, Tables};
use belady_transform::ops::{self, Flip, colour};
use belady_transform::{AxisLayout, Dtype, Interpolation, PadFill, PaddingMode};
use proptest::prelude::*;

/// Any image of at most these extents.
fn images(
    width: u32,
    height: u32,
    channels: std::ops::RangeInclusive<u32>,
) -> impl Strategy<Value = Pixels> {
    (1..=width, 1..=height, channels, any::<u32>(), 1_u32..40).prop_map(
        |(width, height, channels, seed, rough)| {
            let mut pixels = Pixels::default();
            pixels.shape(width, height, channels);
            let mut state = seed | 1;
            for (place, byte) in (0_u32..).zip(&mut pixels.bytes) {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let noise = state >> 24;
                *byte = if noise % 40 < rough { noise as u8 } else { (place / 3) as u8 };
            }
            pixels
        },
    )
}

/// An image and a part of it.
fn parts(width: u32, height: u32) -> impl Strategy<Value = (Pixels, Rect)> {
    (images(width, height, 1..=4), any::<[u32; 4]>()).prop_map(|(pixels, [a, b, c, d])| {
        let (left, top) = (a % pixels.width, b % pixels.height);
        let width = c % (pixels.width - left) + 1;
        let height = d % (pixels.height - top) + 1;
        (pixels, Rect { left, top, width, height })
    })
}

fn flips() -> impl Strategy<Value = Flip> {
    any::<(bool, bool)>().prop_map(|(horizontal, vertical)| Flip { horizontal, vertical })
}

fn pixel(pixels: &Pixels, x: u32, y: u32) -> &[u8] {
    let channels = pixels.channels as usize;
    &pixels.bytes[(y as usize * pixels.width as usize + x as usize) * channels..][..channels]
}

fn naive_filter(interpolation: Interpolation, antialias: bool, x: f64) -> f64 {
    let (x, a) = (x.abs(), if antialias { -0.5 } else { -0.75 });
    match interpolation {
        Interpolation::Bilinear => (1.0 - x).max(0.0),
        _ if x < 1.0 => (a + 2.0) * x.powi(3) - (a + 3.0) * x.powi(2) + 1.0,
        _ if x < 2.0 => a * (x.powi(3) - 5.0 * x.powi(2) + 8.0 * x - 4.0),
        _ => 0.0,
    }
}

/// One axis: `at` gives the values there are.
fn naive_axis(
    (from, to): (u32, u32),
    interpolation: Interpolation,
    antialias: bool,
    place: u32,
    at: impl Fn(u32) -> f64,
) -> f64 {
    let scale = f64::from(from) / f64::from(to);
    let center = (f64::from(place) + 0.5) * scale;
    let wide = if antialias { scale.max(1.0) } else { 1.0 };
    let (mut sum, mut total) = (0.0, 0.0);
    // Beyond the edge, nothing counts with antialiasing; without it the edge counts.
    for pixel in -4..i64::from(from) + 4 {
        let weight = naive_filter(interpolation, antialias, (pixel as f64 + 0.5 - center) / wide);
        let inside = (0..i64::from(from)).contains(&pixel);
        if inside || !antialias {
            sum += weight * at(pixel.clamp(0, i64::from(from) - 1) as u32);
            total += weight;
        }
    }
    (sum / total).round().clamp(0.0, 255.0)
}

/// Rows and then columns, each in `f64` and rounded.
fn naive_resize(
    from: &Pixels,
    part: Rect,
    size: (u32, u32),
    interpolation: Interpolation,
    antialias: bool,
) -> Vec<u8> {
    let (width, height) = size;
    let mut out = Vec::new();
    for y in 0..height {
        for x in 0..width {
            for channel in 0..from.channels as usize {
                let row = |y: u32| {
                    let across =
                        |x: u32| f64::from(pixel(from, part.left + x, part.top + y)[channel]);
                    naive_axis((part.width, width), interpolation, antialias, x, across)
                };
                out.push(naive_axis((part.height, height), interpolation, antialias, y, row) as u8);
            }
        }
    }
    out
}

fn close(got: &[u8], wanted: &[u8], most: u8) -> Result<(), TestCaseError> {
    prop_assert_eq!(got.len(), wanted.len());
    for (place, (&got, &wanted)) in got.iter().zip(wanted).enumerate() {
        prop_assert!(got.abs_diff(wanted) <= most, "{} is not {} at {}", got, wanted, place);
    }
    Ok(())
}

fn grey(rgb: &[u8]) -> f64 {
    (0.2989 * f64::from(rgb[0]) + 0.587 * f64::from(rgb[1]) + 0.114 * f64::from(rgb[2])).floor()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn resize_is_close_to_the_naive_one(
        (from, part) in parts(40, 30),
        size in (1_u32..24, 1_u32..24),
        cubic in any::<bool>(),
        antialias in any::<bool>(),
    ) {
        let interpolation = if cubic { Interpolation::Bicubic } else { Interpolation::Bilinear };
        let mut into = Pixels::default();
        Resizer::default()
            .resize(&from, part, size.0, size.1, interpolation, antialias, &mut into)
            .unwrap();
        close(&into.bytes, &naive_resize(&from, part, size, interpolation, antialias), if cubic { 2 } else { 1 })?;
    }

    #[test]
    fn nearest_takes_the_pixel_below(
        (from, part) in parts(40, 30),
        (width, height) in (1_u32..50, 1_u32..50),
    ) {
        let mut into = Pixels::default();
        Resizer::default()
            .resize(&from, part, width, height, Interpolation::Nearest, true, &mut into)
            .unwrap();
        // Floats may round a product of integers to just below it.
        let places = |place: u32, of: u32, to: u32| {
            let exact = place * of / to;
            [exact.saturating_sub(u32::from((place * of).is_multiple_of(to))), exact]
        };
        for y in 0..height {
            for x in 0..width {
                let found = places(x, part.width, width).iter().any(|&from_x| {
                    places(y, part.height, height).iter().any(|&from_y| {
                        pixel(&from, part.left + from_x, part.top + from_y) == pixel(&into, x, y)
                    })
                });
                prop_assert!(found, "({x}, {y}) is from elsewhere");
            }
        }
    }

    #[test]
    fn pixels_beyond_the_part_have_no_influence(
        (from, part) in parts(90, 70),
        (width, height) in (1_u32..60, 1_u32..60),
        which in 0..3_usize,
        antialias in any::<bool>(),
    ) {
        let interpolation =
            [Interpolation::Nearest, Interpolation::Bilinear, Interpolation::Bicubic][which];
        let (mut cut, mut first, mut second) = Default::default();
        // A resizer that was used for other images.
        let mut resizer = Resizer::default();
        let mut resize = |from: &Pixels, part, into: &mut Pixels| {
            resizer.resize(from, part, width, height, interpolation, antialias, into).unwrap();
        };
        resize(&from, part, &mut first);
        ops::crop(&from, part, &mut cut).unwrap();
        resize(&cut, Rect::whole(part.width, part.height), &mut second);
        prop_assert_eq!(first, second);
    }

    #[test]
    fn crop_flip_and_pad_equal_the_naive_ones(
        (from, part) in parts(40, 30),
        flip in flips(),
        padding in any::<[u32; 4]>(),
        which in 0..4_usize,
    ) {
        let mut cut = Pixels::default();
        ops::crop(&from, part, &mut cut).unwrap();
        let mut flipped = cut.clone();
        ops::flip(&mut flipped, flip);
        let modes =
            [PaddingMode::Constant, PaddingMode::Edge, PaddingMode::Reflect, PaddingMode::Symmetric];
        let (mode, fill) = (modes[which], PadFill((1..=from.channels as u8).collect()));
        let less = u32::from(mode == PaddingMode::Reflect);
        let [left, top, right, bottom] = padding;
        let (across, down) = (part.width + 1 - less, part.height + 1 - less);
        let padding = [left % across, top % down, right % across, bottom % down];
        let mut padded = Pixels::default();
        ops::pad(&flipped, padding, &fill, mode, &mut padded).unwrap();
        prop_assert_eq!(padded.width, part.width + padding[0] + padding[2]);
        prop_assert_eq!(padded.height, part.height + padding[1] + padding[3]);
        let seen = |place: u32, before: u32, length: u32| {
            let (place, last) = (i64::from(place) - i64::from(before), i64::from(length) - 1);
            match mode {
                _ if (0..=last).contains(&place) => Some(place),
                PaddingMode::Constant => None,
                PaddingMode::Edge => Some(place.clamp(0, last)),
                PaddingMode::Reflect => Some(if place < 0 { -place } else { 2 * last - place }),
                PaddingMode::Symmetric if place < 0 => Some(-place - 1),
                PaddingMode::Symmetric => Some(2 * last + 1 - place),
            }
        };
        for y in 0..padded.height {
            for x in 0..padded.width {
                let places = (seen(x, padding[0], part.width), seen(y, padding[1], part.height));
                let wanted = if let (Some(x), Some(y)) = places {
                    let (x, y) = (x as u32, y as u32);
                    let x = if flip.horizontal { part.width - 1 - x } else { x };
                    let y = if flip.vertical { part.height - 1 - y } else { y };
                    pixel(&from, part.left + x, part.top + y)
                } else {
                    &fill.0
                };
                prop_assert_eq!(pixel(&padded, x, y), wanted);
            }
        }
    }

    #[test]
    fn tensors_contain_the_numbers_of_the_tables(
        from in images(600, 5, 1..=4),
        flip in flips(),
        which in 0..4_usize,
        chw in any::<bool>(),
        mean in prop::collection::vec(-1.0..1.0, 4),
        std in prop::collection::vec(0.01..2.0, 4),
        same in any::<bool>(),
    ) {
        let dtype = [Dtype::Uint8, Dtype::Float16, Dtype::Bfloat16, Dtype::Float32][which];
        let channels = from.channels as usize;
        let mut tables = Tables::to_tensor(dtype).unwrap();
        if dtype != Dtype::Uint8 {
            let count = if same { 1 } else { channels };
            tables = tables.normalize(&mean[..count], &std[..count]).unwrap();
        }
        let layout = if chw { AxisLayout::Chw } else { AxisLayout::Hwc };
        let mut into = vec![0; from.bytes.len() * dtype.size()];
        tensor::write(&from, flip, &tables, layout, &mut into).unwrap();
        let (width, height) = (from.width as usize, from.height as usize);
        for y in 0..height {
            for x in 0..width {
                for channel in 0..channels {
                    let from_x = if flip.horizontal { width - 1 - x } else { x } as u32;
                    let from_y = if flip.vertical { height - 1 - y } else { y } as u32;
                    let wanted = tables.get(channel, pixel(&from, from_x, from_y)[channel]);
                    let place = if chw {
                        (channel * height + y) * width + x
                    } else {
                        (y * width + x) * channels + channel
                    };
                    let bytes = &into[place * dtype.size()..][..dtype.size()];
                    prop_assert_eq!(number(dtype, bytes).to_bits(), wanted.to_bits());
                }
            }
        }
    }

    #[test]
    fn colours_are_close_to_the_naive_ones(from in images(300, 3, 3..=3), factor in 0.0..2.0) {
        let changed = |change: fn(&mut Pixels, f64) -> Result<(), belady_transform::TransformError>| {
            let mut pixels = from.clone();
            change(&mut pixels, factor).unwrap();
            pixels.bytes
        };
        let pixels = || from.bytes.chunks_exact(3);
        let mean = pixels().map(grey).sum::<f64>() / pixels().len() as f64;
        let blend = |other: &dyn Fn(&[u8]) -> f64| {
            let blended = pixels().flat_map(|rgb| {
                let other = other(rgb);
                rgb.iter().map(move |&v| (f64::from(v) * factor + other * (1.0 - factor)).clamp(0.0, 255.0) as u8)
            });
            blended.collect::<Vec<_>>()
        };
        let black = pixels().flatten().map(|&v| (f64::from(v) * factor).min(255.0) as u8);
        close(&changed(colour::brightness), &black.collect::<Vec<_>>(), 1)?;
        close(&changed(colour::contrast), &blend(&|_| mean), 1)?;
        // A grey that is truncated differently is multiplied by the factor's distance from 1.
        close(&changed(colour::saturation), &blend(&grey), 2)?;
    }

    #[test]
    fn a_hue_rotated_back_is_nearly_the_same(from in images(300, 3, 3..=3), factor in -0.5..0.5) {
        let mut pixels = from.clone();
        colour::hue(&mut pixels, factor).unwrap();
        let extremes = |rgb: &[u8]| (rgb.iter().max().copied(), rgb.iter().min().copied());
        for (before, after) in from.bytes.chunks_exact(3).zip(pixels.bytes.chunks_exact(3)) {
            // The strongest and the weakest value move to other channels but do not change.
            let ((most, least), (new_most, new_least)) = (extremes(before), extremes(after));
            prop_assert!(most.unwrap().abs_diff(new_most.unwrap()) <= 1, "{:?} {:?}", before, after);
            prop_assert!(least.unwrap().abs_diff(new_least.unwrap()) <= 1, "{:?} {:?}", before, after);
        }
        colour::hue(&mut pixels, -factor).unwrap();
        close(&pixels.bytes, &from.bytes, 4)?;
    }
}

fn number(dtype: Dtype, bytes: &[u8]) -> f32 {
    match dtype {
        Dtype::Uint8 => f32::from(bytes[0]),
        Dtype::Float16 => half::f16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
        Dtype::Bfloat16 => half::bf16::from_ne_bytes(bytes.try_into().unwrap()).to_f32(),
        _ => f32::from_ne_bytes(bytes.try_into().unwrap()),
    }
}

#[test]
fn impossible_operations_are_errors_with_a_reason() {
    let mut image = Pixels::default();
    image.shape(4, 3, 2);
    let mut into = Pixels::default();
    let beyond = Rect { left: 2, top: 0, width: 3, height: 1 };
    let huge = Rect { left: u32::MAX, top: 0, width: 2, height: 1 };
    let none = Rect { left: 0, top: 0, width: 0, height: 1 };
    for part in [beyond, huge, none] {
        let error = ops::crop(&image, part, &mut into).unwrap_err();
        assert!(error.to_string().contains("not within the image of 4x3"), "{error}");
        let bilinear = Interpolation::Bilinear;
        let resized = Resizer::default().resize(&image, part, 2, 2, bilinear, true, &mut into);
        assert_eq!(resized.unwrap_err(), error);
    }
    let pad = |padding, fill: &[u8], mode| {
        ops::pad(&image, padding, &PadFill(fill.to_vec()), mode, &mut Pixels::default())
    };
    assert!(pad([4, 0, 0, 0], &[0], PaddingMode::Reflect).is_err());
    assert!(pad([0, 0, 0, 4], &[0], PaddingMode::Symmetric).is_err());
    assert!(pad([1, 1, 1, 1], &[1, 2, 3], PaddingMode::Constant).is_err());
    assert!(pad([u32::MAX, 0, 0, 0], &[0], PaddingMode::Constant).is_err());
    assert!(colour::hue(&mut image, 0.1).unwrap_err().to_string().contains("2 channels"));
    image.shape(4, 3, 3);
    assert!(colour::hue(&mut image, 0.6).is_err());
    assert!(colour::contrast(&mut image, -0.1).is_err());
    assert!(colour::brightness(&mut image, f64::NAN).is_err());
    assert!(Tables::to_tensor(Dtype::Int32).is_err());
    let float = || Tables::to_tensor(Dtype::Float32).unwrap();
    assert!(float().normalize(&[0.5; 3], &[0.0, 1.0, 1.0]).is_err());
    assert!(float().normalize(&[0.5; 3], &[1.0; 2]).is_err());
    assert!(float().normalize(&[], &[1.0]).is_err());
    let tables = float().normalize(&[0.5; 4], &[1.0]).unwrap();
    let write = |tables: &Tables, length: usize| {
        tensor::write(&image, Flip::default(), tables, AxisLayout::Chw, &mut vec![0; length])
    };
    assert!(write(&tables, 4 * 3 * 3 * 4).unwrap_err().to_string().contains("3 channels"));
    assert!(write(&float(), 7).unwrap_err().to_string().contains("144 bytes"));
}

#[test]
fn tables_support_logs_scales_and_repeated_normalisation() {
    let float = || Tables::to_tensor(Dtype::Float32).unwrap();
    let log = float().map(1, |_, value| (value + 1.0).ln()).unwrap();
    assert_eq!(log.get(2, 255), 2.0_f32.ln());
    let scaled = float().map(3, |channel, value| value * channel as f32).unwrap();
    assert_eq!([0, 1, 2].map(|channel| scaled.get(channel, 255)), [0.0, 1.0, 2.0]);
    let half = scaled.to_dtype(Dtype::Float16).unwrap();
    assert_eq!(half.get(1, 1), half::f16::from_f32(1.0 / 255.0).to_f32());
    // The fast arithmetic covers a single normalisation only.
    let twice = float().normalize(&[0.5], &[0.5]).unwrap().normalize(&[0.25], &[2.0]).unwrap();
    let mut image = Pixels::default();
    image.shape(1, 1, 1);
    image.bytes[0] = 255;
    let mut into = [0; 4];
    tensor::write(&image, Flip::default(), &twice, AxisLayout::Chw, &mut into).unwrap();
    assert_eq!(f32::from_ne_bytes(into), 0.375);
}
