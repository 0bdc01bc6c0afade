//! Measures the hot path on one thread: `cargo run --release -p belady-transform --example
//! ops_speed`. Prints the thread's CPU time of the best of many runs.

use belady_transform::image::{Pixels, Rect};
use belady_transform::ops::resize::Resizer;
use belady_transform::ops::tensor::{self, Tables};
use belady_transform::ops::{Flip, colour};
use belady_transform::{AxisLayout, Dtype, Interpolation, TransformError};
use rustix::time::{ClockId, clock_gettime};

const SIDE: u32 = 224;
/// Tensors of a batch, more than fit into a cache.
const BATCH: usize = 64;

fn main() -> Result<(), TransformError> {
    println!("{:<52} {:>9}", "one image of 3 channels", "us");
    resizing()?;
    writing()?;
    colours()
}

fn resizing() -> Result<(), TransformError> {
    let cases = [
        (250, 250, Rect::whole(250, 250)),
        (500, 375, Rect::whole(500, 375)),
        (500, 375, Rect { left: 70, top: 50, width: 367, height: 276 }),
        (500, 375, Rect { left: 70, top: 50, width: 120, height: 100 }),
    ];
    for (width, height, part) in cases {
        let image = noise(width, height);
        for interpolation in [Interpolation::Bilinear, Interpolation::Bicubic] {
            let (mut resizer, mut into) = (Resizer::default(), Pixels::default());
            let us = best(|time| {
                // Random crops differ in size, so the weights are computed each time.
                let less = time as u32 % 2;
                let part = Rect { width: part.width - less, height: part.height - less, ..part };
                resizer.resize(&image, part, SIDE, SIDE, interpolation, true, &mut into)
            })?;
            let Rect { width: w, height: h, .. } = part;
            println!(
                "{:<52} {us:>9.1}",
                format!("{w}x{h} of {width}x{height} -> {SIDE}, {interpolation:?}")
            );
        }
    }
    Ok(())
}

fn writing() -> Result<(), TransformError> {
    let image = noise(SIDE, SIDE);
    for dtype in [Dtype::Float32, Dtype::Float16, Dtype::Bfloat16, Dtype::Uint8] {
        let mut tables = Tables::to_tensor(dtype)?;
        if dtype != Dtype::Uint8 {
            tables = tables.normalize(&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225])?;
        }
        let size = image.bytes.len() * dtype.size();
        let mut batch = vec![0; size * BATCH];
        for (layout, horizontal) in
            [(AxisLayout::Chw, false), (AxisLayout::Chw, true), (AxisLayout::Hwc, false)]
        {
            let flip = Flip { horizontal, vertical: false };
            let us = best(|time| {
                let slot = &mut batch[time % BATCH * size..][..size];
                tensor::write(&image, flip, &tables, layout, slot)
            })?;
            let flipped = if horizontal { ", flipped" } else { "" };
            println!(
                "{:<52} {us:>9.1}",
                format!("tensor {SIDE}x{SIDE}, {dtype:?}, {layout:?}{flipped}")
            );
        }
    }
    Ok(())
}

fn colours() -> Result<(), TransformError> {
    type Change = fn(&mut Pixels, f64) -> Result<(), TransformError>;
    let changes: [(&str, Change); 4] = [
        ("brightness", colour::brightness),
        ("contrast", colour::contrast),
        ("saturation", colour::saturation),
        ("hue", colour::hue),
    ];
    for (name, change) in changes {
        let mut image = noise(SIDE, SIDE);
        let us = best(|_| change(&mut image, 0.45))?;
        println!("{:<52} {us:>9.1}", format!("{name} {SIDE}x{SIDE}"));
    }
    Ok(())
}

/// Returns the microseconds of a call.
fn best(mut call: impl FnMut(usize) -> Result<(), TransformError>) -> Result<f64, TransformError> {
    const CALLS: usize = BATCH;
    let mut best = f64::MAX;
    for _ in 0..30 {
        let begun = thread_seconds();
        for time in 0..CALLS {
            call(time)?;
        }
        best = best.min((thread_seconds() - begun) * 1e6 / CALLS as f64);
    }
    Ok(best)
}

fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn noise(width: u32, height: u32) -> Pixels {
    let mut pixels = Pixels::default();
    pixels.shape(width, height, 3);
    for (place, byte) in (0_u32..).zip(&mut pixels.bytes) {
        *byte = (place.wrapping_mul(2_654_435_761) >> 24) as u8;
    }
    pixels
}
