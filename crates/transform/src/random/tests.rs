//! The distributions of draws against a literal version of torchvision's rules with another
//! generator.

use super::*;
use crate::draw::Draw;
use crate::step::{Interpolation, PadFill, PaddingMode, Size};

const DRAWS: u32 = 20_000;

/// splitmix64, another generator than ours.
struct Plain(u64);

impl Plain {
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as f64 / 2.0_f64.powi(64)
    }

    fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// `torch.randint(0, end)`.
    fn integer(&mut self, end: u32) -> u32 {
        (self.unit() * f64::from(end)) as u32
    }
}

/// `RandomResizedCrop.get_params`, line by line: i, j, h, w.
fn torchvision(
    random: &mut Plain,
    (width, height): (u32, u32),
    scale: [f64; 2],
    ratio: [f64; 2],
) -> [u32; 4] {
    let area = f64::from(height * width);
    for _ in 0..10 {
        let target_area = area * random.uniform(scale[0], scale[1]);
        let aspect_ratio = random.uniform(ratio[0].ln(), ratio[1].ln()).exp();
        let w = (target_area * aspect_ratio).sqrt().round_ties_even() as u32;
        let h = (target_area / aspect_ratio).sqrt().round_ties_even() as u32;
        if 0 < w && w <= width && 0 < h && h <= height {
            return [random.integer(height - h + 1), random.integer(width - w + 1), h, w];
        }
    }
    let in_ratio = f64::from(width) / f64::from(height);
    let (w, h) = if in_ratio < ratio[0] {
        (width, (f64::from(width) / ratio[0]).round_ties_even() as u32)
    } else if in_ratio > ratio[1] {
        ((f64::from(height) * ratio[1]).round_ties_even() as u32, height)
    } else {
        (width, height)
    };
    [(height - h) / 2, (width - w) / 2, h, w]
}

fn draws() -> impl Iterator<Item = Draw> {
    (0..DRAWS).map(|sample| Draw { seed: 5, epoch: 1, sample })
}

fn drawn(step: &TransformStep, draw: Draw, size: (u32, u32)) -> RandomChoice {
    choose(step, &mut draw.rng(2), size).unwrap()
}

/// Returns the Kolmogorov-Smirnov statistic of two samples.
fn distance(mut a: Vec<u32>, mut b: Vec<u32>) -> f64 {
    a.sort_unstable();
    b.sort_unstable();
    let below = |sorted: &[u32], value: u32| {
        sorted.partition_point(|&x| x <= value) as f64 / sorted.len() as f64
    };
    a.iter().chain(&b).map(|&x| (below(&a, x) - below(&b, x)).abs()).fold(0.0, f64::max)
}

fn assert_alike(ours: Vec<u32>, theirs: Vec<u32>, what: &str) {
    // One in a hundred exceeds 1.63 * sqrt(2 / n); the draws here are always the same.
    let limit = 1.63 * (2.0 / f64::from(DRAWS)).sqrt();
    let distance = distance(ours, theirs);
    assert!(distance < limit, "{what}: {distance} is not below {limit}");
}

fn resized_crop_step(scale: [f64; 2], ratio: [f64; 2]) -> TransformStep {
    TransformStep::RandomResizedCrop {
        size: Size(vec![224]),
        scale,
        ratio,
        interpolation: Interpolation::Bilinear,
        antialias: true,
    }
}

#[test]
fn resized_crops_are_distributed_as_torchvisions() {
    for (size, scale) in [((500, 375), [0.08, 1.0]), ((30, 900), [0.08, 1.0]), ((9, 7), [0.5, 1.0])]
    {
        let ratio = [3.0 / 4.0, 4.0 / 3.0];
        let step = resized_crop_step(scale, ratio);
        let mut plain = Plain(1);
        let (mut ours, mut theirs) = (vec![Vec::new(); 4], vec![Vec::new(); 4]);
        for draw in draws() {
            let RandomChoice::RandomResizedCrop { top, left, height, width } =
                drawn(&step, draw, size)
            else {
                panic!("another choice")
            };
            assert!(left + width <= size.0 && top + height <= size.1 && width * height > 0);
            let other = torchvision(&mut plain, size, scale, ratio);
            for (at, (a, b)) in [top, left, height, width].into_iter().zip(other).enumerate() {
                ours[at].push(a);
                theirs[at].push(b);
            }
        }
        for (what, (ours, theirs)) in
            ["top", "left", "height", "width"].iter().zip(ours.into_iter().zip(theirs))
        {
            assert_alike(ours, theirs, &format!("{what} of {size:?}"));
        }
    }
}

