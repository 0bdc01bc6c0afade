//! A few bytes of a file cannot exhaust the memory.

use belady_transform::{Chain, Draw, Scratch, TransformStep};

mod encode;

const DRAW: Draw = Draw { seed: 0, epoch: 0, sample: 0 };
const DECODE: &str =
    r#"{"op": "Decode", "mode": "RGB", "apply_exif_orientation": false, "max_pixels": 1000000}"#;

fn chain(step: &str) -> Chain {
    let steps = if step.is_empty() { format!("[{DECODE}]") } else { format!("[{DECODE}, {step}]") };
    Chain::new(TransformStep::list(&steps).unwrap()).unwrap()
}

/// Returns a file that claims 65,535 x 65,535 pixels.
fn bomb() -> Vec<u8> {
    let mut file = encode::jpeg(16, 16, encode::PLAIN, 1);
    let frame = file.windows(2).position(|two| two == [0xff, 0xc0]).unwrap();
    file[frame + 5..frame + 9].fill(0xff);
    file
}

#[test]
fn an_image_that_claims_to_be_gigantic_is_refused_before_memory_is_allocated() {
    // The output would have 12 GB.
    let error = chain("").run(&bomb(), DRAW, &mut Scratch::default()).unwrap_err().to_string();
    assert!(error.contains("65535 x 65535") && error.contains("max_pixels"), "{error}");
}

#[test]
fn a_thin_image_does_not_become_a_gigantic_one() {
    let resize = r#"{"op": "Resize", "size": [256], "interpolation": "bilinear", "max_size": null, "antialias": true}"#;
    assert_eq!(
        chain(resize).drawn(DRAW, 1_000_000, 1).unwrap_err().to_string(),
        "step 2 (Resize): it would make an image of 256000000 x 256 pixels (width x height), more \
         than the 1000000 that max_pixels of Decode allows"
    );
    let crop = r#"{"op": "RandomCrop", "size": [32], "padding": null, "pad_if_needed": true, "fill": [0], "padding_mode": "constant"}"#;
    assert!(chain(crop).drawn(DRAW, 1_000_000, 1).is_err());
    assert!(chain(crop).drawn(DRAW, 10_000, 1).is_ok());
}

#[test]
fn an_intermediate_image_of_a_resize_is_limited_too() {
    let crop = r#"{"op": "RandomResizedCrop", "size": [224], "scale": [0.08, 1], "ratio": [0.75, 1.3333], "interpolation": "bilinear", "antialias": true}"#;
    assert!(chain(crop).drawn(DRAW, 1, 1_000_000).is_err());
    assert!(chain(crop).drawn(DRAW, 1_000_000, 1).is_ok());
}

#[test]
fn the_middle_of_a_thin_image_is_cropped_before_it_is_padded() {
    let file = encode::jpeg(4000, 2, encode::PLAIN, 1);
    let middle = chain(r#"{"op": "CenterCrop", "size": [600]}"#);
    let made = middle.run(&file, DRAW, &mut Scratch::default()).unwrap();
    assert_eq!(made.shape, [600, 600, 3]);
    let row = 600 * 3;
    assert!(made.bytes[..299 * row].iter().all(|&byte| byte == 0));
    assert!(made.bytes[299 * row..301 * row].iter().any(|&byte| byte != 0));
}

#[test]
fn a_chain_that_always_makes_too_large_an_image_is_refused_when_it_is_made() {
    let steps = format!(r#"[{DECODE}, {{"op": "CenterCrop", "size": [1001]}}]"#);
    assert_eq!(
        Chain::new(TransformStep::list(&steps).unwrap()).unwrap_err().to_string(),
        "step 2 (CenterCrop): it would make an image of 1001 x 1001 pixels (width x height), more \
         than the 1000000 that max_pixels of Decode allows"
    );
}
