//! The reported draws are those that are applied.

use belady_transform::{
    Array, Chain, Draw, Drawn, Dtype, Output, RandomChoice, Scratch, TransformStep,
};

const CROP: &str = r#"{"op": "RandomCrop", "size": [3, 4], "padding": null, "pad_if_needed": false, "fill": [0], "padding_mode": "constant"}"#;
const RESIZED: &str = r#"{"op": "RandomResizedCrop", "size": [2], "scale": [0.1, 1], "ratio": [0.5, 2], "interpolation": "nearest", "antialias": true}"#;
const FLIP: &str = r#"{"op": "RandomHorizontalFlip", "p": 0.5}"#;

fn after(before: usize, list: &[&str]) -> Chain {
    let steps = TransformStep::list(&format!("[{}]", list.join(", "))).unwrap();
    Chain::after(&Output::default(), before, steps).unwrap()
}

fn draw(sample: u32) -> Draw {
    Draw { seed: 11, epoch: 4, sample }
}

/// Returns an image whose pixels are their positions.
fn image(width: usize, height: usize) -> Array {
    let bytes = (0..width * height).map(|at| at as u8).collect();
    Array { dtype: Dtype::Uint8, shape: vec![height, width, 1], bytes }
}

#[test]
fn reported_crops_and_flips_are_applied() {
    let chain = after(1, &[CROP, FLIP]);
    let mut flips = 0;
    for sample in 0..100 {
        let drawn = chain.drawn(draw(sample), 12, 10).unwrap();
        let [
            Drawn {
                step: 2,
                choice: RandomChoice::RandomCrop { padding, top, left, height, width },
            },
            Drawn { step: 3, choice: RandomChoice::RandomHorizontalFlip { flip } },
        ] = drawn.as_slice()
        else {
            panic!("{drawn:?}")
        };
        assert_eq!((*padding, *height, *width), ([0; 4], 3, 4));
        let row = |y: u32| {
            let mut row: Vec<u8> = (0..4).map(|x| ((top + y) * 12 + left + x) as u8).collect();
            if *flip {
                row.reverse();
            }
            row
        };
        let expected: Vec<u8> = (0..3).flat_map(row).collect();
        let made = chain.run_array(&image(12, 10), draw(sample), &mut Scratch::default()).unwrap();
        assert_eq!((made.shape, made.bytes), (vec![3, 4, 1], expected));
        flips += usize::from(*flip);
    }
    assert!((25..75).contains(&flips));
}

#[test]
fn reported_resized_crops_are_applied() {
    let chain = after(0, &[RESIZED]);
    for sample in 0..100 {
        let drawn = chain.drawn(draw(sample), 12, 10).unwrap();
        let [
            Drawn { step: 1, choice: RandomChoice::RandomResizedCrop { top, left, height, width } },
        ] = drawn.as_slice()
        else {
            panic!("{drawn:?}")
        };
        let made = chain.run_array(&image(12, 10), draw(sample), &mut Scratch::default()).unwrap();
        let at = |x: u32, y: u32| ((top + y * height / 2) * 12 + left + x * width / 2) as u8;
        assert_eq!(made.bytes, [at(0, 0), at(1, 0), at(0, 1), at(1, 1)]);
    }
}

#[test]
fn a_continued_chain_draws_like_the_whole_one() {
    let whole = after(0, &[CROP, FLIP, RESIZED]);
    let rest = after(1, &[FLIP, RESIZED]);
    for sample in 0..50 {
        let all = whole.drawn(draw(sample), 12, 10).unwrap();
        assert_eq!(all[1..], rest.drawn(draw(sample), 4, 3).unwrap());
    }
}

#[test]
fn draws_survive_json() {
    let jitter = r#"{"op": "ColorJitter", "brightness": [1, 1], "contrast": null, "saturation": null, "hue": null}"#;
    let chain = after(0, &[RESIZED, CROP.replace("false", "true").as_str(), FLIP, jitter]);
    let drawn = chain.drawn(draw(0), 12, 10).unwrap();
    let json = serde_json::to_value(&drawn).unwrap();
    let ops: Vec<_> = json.as_array().unwrap().iter().map(|one| &one["op"]).collect();
    assert_eq!(ops, ["RandomResizedCrop", "RandomCrop", "RandomHorizontalFlip", "ColorJitter"]);
    assert_eq!(json[1]["step"], 2);
    // Two pixels become three and four: the missing ones are added on both sides.
    assert_eq!(json[1]["padding"], serde_json::json!([2, 1, 2, 1]));
    assert_eq!(json[3]["brightness"], 1.0);
    assert_eq!(json[3]["order"].as_array().unwrap().len(), 4);
    let again: Vec<Drawn> = serde_json::from_value(json).unwrap();
    assert_eq!(again, drawn);
}

#[test]
fn a_size_that_a_step_cannot_take_is_an_error() {
    let error = after(1, &[CROP]).drawn(draw(0), 3, 3).unwrap_err().to_string();
    assert!(error.starts_with("step 2 (RandomCrop): a crop of 4 x 3 does not fit"), "{error}");
    assert_eq!(Chain::new(vec![]).unwrap().drawn(draw(0), 3, 3).unwrap(), []);
}
