//! Arrays: the output of a chain.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The element type of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// `uint8`.
    Uint8,
    /// `int8`.
    Int8,
    /// `int16`.
    Int16,
    /// `uint16`.
    Uint16,
    /// `int32`.
    Int32,
    /// `uint32`.
    Uint32,
    /// `int64`.
    Int64,
    /// `uint64`.
    Uint64,
    /// `float16`.
    Float16,
    /// `bfloat16`.
    Bfloat16,
    /// `float32`.
    Float32,
    /// `float64`.
    Float64,
}

impl Dtype {
    /// All element types.
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

    /// Returns the bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::Uint8 | Self::Int8 => 1,
            Self::Int16 | Self::Uint16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// Returns whether this is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Bfloat16 | Self::Float32 | Self::Float64)
    }

    /// Returns the name that NumPy and torch use.
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

/// What is known about a chain's output before it has read a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// `None` if it depends on the sample.
    pub dtype: Option<Dtype>,
    /// `None` if it depends on the sample.
    pub shape: Option<Vec<usize>>,
}

impl Output {
    /// Returns the bytes of an output, if they are the same for all samples.
    pub fn bytes(&self) -> Option<usize> {
        let shape = self.shape.as_ref()?;
        Some(shape.iter().product::<usize>() * self.dtype?.size())
    }
}

/// Returns the bytes of an array with these extents; `None` if they exceed the address space. An
/// extent of 0 does not excuse the others, because strides are computed from them.
pub(crate) fn bytes_of(mut extents: impl Iterator<Item = usize>, size: usize) -> Option<usize> {
    let (all, empty) = extents.try_fold((size, false), |(bytes, empty), extent| {
        Some((bytes.checked_mul(extent.max(1))?, empty || extent == 0))
    })?;
    isize::try_from(all).ok()?;
    Some(if empty { 0 } else { all })
}

/// An array that owns its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// The element type.
    pub dtype: Dtype,
    /// The extents.
    pub shape: Vec<usize>,
    /// In C order and the machine's byte order.
    pub bytes: Vec<u8>,
}
