//! Rows become as wide as they shall be.

use super::Source;
use super::weights::{GROUP, Weights};

/// Bytes after every output row that a kernel may write to; it writes 16 at a time.
pub(super) const ROOM: usize = 16;
/// Bytes after a row that a kernel may read; it reads 16 at a time.
const AHEAD: usize = 16;
/// Rows that are done at once.
const ROWS: usize = 4;

/// Copies of the few rows whose reading would leave the image.
#[derive(Debug, Default)]
pub(super) struct Padded([Vec<u8>; ROWS]);

/// Makes all rows of a part as wide as there are windows. Output rows are `stride` bytes apart.
pub(super) fn run(
    weights: &Weights,
    source: &Source<'_>,
    channels: usize,
    padded: &mut Padded,
    stride: usize,
    out: &mut [u8],
) {
    let reach = source.row.max(reach(weights, channels));
    for (block, out) in out.chunks_mut(stride * ROWS).enumerate() {
        let first = block * ROWS;
        for (row, copy) in padded.0.iter_mut().enumerate() {
            // A last block of fewer rows does its last row again.
            let start = (first + row).min(source.rows - 1) * source.stride;
            if start + reach > source.bytes.len() {
                copy.clear();
                copy.extend_from_slice(&source.bytes[start..start + source.row]);
                copy.resize(reach, 0);
            }
        }
        let lines = std::array::from_fn(|row| {
            let start = (first + row).min(source.rows - 1) * source.stride;
            source.bytes.get(start..start + reach).unwrap_or(&padded.0[row])
        });
        block_of_rows(weights, lines, channels, stride, out);
    }
}

/// Bytes of a row that kernels may read.
fn reach(weights: &Weights, channels: usize) -> usize {
    weights.end() * channels + AHEAD
}

fn block_of_rows(
    weights: &Weights,
    lines: [&[u8]; ROWS],
    channels: usize,
    stride: usize,
    out: &mut [u8],
) {
    #[cfg(target_arch = "x86_64")]
    if out.len() == stride * ROWS && is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        unsafe { avx2::rows(weights, lines, channels, stride, out) };
        return;
    }
    for (line, out) in lines.into_iter().zip(out.chunks_mut(stride)) {
        match channels {
            1 => one_row::<1>(weights, line, out),
            2 => one_row::<2>(weights, line, out),
            3 => one_row::<3>(weights, line, out),
            _ => one_row::<4>(weights, line, out),
        }
    }
}

