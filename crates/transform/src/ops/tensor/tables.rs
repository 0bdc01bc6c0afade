//! What each byte becomes.

use half::{bf16, f16};

use crate::array::Dtype;
use crate::error::TransformError;

/// What each byte of each channel becomes.
///
/// ```
/// use belady_transform::{Dtype, ops::tensor::Tables};
///
/// let tables = Tables::to_tensor(Dtype::Float32)?
///     .normalize(&[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225])?;
/// assert_eq!(tables.channels(), 3);
/// assert_eq!(tables.get(0, 255), 2.2489083);
/// # Ok::<(), belady_transform::TransformError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tables {
    dtype: Dtype,
    /// Exact, for numbers of every dtype here are numbers of `f32`.
    values: Vec<[f32; 256]>,
    pub(super) encoded: Encoded,
    /// For float32 alone: numbers whose arithmetic gives the same bits as the tables.
    pub(super) affine: Option<Vec<Affine>>,
}

/// The tables as they are written.
#[derive(Clone, Debug)]
pub(super) enum Encoded {
    /// Bytes stay as they are.
    Same,
    One(Vec<[u8; 256]>),
    Two(Vec<[u16; 256]>),
    Four(Vec<[u32; 256]>),
}

/// `d = byte * scale - mean`, divided by `std` as `d * inverse` and one step of correction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Affine {
    pub scale: f32,
    pub mean: f32,
    pub std: f32,
    pub inverse: f32,
}

impl Tables {
    /// Bytes as numbers: for floats in `[0, 1]`, for uint8 as they are. For all channels alike.
    pub fn to_tensor(dtype: Dtype) -> Result<Self, TransformError> {
        check(dtype)?;
        let unit = (1.0 / 255.0) as f32;
        let table = std::array::from_fn(|byte| {
            let byte = byte as f32;
            if dtype == Dtype::Uint8 { byte } else { round(dtype, byte * unit) }
        });
        let affine = Affine { scale: unit, mean: 0.0, std: 1.0, inverse: 1.0 };
        Ok(Self::of(dtype, vec![table], Some(vec![affine])))
    }

    /// `(x - mean) / std`, for all channels or for each.
    pub fn normalize(self, mean: &[f64], std: &[f64]) -> Result<Self, TransformError> {
        let Some(channels) = common_length(&[self.values.len(), mean.len(), std.len()]) else {
            return Err(TransformError(format!(
                "{} means and {} standard deviations do not fit {} channels; give one, or one a \
                 channel",
                mean.len(),
                std.len(),
                self.values.len()
            )));
        };
        if self.dtype == Dtype::Uint8 || std.contains(&0.0) {
            let text = "only floats are normalised, by standard deviations other than 0";
            return Err(TransformError(text.into()));
        }
        let dtype = self.dtype;
        let at = |numbers: &[f64], channel: usize| {
            round(dtype, numbers[channel.min(numbers.len() - 1)] as f32)
        };
        let parts = (0..channels).map(|channel| (at(mean, channel), at(std, channel)));
        let affine = self.affine.as_ref().map(|affine| {
            let scaled = parts.clone().map(|(mean, std)| Affine {
                scale: affine[0].scale,
                mean,
                std,
                inverse: 1.0 / std,
            });
            scaled.collect()
        });
        // Only the first normalisation has such arithmetic.
        let plain = self.affine.as_ref().is_some_and(|a| a.len() == 1 && a[0].std == 1.0);
        let values = parts.enumerate().map(|(channel, (mean, std))| {
            let old = &self.values[channel.min(self.values.len() - 1)];
            old.map(|value| round(dtype, round(dtype, value - mean) / std))
        });
        let values = values.collect();
        Ok(Self::of(dtype, values, affine.filter(|_| plain)))
    }

