//! An impossible chain is an error that names the step.

use belady_transform::{Chain, Dtype, Output, TransformStep};

const DECODE: &str =
    r#"{"op": "Decode", "mode": "RGB", "apply_exif_orientation": false, "max_pixels": 1000000}"#;
const GRAY: &str =
    r#"{"op": "Decode", "mode": "GRAY", "apply_exif_orientation": false, "max_pixels": 1000000}"#;
const TENSOR: &str = r#"{"op": "ToTensor", "dtype": "float32", "layout": "CHW"}"#;
const NORMALIZE: &str = r#"{"op": "Normalize", "mean": [0, 0, 0], "std": [1, 1, 1]}"#;
const RAW: &str = r#"{"op": "Raw", "dtype": "float32", "shape": [3, null]}"#;

fn steps(steps: &[&str]) -> Vec<TransformStep> {
    TransformStep::list(&format!("[{}]", steps.join(", "))).unwrap()
}

fn output(list: &[&str]) -> (Option<Dtype>, Option<Vec<usize>>) {
    let Output { dtype, shape } = Chain::new(steps(list)).unwrap().output().clone();
    (dtype, shape)
}

#[track_caller]
fn refused(list: &[&str], message: &str) {
    assert_eq!(Chain::new(steps(list)).unwrap_err().to_string(), message);
}