fn one_row<const CHANNELS: usize>(weights: &Weights, line: &[u8], out: &mut [u8]) {
    let pixels = line.as_chunks::<CHANNELS>().0;
    for ((start, window), out) in weights.windows().zip(out.as_chunks_mut::<CHANNELS>().0) {
        let mut sums = [weights.half(); CHANNELS];
        for (pixel, &weight) in pixels[start..].iter().zip(window) {
            for (sum, &value) in sums.iter_mut().zip(pixel) {
                *sum += i32::from(value) * i32::from(weight);
            }
        }
        *out = sums.map(|sum| (sum >> weights.precision()).clamp(0, 255) as u8);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! Four rows at once: two in the halves of a register, twice. A window's four pixels are
    //! shuffled into pairs of 16-bit numbers of one channel, so that one multiply-add does two
    //! pixels of up to four channels.

    use std::arch::x86_64::{
        __m128i, __m256i, _mm_cvtsi32_si128, _mm_loadu_si128, _mm_storeu_si128, _mm256_add_epi32,
        _mm256_broadcastsi128_si256, _mm256_castsi256_si128, _mm256_extracti128_si256,
        _mm256_madd_epi16, _mm256_packs_epi32, _mm256_packus_epi16, _mm256_set_m128i,
        _mm256_set1_epi32, _mm256_shuffle_epi8, _mm256_sra_epi32,
    };

    use super::{GROUP, ROWS, Weights, reach};

    /// Pixels that are written at a time.
    const PIXELS: usize = 4;

    #[target_feature(enable = "avx2")]
    pub fn rows(
        weights: &Weights,
        lines: [&[u8]; ROWS],
        channels: usize,
        stride: usize,
        out: &mut [u8],
    ) {
        if weights.window() == GROUP {
            rows_of::<true>(weights, lines, channels, stride, out);
        } else {
            rows_of::<false>(weights, lines, channels, stride, out);
        }
    }

    #[target_feature(enable = "avx2")]
    fn rows_of<const ONE_GROUP: bool>(
        weights: &Weights,
        lines: [&[u8]; ROWS],
        channels: usize,
        stride: usize,
        out: &mut [u8],
    ) {
        let masks = &MASKS[channels - 1];
        let (to_front, to_back, to_out) = (mask(&masks.front), mask(&masks.back), mask(&masks.out));
        let reach = reach(weights, channels);
        assert!(lines.iter().all(|line| line.len() >= reach));
        let half = _mm256_set1_epi32(weights.half());
        let shift = _mm_cvtsi32_si128(weights.precision().cast_signed());
        let window = if ONE_GROUP { GROUP } else { weights.window() };
        let mut written = 0;
        let starts = weights.starts().as_chunks::<PIXELS>().0;
        for (starts, values) in starts.iter().zip(weights.values().chunks_exact(PIXELS * window)) {
            let mut sums = [[half; PIXELS]; 2];
            for (pixel, &start) in starts.iter().enumerate() {
                let mut place = start as usize * channels;
                for group in values[pixel * window..][..window].as_chunks::<GROUP>().0 {
                    let (front, back) = (pair(group[0], group[1]), pair(group[2], group[3]));
                    for (sums, two) in sums.iter_mut().zip(lines.as_chunks::<2>().0) {
                        // SAFETY: lines are as long as windows reach, which was checked above.
                        let (above, below) = unsafe { (load(two[0], place), load(two[1], place)) };
                        let bytes = _mm256_set_m128i(below, above);
                        let first = _mm256_madd_epi16(_mm256_shuffle_epi8(bytes, to_front), front);
                        let second = _mm256_madd_epi16(_mm256_shuffle_epi8(bytes, to_back), back);
                        let sum = &mut sums[pixel];
                        *sum = _mm256_add_epi32(*sum, _mm256_add_epi32(first, second));
                    }
                    place += GROUP * channels;
                }
            }
            for (two, sums) in sums.iter().enumerate() {
                let [a, b, c, d] = sums.map(|sum| _mm256_sra_epi32(sum, shift));
                let packed =
                    _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
                let bytes = _mm256_shuffle_epi8(packed, to_out);
                let place = 2 * two * stride + written;
                store(_mm256_castsi256_si128(bytes), out, place);
                store(_mm256_extracti128_si256::<1>(bytes), out, place + stride);
            }
            written += PIXELS * channels;
        }
    }

    #[target_feature(enable = "avx2")]
    fn pair(first: i16, second: i16) -> __m256i {
        _mm256_set1_epi32(i32::from(second) << 16 | i32::from(first.cast_unsigned()))
    }

    /// # Safety
    ///
    /// There are 16 bytes of `line` from `place` on.
    #[target_feature(enable = "avx2")]
    unsafe fn load(line: &[u8], place: usize) -> __m128i {
        debug_assert!(place + 16 <= line.len());
        // SAFETY: as said above.
        unsafe { _mm_loadu_si128(line.as_ptr().add(place).cast()) }
    }

    #[target_feature(enable = "avx2")]
    fn store(bytes: __m128i, out: &mut [u8], place: usize) {
        let out = &mut out[place..place + 16];
        // SAFETY: there are 16 bytes.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), bytes) }
    }

    /// Which bytes go where; 0x80 makes a zero.
    struct Masks {
        /// To the first two pixels of four, channel by channel.
        front: [u8; 16],
        /// To the last two.
        back: [u8; 16],
        /// From pixels of four bytes to pixels of as many as there are channels.
        out: [u8; 16],
    }

    const MASKS: [Masks; 4] = [Masks::new(1), Masks::new(2), Masks::new(3), Masks::new(4)];

    impl Masks {
        const fn new(channels: usize) -> Self {
            let mut masks = Self { front: [0x80; 16], back: [0x80; 16], out: [0x80; 16] };
            let mut at = 0;
            while at < GROUP * channels {
                let (pixel, channel) = (at / channels, at % channels);
                let pairs = if pixel < 2 { &mut masks.front } else { &mut masks.back };
                pairs[channel * 4 + pixel % 2 * 2] = at as u8;
                masks.out[at] = (pixel * 4 + channel) as u8;
                at += 1;
            }
            masks
        }
    }

    #[target_feature(enable = "avx2")]
    fn mask(bytes: &[u8; 16]) -> __m256i {
        // SAFETY: there are 16 bytes.
        _mm256_broadcastsi128_si256(unsafe { load(bytes, 0) })
    }
}
