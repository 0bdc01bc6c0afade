//! JPEG: a decoded part equals that of the whole image, and truncated files are refused.

mod encode;

use belady_transform::Mode;
use belady_transform::codec::{DecodeRequest, Decoder, probe};
use belady_transform::image::{Pixels, Rect};
use encode::{Kind, PLAIN, jpeg};
use proptest::prelude::*;
use turbojpeg_sys as tj;

const ALL: DecodeRequest = DecodeRequest {
    mode: Mode::Rgb,
    apply_exif_orientation: false,
    max_pixels: 1 << 20,
    region: None,
};

fn decode(bytes: &[u8], wanted: DecodeRequest) -> Result<(Rect, Pixels), String> {
    let mut pixels = Pixels::default();
    let part = Decoder::default().decode(bytes, &wanted, &mut pixels);
    part.map(|part| (part, pixels)).map_err(|error| error.to_string())
}

/// Returns a row of a part out of pixels that cover more.
fn row(pixels: &Pixels, cover: Rect, part: Rect, y: u32) -> &[u8] {
    let channels = pixels.channels as usize;
    let from = (part.top - cover.top + y) as usize * pixels.width as usize
        + (part.left - cover.left) as usize;
    &pixels.bytes[from * channels..(from + part.width as usize) * channels]
}

/// Checks that a part decoded by itself equals that of the whole image.
fn check_part(decoder: &mut Decoder, bytes: &[u8], wanted: DecodeRequest, part: Rect) {
    let (mut whole, mut pixels) = (Pixels::default(), Pixels::default());
    let all = decoder.decode(bytes, &wanted, &mut whole).expect("it is a good file");
    let some = DecodeRequest { region: Some(part), ..wanted };
    let cover = decoder.decode(bytes, &some, &mut pixels).expect("a part of a good file");
    assert_eq!((cover.width, cover.height), (pixels.width, pixels.height));
    assert!(cover.left <= part.left && cover.left + cover.width >= part.left + part.width);
    assert!(cover.top <= part.top && cover.top + cover.height >= part.top + part.height);
    for y in 0..part.height {
        let (got, expected) = (row(&pixels, cover, part, y), row(&whole, all, part, y));
        assert_eq!(got, expected, "row {y} of {part:?}");
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    let samplings = prop::sample::select(vec![
        tj::TJSAMP_TJSAMP_444,
        tj::TJSAMP_TJSAMP_422,
        tj::TJSAMP_TJSAMP_420,
        tj::TJSAMP_TJSAMP_GRAY,
        tj::TJSAMP_TJSAMP_440,
        tj::TJSAMP_TJSAMP_411,
        tj::TJSAMP_TJSAMP_441,
    ]);
    let restart = prop_oneof![Just(0), 1..6_i32];
    let coding = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.1));
    (samplings, coding, restart, 30..100_i32, prop::bool::weighted(0.2)).prop_map(
        |(sampling, (progressive, arithmetic, lossless), restart, quality, cmyk)| Kind {
            // CMYK has no grey sampling; lossless has neither of the two codings.
            sampling: if cmyk && sampling == tj::TJSAMP_TJSAMP_GRAY { 0 } else { sampling },
            progressive: progressive && !lossless,
            arithmetic: arithmetic && !lossless,
            lossless,
            restart: if lossless { 0 } else { restart },
            quality,
            channels: if cmyk { 4 } else { 3 },
        },
    )
}

fn part_of(width: u32, height: u32, numbers: [u32; 4]) -> Rect {
    let (left, top) = (numbers[0] % width, numbers[1] % height);
    Rect {
        left,
        top,
        width: 1 + numbers[2] % (width - left),
        height: 1 + numbers[3] % (height - top),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_region_is_bit_equal_to_that_of_the_whole(
        kind in kinds(),
        (width, height) in (1..150_u32, 1..150_u32),
        seed in any::<u32>(),
        parts in prop::collection::vec(any::<[u32; 4]>(), 6),
        mode in prop::sample::select(vec![Mode::Rgb, Mode::Gray, Mode::Unchanged]),
    ) {
        let bytes = jpeg(width, height, kind, seed);
        let info = probe(&bytes).expect("it is a good file");
        prop_assert_eq!((info.width, info.height), (width, height));
        let mut decoder = Decoder::default();
        for numbers in parts {
            let wanted = DecodeRequest { mode, ..ALL };
            check_part(&mut decoder, &bytes, wanted, part_of(width, height, numbers));
        }
    }

    #[test]
    fn a_progressive_file_with_missing_scans_has_the_same_pixels_in_part_and_whole(
        kind in kinds(),
        (width, height) in (60..150_u32, 60..150_u32),
        lost in any::<prop::sample::Index>(),
        parts in prop::collection::vec(any::<[u32; 4]>(), 6),
    ) {
        let kind = Kind { progressive: true, lossless: false, ..kind };
        let mut bytes = jpeg(width, height, kind, 5);
        let scans: Vec<usize> = bytes
            .windows(2)
            .enumerate()
            .filter(|(_, pair)| *pair == [0xff, 0xda])
            .map(|(at, _)| at)
            .collect();
        bytes.truncate(scans[1 + lost.index(scans.len() - 1)]);
        bytes.extend([0xff, 0xd9]);
        let mut decoder = Decoder::default();
        for numbers in parts {
            check_part(&mut decoder, &bytes, ALL, part_of(width, height, numbers));
        }
    }

    #[test]
    fn a_truncated_file_is_refused_wherever_it_ends(
        kind in kinds(),
        cut in 1..usize::MAX,
        numbers in any::<[u32; 4]>(),
    ) {
        let bytes = jpeg(40, 30, kind, 1);
        let cut = &bytes[..cut % bytes.len()];
        for region in [None, Some(part_of(40, 30, numbers))] {
            let error = decode(cut, DecodeRequest { region, ..ALL }).expect_err("it is cut");
            prop_assert!(
                error.contains("truncated") || error.contains("is empty") || cut.len() < 3,
                "{}", error
            );
        }
    }
}

#[test]
fn an_image_above_max_pixels_is_refused_with_its_size() {
    let bytes = jpeg(40, 30, PLAIN, 1);
    let error =
        decode(&bytes, DecodeRequest { max_pixels: 1199, ..ALL }).expect_err("one too many");
    assert_eq!(error, "it has 40 x 30 pixels, more than the 1199 that max_pixels allows");
    decode(&bytes, DecodeRequest { max_pixels: 1200, ..ALL }).expect("just enough");
}

#[test]
fn a_region_outside_is_refused() {
    let bytes = jpeg(40, 30, PLAIN, 1);
    for (left, width) in [(40, 1), (30, 11), (0, 0), (u32::MAX, 2)] {
        let region = Some(Rect { left, top: 0, width, height: 1 });
        let error = decode(&bytes, DecodeRequest { region, ..ALL }).expect_err("outside");
        assert!(error.starts_with("it has 40 x 30 pixels, which"), "{error}");
    }
}

#[test]
fn a_decoder_works_after_a_bad_file() {
    let good = jpeg(40, 30, PLAIN, 1);
    let mut bad = good.clone();
    bad.truncate(good.len() / 2);
    let (mut decoder, mut pixels) = (Decoder::default(), Pixels::default());
    let (_, expected) = decode(&good, ALL).expect("it is a good file");
    for _ in 0..3 {
        decoder.decode(&bad, &ALL, &mut pixels).expect_err("it is cut");
        decoder.decode(&good, &ALL, &mut pixels).expect("it is a good file");
        assert_eq!(pixels, expected);
    }
}