    /// Any other function of a number alone, given the channel's place and the number; it computes
    /// in `f32` and is rounded to the dtype at hand. Tells channels apart if there are `channels`
    /// of them, else (1) does the same for all.
    pub fn map(
        self,
        channels: usize,
        function: impl Fn(usize, f32) -> f32,
    ) -> Result<Self, TransformError> {
        let Some(count) = common_length(&[self.values.len(), channels]) else {
            let have = self.values.len();
            return Err(TransformError(format!(
                "numbers for {channels} channels do not fit {have}; give one, or one a channel"
            )));
        };
        let values = (0..count).map(|channel| {
            let old = &self.values[channel.min(self.values.len() - 1)];
            old.map(|value| round(self.dtype, function(channel, value)))
        });
        let values = values.collect();
        Ok(Self::of(self.dtype, values, None))
    }

    /// The same numbers in another dtype, by value.
    pub fn to_dtype(self, dtype: Dtype) -> Result<Self, TransformError> {
        check(dtype)?;
        let affine = self.affine.filter(|_| dtype == self.dtype);
        let values = self.values.iter().map(|table| table.map(|value| round(dtype, value)));
        let values = values.collect();
        Ok(Self::of(dtype, values, affine))
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// How many channels have a table of their own; 1 for one table for all.
    pub fn channels(&self) -> usize {
        self.values.len()
    }

    /// What a byte of a channel becomes.
    pub fn get(&self, channel: usize, byte: u8) -> f32 {
        self.values[channel.min(self.values.len() - 1)][byte as usize]
    }

    fn of(dtype: Dtype, values: Vec<[f32; 256]>, affine: Option<Vec<Affine>>) -> Self {
        let encoded = encode(dtype, &values);
        let affine = affine.filter(|affine| same_bits(dtype, &values, affine));
        Self { dtype, values, encoded, affine }
    }
}

impl Affine {
    /// What a byte becomes. The division's correction is Markstein's: the quotient's error, which a
    /// fused multiply-add computes exactly, goes back into it.
    #[inline]
    pub fn apply(self, byte: f32) -> f32 {
        let d = byte * self.scale - self.mean;
        let quotient = d * self.inverse;
        let error = (-quotient).mul_add(self.std, d);
        error.mul_add(self.inverse, quotient)
    }
}

/// Whether arithmetic gives the tables for every byte there is.
fn same_bits(dtype: Dtype, values: &[[f32; 256]], affine: &[Affine]) -> bool {
    dtype == Dtype::Float32
        && values.iter().zip(affine).all(|(table, affine)| {
            let mut bytes = (0..=u8::MAX).zip(table);
            bytes.all(|(byte, value)| affine.apply(byte as f32).to_bits() == value.to_bits())
        })
}

fn encode(dtype: Dtype, values: &[[f32; 256]]) -> Encoded {
    let same = |table: &[f32; 256]| table.iter().enumerate().all(|(at, &v)| v == at as f32);
    let values = values.iter();
    match dtype {
        Dtype::Uint8 if values.clone().all(same) => Encoded::Same,
        Dtype::Uint8 => Encoded::One(values.map(|t| t.map(|v| v as u8)).collect()),
        Dtype::Float16 => {
            Encoded::Two(values.map(|t| t.map(|v| f16::from_f32(v).to_bits())).collect())
        }
        Dtype::Bfloat16 => {
            Encoded::Two(values.map(|t| t.map(|v| bf16::from_f32(v).to_bits())).collect())
        }
        _ => Encoded::Four(values.map(|t| t.map(f32::to_bits)).collect()),
    }
}

fn check(dtype: Dtype) -> Result<(), TransformError> {
    use Dtype::{Bfloat16, Float16, Float32, Uint8};
    if matches!(dtype, Uint8 | Float16 | Bfloat16 | Float32) {
        return Ok(());
    }
    Err(TransformError(format!(
        "pixels do not become {dtype:?}; take uint8, float16, bfloat16 or float32"
    )))
}

/// The nearest number of a dtype; for uint8 what lies towards zero, as torch converts.
fn round(dtype: Dtype, value: f32) -> f32 {
    match dtype {
        Dtype::Uint8 => f32::from(value as u8),
        Dtype::Float16 => f16::from_f32(value).to_f32(),
        Dtype::Bfloat16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// The length that all have, but for those of 1; `None` if they differ or one is empty.
fn common_length(lengths: &[usize]) -> Option<usize> {
    let longest = *lengths.iter().max()?;
    lengths.iter().all(|&length| length == 1 || length == longest).then_some(longest)
}
