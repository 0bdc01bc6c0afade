//! What comes out of a chain.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The numbers that an array is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    Uint8,
    Int8,
    Int16,
    Uint16,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float16,
    Bfloat16,
    Float32,
    Float64,
}

impl Dtype {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Uint8,
        Self::Int8,
        Self::Int16,
        Self::Uint16,
        Self::Int32,
        Self::Uint32,
        Self::Int64,
        Self::Uint64,
        Self::Float16,
        Self::Bfloat16,
        Self::Float32,
        Self::Float64,
    ];

    /// Bytes of one number.
    pub const fn size(self) -> usize {
        match self {
            Self::Uint8 | Self::Int8 => 1,
            Self::Int16 | Self::Uint16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    pub const fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Bfloat16 | Self::Float32 | Self::Float64)
    }

    /// As NumPy and torch write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uint8 => "uint8",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Uint16 => "uint16",
            Self::Int32 => "int32",
            Self::Uint32 => "uint32",
            Self::Int64 => "int64",
            Self::Uint64 => "uint64",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is known of a chain's result before a sample is seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// `None` if it depends on the sample.
    pub dtype: Option<Dtype>,
    /// `None` if it depends on the sample.
    pub shape: Option<Vec<usize>>,
}

impl Output {
    /// Bytes of a result, if they are the same for all samples.
    pub fn bytes(&self) -> Option<usize> {
        let shape = self.shape.as_ref()?;
        Some(shape.iter().product::<usize>() * self.dtype?.size())
    }
}

/// Bytes of an array with these extents; `None` if that is more than any memory. Those of 0 do not
/// make the others smaller, of which strides are made.
pub(crate) fn bytes_of(mut extents: impl Iterator<Item = usize>, size: usize) -> Option<usize> {
    let (all, empty) = extents.try_fold((size, false), |(bytes, empty), extent| {
        Some((bytes.checked_mul(extent.max(1))?, empty || extent == 0))
    })?;
    isize::try_from(all).ok()?;
    Some(if empty { 0 } else { all })
}

/// A result in memory of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// In the order of C, in the machine's byte order.
    pub bytes: Vec<u8>,
}
