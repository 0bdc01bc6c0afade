//! Arithmetic on arrays of any dtype, in place in their bytes.
//!
//! Written by hand for bit parity with torch: every operation rounds to the array's dtype, also
//! between the two operations of `Normalize` and `ScaleShift`. Numbers are read and written by
//! their bytes, so arrays need no alignment; the compiler emits plain loads and stores.

use std::ops::{Add, Div, Mul, Sub};

use half::{bf16, f16};

use crate::array::Dtype;

/// A number in memory.
trait Number: Copy {
    const SIZE: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    /// Converts the value like torch: integers wrap around, floats are truncated and saturate, NaN
    /// is 0.
    fn convert<T: Number>(self) -> T;
    fn from_i64(value: i64) -> Self;
    fn from_u64(value: u64) -> Self;
    fn from_f32(value: f32) -> Self;
    fn from_f64(value: f64) -> Self;
}

macro_rules! primitive {
    ($($type:ty, $from:ident, $wide:ty;)*) => {$(
        #[allow(clippy::cast_possible_wrap, reason = "integers wrap around")]
        impl Number for $type {
            const SIZE: usize = size_of::<Self>();
            fn read(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<Self>()];
                own.copy_from_slice(bytes);
                Self::from_ne_bytes(own)
            }
            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
            fn convert<T: Number>(self) -> T {
                T::$from(self as $wide)
            }
            fn from_i64(value: i64) -> Self {
                value as Self
            }
            fn from_u64(value: u64) -> Self {
                value as Self
            }
            fn from_f32(value: f32) -> Self {
                value as Self
            }
            fn from_f64(value: f64) -> Self {
                value as Self
            }
        }
    )*};
}

primitive! {
    u8, from_i64, i64;
    i8, from_i64, i64;
    i16, from_i64, i64;
    u16, from_i64, i64;
    i32, from_i64, i64;
    u32, from_i64, i64;
    i64, from_i64, i64;
    u64, from_u64, u64;
    f32, from_f32, f32;
    f64, from_f64, f64;
}

/// Half-precision numbers are converted through `f32`, as in torch.
macro_rules! half {
    ($($type:ident),*) => {$(
        impl Number for $type {
            const SIZE: usize = 2;
            fn read(bytes: &[u8]) -> Self {
                Self::from_bits(u16::read(bytes))
            }
            fn write(self, bytes: &mut [u8]) {
                self.to_bits().write(bytes);
            }
            fn convert<T: Number>(self) -> T {
                T::from_f32(self.to_f32())
            }
            fn from_i64(value: i64) -> Self {
                $type::from_f32(value as f32)
            }
            fn from_u64(value: u64) -> Self {
                $type::from_f32(value as f32)
            }
            fn from_f32(value: f32) -> Self {
                $type::from_f32(value)
            }
            fn from_f64(value: f64) -> Self {
                $type::from_f32(value as f32)
            }
        }
    )*};
}

half!(f16, bf16);

/// A floating-point number.
trait FloatNumber:
    Number + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    fn ln(self) -> Self;
}

impl FloatNumber for f32 {
    fn ln(self) -> Self {
        self.ln()
    }
}

impl FloatNumber for f64 {
    fn ln(self) -> Self {
        self.ln()
    }
}

impl FloatNumber for f16 {
    fn ln(self) -> Self {
        Self::from_f32(self.to_f32().ln())
    }
}

impl FloatNumber for bf16 {
    fn ln(self) -> Self {
        Self::from_f32(self.to_f32().ln())
    }
}

/// Evaluates a body with an alias of a type.
macro_rules! typed {
    ($T:ident = $type:ty => $body:expr) => {{
        type $T = $type;
        $body
    }};
}

/// Evaluates a body with the Rust type of a dtype.
macro_rules! with_number {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            Dtype::Uint8 => typed!($T = u8 => $body),
            Dtype::Int8 => typed!($T = i8 => $body),
            Dtype::Int16 => typed!($T = i16 => $body),
            Dtype::Uint16 => typed!($T = u16 => $body),
            Dtype::Int32 => typed!($T = i32 => $body),
            Dtype::Uint32 => typed!($T = u32 => $body),
            Dtype::Int64 => typed!($T = i64 => $body),
            Dtype::Uint64 => typed!($T = u64 => $body),
            Dtype::Float16 => typed!($T = f16 => $body),
            Dtype::Bfloat16 => typed!($T = bf16 => $body),
            Dtype::Float32 => typed!($T = f32 => $body),
            Dtype::Float64 => typed!($T = f64 => $body),
        }
    };
}

