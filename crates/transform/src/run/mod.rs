//! Running a chain on one sample.
//!
//! A sample is opened ([`open`]): of an image the header is read, of an array the size. Then all
//! sizes are known. Image steps become a list of [`op`]s, which is made shorter ([`fuse`]) and done
//! ([`image`]); the steps behind them work on numbers ([`tensor`]), straight in the sample's place
//! in the batch. Steps right behind `ToTensor` are done with it, as far as they are the same for
//! every pixel ([`fold`]).

pub mod fold;
pub mod fuse;
pub mod image;
pub mod op;
pub mod open;
mod shrink;
pub mod tensor;

use image::ImageScratch;

/// Memory for numbers on their way.
pub type Spare = [Vec<u8>; 2];

/// What a thread needs to run chains. Grows to what the largest sample took.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) image: ImageScratch,
    pub(crate) spare: Spare,
}

#[cfg(test)]
mod tests;
