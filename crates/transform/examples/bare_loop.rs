//! Measures ImageNet's training transform without a loader: one thread, files in memory, one reused
//! batch. It calls decoder, resizer and writer directly; the difference to a loader is the cost of
//! chain and engine. Prints a JSON object.
//!
//!     cargo run --release -p belady-transform --example bare_loop -- FOLDER [--whole]
//!
//! With `--whole` images are decoded whole, not only the needed part.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use belady_transform::codec::{DecodeRequest, Decoder, probe};
use belady_transform::image::{Pixels, Rect};
use belady_transform::ops::resize::Resizer;
use belady_transform::ops::{Flip, tensor};
use belady_transform::{AxisLayout, Draw, Dtype, Interpolation, Mode, StepRng};

const SIDE: u32 = 224;
const BATCH: usize = 64;
const SECONDS: Duration = Duration::from_secs(10);
const TENSOR: usize = (SIDE * SIDE * 3) as usize * size_of::<f32>();

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = arguments.iter().find(|argument| !argument.starts_with("--"));
    let folder = folder.ok_or("give the folder of the images")?;
    let mut files = Vec::new();
    read_files(Path::new(folder), &mut files)?;
    if files.is_empty() {
        return Err(format!("{folder} has no files").into());
    }
    let mut bare = Loop::new(arguments.iter().any(|argument| argument == "--whole"))?;
    bare.epoch(&files, 0)?;
    bare.spent = Spent::default();

    let (cpu, began) = (cpu_seconds()?, Instant::now());
    let mut epochs = 0;
    while began.elapsed() < SECONDS {
        epochs += 1;
        bare.epoch(&files, epochs)?;
    }
    let (seconds, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    let result = serde_json::json!({
        "images": files.len() * epochs as usize,
        "seconds": seconds,
        "cpu_seconds": cpu,
        "parts": {
            "decoding": bare.spent.decoding.as_secs_f64(),
            "resizing": bare.spent.resizing.as_secs_f64(),
            "writing the tensor": bare.spent.writing.as_secs_f64(),
        },
    });
    println!("{result}");
    Ok(())
}

fn read_files(folder: &Path, into: &mut Vec<Vec<u8>>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            read_files(&path, into)?;
        } else {
            into.push(fs::read(path)?);
        }
    }
    Ok(())
}

#[derive(Default)]
struct Spent {
    decoding: Duration,
    resizing: Duration,
    writing: Duration,
}

struct Loop {
    whole: bool,
    tables: tensor::Tables,
    decoder: Decoder,
    resizer: Resizer,
    decoded: Pixels,
    resized: Pixels,
    batch: Vec<u8>,
    spent: Spent,
}

impl Loop {
    fn new(whole: bool) -> Result<Self, Box<dyn Error>> {
        let tables = tensor::Tables::to_tensor(Dtype::Float32)?
            .normalize(&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225])?;
        Ok(Self {
            whole,
            tables,
            decoder: Decoder::default(),
            resizer: Resizer::default(),
            decoded: Pixels::default(),
            resized: Pixels::default(),
            batch: vec![0; BATCH * TENSOR],
            spent: Spent::default(),
        })
    }

    fn epoch(&mut self, files: &[Vec<u8>], epoch: u32) -> Result<(), Box<dyn Error>> {
        let mut order: Vec<usize> = (0..files.len()).collect();
        let mut rng = Draw { seed: 0, epoch, sample: u32::MAX }.rng(0);
        for at in (1..order.len()).rev() {
            order.swap(at, rng.below(at + 1));
        }
        for (at, &sample) in order.iter().enumerate() {
            let draw = Draw { seed: 0, epoch, sample: sample as u32 };
            self.image(&files[sample], &mut draw.rng(1), at % BATCH)?;
        }
        Ok(())
    }

    fn image(&mut self, file: &[u8], rng: &mut StepRng, slot: usize) -> Result<(), Box<dyn Error>> {
        let began = Instant::now();
        let info = probe(file)?;
        let crop = random_resized_crop(info.width, info.height, rng);
        let wanted = DecodeRequest {
            mode: Mode::Rgb,
            apply_exif_orientation: false,
            max_pixels: u64::MAX,
            region: Some(crop).filter(|_| !self.whole),
        };
        let has = self.decoder.decode(file, &wanted, &mut self.decoded)?;
        let decoded = Instant::now();
        let part = Rect { left: crop.left - has.left, top: crop.top - has.top, ..crop };
        let (from, into) = (&self.decoded, &mut self.resized);
        self.resizer.resize(from, part, SIDE, SIDE, Interpolation::Bilinear, true, into)?;
        let resized = Instant::now();
        let flip = Flip { horizontal: rng.happens(0.5), vertical: false };
        let into = &mut self.batch[slot * TENSOR..][..TENSOR];
        tensor::write(&self.resized, flip, &self.tables, AxisLayout::Chw, into)?;
        self.spent.decoding += decoded - began;
        self.spent.resizing += resized - decoded;
        self.spent.writing += resized.elapsed();
        Ok(())
    }
}

/// Draws like torchvision: 8 to 100 % of the area, 3:4 to 4:3. torchvision's fallback is not needed
/// for these images.
fn random_resized_crop(width: u32, height: u32, rng: &mut StepRng) -> Rect {
    let area = f64::from(width) * f64::from(height);
    for _ in 0..10 {
        let target = area * rng.uniform(0.08, 1.0);
        let ratio = rng.uniform((3.0_f64 / 4.0).ln(), (4.0_f64 / 3.0).ln()).exp();
        let w = (target * ratio).sqrt().round() as u32;
        let h = (target / ratio).sqrt().round() as u32;
        if (1..=width).contains(&w) && (1..=height).contains(&h) {
            let top = rng.below((height - h + 1) as usize) as u32;
            let left = rng.below((width - w + 1) as usize) as u32;
            return Rect { left, top, width: w, height: h };
        }
    }
    Rect::whole(width, height)
}

/// Returns the CPU time of this process.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    // utime and stime, in ticks of 10 ms.
    let (user, system) = ticks(11).zip(ticks(12)).ok_or("cannot parse /proc/self/stat")?;
    Ok((user + system) / 100.0)
}