/// Like `with_number`, for floats only. Checked chains have no other dtype here.
macro_rules! with_real {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            Dtype::Float16 => typed!($T = f16 => $body),
            Dtype::Bfloat16 => typed!($T = bf16 => $body),
            Dtype::Float32 => typed!($T = f32 => $body),
            Dtype::Float64 => typed!($T = f64 => $body),
            _ => debug_assert!(false, "not floats"),
        }
    };
}

/// Converts numbers to another dtype. `into` has the same number of elements.
pub fn convert(from: &[u8], dtype: Dtype, into: &mut [u8], wanted: Dtype) {
    fn typed<A: Number, B: Number>(from: &[u8], into: &mut [u8]) {
        for (a, b) in from.chunks_exact(A::SIZE).zip(into.chunks_exact_mut(B::SIZE)) {
            A::read(a).convert::<B>().write(b);
        }
    }
    with_number!(dtype, A => with_number!(wanted, B => typed::<A, B>(from, into)));
}

/// The layout of channels in an array: `inner` consecutive numbers per channel, in turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Channels {
    pub count: usize,
    pub inner: usize,
}

/// `(x - mean) / std`.
pub fn normalize(numbers: &mut [u8], dtype: Dtype, channels: Channels, mean: &[f64], std: &[f64]) {
    fn typed<T: FloatNumber>(numbers: &mut [u8], channels: Channels, mean: &[f64], std: &[f64]) {
        let factors = |channel| (T::from_f64(at(mean, channel)), T::from_f64(at(std, channel)));
        each::<T, _>(numbers, channels, factors, |x, (mean, std)| (x - mean) / std);
    }
    with_real!(dtype, T => typed::<T>(numbers, channels, mean, std));
}

/// `x * scale + shift`.
pub fn scale_shift(
    numbers: &mut [u8],
    dtype: Dtype,
    channels: Channels,
    scale: &[f64],
    shift: &[f64],
) {
    fn typed<T: FloatNumber>(numbers: &mut [u8], channels: Channels, scale: &[f64], shift: &[f64]) {
        let factors = |channel| (T::from_f64(at(scale, channel)), T::from_f64(at(shift, channel)));
        each::<T, _>(numbers, channels, factors, |x, (scale, shift)| x * scale + shift);
    }
    with_real!(dtype, T => typed::<T>(numbers, channels, scale, shift));
}

/// `ln(x + offset)`.
pub fn log(numbers: &mut [u8], dtype: Dtype, offset: f64) {
    fn typed<T: FloatNumber>(numbers: &mut [u8], offset: f64) {
        let all = Channels { count: 1, inner: numbers.len() / T::SIZE };
        each::<T, _>(numbers, all, |_| T::from_f64(offset), |x, offset| (x + offset).ln());
    }
    with_real!(dtype, T => typed::<T>(numbers, offset));
}

/// Returns a channel's factor; a single factor is for all channels.
fn at(factors: &[f64], channel: usize) -> f64 {
    factors[channel.min(factors.len() - 1)]
}

fn each<T: FloatNumber, F: Copy>(
    numbers: &mut [u8],
    channels: Channels,
    factors: impl Fn(usize) -> F,
    function: impl Fn(T, F) -> T,
) {
    let row = channels.inner * T::SIZE;
    if row == 0 {
        return;
    }
    for (row, channel) in numbers.chunks_exact_mut(row).zip((0..channels.count).cycle()) {
        let factor = factors(channel);
        for number in row.chunks_exact_mut(T::SIZE) {
            function(T::read(number), factor).write(number);
        }
    }
}

/// Reverses the bytes of every number.
pub fn swap_bytes(numbers: &mut [u8], size: usize) {
    if size > 1 {
        numbers.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
}

#[cfg(test)]
mod tests;
