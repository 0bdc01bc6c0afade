//! Images: whatever the bytes are, an error or pixels come of them; as many as the header says, and
//! no more than are allowed; and a part that is decoded alone is that of the whole.
//!
//! The first byte chooses what is wanted, the next four which part.

#![no_main]

use belady_transform::Mode;
use belady_transform::codec::{DecodeRequest, Decoder, ImageInfo, probe};
use belady_transform::image::{Pixels, Rect};
use libfuzzer_sys::fuzz_target;

/// Few, so that a small file does not take long.
const MAX_PIXELS: u64 = 1 << 16;

fuzz_target!(|input: &[u8]| {
    let Some((&[choice, numbers @ ..], file)) = input.split_first_chunk::<5>() else { return };
    let Ok(info) = probe(file) else {
        let error = Decoder::default().decode(file, &wanted(choice), &mut Pixels::default());
        assert!(error.is_err(), "what has no header cannot be decoded");
        return;
    };
    let wanted = wanted(choice);
    let (mut decoder, mut whole) = (Decoder::default(), Pixels::default());
    let decoded = decoder.decode(file, &wanted, &mut whole);
    let (width, height) = info.size(wanted.apply_exif_orientation);
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        assert!(decoded.is_err(), "{width} x {height} are too many");
        return;
    }
    if let Ok(all) = &decoded {
        assert_eq!(*all, Rect::whole(width, height));
        assert_eq!(whole.channels, channels(wanted.mode, &info));
        check_shape(*all, &whole);
    }
    let part = part(width, height, numbers);
    let mut pixels = Pixels::default();
    let region = Some(part);
    if let Ok(cover) = decoder.decode(file, &DecodeRequest { region, ..wanted }, &mut pixels) {
        check_shape(cover, &pixels);
        if decoded.is_ok() {
            check_part(part, cover, &pixels, &whole);
        }
    }
});

fn wanted(choice: u8) -> DecodeRequest {
    let mode = [Mode::Rgb, Mode::Gray, Mode::Unchanged, Mode::Rgb][usize::from(choice & 3)];
    let apply_exif_orientation = choice & 4 != 0;
    DecodeRequest { mode, apply_exif_orientation, max_pixels: MAX_PIXELS, region: None }
}

fn channels(mode: Mode, info: &ImageInfo) -> u32 {
    match mode {
        Mode::Rgb => 3,
        Mode::Gray => 1,
        Mode::Unchanged => info.channels,
    }
}

fn part(width: u32, height: u32, numbers: [u8; 4]) -> Rect {
    let [left, top, right, bottom] = numbers.map(u32::from);
    let (left, top) = (left % width, top % height);
    Rect { left, top, width: 1 + right % (width - left), height: 1 + bottom % (height - top) }
}

fn check_shape(part: Rect, pixels: &Pixels) {
    assert_eq!((part.width, part.height), (pixels.width, pixels.height));
    let expected = u64::from(part.width) * u64::from(part.height) * u64::from(pixels.channels);
    assert_eq!(pixels.bytes.len() as u64, expected);
}

fn check_part(part: Rect, cover: Rect, pixels: &Pixels, whole: &Pixels) {
    for y in 0..part.height {
        let got = row(pixels, part.left - cover.left, part.top - cover.top + y, part.width);
        assert_eq!(got, row(whole, part.left, part.top + y, part.width), "row {y} of {part:?}");
    }
}

fn row(pixels: &Pixels, left: u32, y: u32, width: u32) -> &[u8] {
    let channels = pixels.channels as usize;
    let from = y as usize * pixels.width as usize + left as usize;
    &pixels.bytes[from * channels..(from + width as usize) * channels]
}
