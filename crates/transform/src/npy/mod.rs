//! NumPy files (`.npy`): a short header in Python's notation, then the numbers.
//!
//! `\x93NUMPY`, two bytes of version, the length of the header (two bytes in version 1, four in 2
//! and 3), and `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`. Versions 1 to 3 of
//! numbers and booleans are supported. Objects are not: unpickling runs code of the file. The
//! header is checked against the length of the file.
//!
//! Written by hand, because the fuzzed parser must not allocate by an untrusted header.

mod header;

use crate::array::{Dtype, bytes_of};
use crate::error::TransformError;
use crate::numbers;

use header::NpyHeader;

/// The array in a file, without copying it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Npy<'a> {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// The numbers are in Fortran order: the first index changes fastest.
    fortran: bool,
    /// The numbers have the other byte order.
    swapped: bool,
    data: &'a [u8],
}

impl<'a> Npy<'a> {
    /// Parses the header. Bytes after the numbers are ignored, as in NumPy.
    pub fn parse(file: &'a [u8]) -> Result<Self, TransformError> {
        let (text, rest) = split(file).map_err(|problem| {
            TransformError(format!("it is not a .npy file that can be read: {problem}"))
        })?;
        let NpyHeader { dtype, swapped, fortran, shape } =
            header::parse(text).map_err(|problem| {
                TransformError(format!("the header of the .npy file cannot be read: {problem}"))
            })?;
        let bytes = bytes_of(shape.iter().copied(), dtype.size());
        let Some(data) = bytes.and_then(|bytes| rest.get(..bytes)) else {
            return Err(TransformError(format!(
                "the .npy file has the shape {shape:?} of {dtype} in its header, but only {} bytes \
                 of numbers; it is truncated",
                rest.len()
            )));
        };
        Ok(Self { dtype, shape, fortran, swapped, data })
    }

    /// Returns the numbers if they are in C order and the machine's byte order.
    pub fn plain(&self) -> Option<&'a [u8]> {
        (!self.fortran && !self.swapped).then_some(self.data)
    }

    /// Copies the numbers in C order and the machine's byte order.
    pub fn copy(&self, into: &mut [u8]) {
        if self.fortran && self.shape.len() > 1 {
            transpose(self.data, &self.shape, self.dtype.size(), into);
        } else {
            into.copy_from_slice(self.data);
        }
        if self.swapped {
            numbers::swap_bytes(into, self.dtype.size());
        }
    }

    pub fn byte_len(&self) -> usize {
        self.data.len()
    }
}

/// Splits the header's text from the rest.
fn split(file: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let Some(rest) = file.strip_prefix(b"\x93NUMPY") else {
        return Err("it does not begin with \\x93NUMPY".into());
    };
    let (length, rest) = match rest {
        [1, 0, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, 0, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        [1..=3, 0, ..] | [] | [_] => return Err("it ends within its header".into()),
        [major, minor, ..] => {
            return Err(format!("its version is {major}.{minor}, and 1.0 to 3.0 are supported"));
        }
    };
    rest.split_at_checked(length).ok_or_else(|| "it ends within its header".into())
}

/// Copies numbers from Fortran to C order.
fn transpose(data: &[u8], shape: &[usize], size: usize, into: &mut [u8]) {
    // Bytes from one number to the next along each axis of the source.
    let strides: Vec<usize> = shape
        .iter()
        .scan(size, |stride, &extent| Some(std::mem::replace(stride, *stride * extent)))
        .collect();
    let mut place = vec![0; shape.len()];
    let mut from = 0;
    for number in into.chunks_exact_mut(size) {
        number.copy_from_slice(&data[from..from + size]);
        // Advances the last axis; at its end the axis before it.
        for axis in (0..shape.len()).rev() {
            place[axis] += 1;
            from += strides[axis];
            if place[axis] < shape[axis] {
                break;
            }
            from -= strides[axis] * shape[axis];
            place[axis] = 0;
        }
    }
}

#[cfg(test)]
mod tests;
