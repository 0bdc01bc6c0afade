//! Files of every format against Pillow's pixels (scripts/golden_images.py).

use std::path::{Path, PathBuf};

use belady_transform::Mode;
use belady_transform::codec::{DecodeRequest, Decoder, Orientation, probe};
use belady_transform::image::{Pixels, Rect};

/// Pillow's own limit.
const MAX_PIXELS: u64 = 178_956_970;

const ALL: DecodeRequest = DecodeRequest {
    mode: Mode::Rgb,
    apply_exif_orientation: false,
    max_pixels: MAX_PIXELS,
    region: None,
};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/images")
}

fn read(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the names of all files, and Pillow's pixels unless it refuses a file.
fn files() -> Vec<(String, Option<Vec<u8>>)> {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("golden files")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
        .collect();
    names.sort();
    names
        .iter()
        .filter(|name| Path::new(name).extension() != Some("bin".as_ref()))
        .map(|name| {
            let pixels = format!("{name}.bin");
            (name.clone(), names.contains(&pixels).then(|| read(&pixels)))
        })
        .collect()
}

fn decode(bytes: &[u8], wanted: DecodeRequest) -> Result<Pixels, String> {
    let mut pixels = Pixels::default();
    let part = Decoder::default().decode(bytes, &wanted, &mut pixels);
    let part = part.map_err(|error| error.to_string())?;
    assert_eq!(part, Rect::whole(pixels.width, pixels.height));
    assert_eq!(pixels.bytes.len() as u32, part.width * part.height * pixels.channels);
    Ok(pixels)
}

fn assert_alike(name: &str, got: &[u8], expected: &[u8]) {
    assert_eq!(got.len(), expected.len(), "{name}");
    let worst = got.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max();
    assert_eq!(worst, Some(0), "{name}");
}

#[test]
fn pixels_are_those_of_pillow() {
    let mut compared = 0;
    for (name, expected) in files() {
        let Some(expected) = expected else { continue };
        let bytes = read(&name);
        let info = probe(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let count = (info.width * info.height) as usize;
        let (rgb, rest) = expected.split_at(3 * count);
        let (grey, seen) = rest.split_at(count);
        let decoded = |wanted: DecodeRequest| {
            decode(&bytes, wanted).unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        assert_alike(&name, &decoded(ALL).bytes, rgb);
        assert_alike(&name, &decoded(DecodeRequest { mode: Mode::Gray, ..ALL }).bytes, grey);
        let turned = decoded(DecodeRequest { apply_exif_orientation: true, ..ALL });
        assert_eq!((turned.width, turned.height), info.size(true), "{name}");
        assert_alike(&name, &turned.bytes, if seen.is_empty() { rgb } else { seen });
        assert_eq!(info.orientation == Orientation::UPRIGHT, seen.is_empty(), "{name}");
        let unchanged = decoded(DecodeRequest { mode: Mode::Unchanged, ..ALL });
        assert_eq!(unchanged.channels, info.channels, "{name}");
        compared += 1;
    }
    assert!(compared > 70, "only {compared} files");
}

#[test]
fn files_that_pillow_refuses_are_refused_with_a_reason() {
    for (name, _) in files().into_iter().filter(|(_, expected)| expected.is_none()) {
        let error = decode(&read(&name), ALL).expect_err(&name);
        let sentence = match name.split_once('.').expect("an extension") {
            ("gigantic", _) => "pixels, more than the 178956970 that max_pixels allows",
            ("no-image", _) => "it is a truncated GIF",
            ("no-pixels", _) => "it is a PNG that cannot be decoded: it has 0 x 5 pixels",
            ("no-height", _) => "it is a JPEG that cannot be decoded: it has 19 x 0 pixels",
            ("twelve-bits", _) => "it has 12 bits per value instead of 8",
            ("strange-masks", _) => "it is a BMP that cannot be decoded: its channels are not",
            _ => ": its data end before the image does",
        };
        assert!(error.contains(sentence), "{name}: {error}");
    }
}

#[test]
fn a_file_that_is_no_image_is_described_by_its_first_bytes() {
    let refused = |bytes: &[u8]| decode(bytes, ALL).expect_err("no image");
    assert_eq!(refused(b""), "it is empty; an image is expected");
    assert_eq!(
        refused(b"\x7fELF and more"),
        "it is not an image that can be decoded (JPEG, PNG, WebP, BMP, GIF): it starts with 7f 45 4c \
         46 20 61 6e 64"
    );
    // Signatures without anything after them.
    for start in ["\u{89}PNG", "GIF89a", "BM", "RIFF\0\0\0\0WEBP"] {
        refused(start.as_bytes());
    }
    refused(b"\xff\xd8\xff");
    refused(b"\x89PNG\r\n\x1a\n");
}

#[test]
fn unchanged_mode_keeps_alpha_and_cmyk() {
    let unchanged = DecodeRequest { mode: Mode::Unchanged, ..ALL };
    for (name, channels) in [
        ("rgba.png", 4),
        ("grey-alpha.png", 2),
        ("grey.png", 1),
        ("palette.png", 3),
        ("palette-transparent.png", 4),
        ("lossless-alpha.webp", 4),
        ("lossless.webp", 3),
        ("masks-3.bmp", 4),
        ("rgb.bmp", 3),
        ("palette.gif", 3),
        ("cmyk.jpg", 4),
        ("grey.jpg", 1),
    ] {
        let pixels = decode(&read(name), unchanged).expect(name);
        assert_eq!(pixels.channels, channels, "{name}");
    }
}
