//! Chains of numbers: scientific samples, labels, and arrays of a Python function.

use belady_transform::{Array, Chain, Draw, Dtype, Output, Scratch, TransformStep};
use proptest::prelude::*;

const DRAW: Draw = Draw { seed: 0, epoch: 0, sample: 0 };

fn chain(json: &str) -> Chain {
    Chain::new(TransformStep::list(json).unwrap()).unwrap()
}

fn run(json: &str, sample: &[u8]) -> Result<Array, String> {
    chain(json).run(sample, DRAW, &mut Scratch::default()).map_err(|e| e.to_string())
}

fn floats(array: &Array) -> Vec<f32> {
    assert_eq!(array.dtype, Dtype::Float32);
    array.bytes.as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect()
}

fn bytes_of(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((text.len() as u16).to_le_bytes());
    file.extend(text.as_bytes());
    file.extend(data);
    file
}

#[test]
fn cosmoflow_is_prepared_like_its_reference() {
    // Counts in int16, four redshifts: ln(x + 1), one plane after another.
    let json = r#"[{"op": "Raw", "dtype": "int16", "shape": [4, 2, 2, 2]},
        {"op": "ToDtype", "dtype": "float32"}, {"op": "Log", "offset": 1.0},
        {"op": "ScaleShift", "scale": [1, 2, 3, 4], "shift": [0, 0, 0, 0.5]}]"#;
    let counts: Vec<i16> = (0..32).map(|x| x * 37).collect();
    let sample: Vec<u8> = counts.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let array = run(json, &sample).unwrap();
    assert_eq!(array.shape, [4, 2, 2, 2]);
    let expected = counts.iter().enumerate().map(|(at, &x)| {
        let channel = at / 8;
        let shift = if channel == 3 { 0.5 } else { 0.0 };
        (f32::from(x) + 1.0).ln() * (channel + 1) as f32 + shift
    });
    assert_eq!(floats(&array), expected.collect::<Vec<_>>());
}

#[test]
fn a_batch_row_has_the_bytes_of_a_new_array() {
    let json = r#"[{"op": "Raw", "dtype": "uint8", "shape": [2, 3]},
        {"op": "ToDtype", "dtype": "float64"}, {"op": "ScaleShift", "scale": [0.5], "shift": [1]},
        {"op": "ToDtype", "dtype": "float32"}, {"op": "Log", "offset": 0}]"#;
    let sample = [1, 2, 3, 4, 5, 255];
    let mut slot = vec![7; 24];
    let mut scratch = Scratch::default();
    for _ in 0..2 {
        chain(json).run_into(&sample, DRAW, &mut scratch, &mut slot).unwrap();
        assert_eq!(run(json, &sample).unwrap().bytes, slot);
    }
    let mut wrong = vec![0; 23];
    assert_eq!(
        chain(json).run_into(&sample, DRAW, &mut scratch, &mut wrong).unwrap_err().to_string(),
        "its result has 24 bytes instead of 23; give all samples one shape"
    );
}

#[test]
fn an_empty_chain_returns_the_bytes() {
    let array = run("[]", b"abc").unwrap();
    assert_eq!(array, Array { dtype: Dtype::Uint8, shape: vec![3], bytes: b"abc".to_vec() });
}

