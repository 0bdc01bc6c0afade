//! Checks of steps that work on images.

use crate::array::Dtype;
use crate::flow::{ImageSpec, TensorSpec};
use crate::geometry::{self, Padding};
use crate::step::{AxisLayout, PadFill, PaddingMode, Size, TransformStep};

/// The longest side of a JPEG; a longer one is a mistake.
const LONGEST_SIDE: u32 = 65_535;

/// Returns the output of an image step.
pub fn step(step: &TransformStep, image: ImageSpec) -> Result<ImageSpec, String> {
    match step {
        TransformStep::Resize { size, max_size, .. } => resize(size, *max_size, image),
        TransformStep::CenterCrop { size } => cropped(size, image),
        TransformStep::RandomResizedCrop { size, scale, ratio, .. } => {
            random_resized_crop(size, *scale, *ratio, image)
        }
        TransformStep::RandomCrop { size, padding, pad_if_needed, fill, padding_mode } => {
            fill_fits(fill, image)?;
            let wanted = cropped(size, image)?;
            let padding = padding.map_or(Ok(None), |padding| sane(padding).map(Some))?;
            random_crop(size, padding, *pad_if_needed, *padding_mode, image)?;
            Ok(wanted)
        }
        TransformStep::Pad { padding, fill, padding_mode } => {
            fill_fits(fill, image)?;
            pad(sane(*padding)?, *padding_mode, image)
        }
        TransformStep::RandomHorizontalFlip { p } | TransformStep::RandomVerticalFlip { p } => {
            probability(*p).map(|()| image)
        }
        TransformStep::ColorJitter { brightness, contrast, saturation, hue } => {
            for (what, range) in
                [("brightness", brightness), ("contrast", contrast), ("saturation", saturation)]
            {
                factors(what, *range, 0.0, f64::MAX)?;
            }
            factors("hue", *hue, -0.5, 0.5)?;
            coloured(image)
        }
        other => Err(format!("{} does not work on images", other.name())),
    }
}

fn resize(size: &Size, max_size: Option<u32>, image: ImageSpec) -> Result<ImageSpec, String> {
    extents(size)?;
    if let Some(longest) = max_size {
        match size.0.as_slice() {
            &[shorter] if longest <= shorter => {
                return Err(format!("max_size {longest} is not larger than size {shorter}"));
            }
            [_] => {}
            _ => return Err("max_size needs a size of one number, the shorter side".into()),
        }
    }
    if let (None, &[shorter]) = (image.size, size.0.as_slice()) {
        return Ok(ImageSpec { shorter: Some(shorter), ..image });
    }
    let new = geometry::resized(image.size.unwrap_or_default(), size, max_size);
    resizable(new, image)?;
    Ok(ImageSpec { size: Some(new), ..image })
}

/// A resize makes the rows first, so the intermediate image must not be too large either.
fn resizable(new: (u32, u32), image: ImageSpec) -> Result<(), String> {
    image.may_become(new)?;
    image.size.map_or(Ok(()), |(_, height)| image.may_become((new.0, height)))
}

fn cropped(size: &Size, image: ImageSpec) -> Result<ImageSpec, String> {
    extents(size)?;
    let size = size.of_crop();
    image.may_become(size)?;
    Ok(ImageSpec { size: Some(size), ..image })
}

fn random_resized_crop(
    size: &Size,
    scale: [f64; 2],
    ratio: [f64; 2],
    image: ImageSpec,
) -> Result<ImageSpec, String> {
    for (what, [low, high]) in [("scale", scale), ("ratio", ratio)] {
        range(what, low, high)?;
        if low < 0.0 || high <= 0.0 || (what == "ratio" && low <= 0.0) {
            return Err(format!("{what} ({low}, {high}) is not positive"));
        }
    }
    let new = cropped(size, image)?;
    resizable(size.of_crop(), image)?;
    Ok(new)
}

fn random_crop(
    size: &Size,
    padding: Option<Padding>,
    pad_if_needed: bool,
    mode: PaddingMode,
    image: ImageSpec,
) -> Result<(), String> {
    let wanted = size.of_crop();
    let Some(old) = image.size else {
        return if pad_if_needed { Ok(()) } else { may_fit(wanted, padding, image) };
    };
    let padding = geometry::crop_padding(old, wanted, padding, pad_if_needed);
    edges_reach(padding, mode, old)?;
    let (width, height) = geometry::padded(old, padding);
    image.may_become((width, height))?;
    if wanted.0 > width || wanted.1 > height {
        return Err(format!(
            "a crop of {} x {} does not fit into an image of {width} x {height} (width x height); \
             give pad_if_needed=True, or put Resize before it",
            wanted.0, wanted.1
        ));
    }
    Ok(())
}