#[test]
fn a_crop_that_never_fits_is_taken_from_the_middle() {
    let draw = Draw { seed: 0, epoch: 0, sample: 0 };
    let fallback = |size, ratio| drawn(&resized_crop_step([1.0, 1.0], ratio), draw, size);
    let crop =
        |top, left, height, width| RandomChoice::RandomResizedCrop { top, left, height, width };
    // Too high, too wide, and a part larger than the image.
    assert_eq!(fallback((10, 1000), [0.75, 1.25]), crop(493, 0, 13, 10));
    assert_eq!(fallback((1000, 10), [0.75, 1.25]), crop(0, 494, 10, 12));
    let large = resized_crop_step([4.0, 5.0], [1.0, 1.0]);
    assert_eq!(drawn(&large, draw, (50, 50)), crop(0, 0, 50, 50));
    // torchvision would have no row left.
    assert_eq!(fallback((1, 100), [9.0, 9.0]), crop(49, 0, 1, 1));
}

#[test]
fn random_crops_are_uniform() {
    let step = TransformStep::RandomCrop {
        size: Size(vec![32]),
        padding: Some([4; 4]),
        pad_if_needed: false,
        fill: PadFill(vec![0]),
        padding_mode: PaddingMode::Constant,
    };
    let mut counts = [[0_u32; 9]; 9];
    for draw in draws() {
        let RandomChoice::RandomCrop { padding, top, left, height: 32, width: 32 } =
            drawn(&step, draw, (32, 32))
        else {
            panic!("another choice")
        };
        assert_eq!(padding, [4; 4]);
        counts[top as usize][left as usize] += 1;
    }
    assert_even(counts.as_flattened());
}

#[test]
fn orders_and_factors_of_jitter_are_uniform() {
    let step = TransformStep::ColorJitter {
        brightness: Some([0.6, 1.4]),
        contrast: None,
        saturation: Some([1.0, 1.0]),
        hue: Some([-0.1, 0.1]),
    };
    let mut orders = std::collections::BTreeMap::new();
    let mut tenths = [0_u32; 10];
    for draw in draws() {
        let RandomChoice::ColorJitter(jitter) = drawn(&step, draw, (5, 5)) else {
            panic!("another choice")
        };
        assert_eq!((jitter.contrast, jitter.saturation), (None, Some(1.0)));
        assert!((-0.1..0.1).contains(&jitter.hue.unwrap()));
        tenths[((jitter.brightness.unwrap() - 0.6) / 0.08) as usize] += 1;
        *orders.entry(jitter.order).or_insert(0_u32) += 1;
    }
    assert_eq!(orders.len(), 24);
    assert_even(&orders.into_values().collect::<Vec<_>>());
    assert_even(&tenths);
}

/// Chi-squared: no more than five standard deviations above what is expected.
fn assert_even(counts: &[u32]) {
    let expected = f64::from(DRAWS) / counts.len() as f64;
    let sum: f64 = counts.iter().map(|&n| (f64::from(n) - expected).powi(2) / expected).sum();
    let free = (counts.len() - 1) as f64;
    assert!(sum < free + 5.0 * (2.0 * free).sqrt(), "chi-squared {sum} of {counts:?}");
}

#[test]
fn flips_have_their_probability() {
    for p in [0.0, 0.25, 0.5, 1.0] {
        let flipped = |step: &TransformStep| {
            let flips = draws().filter(|&draw| {
                matches!(
                    drawn(step, draw, (5, 5)),
                    RandomChoice::RandomHorizontalFlip { flip: true }
                        | RandomChoice::RandomVerticalFlip { flip: true }
                )
            });
            flips.count() as f64 / f64::from(DRAWS)
        };
        for share in [
            flipped(&TransformStep::RandomHorizontalFlip { p }),
            flipped(&TransformStep::RandomVerticalFlip { p }),
        ] {
            let four_deviations = 4.0 * (p * (1.0 - p) / f64::from(DRAWS)).sqrt();
            assert!((share - p).abs() <= four_deviations, "{share} for {p}");
        }
    }
}

#[test]
fn draws_of_steps_epochs_and_samples_are_independent() {
    let unit = |draw: Draw, step: usize| draw.rng(step).unit();
    let draw = Draw { seed: 1, epoch: 2, sample: 3 };
    assert_eq!(unit(draw, 0), unit(draw, 0));
    let all = [
        unit(draw, 0),
        unit(draw, 1),
        unit(Draw { seed: 2, ..draw }, 0),
        unit(Draw { epoch: 3, ..draw }, 0),
        unit(Draw { sample: 4, ..draw }, 0),
    ];
    for (at, a) in all.iter().enumerate() {
        assert!(all[at + 1..].iter().all(|b| a != b));
    }
}
