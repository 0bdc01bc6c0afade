//! The horizontal pass of a resize, two rows at once.

use super::PartRows;
use super::weights::AxisWeights;

/// Rows per step.
pub(super) const ROWS: usize = 2;
/// Writable bytes after each output row; a kernel writes 16 bytes at a time.
pub(super) const PADDING: usize = 16;
/// Readable bytes after an input row; a kernel reads 16 bytes at a time.
const AHEAD: usize = 16;

/// Reused memory.
#[derive(Debug, Default)]
pub(super) struct RowScratch {
    /// Copies of the last rows, where a kernel would read beyond the image.
    copies: [Vec<u8>; ROWS],
    /// Pairs of weights, repeated to the width of a register.
    pairs: Vec<Pair>,
}

/// Two weights of 16 bits, eight times.
type Pair = [[i16; 2]; 8];

impl RowScratch {
    /// Copies a row unless `reach` bytes can be read in place.
    fn keep(&mut self, place: usize, source: &PartRows<'_>, row: usize, reach: usize) {
        let line = source.line(row);
        if line.len() < reach {
            let copy = &mut self.copies[place];
            copy.clear();
            copy.extend_from_slice(&line[..source.row]);
            copy.resize(reach, 0);
        }
    }

    fn spread(&mut self, weights: &AxisWeights) {
        self.pairs.clear();
        self.pairs.extend(weights.values().as_chunks::<2>().0.iter().map(|&pair| [pair; 8]));
    }
}

/// Resizes all rows of a part to the number of windows. Output rows are `stride` bytes apart,
/// [`PADDING`] more than their length; `out` has a multiple of [`ROWS`] rows.
pub(super) fn run(
    weights: &AxisWeights,
    source: &PartRows<'_>,
    channels: usize,
    scratch: &mut RowScratch,
    stride: usize,
    out: &mut [u8],
) {
    scratch.spread(weights);
    let reach = source.row.max(reach(weights, channels));
    for (block, out) in out.chunks_exact_mut(stride * ROWS).enumerate() {
        // An odd last row is computed twice.
        let row = |place: usize| (block * ROWS + place).min(source.rows - 1);
        for place in 0..ROWS {
            scratch.keep(place, source, row(place), reach);
        }
        let lines = std::array::from_fn(|place| {
            source.line(row(place)).get(..reach).unwrap_or(&scratch.copies[place])
        });
        let (above, below) = out.split_at_mut(stride);
        two_rows(weights, &scratch.pairs, lines, channels, &mut [above, below]);
    }
}

/// Returns the bytes of a row that kernels may read.
fn reach(weights: &AxisWeights, channels: usize) -> usize {
    weights.end() * channels + AHEAD
}

#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "for AVX2 only"))]
fn two_rows(
    weights: &AxisWeights,
    pairs: &[Pair],
    lines: [&[u8]; ROWS],
    channels: usize,
    out: &mut [&mut [u8]; ROWS],
) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2.
        unsafe { avx2::two_rows(weights, pairs, lines, channels, out) };
        return;
    }
    plain(weights, lines, channels, out);
}

fn plain(
    weights: &AxisWeights,
    lines: [&[u8]; ROWS],
    channels: usize,
    out: &mut [&mut [u8]; ROWS],
) {
    for (line, out) in lines.into_iter().zip(out) {
        match channels {
            1 => plain_row::<1>(weights, line, out),
            2 => plain_row::<2>(weights, line, out),
            3 => plain_row::<3>(weights, line, out),
            _ => plain_row::<4>(weights, line, out),
        }
    }
}

