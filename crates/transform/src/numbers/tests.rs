//! Against naive arithmetic.

use proptest::prelude::*;

use super::*;

fn bytes_of<T: Number>(numbers: &[T]) -> Vec<u8> {
    let mut bytes = vec![0; numbers.len() * T::SIZE];
    for (number, bytes) in numbers.iter().zip(bytes.chunks_exact_mut(T::SIZE)) {
        number.write(bytes);
    }
    bytes
}

fn numbers_of<T: Number>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(T::SIZE).map(T::read).collect()
}

fn converted<A: Number, B: Number>(numbers: &[A], from: Dtype, to: Dtype) -> Vec<B> {
    let mut into = vec![0; numbers.len() * B::SIZE];
    convert(&bytes_of(numbers), from, &mut into, to);
    numbers_of(&into)
}

#[test]
fn floats_are_truncated_and_saturate() {
    let floats = [0.9_f32, -0.9, 2.99, 300.5, -7.5, f32::NAN, f32::INFINITY];
    let bytes: Vec<u8> = converted(&floats, Dtype::Float32, Dtype::Uint8);
    assert_eq!(bytes, [0, 0, 2, 255, 0, 0, 255]);
    let words: Vec<i16> = converted(&floats, Dtype::Float32, Dtype::Int16);
    assert_eq!(words, [0, 0, 2, 300, -7, 0, i16::MAX]);
}

#[test]
fn integers_wrap_around_and_large_ones_become_floats() {
    let bytes: Vec<u8> = converted(&[257_i64, -1], Dtype::Int64, Dtype::Uint8);
    assert_eq!(bytes, [1, 255]);
    let floats: Vec<f64> = converted(&[u64::MAX], Dtype::Uint64, Dtype::Float64);
    assert_eq!(floats, [18_446_744_073_709_551_615.0]);
}

#[test]
fn small_numbers_survive_every_conversion() {
    for from in Dtype::ALL {
        let mut numbers = vec![0; 4 * from.size()];
        convert(&[0, 1, 2, 100], Dtype::Uint8, &mut numbers, from);
        for to in Dtype::ALL {
            let (mut there, mut back) = (vec![0; 4 * to.size()], [0; 4]);
            convert(&numbers, from, &mut there, to);
            convert(&there, to, &mut back, Dtype::Uint8);
            assert_eq!(back, [0, 1, 2, 100], "{from} to {to}");
        }
    }
}

#[test]
fn half_precision_rounds_after_each_operation() {
    let mut numbers = bytes_of(&[f16::from_f32(0.1), f16::from_f32(3.0)]);
    let one = Channels { count: 1, inner: 2 };
    scale_shift(&mut numbers, Dtype::Float16, one, &[0.3], &[0.7]);
    let expected = [0.1_f32, 3.0].map(|x| {
        let product = f16::from_f32(f16::from_f32(x).to_f32() * f16::from_f32(0.3).to_f32());
        f16::from_f32(product.to_f32() + f16::from_f32(0.7).to_f32())
    });
    assert_eq!(numbers_of::<f16>(&numbers), expected);
}

#[test]
fn bytes_are_reversed() {
    let mut numbers = *b"abcdefgh";
    swap_bytes(&mut numbers, 4);
    assert_eq!(&numbers, b"dcbahgfe");
    swap_bytes(&mut numbers, 1);
    assert_eq!(&numbers, b"dcbahgfe");
}

proptest! {
    #[test]
    fn channels_get_their_own_factors(
        outer in 1_usize..3, count in 1_usize..4, inner in 1_usize..5, seed in any::<u32>(),
    ) {
        let value = |at: usize| (at as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) as f32;
        let numbers: Vec<f32> = (0..outer * count * inner).map(value).collect();
        let (mean, std): (Vec<f64>, Vec<f64>) =
            (0..count).map(|c| (c as f64 / 3.0, 1.0 + c as f64)).unzip();
        let channels = Channels { count, inner };
        let mut bytes = bytes_of(&numbers);
        normalize(&mut bytes, Dtype::Float32, channels, &mean, &std);
        for (at, (got, x)) in numbers_of::<f32>(&bytes).into_iter().zip(&numbers).enumerate() {
            let channel = at / inner % count;
            prop_assert_eq!(got, (x - mean[channel] as f32) / std[channel] as f32);
        }
    }

    #[test]
    fn logs_are_those_of_the_numbers(numbers in prop::collection::vec(0.0_f64..1e6, 0..20)) {
        let mut bytes = bytes_of(&numbers);
        log(&mut bytes, Dtype::Float64, 1.0);
        let expected: Vec<f64> = numbers.iter().map(|x| (x + 1.0).ln()).collect();
        prop_assert_eq!(numbers_of::<f64>(&bytes), expected);
    }
}
