use super::*;

/// Returns its input.
#[derive(Debug)]
struct Echo {
    output: Output,
    text: bool,
}

impl Transform for Echo {
    fn output(&self) -> &Output {
        &self.output
    }

    fn run_into(
        &self,
        sample: &[u8],
        _: Draw,
        _: &mut Scratch,
        into: &mut [u8],
    ) -> Result<(), TransformError> {
        into.copy_from_slice(sample);
        Ok(())
    }

    fn run(&self, sample: &[u8], _: Draw, _: &mut Scratch) -> Result<Array, TransformError> {
        if sample == b"bad" {
            return Err(TransformError("it is bad".to_owned()));
        }
        Ok(Array { dtype: Dtype::Uint8, shape: vec![sample.len()], bytes: sample.to_vec() })
    }

    fn takes(&self) -> Takes {
        if self.text { Takes::Text } else { Takes::Bytes }
    }
}

fn field(part: Option<&str>, text: Option<bool>) -> FieldSpec {
    let output = Output { dtype: Some(Dtype::Uint8), shape: None };
    let transform = text.map(|text| Arc::new(Echo { output, text }) as Arc<dyn Transform>);
    FieldSpec { part: part.map(str::to_owned), transform }
}

fn run(field: &FieldSpec, sample: &[u8]) -> Result<Value, String> {
    let draw = Draw { seed: 0, epoch: 0, sample: 0 };
    let value = field.run(&mut SampleParts::new(sample), draw, &mut Scratch::default(), None);
    value.map(Option::unwrap).map_err(|error| error.to_string())
}

fn bytes(value: Result<Value, String>) -> Vec<u8> {
    match value.unwrap() {
        Value::Bytes(bytes) | Value::Array(Array { bytes, .. }) => bytes,
    }
}

/// A member of a tar archive.
fn member(name: &str, body: &[u8]) -> Vec<u8> {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    header[100..107].copy_from_slice(b"0000644");
    header[124..135].copy_from_slice(format!("{:011o}", body.len()).as_bytes());
    header[148..156].fill(b' ');
    header[156] = b'0';
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut member = header.to_vec();
    member.extend(body);
    member.resize(member.len().next_multiple_of(512), 0);
    member
}

/// A message of protocol buffers.
fn message(number: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let mut message = vec![number << 3 | 2, body.len() as u8];
    message.extend(body);
    message
}

fn example(name: &str, list: &[u8]) -> Vec<u8> {
    let entry = message(1, &[&message(1, &[name.as_bytes()]), &message(2, &[list])]);
    message(1, &[&entry])
}

#[test]
fn members_of_a_webdataset_sample_are_parts() {
    let sample = [member("7.jpg", b"picture"), member("7.cls", b"3")].concat();
    for chain in [None, Some(false), Some(true)] {
        assert_eq!(bytes(run(&field(Some("jpg"), chain), &sample)), b"picture");
        assert_eq!(bytes(run(&field(Some("png; cls"), chain), &sample)), b"3");
        assert_eq!(bytes(run(&field(None, chain), &sample)), sample);
    }
    let missing = run(&field(Some("png"), None), &sample).unwrap_err();
    assert_eq!(missing, "it has no member png; it has jpg, cls");
    let damaged = run(&field(Some("jpg"), None), &sample[..600]).unwrap_err();
    assert!(damaged.contains("ends within"), "{damaged}");
}

#[test]
fn features_of_an_example_are_parts() {
    let image = example("image", &message(1, &[&message(1, &[b"JPEG"])]));
    assert_eq!(bytes(run(&field(Some("image"), None), &image)), b"JPEG");
    let missing = run(&field(Some("label"), None), &image).unwrap_err();
    assert_eq!(missing, "it has no feature label; it has image");
    let two = example("image", &message(1, &[&message(1, &[b"a"]), &message(1, &[b"b"])]));
    let refused = run(&field(Some("image"), None), &two).unwrap_err();
    assert_eq!(refused, "its feature image has 2 values, but one is needed");
}

#[test]
fn numbers_of_an_example_are_arrays_or_text() {
    let label = example("label", &message(3, &[&message(1, &[&[42]])]));
    let array = Array { dtype: Dtype::Int64, shape: vec![1], bytes: 42_i64.to_ne_bytes().into() };
    assert_eq!(run(&field(Some("label"), None), &label), Ok(Value::Array(array)));
    assert_eq!(bytes(run(&field(Some("label"), Some(false)), &label)), 42_i64.to_ne_bytes());
    assert_eq!(bytes(run(&field(Some("label"), Some(true)), &label)), b"42");
    let half = example("x", &message(2, &[&message(1, &[&0.5_f32.to_le_bytes()])]));
    assert_eq!(bytes(run(&field(Some("x"), Some(true)), &half)), b"0.5");
    let two = example("x", &message(3, &[&message(1, &[&[1, 2]])]));
    let refused = run(&field(Some("x"), Some(true)), &two).unwrap_err();
    assert_eq!(refused, "x: it has 2 numbers, but one is needed");
}

#[test]
fn a_sample_without_parts_is_refused_and_errors_name_their_part() {
    let refused = run(&field(Some("jpg"), None), b"\xff\xd8\xff").unwrap_err();
    assert!(refused.starts_with("it has no parts: "), "{refused}");
    let bad = [member("7.jpg", b"bad")].concat();
    assert_eq!(run(&field(Some("jpg"), Some(false)), &bad), Err("jpg: it is bad".to_owned()));
    assert_eq!(run(&field(None, Some(false)), b"bad"), Err("it is bad".to_owned()));
}
