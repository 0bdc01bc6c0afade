use proptest::prelude::*;

use super::*;

/// What is written, in memory of its own.
#[derive(Clone, Debug, PartialEq)]
enum Owned {
    Bytes(Vec<Vec<u8>>),
    Floats(Vec<f32>),
    Ints(Vec<i64>),
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = vec![];
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn message(field: u64, body: &[u8]) -> Vec<u8> {
    [varint(field << 3 | 2), varint(body.len() as u64), body.to_vec()].concat()
}

fn list(values: &Owned, packed: bool) -> Vec<u8> {
    let mut body = vec![];
    let number = match values {
        Owned::Bytes(values) => {
            body.extend(values.iter().flat_map(|value| message(1, value)));
            1
        }
        Owned::Floats(values) if packed => {
            let words: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            body.extend(message(1, &words));
            2
        }
        Owned::Floats(values) => {
            for value in values {
                body.extend(varint(1 << 3 | 5));
                body.extend(value.to_le_bytes());
            }
            2
        }
        Owned::Ints(values) if packed => {
            let numbers: Vec<u8> = values.iter().flat_map(|&value| varint(value as u64)).collect();
            body.extend(message(1, &numbers));
            3
        }
        Owned::Ints(values) => {
            for &value in values {
                body.extend(varint(1 << 3));
                body.extend(varint(value as u64));
            }
            3
        }
    };
    message(number, &body)
}

fn example(features: &[(String, Owned, bool)]) -> Vec<u8> {
    let entries = features.iter().flat_map(|(name, values, packed)| {
        let entry = [message(1, name.as_bytes()), message(2, &list(values, *packed))].concat();
        message(1, &entry)
    });
    message(1, &entries.collect::<Vec<u8>>())
}

fn values() -> impl Strategy<Value = Owned> {
    prop_oneof![
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..4)
            .prop_map(Owned::Bytes),
        prop::collection::vec(-1e9f32..1e9, 0..9).prop_map(Owned::Floats),
        prop::collection::vec(any::<i64>(), 0..9).prop_map(Owned::Ints),
    ]
}

fn owned(values: Values<'_>) -> Owned {
    match values {
        Values::Bytes(values) => Owned::Bytes(values.into_iter().map(<[u8]>::to_vec).collect()),
        Values::Floats(values) => Owned::Floats(values),
        Values::Ints(values) => Owned::Ints(values),
    }
}

proptest! {
    #[test]
    fn what_was_written_is_read(
        wanted in prop::collection::vec(("[a-z/]{0,6}", values(), any::<bool>()), 0..6)
    ) {
        let bytes = example(&wanted);
        let found = features(&bytes).unwrap();
        prop_assert_eq!(found.len(), wanted.len());
        for (feature, (name, values, _)) in found.iter().zip(&wanted) {
            prop_assert_eq!(feature.name, name);
            prop_assert_eq!(&owned(feature.values().unwrap()), values);
        }
        for (name, ..) in &wanted {
            let last = wanted.iter().rev().find(|(other, ..)| other == name).unwrap();
            prop_assert_eq!(owned(find(&found, name).unwrap().values().unwrap()), last.1.clone());
        }
        prop_assert_eq!(find(&found, "no such feature"), None);
    }

    #[test]
    fn what_breaks_off_is_refused_or_shorter(
        wanted in prop::collection::vec(("[a-z]{1,6}", values(), any::<bool>()), 1..4),
        at in any::<prop::sample::Index>(),
    ) {
        let bytes = example(&wanted);
        // All of it is one field, so every cut is within one.
        let cut = at.index(bytes.len());
        prop_assert_eq!(features(&bytes[..cut]).is_err(), cut > 0);
    }

    #[test]
    fn any_bytes_are_an_example_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for feature in features(&bytes).unwrap_or_default() {
            let _ = feature.values();
        }
    }
}

#[test]
fn numbers_lie_packed_and_one_by_one() {
    // {"label": Int64List([7, -1, 128, 0]), "x": FloatList([1.5])}, the second one not packed.
    let bytes = b"\x0a\x2b\x0a\x1b\x0a\x05label\x12\x12\x1a\x10\x0a\x0e\x07\
        \xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x80\x01\x00\
        \x0a\x0c\x0a\x01x\x12\x07\x12\x05\x0d\x00\x00\xc0\x3f";
    let found = features(bytes).unwrap();
    let of = |name: &str| find(&found, name).unwrap().values().unwrap();
    assert_eq!(of("label"), Values::Ints(vec![7, -1, 128, 0]));
    assert_eq!(of("x"), Values::Floats(vec![1.5]));
}

#[test]
fn unknown_fields_are_skipped_and_the_last_kind_of_list_counts() {
    let ints = list(&Owned::Ints(vec![1]), true);
    let more = list(&Owned::Ints(vec![2]), false);
    let floats = list(&Owned::Floats(vec![2.0]), true);
    let unknown = [varint(9 << 3), varint(5), varint(10 << 3 | 1), vec![0; 8]].concat();
    let both = [ints.clone(), floats, ints, unknown, more].concat();
    let feature = Feature { name: "", body: &both };
    assert_eq!(feature.values(), Ok(Values::Ints(vec![1, 2])));
    assert_eq!(Feature { name: "", body: &[] }.values(), Ok(Values::Bytes(vec![])));
}

#[test]
fn numbers_have_at_most_64_bits() {
    let most = varint(u64::MAX);
    assert_eq!(number(&mut &most[..]), Ok(u64::MAX));
    assert_eq!(number(&mut &[0xff; 12][..]), Err(NoExample(ExampleFlaw::LongNumber)));
    let mut over = most;
    over[9] = 2;
    assert_eq!(number(&mut &over[..]), Err(NoExample(ExampleFlaw::LongNumber)));
    assert_eq!(number(&mut &[0x80][..]), Err(NoExample(ExampleFlaw::BreaksOff)));
}

#[test]
fn absurd_lengths_and_kinds_are_refused() {
    let absurd = [varint(1 << 3 | 2), varint(u64::MAX)].concat();
    assert_eq!(features(&absurd), Err(NoExample(ExampleFlaw::BreaksOff)));
    assert_eq!(features(&[3]), Err(NoExample(ExampleFlaw::Kind(3))));
    assert_eq!(features(&varint(1 << 3)), Err(NoExample(ExampleFlaw::BreaksOff)));
    let number_for_message = [varint(1 << 3), varint(7)].concat();
    assert_eq!(features(&number_for_message), Err(NoExample(ExampleFlaw::Type)));
    assert!(features(&[]).unwrap().is_empty());
}