#[test]
fn labels_in_text_become_numbers() {
    let int = run(r#"[{"op": "Int"}]"#, b" 42\n").unwrap();
    let expected = 42_i64.to_ne_bytes().to_vec();
    assert_eq!(int, Array { dtype: Dtype::Int64, shape: vec![], bytes: expected });
    assert_eq!(floats(&run(r#"[{"op": "Float"}]"#, b"-1.5e3").unwrap()), [-1500.0]);
    assert_eq!(
        run(r#"[{"op": "Int"}]"#, b"4.2").unwrap_err(),
        "it is not a 64-bit integer in decimal text: it begins with \"4.2\""
    );
    assert!(run(r#"[{"op": "Int"}]"#, b"").is_err());
    assert!(run(r#"[{"op": "Int"}]"#, b"\xff\xfe").is_err());
    assert!(run(r#"[{"op": "Float"}]"#, b"one").is_err());
    let small = run(r#"[{"op": "Int"}, {"op": "ToDtype", "dtype": "uint8"}]"#, b"7").unwrap();
    assert_eq!(small.bytes, [7]);
}

#[test]
fn samples_of_another_size_are_refused_with_both_sizes() {
    let fixed = r#"[{"op": "Raw", "dtype": "float32", "shape": [2]}]"#;
    assert_eq!(
        run(fixed, &[0; 9]).unwrap_err(),
        "it has 9 bytes, but the array of float32 needs 8"
    );
    let open = r#"[{"op": "Raw", "dtype": "int16", "shape": [3, null]}]"#;
    assert_eq!(run(open, &[0; 12]).unwrap().shape, [3, 2]);
    assert_eq!(
        run(open, &[0; 7]).unwrap_err(),
        "it has 7 bytes, but the array of int16 needs a multiple of 6"
    );
}

#[test]
fn numpy_files_are_checked_when_they_are_read() {
    let file = npy("<f4", "(3, 2)", &bytes_of(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    let array = run(r#"[{"op": "Numpy"}]"#, &file).unwrap();
    assert_eq!((array.shape.as_slice(), floats(&array)[5]), (&[3, 2][..], 6.0));
    let normalize = r#"{"op": "Normalize", "mean": [1, 2, 3], "std": [2, 2, 2]}"#;
    let array = run(&format!(r#"[{{"op": "Numpy"}}, {normalize}]"#), &file).unwrap();
    assert_eq!(floats(&array), [0.0, 0.5, 0.5, 1.0, 1.0, 1.5]);
    let ints = npy("<i4", "(3,)", &[0; 12]);
    assert_eq!(
        run(&format!(r#"[{{"op": "Numpy"}}, {normalize}]"#), &ints).unwrap_err(),
        "step 2 (Normalize): needs floats, but int32 comes in; put ToDtype(\"float32\") before it"
    );
    let reshape = r#"[{"op": "Numpy"}, {"op": "Reshape", "shape": [4]}]"#;
    assert_eq!(
        run(reshape, &ints).unwrap_err(),
        "step 2 (Reshape): its input has 3 numbers, which do not fit the shape [4]"
    );
    let swapped = npy(">i2", "(2,)", &[0, 1, 1, 0]);
    let array = run(r#"[{"op": "Numpy"}, {"op": "ToDtype", "dtype": "int32"}]"#, &swapped).unwrap();
    assert_eq!(array.bytes, [1_i32, 256].map(i32::to_ne_bytes).concat());
}

#[test]
fn channels_may_come_last() {
    // Without a layout: the last axis, because the first does not have three elements.
    let json = r#"[{"op": "Raw", "dtype": "float32", "shape": [2, 3]},
        {"op": "ScaleShift", "scale": [1, 10, 100], "shift": [0]}]"#;
    let array = run(json, &bytes_of(&[1.0, 1.0, 1.0, 2.0, 2.0, 2.0])).unwrap();
    assert_eq!(floats(&array), [1.0, 10.0, 100.0, 2.0, 20.0, 200.0]);
}

#[test]
fn an_array_of_a_function_is_checked_when_it_is_there() {
    let steps = TransformStep::list(r#"[{"op": "CenterCrop", "size": [1]}]"#).unwrap();
    let chain = Chain::after(&Output::default(), 4, steps).unwrap();
    let mut scratch = Scratch::default();
    let image = Array { dtype: Dtype::Uint8, shape: vec![3, 3, 1], bytes: (0..9).collect() };
    let middle = chain.run_array(&image, DRAW, &mut scratch).unwrap();
    assert_eq!((middle.shape, middle.bytes), (vec![1, 1, 1], vec![4]));
    let floats = Array { dtype: Dtype::Float32, shape: vec![], bytes: vec![0; 4] };
    assert_eq!(
        chain.run_array(&floats, DRAW, &mut scratch).unwrap_err().to_string(),
        "step 5 (CenterCrop): works on images of uint8, but float32 comes in"
    );
    let short = Array { bytes: vec![0; 8], ..image };
    assert!(chain.run_array(&short, DRAW, &mut scratch).is_err());
    assert!(chain.run(b"abc", DRAW, &mut scratch).is_err());
    let reader = Chain::new(vec![]).unwrap();
    assert!(reader.run_array(&floats, DRAW, &mut scratch).is_err());
}

proptest! {
    #[test]
    fn steps_on_numbers_agree_with_naive_arithmetic(
        numbers in prop::collection::vec(0.0_f32..100.0, 12..13),
        scale in prop::collection::vec(0.1_f64..3.0, 3),
        shift in prop::collection::vec(0.0_f64..3.0, 3),
        offset in 0.1_f64..2.0,
    ) {
        let steps = vec![
            TransformStep::Raw { dtype: Dtype::Float32, shape: vec![None] },
            TransformStep::Reshape { shape: vec![Some(3), None] },
            TransformStep::ScaleShift { scale: scale.clone(), shift: shift.clone() },
            TransformStep::Log { offset },
            TransformStep::Normalize { mean: vec![0.5], std: vec![0.25] },
            TransformStep::ToDtype { dtype: Dtype::Int16 },
        ];
        let chain = Chain::new(steps).unwrap();
        let array = chain.run(&bytes_of(&numbers), DRAW, &mut Scratch::default()).unwrap();
        prop_assert_eq!(&array.shape, &[3, 4]);
        for (at, (got, x)) in array.bytes.as_chunks().0.iter().zip(&numbers).enumerate() {
            let scaled = x * scale[at / 4] as f32 + shift[at / 4] as f32;
            let expected = ((scaled + offset as f32).ln() - 0.5) / 0.25;
            prop_assert_eq!(i16::from_ne_bytes(*got), expected as i16);
        }
    }

    #[test]
    fn any_bytes_are_transformed_or_refused(sample in prop::collection::vec(any::<u8>(), 0..300)) {
        for json in [
            r#"[{"op": "Numpy"}, {"op": "ToDtype", "dtype": "float32"}]"#,
            r#"[{"op": "Raw", "dtype": "float64", "shape": [2, null]}]"#,
            r#"[{"op": "Int"}]"#,
            r#"[{"op": "Float"}]"#,
            r#"[{"op": "Decode", "mode": "RGB", "apply_exif_orientation": true, "max_pixels": 100000},
                {"op": "CenterCrop", "size": [4]}]"#,
        ] {
            let _ = run(json, &sample);
        }
    }
}