#[test]
fn the_output_is_known_where_the_chain_determines_it() {
    let resize = r#"{"op": "Resize", "size": [8], "interpolation": "bilinear", "max_size": null, "antialias": true}"#;
    let crop = r#"{"op": "CenterCrop", "size": [4, 6]}"#;
    let hwc = r#"{"op": "ToTensor", "dtype": "float16", "layout": "HWC"}"#;
    assert_eq!(output(&[]), (Some(Dtype::Uint8), None));
    assert_eq!(output(&[DECODE]), (Some(Dtype::Uint8), None));
    assert_eq!(output(&[DECODE, crop]), (Some(Dtype::Uint8), Some(vec![4, 6, 3])));
    assert_eq!(output(&[DECODE, resize, TENSOR]), (Some(Dtype::Float32), None));
    assert_eq!(output(&[DECODE, crop, TENSOR]), (Some(Dtype::Float32), Some(vec![3, 4, 6])));
    assert_eq!(output(&[GRAY, crop, hwc]), (Some(Dtype::Float16), Some(vec![4, 6, 1])));
    assert_eq!(output(&[RAW]), (Some(Dtype::Float32), None));
    assert_eq!(output(&[r#"{"op": "Int"}"#]), (Some(Dtype::Int64), Some(vec![])));
    assert_eq!(output(&[r#"{"op": "Float"}"#]), (Some(Dtype::Float32), Some(vec![])));
    assert_eq!(output(&[r#"{"op": "Numpy"}"#]), (None, None));
    let shaped = r#"{"op": "Reshape", "shape": [2, 2]}"#;
    let double = r#"{"op": "ToDtype", "dtype": "float64"}"#;
    assert_eq!(
        output(&[r#"{"op": "Numpy"}"#, shaped, double]),
        (Some(Dtype::Float64), Some(vec![2, 2]))
    );
}

#[test]
fn an_impossible_order_names_the_step() {
    let crop = r#"{"op": "CenterCrop", "size": [4]}"#;
    refused(&[crop], "step 1 (CenterCrop): works on images; put Decode before it");
    refused(&[TENSOR], "step 1 (ToTensor): works on images; put Decode before it");
    refused(
        &[DECODE, TENSOR, crop],
        "step 3 (CenterCrop): works on images and not on tensors; put it before ToTensor",
    );
    refused(
        &[DECODE, TENSOR, TENSOR],
        "step 3 (ToTensor): works on images and not on tensors; put it before ToTensor",
    );
    refused(&[DECODE, NORMALIZE], "step 2 (Normalize): needs floats; put ToTensor before it");
    refused(
        &[DECODE, r#"{"op": "ToTensor", "dtype": "uint8", "layout": "CHW"}"#, NORMALIZE],
        "step 3 (Normalize): needs floats, but uint8 comes in; let ToTensor give float32",
    );
    refused(&[DECODE, DECODE], "step 2 (Decode): reads the sample's bytes; make it the first step");
    refused(
        &[RAW, r#"{"op": "Numpy"}"#],
        "step 2 (Numpy): reads the sample's bytes; make it the first step",
    );
    refused(
        &[RAW, crop],
        "step 2 (CenterCrop): works on images, but an array comes in; begin with Decode instead",
    );
    refused(
        &[r#"{"op": "Log", "offset": 1}"#],
        "step 1 (Log): works on numbers; begin with Raw, Numpy or Decode",
    );
    refused(
        &[r#"{"op": "Int"}"#, r#"{"op": "Log", "offset": 1}"#],
        "step 2 (Log): needs floats, but int64 comes in; put ToDtype(\"float32\") before it",
    );
    refused(
        &[DECODE, r#"{"op": "ToDtype", "dtype": "int8"}"#],
        "step 2 (ToDtype): works on tensors; put ToTensor before it",
    );
}

#[test]
fn channels_that_do_not_fit_name_the_step() {
    refused(
        &[GRAY, TENSOR, NORMALIZE],
        "step 3 (Normalize): has 3 means, but the image has 1 channel after \
         Decode(mode=\"GRAY\")",
    );
    let any = DECODE.replace("RGB", "UNCHANGED");
    refused(
        &[&any, TENSOR, NORMALIZE, r#"{"op": "ScaleShift", "scale": [1, 2, 3, 4], "shift": [0]}"#],
        "step 4 (ScaleShift): numbers for 4 channels do not fit 3; give one, or one per channel",
    );
    let pad =
        r#"{"op": "Pad", "padding": [1, 1, 1, 1], "fill": [1, 2, 3], "padding_mode": "constant"}"#;
    refused(
        &[GRAY, pad],
        "step 2 (Pad): fill has 3 values, but the image has 1 channel after Decode(mode=\"GRAY\")",
    );
    refused(
        &[RAW, r#"{"op": "ScaleShift", "scale": [1, 2], "shift": [0]}"#],
        "step 2 (ScaleShift): has 2 scales, but the array has 3 channels (its first extent)",
    );
    refused(
        &[r#"{"op": "Float"}"#, NORMALIZE],
        "step 2 (Normalize): has 3 means, but a single number without extents comes in",
    );
}

#[test]
fn invalid_numbers_name_the_step() {
    let after = |step: &str, message: &str| refused(&[DECODE, step], message);
    after(
        r#"{"op": "CenterCrop", "size": [0]}"#,
        "step 2 (CenterCrop): size 0 is not between 1 and 65535",
    );
    after(
        r#"{"op": "CenterCrop", "size": [1, 2, 3]}"#,
        "step 2 (CenterCrop): size has 3 numbers; give one, or height and width",
    );
    let resize = |size: &str, max: u32| {
        format!(
            r#"{{"op": "Resize", "size": {size}, "interpolation": "bicubic", "max_size": {max}, "antialias": true}}"#
        )
    };
    after(&resize("[9]", 9), "step 2 (Resize): max_size 9 is not larger than size 9");
    after(
        &resize("[9, 9]", 10),
        "step 2 (Resize): max_size needs a size of one number, the shorter side",
    );
    after(
        r#"{"op": "RandomHorizontalFlip", "p": 1.5}"#,
        "step 2 (RandomHorizontalFlip): p 1.5 is not a probability between 0 and 1",
    );
    let resized_crop = |scale: &str, ratio: &str| {
        format!(
            r#"{{"op": "RandomResizedCrop", "size": [9], "scale": {scale}, "ratio": {ratio}, "interpolation": "bilinear", "antialias": true}}"#
        )
    };
    after(
        &resized_crop("[1, 0.5]", "[1, 1]"),
        "step 2 (RandomResizedCrop): scale (1, 0.5) is an empty range; give the lower bound first",
    );
    after(
        &resized_crop("[0.5, 1]", "[0, 1]"),
        "step 2 (RandomResizedCrop): ratio (0, 1) is not positive",
    );
    let jitter = |hue: &str| {
        format!(
            r#"{{"op": "ColorJitter", "brightness": null, "contrast": null, "saturation": null, "hue": {hue}}}"#
        )
    };
    after(
        &jitter("[-0.6, 0.1]"),
        "step 2 (ColorJitter): hue (-0.6, 0.1) must be between -0.5 and 0.5",
    );
    after(
        r#"{"op": "ToTensor", "dtype": "int64", "layout": "CHW"}"#,
        "step 2 (ToTensor): gives uint8, float16, bfloat16 or float32; put ToDtype(\"int64\") \
         after it",
    );
    refused(
        &[DECODE, TENSOR, r#"{"op": "Normalize", "mean": [0], "std": [0]}"#],
        "step 3 (Normalize): std 1 is zero; give a number to divide by",
    );
    refused(
        &[DECODE, TENSOR, r#"{"op": "Normalize", "mean": [0, 1], "std": [1]}"#],
        "step 3 (Normalize): has 2 means and 1 std; give one of each per channel",
    );
}

#[test]
fn impossible_shapes_name_the_step() {
    refused(
        &[r#"{"op": "Raw", "dtype": "int8", "shape": [null, null]}"#],
        "step 1 (Raw): shape [None, None] leaves more than one extent open",
    );
    refused(
        &[r#"{"op": "Raw", "dtype": "int8", "shape": [4294967296, 4294967296]}"#],
        "step 1 (Raw): shape [4294967296, 4294967296] exceeds the address space",
    );
    refused(
        &[r#"{"op": "Raw", "dtype": "int8", "shape": [0, 4294967296, 4294967296]}"#],
        "step 1 (Raw): shape [0, 4294967296, 4294967296] exceeds the address space",
    );
    refused(
        &[
            r#"{"op": "Numpy"}"#,
            r#"{"op": "Reshape", "shape": [4611686018427387904]}"#,
            r#"{"op": "ToDtype", "dtype": "float64"}"#,
        ],
        "step 3 (ToDtype): shape [4611686018427387904] exceeds the address space",
    );
    refused(
        &[
            r#"{"op": "Raw", "dtype": "int8", "shape": [6]}"#,
            r#"{"op": "Reshape", "shape": [4, null]}"#,
        ],
        "step 2 (Reshape): its input has 6 numbers, which do not fit the shape [4, None]",
    );
    let crop = r#"{"op": "CenterCrop", "size": [4, 6]}"#;
    let random_crop = r#"{"op": "RandomCrop", "size": [5], "padding": null, "pad_if_needed": false, "fill": [0], "padding_mode": "constant"}"#;
    refused(
        &[DECODE, crop, random_crop],
        "step 3 (RandomCrop): a crop of 5 x 5 does not fit into an image of 6 x 4 (width x \
         height); give pad_if_needed=True, or put Resize before it",
    );
    let resize = |max_size: &str| {
        format!(
            r#"{{"op": "Resize", "size": [4], "interpolation": "bilinear", "max_size": {max_size}, "antialias": true}}"#
        )
    };
    let flip = r#"{"op": "RandomHorizontalFlip", "p": 0.5}"#;
    for resize in [resize("null"), resize("9")] {
        refused(
            &[DECODE, &resize, flip, random_crop],
            "step 4 (RandomCrop): a crop of 5 x 5 does not fit into an image whose shorter side \
             has at most 4; give pad_if_needed=True, or resize to more",
        );
    }
    let fits = |padding: &str, needed: bool| {
        let crop = random_crop.replace("null", padding).replace("false", &needed.to_string());
        Chain::new(steps(&[DECODE, &resize("null"), &crop])).is_ok()
    };
    assert!(fits("null", true) && fits("[1, 0, 0, 0]", false) && fits("[0, 1, 0, 0]", false));
    assert!(fits("[0, 0, 1, 1]", false));
    let pad = r#"{"op": "Pad", "padding": [6, 0, 0, 0], "fill": [0], "padding_mode": "reflect"}"#;
    refused(
        &[DECODE, crop, pad],
        "step 3 (Pad): reflect padding [6, 0, 0, 0] is too wide for an image of 6 x 4 (width x \
         height); pad less, or with padding_mode=\"edge\"",
    );
}

#[test]
fn a_chain_after_a_function_counts_from_the_first_step() {
    let floats = Output { dtype: Some(Dtype::Float32), shape: Some(vec![3, 4, 5]) };
    let crop = steps(&[r#"{"op": "CenterCrop", "size": [4]}"#]);
    assert_eq!(
        Chain::after(&floats, 2, crop.clone()).unwrap_err().to_string(),
        "step 3 (CenterCrop): works on images of uint8, but float32 comes in"
    );
    let planes = Output { dtype: Some(Dtype::Uint8), shape: Some(vec![3, 40, 50]) };
    assert_eq!(
        Chain::after(&planes, 2, crop.clone()).unwrap_err().to_string(),
        "step 3 (CenterCrop): works on images [height, width, channels], but an array of shape \
         [3, 40, 50] comes in"
    );
    let grey = Output { dtype: Some(Dtype::Uint8), shape: Some(vec![40, 50]) };
    let shape = Chain::after(&grey, 2, crop.clone()).unwrap().output().shape.clone();
    assert_eq!(shape, Some(vec![4, 4, 1]));
    let unknown = Chain::after(&Output::default(), 2, crop).unwrap();
    assert_eq!(unknown.output().shape, None);
    assert_eq!(
        Chain::after(&floats, 2, steps(&[NORMALIZE])).unwrap().output().shape,
        Some(vec![3, 4, 5])
    );
    assert_eq!(
        Chain::after(&floats, 1, steps(&[RAW])).unwrap_err().to_string(),
        "step 2 (Raw): reads the sample's bytes; make it the first step"
    );
}

#[test]
fn every_step_survives_json() {
    let list = [
        DECODE,
        RAW,
        r#"{"op": "Numpy"}"#,
        r#"{"op": "Int"}"#,
        r#"{"op": "Float"}"#,
        r#"{"op": "Resize", "size": [9], "interpolation": "nearest", "max_size": 10, "antialias": false}"#,
        r#"{"op": "CenterCrop", "size": [4, 5]}"#,
        r#"{"op": "RandomResizedCrop", "size": [9], "scale": [0.08, 1], "ratio": [0.75, 1.5], "interpolation": "bilinear", "antialias": true}"#,
        r#"{"op": "RandomCrop", "size": [5], "padding": [1, 2, 3, 4], "pad_if_needed": true, "fill": [1, 2, 3], "padding_mode": "symmetric"}"#,
        r#"{"op": "Pad", "padding": [6, 0, 0, 0], "fill": [0], "padding_mode": "edge"}"#,
        r#"{"op": "RandomHorizontalFlip", "p": 0.5}"#,
        r#"{"op": "RandomVerticalFlip", "p": 0.25}"#,
        r#"{"op": "ColorJitter", "brightness": [0.5, 1.5], "contrast": null, "saturation": null, "hue": [0, 0]}"#,
        r#"{"op": "ToTensor", "dtype": "bfloat16", "layout": "HWC"}"#,
        NORMALIZE,
        r#"{"op": "Reshape", "shape": [4, null]}"#,
        r#"{"op": "ScaleShift", "scale": [2], "shift": [0.5]}"#,
        r#"{"op": "Log", "offset": 1}"#,
        r#"{"op": "ToDtype", "dtype": "uint16"}"#,
    ];
    let read = steps(&list);
    let names: Vec<&str> = read.iter().map(TransformStep::name).collect();
    assert_eq!(names, TransformStep::NAMES);
    let again = serde_json::to_string(&read).unwrap();
    assert_eq!(TransformStep::list(&again).unwrap(), read);
}
