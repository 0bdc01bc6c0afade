//! Files of NumPy: whatever the bytes are, they become an array that is as large as its shape says
//! and no larger than the file, or an error; and its numbers can be converted.
//!
//! The first byte chooses: the rest is a file, or the dictionary of a file's header with numbers
//! behind it, so that a fuzzer need not guess lengths.

#![no_main]

use belady_transform::{Array, Chain, Draw, Dtype, Scratch, TransformStep};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else { return };
    let file = if choice % 2 == 0 { rest.to_vec() } else { framed(rest) };
    let Some(array) = run(&file, vec![TransformStep::Numpy]) else { return };
    let count: usize = array.shape.iter().product();
    assert_eq!(array.bytes.len(), count * array.dtype.size());
    assert!(array.bytes.len() <= file.len());
    let double = vec![TransformStep::Numpy, TransformStep::ToDtype { dtype: Dtype::Float64 }];
    let doubles = run(&file, double).expect("numbers become numbers");
    assert_eq!((doubles.bytes.len(), &doubles.shape), (count * 8, &array.shape));
});

fn run(file: &[u8], steps: Vec<TransformStep>) -> Option<Array> {
    let chain = Chain::new(steps).expect("the steps fit together");
    let draw = Draw { seed: 0, epoch: 0, sample: 0 };
    chain.run(file, draw, &mut Scratch::default()).ok()
}

/// A file with this dictionary, which ends at the first line's end, and these numbers.
fn framed(input: &[u8]) -> Vec<u8> {
    let end = input.iter().position(|&byte| byte == b'\n').map_or(input.len(), |at| at + 1);
    let mut file = b"\x93NUMPY\x02\x00".to_vec();
    file.extend((end as u32).to_le_bytes());
    file.extend(input);
    file.extend([1; 64]);
    file
}