/// Checks that a crop can fit into an image of which only the shorter side is known.
fn may_fit(wanted: (u32, u32), padding: Option<Padding>, image: ImageSpec) -> Result<(), String> {
    let Some(shorter) = image.shorter else { return Ok(()) };
    let (width, height) = geometry::padded((shorter, shorter), padding.unwrap_or_default());
    if wanted.0 <= width || wanted.1 <= height {
        return Ok(());
    }
    Err(format!(
        "a crop of {} x {} does not fit into an image whose shorter side has at most {shorter}; \
         give pad_if_needed=True, or resize to more",
        wanted.0, wanted.1
    ))
}

fn pad(padding: Padding, mode: PaddingMode, image: ImageSpec) -> Result<ImageSpec, String> {
    let Some(old) = image.size else { return Ok(ImageSpec { shorter: None, ..image }) };
    edges_reach(padding, mode, old)?;
    let size = geometry::padded(old, padding);
    image.may_become(size)?;
    Ok(ImageSpec { size: Some(size), ..image })
}

/// Checks that mirrored padding is not wider than the image.
fn edges_reach(padding: Padding, mode: PaddingMode, size: (u32, u32)) -> Result<(), String> {
    let (spare, name) = match mode {
        PaddingMode::Reflect => (1, "reflect"),
        PaddingMode::Symmetric => (0, "symmetric"),
        PaddingMode::Constant | PaddingMode::Edge => return Ok(()),
    };
    let [left, top, right, bottom] = padding;
    let reaches = |padding: u32, extent: u32| padding <= extent.saturating_sub(spare);
    if reaches(left.max(right), size.0) && reaches(top.max(bottom), size.1) {
        return Ok(());
    }
    Err(format!(
        "{name} padding {padding:?} is too wide for an image of {} x {} (width x height); pad \
         less, or with padding_mode=\"edge\"",
        size.0, size.1
    ))
}

pub fn to_tensor(dtype: Dtype, layout: AxisLayout, image: ImageSpec) -> Result<TensorSpec, String> {
    if !matches!(dtype, Dtype::Uint8 | Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32) {
        return Err(format!(
            "gives uint8, float16, bfloat16 or float32; put ToDtype(\"{dtype}\") after it"
        ));
    }
    let channels = image.channels.map(|channels| channels as usize);
    let width = image.size.map(|(width, _)| width as usize);
    let height = image.size.map(|(_, height)| height as usize);
    let shape = match layout {
        AxisLayout::Chw => vec![channels, height, width],
        AxisLayout::Hwc => vec![height, width, channels],
    };
    Ok(TensorSpec {
        dtype: Some(dtype),
        shape: Some(shape),
        layout: Some(layout),
        origin: image.origin,
    })
}

fn extents(size: &Size) -> Result<(), String> {
    if !matches!(size.0.len(), 1 | 2) {
        return Err(format!("size has {} numbers; give one, or height and width", size.0.len()));
    }
    match size.0.iter().find(|&&extent| extent == 0 || extent > LONGEST_SIDE) {
        Some(extent) => Err(format!("size {extent} is not between 1 and {LONGEST_SIDE}")),
        None => Ok(()),
    }
}

fn sane(padding: Padding) -> Result<Padding, String> {
    match padding.iter().find(|&&extent| extent > LONGEST_SIDE) {
        Some(extent) => Err(format!("padding {extent} is wider than {LONGEST_SIDE}")),
        None => Ok(padding),
    }
}

fn fill_fits(fill: &PadFill, image: ImageSpec) -> Result<(), String> {
    match (fill.0.len(), image.channels) {
        (1, _) => Ok(()),
        (0, _) => Err("fill has no value; give one, or one per channel".into()),
        (values, Some(channels)) if values != channels as usize => Err(format!(
            "fill has {values} values, but the image has {channels} channel{}{}",
            if channels == 1 { "" } else { "s" },
            image.origin
        )),
        _ => Ok(()),
    }
}

fn coloured(image: ImageSpec) -> Result<ImageSpec, String> {
    match image.channels {
        Some(channels @ (2 | 4)) => Err(format!(
            "works on 1 or 3 channels, but the image has {channels}; decode with mode=\"RGB\""
        )),
        _ => Ok(image),
    }
}

fn probability(p: f64) -> Result<(), String> {
    if (0.0..=1.0).contains(&p) {
        return Ok(());
    }
    Err(format!("p {p} is not a probability between 0 and 1"))
}

fn factors(what: &str, given: Option<[f64; 2]>, least: f64, most: f64) -> Result<(), String> {
    let Some([low, high]) = given else { return Ok(()) };
    range(what, low, high)?;
    if low >= least && high <= most {
        return Ok(());
    }
    let bounds = if most == 0.5 { "between -0.5 and 0.5" } else { "0 or more" };
    Err(format!("{what} ({low}, {high}) must be {bounds}"))
}

fn range(what: &str, low: f64, high: f64) -> Result<(), String> {
    if low.is_finite() && high.is_finite() && low <= high {
        return Ok(());
    }
    Err(format!("{what} ({low}, {high}) is an empty range; give the lower bound first"))
}