fn plain_row<const CHANNELS: usize>(weights: &AxisWeights, line: &[u8], out: &mut [u8]) {
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
    //! Each half of a register holds a row. A window's four pixels are shuffled into pairs of
    //! 16-bit numbers of one channel, so that one multiply-add handles two pixels of up to four
    //! channels.

    use std::arch::x86_64::{
        __m128i, __m256i, _mm_cvtsi32_si128, _mm_loadu_si128, _mm_storeu_si128, _mm256_add_epi32,
        _mm256_broadcastsi128_si256, _mm256_castsi256_si128, _mm256_extracti128_si256,
        _mm256_loadu_si256, _mm256_madd_epi16, _mm256_packs_epi32, _mm256_packus_epi16,
        _mm256_set_m128i, _mm256_set1_epi32, _mm256_shuffle_epi8, _mm256_sra_epi32,
    };

    use super::super::weights::GROUP;
    use super::{AxisWeights, Pair, ROWS, reach};

    /// Pixels per write.
    const PIXELS: usize = GROUP;

    #[target_feature(enable = "avx2")]
    pub fn two_rows(
        weights: &AxisWeights,
        pairs: &[Pair],
        lines: [&[u8]; ROWS],
        channels: usize,
        out: &mut [&mut [u8]; ROWS],
    ) {
        match channels {
            1 => of_channels::<1>(weights, pairs, lines, out),
            2 => of_channels::<2>(weights, pairs, lines, out),
            3 => of_channels::<3>(weights, pairs, lines, out),
            _ => of_channels::<4>(weights, pairs, lines, out),
        }
    }

    /// Most windows have one or two groups; their loops are unrolled.
    #[target_feature(enable = "avx2")]
    fn of_channels<const CHANNELS: usize>(
        weights: &AxisWeights,
        pairs: &[Pair],
        lines: [&[u8]; ROWS],
        out: &mut [&mut [u8]; ROWS],
    ) {
        match weights.window() / GROUP {
            1 => of_groups::<CHANNELS, 1>(weights, pairs, lines, out),
            2 => of_groups::<CHANNELS, 2>(weights, pairs, lines, out),
            _ => of_groups::<CHANNELS, 0>(weights, pairs, lines, out),
        }
    }

    /// For windows of `GROUPS` groups, or any number if `GROUPS` is 0.
    #[target_feature(enable = "avx2")]
    fn of_groups<const CHANNELS: usize, const GROUPS: usize>(
        weights: &AxisWeights,
        pairs: &[Pair],
        lines: [&[u8]; ROWS],
        out: &mut [&mut [u8]; ROWS],
    ) {
        let masks = const { Masks::new(CHANNELS) };
        let (to_front, to_back, to_out) = (mask(&masks.front), mask(&masks.back), mask(&masks.out));
        let half = _mm256_set1_epi32(weights.half());
        let shift = _mm_cvtsi32_si128(weights.precision().cast_signed());
        let reach = reach(weights, CHANNELS);
        assert!(lines.iter().all(|line| line.len() >= reach));
        let window = if GROUPS == 0 { weights.window() } else { GROUPS * GROUP };
        let starts = weights.starts().as_chunks::<PIXELS>().0;
        let [first, second] = out;
        let (first, second) = (&mut **first, &mut **second);
        let mut written = 0;
        for (starts, pairs) in starts.iter().zip(pairs.chunks_exact(PIXELS * window / 2)) {
            let mut sums = [half; PIXELS];
            for (pixel, (sum, &start)) in sums.iter_mut().zip(starts).enumerate() {
                let mut place = start as usize * CHANNELS;
                let pairs = &pairs[pixel * window / 2..][..window / 2];
                for [front, back] in pairs.as_chunks::<{ GROUP / 2 }>().0 {
                    // SAFETY: lines are as long as `reach`, which is asserted above.
                    let (above, below) = unsafe { (load(lines[0], place), load(lines[1], place)) };
                    let bytes = _mm256_set_m128i(below, above);
                    let (to_front, to_back) =
                        (_mm256_shuffle_epi8(bytes, to_front), _mm256_shuffle_epi8(bytes, to_back));
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(to_front, load_pair(front)));
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(to_back, load_pair(back)));
                    place += GROUP * CHANNELS;
                }
            }
            let [a, b, c, d] = sums.map(|sum| _mm256_sra_epi32(sum, shift));
            let packed = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            let bytes = _mm256_shuffle_epi8(packed, to_out);
            store(_mm256_castsi256_si128(bytes), first, written);
            store(_mm256_extracti128_si256::<1>(bytes), second, written);
            written += PIXELS * CHANNELS;
        }
    }

    #[target_feature(enable = "avx2")]
    fn load_pair(pair: &Pair) -> __m256i {
        // SAFETY: a pair has 32 bytes.
        unsafe { _mm256_loadu_si256(pair.as_ptr().cast()) }
    }

    /// # Safety
    ///
    /// There are 16 bytes of `line` from `place` on.
    #[target_feature(enable = "avx2")]
    unsafe fn load(line: &[u8], place: usize) -> __m128i {
        debug_assert!(place + 16 <= line.len());
        // SAFETY: as required above.
        unsafe { _mm_loadu_si128(line.as_ptr().add(place).cast()) }
    }

    #[target_feature(enable = "avx2")]
    fn store(bytes: __m128i, out: &mut [u8], place: usize) {
        let out = &mut out[place..place + 16];
        // SAFETY: the slice has 16 bytes.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), bytes) }
    }

    /// Shuffle masks; 0x80 produces a zero.
    struct Masks {
        /// To the first two pixels of four, channel by channel.
        front: [u8; 16],
        /// To the last two.
        back: [u8; 16],
        /// From pixels of four bytes to pixels of as many as there are channels.
        out: [u8; 16],
    }

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
        // SAFETY: a mask has 16 bytes.
        _mm256_broadcastsi128_si256(unsafe { load(bytes, 0) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::weights::{AxisRequest, Filter};
    use super::*;

    proptest! {
        #[test]
        fn avx2_and_plain_rows_are_equal(
            (from, to) in (1_u32..200, 1_u32..60),
            channels in 1..=4_usize,
            cubic in any::<bool>(),
            antialias in any::<bool>(),
            bytes in prop::collection::vec(any::<u8>(), 1..50),
        ) {
            let mut weights = AxisWeights::default();
            let filter = if cubic { Filter::Cubic } else { Filter::Linear };
            let wanted = AxisRequest { from, to, first: 0, count: to, filter, antialias };
            weights.compute(wanted);
            let reach = reach(&weights, channels).max(from as usize * channels);
            let line = |skip: usize| bytes.iter().copied().cycle().skip(skip).take(reach);
            let lines: [Vec<u8>; ROWS] = [line(0).collect(), line(1).collect()];
            let row = to as usize * channels;
            let lines = lines.each_ref().map(Vec::as_slice);
            let mut scratch = RowScratch::default();
            scratch.spread(&weights);
            let rows = |plainly: bool| {
                let mut out = [vec![0; row + PADDING], vec![0; row + PADDING]];
                let both = &mut out.each_mut().map(Vec::as_mut_slice);
                if plainly {
                    plain(&weights, lines, channels, both);
                } else {
                    two_rows(&weights, &scratch.pairs, lines, channels, both);
                }
                out.map(|out| out[..row].to_vec())
            };
            prop_assert_eq!(rows(false), rows(true));
        }
    }
}
