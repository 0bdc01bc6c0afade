//! Measures how many images of a folder one thread decodes per second of CPU time, whole and in
//! part.
//!
//! `cargo run --release -p belady-transform --example decode_speed -- FOLDER`

use belady_transform::Mode;
use belady_transform::codec::{DecodeRequest, Decoder, probe};
use belady_transform::image::{Pixels, Rect};

/// Seconds per measurement, and measurements of which the best counts.
const LASTING: f64 = 2.0;
const TIMES: usize = 3;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("give a folder of images")?;
    let files = std::fs::read_dir(folder)?
        .map(|entry| std::fs::read(entry?.path()))
        .collect::<Result<Vec<_>, _>>()?;
    let bytes: usize = files.iter().map(Vec::len).sum();
    println!("{} files of {} bytes on average", files.len(), bytes / files.len());
    let mut decoder = Decoder::default();
    let mut pixels = Pixels::default();
    for side in [None, Some(250), Some(224), Some(100)] {
        let rate = best(&files, |at, file| {
            let wanted = wanted(file, side, at as u32)?;
            decoder.decode(file, &wanted, &mut pixels).map(drop)
        })?;
        let what = side.map_or("whole".into(), |side| format!("{side} x {side} of it"));
        println!("{what:>16}  {rate:7.0} images / CPU-s");
    }
    Ok(())
}

/// Requests a square somewhere in the image.
fn wanted(
    file: &[u8],
    side: Option<u32>,
    at: u32,
) -> Result<DecodeRequest, belady_transform::TransformError> {
    let info = probe(file)?;
    let region = side.map(|side| {
        let (width, height) = (side.min(info.width), side.min(info.height));
        let left = at.wrapping_mul(7919) % (info.width - width + 1);
        let top = at.wrapping_mul(104_729) % (info.height - height + 1);
        Rect { left, top, width, height }
    });
    Ok(DecodeRequest {
        mode: Mode::Rgb,
        apply_exif_orientation: false,
        max_pixels: u64::MAX,
        region,
    })
}

fn best<E>(
    files: &[Vec<u8>],
    mut one: impl FnMut(usize, &[u8]) -> Result<(), E>,
) -> Result<f64, E> {
    let mut best = 0.0_f64;
    for _ in 0..TIMES {
        let (begin, mut count) = (processor_seconds(), 0_usize);
        while processor_seconds() - begin < LASTING {
            for file in files {
                one(count, file)?;
                count += 1;
            }
        }
        best = best.max(count as f64 / (processor_seconds() - begin));
    }
    Ok(best)
}

/// Returns the CPU time of this thread.
fn processor_seconds() -> f64 {
    let counts = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = counts.split(' ').next().and_then(|number| number.parse().ok());
    first.map_or(f64::NAN, |nanoseconds: f64| nanoseconds / 1e9)
}
