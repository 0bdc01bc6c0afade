//! The vertical pass of a resize.

use super::weights::AxisWeights;

/// Makes output rows of `row` bytes, one per window, from rows that are `stride` bytes apart.
pub(super) fn run(weights: &AxisWeights, bytes: &[u8], stride: usize, row: usize, out: &mut [u8]) {
    for ((start, window), out) in weights.windows().zip(out.chunks_exact_mut(row)) {
        // Rows with weight 0 at the end of a window may not exist.
        let used = window.iter().rposition(|&weight| weight != 0).map_or(1, |last| last + 1);
        one_row(weights, &window[..used], &bytes[start * stride..], stride, out);
    }
}

fn one_row(weights: &AxisWeights, window: &[i16], bytes: &[u8], stride: usize, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        let done = unsafe { avx2::row(weights, window, bytes, stride, out) };
        plain_row(weights, window, &bytes[done..], stride, &mut out[done..]);
        return;
    }
    plain_row(weights, window, bytes, stride, out);
}

fn plain_row(weights: &AxisWeights, window: &[i16], bytes: &[u8], stride: usize, out: &mut [u8]) {
    for (x, out) in out.iter_mut().enumerate() {
        let column = bytes[x..].iter().step_by(stride);
        let sum = column.zip(window).map(|(&byte, &weight)| i32::from(byte) * i32::from(weight));
        let sum = sum.sum::<i32>() + weights.half();
        *out = (sum >> weights.precision()).clamp(0, 255) as u8;
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! Computes 32 bytes of a row at a time. Bytes of two rows are interleaved as 16-bit numbers,
    //! so that one multiply-add handles both.

    use std::arch::x86_64::{
        __m256i, _mm_cvtsi32_si128, _mm256_add_epi32, _mm256_loadu_si256, _mm256_madd_epi16,
        _mm256_packs_epi32, _mm256_packus_epi16, _mm256_set1_epi32, _mm256_setzero_si256,
        _mm256_sra_epi32, _mm256_storeu_si256, _mm256_unpackhi_epi8, _mm256_unpacklo_epi8,
    };

    use super::AxisWeights;

    const BYTES: usize = 32;

    /// Returns how many bytes were computed, from the left.
    #[target_feature(enable = "avx2")]
    pub fn row(
        weights: &AxisWeights,
        window: &[i16],
        bytes: &[u8],
        stride: usize,
        out: &mut [u8],
    ) -> usize {
        // The last row of the window has at least the length of `out`.
        assert!(bytes.len() >= (window.len() - 1) * stride + out.len());
        // Most windows have at most four rows; their loops are unrolled.
        match window.len() {
            1 | 2 => row_of::<1>(weights, window, bytes, stride, out),
            3 | 4 => row_of::<2>(weights, window, bytes, stride, out),
            _ => row_of::<0>(weights, window, bytes, stride, out),
        }
        out.len() / BYTES * BYTES
    }

    /// For windows of `PAIRS` pairs of rows, or any number if `PAIRS` is 0.
    #[target_feature(enable = "avx2")]
    fn row_of<const PAIRS: usize>(
        weights: &AxisWeights,
        window: &[i16],
        bytes: &[u8],
        stride: usize,
        out: &mut [u8],
    ) {
        let half = _mm256_set1_epi32(weights.half());
        let shift = _mm_cvtsi32_si128(weights.precision().cast_signed());
        let pairs = if PAIRS == 0 { window.len().div_ceil(2) } else { PAIRS };
        for (group, out) in out.as_chunks_mut::<BYTES>().0.iter_mut().enumerate() {
            let mut sums = [half; 4];
            for pair in 0..pairs {
                let (first, second) = (window[2 * pair], window.get(2 * pair + 1));
                let place = 2 * pair * stride + group * BYTES;
                // An odd row is paired with itself with weight 0.
                let next = if second.is_some() { place + stride } else { place };
                // SAFETY: rows of the window, whose existence is asserted above.
                let (above, below) = unsafe { (load(bytes, place), load(bytes, next)) };
                let second = second.copied().unwrap_or(0);
                let weights = i32::from(second) << 16 | i32::from(first.cast_unsigned());
                add(&mut sums, above, below, _mm256_set1_epi32(weights));
            }
            let [a, b, c, d] = sums.map(|sum| _mm256_sra_epi32(sum, shift));
            let packed = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            // SAFETY: `out` has 32 bytes.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), packed) };
        }
    }

    /// Adds two rows times their weights.
    #[target_feature(enable = "avx2")]
    fn add(sums: &mut [__m256i; 4], above: __m256i, below: __m256i, weights: __m256i) {
        let zero = _mm256_setzero_si256();
        let low = _mm256_unpacklo_epi8(above, below);
        let high = _mm256_unpackhi_epi8(above, below);
        let pairs = [
            _mm256_unpacklo_epi8(low, zero),
            _mm256_unpackhi_epi8(low, zero),
            _mm256_unpacklo_epi8(high, zero),
            _mm256_unpackhi_epi8(high, zero),
        ];
        for (sum, pairs) in sums.iter_mut().zip(pairs) {
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, weights));
        }
    }

    /// # Safety
    ///
    /// There are 32 bytes from `place` on.
    #[target_feature(enable = "avx2")]
    unsafe fn load(bytes: &[u8], place: usize) -> __m256i {
        debug_assert!(place + BYTES <= bytes.len());
        // SAFETY: as required above.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().add(place).cast()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::weights::{AxisRequest, Filter};
    use super::*;

    proptest! {
        #[test]
        fn avx2_and_plain_columns_are_equal(
            (from, to) in (1_u32..60, 1_u32..40),
            (row, padding) in (1..150_usize, 0..5_usize),
            cubic in any::<bool>(),
            antialias in any::<bool>(),
            bytes in prop::collection::vec(any::<u8>(), 1..50),
        ) {
            let mut weights = AxisWeights::default();
            let filter = if cubic { Filter::Cubic } else { Filter::Linear };
            let wanted = AxisRequest { from, to, first: 0, count: to, filter, antialias };
            weights.compute(wanted);
            let (stride, rows) = (row + padding, from as usize);
            let length = (rows - 1) * stride + row;
            let bytes: Vec<u8> = bytes.iter().copied().cycle().take(length).collect();
            let mut out = vec![0; row * to as usize];
            run(&weights, &bytes, stride, row, &mut out);
            for ((start, window), out) in weights.windows().zip(out.chunks_exact(row)) {
                let mut wanted = vec![0; row];
                plain_row(&weights, window, &bytes[start * stride..], stride, &mut wanted);
                prop_assert_eq!(out, &wanted);
            }
        }
    }
}
