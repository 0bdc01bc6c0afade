//! Runs a chain on one sample.
//!
//! [`open`] reads the header of an image or the size of an array, so that all sizes are known.
//! Image steps become a list of [`op`]s, which are fused ([`fuse`]) and executed ([`image`]). The
//! steps after them work on numbers ([`tensor`]) in the sample's row of the batch. Steps after
//! `ToTensor` that treat all pixels alike are folded into it ([`fold`]).

pub mod fold;
pub mod fuse;
pub mod image;
pub mod op;
pub mod open;
mod shrink;
pub mod tensor;

use image::ImageScratch;

/// Memory for intermediate numbers.
pub type Spare = [Vec<u8>; 2];

/// A thread's memory for running chains. It grows to the needs of the largest sample.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) image: ImageScratch,
    pub(crate) spare: Spare,
}

#[cfg(test)]
mod tests;
