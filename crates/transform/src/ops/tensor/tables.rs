//! Lookup tables from bytes to numbers.

use half::{bf16, f16};

use crate::array::Dtype;
use crate::error::TransformError;

/// The number of each byte, for each channel.
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
    /// Exact: `f32` contains all numbers of these dtypes.
    values: Vec<[f32; 256]>,
    pub(super) encoded: Encoded,
    /// For float32 only: arithmetic that computes the same bits as the tables.
    pub(super) affine: Option<Vec<Affine>>,
}

/// The tables as bytes of the output.
#[derive(Clone, Debug)]
pub(super) enum Encoded {
    /// Bytes are unchanged.
    Same,
    One(Vec<[u8; 256]>),
    Two(Vec<[u16; 256]>),
    Four(Vec<[u32; 256]>),
}

/// `d = byte * scale - mean`, divided by `std` as `d * inverse` with one correction step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Affine {
    pub scale: f32,
    pub mean: f32,
    pub std: f32,
    pub inverse: f32,
}

impl Tables {
    /// Returns the tables of `ToTensor`: floats in `[0, 1]`, uint8 unchanged; one table for all
    /// channels.
    ///
    /// # Errors
    /// If the dtype is not uint8, float16, bfloat16 or float32.
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

    /// Applies `(x - mean) / std`, for all channels or for each.
    ///
    /// # Errors
    /// If the numbers do not fit the channels, or a `std` is 0.
    pub fn normalize(self, mean: &[f64], std: &[f64]) -> Result<Self, TransformError> {
        let Some(channels) = common_length(&[self.values.len(), mean.len(), std.len()]) else {
            return Err(TransformError(format!(
                "{} means and {} standard deviations do not fit {} channels; give one, or one per \
                 channel",
                mean.len(),
                std.len(),
                self.values.len()
            )));
        };
        if self.dtype == Dtype::Uint8 || std.contains(&0.0) {
            let text = "only floats can be normalised, and standard deviations must not be 0";
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
        // The arithmetic covers a single normalisation.
        let plain = self.affine.as_ref().is_some_and(|a| a.len() == 1 && a[0].std == 1.0);
        let values = parts.enumerate().map(|(channel, (mean, std))| {
            let old = &self.values[channel.min(self.values.len() - 1)];
            old.map(|value| round(dtype, round(dtype, value - mean) / std))
        });
        let values = values.collect();
        Ok(Self::of(dtype, values, affine.filter(|_| plain)))
    }

    /// Applies any function of the channel and the number, which computes in `f32` and is rounded
    /// to the dtype. With 1 channel it is the same for all.
    ///
    /// # Errors
    /// If the tables have another number of channels.
    pub fn map(
        self,
        channels: usize,
        function: impl Fn(usize, f32) -> f32,
    ) -> Result<Self, TransformError> {
        let Some(count) = common_length(&[self.values.len(), channels]) else {
            let have = self.values.len();
            return Err(TransformError(format!(
                "numbers for {channels} channels do not fit {have}; give one, or one per channel"
            )));
        };
        let values = (0..count).map(|channel| {
            let old = &self.values[channel.min(self.values.len() - 1)];
            old.map(|value| round(self.dtype, function(channel, value)))
        });
        let values = values.collect();
        Ok(Self::of(self.dtype, values, None))
    }

    /// Converts the numbers to another dtype by value.
    ///
    /// # Errors
    /// If tables do not support the dtype.
    pub fn to_dtype(self, dtype: Dtype) -> Result<Self, TransformError> {
        check(dtype)?;
        let affine = self.affine.filter(|_| dtype == self.dtype);
        let values = self.values.iter().map(|table| table.map(|value| round(dtype, value)));
        let values = values.collect();
        Ok(Self::of(dtype, values, affine))
    }

    /// Returns the dtype of the numbers.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the number of tables; 1 if all channels share one.
    pub fn channels(&self) -> usize {
        self.values.len()
    }

    /// Returns the number of a channel's byte.
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
    /// Computes the number of a byte. The division is corrected by Markstein's method: a fused
    /// multiply-add computes the error of the quotient exactly.
    #[inline]
    pub fn apply(self, byte: f32) -> f32 {
        let d = byte * self.scale - self.mean;
        let quotient = d * self.inverse;
        let error = (-quotient).mul_add(self.std, d);
        error.mul_add(self.inverse, quotient)
    }
}

/// Returns whether the arithmetic computes the same bits for all bytes.
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
        "pixels cannot become {dtype:?}; choose uint8, float16, bfloat16 or float32"
    )))
}

/// Rounds to the nearest number of a dtype; uint8 truncates, as in torch.
fn round(dtype: Dtype, value: f32) -> f32 {
    match dtype {
        Dtype::Uint8 => f32::from(value as u8),
        Dtype::Float16 => f16::from_f32(value).to_f32(),
        Dtype::Bfloat16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// Returns the common length, where 1 fits all; `None` if they differ or one is empty.
fn common_length(lengths: &[usize]) -> Option<usize> {
    let longest = *lengths.iter().max()?;
    lengths.iter().all(|&length| length == 1 || length == longest).then_some(longest)
}
