//! Files as NumPy writes them, and hostile files.

use proptest::prelude::*;

use super::*;

fn file(version: u8, dictionary: &str, data: &[u8]) -> Vec<u8> {
    let mut file = b"\x93NUMPY".to_vec();
    file.extend([version, 0]);
    if version == 1 {
        file.extend((dictionary.len() as u16).to_le_bytes());
    } else {
        file.extend((dictionary.len() as u32).to_le_bytes());
    }
    file.extend(dictionary.as_bytes());
    file.extend(data);
    file
}

fn dictionary(descr: &str, fortran: bool, shape: &str) -> String {
    let fortran = if fortran { "True" } else { "False" };
    format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}   \n")
}

fn numbers(file: &[u8]) -> (Dtype, Vec<usize>, Vec<u8>) {
    let npy = Npy::parse(file).unwrap();
    let mut bytes = vec![0; npy.byte_len()];
    npy.copy(&mut bytes);
    (npy.dtype, npy.shape, bytes)
}

fn refused(file: &[u8]) -> String {
    Npy::parse(file).unwrap_err().to_string()
}

#[test]
fn all_versions_and_notations_are_read() {
    for version in 1..=3 {
        for shape in ["(2, 1)", "(2,1,)", "(2L, 1L)"] {
            let file = file(version, &dictionary("<i2", false, shape), &[1, 0, 2, 0]);
            assert_eq!(numbers(&file), (Dtype::Int16, vec![2, 1], vec![1, 0, 2, 0]));
        }
    }
    let other_order = "{\"shape\": (), \"fortran_order\": True, \"descr\": \"|b1\"}";
    assert_eq!(numbers(&file(1, other_order, &[1])), (Dtype::Uint8, vec![], vec![1]));
}

#[test]
fn bytes_after_the_numbers_are_ignored() {
    let file = file(1, &dictionary("|u1", false, "(2,)"), &[5, 6, 7]);
    assert_eq!(numbers(&file).2, [5, 6]);
}

#[test]
fn big_endian_numbers_are_swapped() {
    let file = file(1, &dictionary(">f4", false, "(1,)"), &1.5_f32.to_be_bytes());
    assert_eq!(Npy::parse(&file).unwrap().plain(), None);
    assert_eq!(numbers(&file), (Dtype::Float32, vec![1], 1.5_f32.to_ne_bytes().to_vec()));
}

#[test]
fn fortran_order_becomes_c_order() {
    // [[1, 2, 3], [4, 5, 6]] column by column.
    let file = file(1, &dictionary("|u1", true, "(2, 3)"), &[1, 4, 2, 5, 3, 6]);
    assert_eq!(numbers(&file).2, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn hostile_headers_are_refused() {
    let refused_header = |text: &str| refused(&file(1, text, &[0; 64]));
    assert!(refused(b"").contains("does not begin"));
    assert!(refused(b"\x93NUMPY\x01").contains("ends within"));
    assert!(refused(b"\x93NUMPY\x04\x00aaaa").contains("version is 4.0"));
    assert!(refused(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").contains("ends within"));
    let objects = refused_header(&dictionary("|O", false, "(1,)"));
    assert!(objects.contains("never unpickled"), "{objects}");
    assert!(refused_header(&dictionary("<c8", false, "(1,)")).contains("not one of"));
    assert!(refused_header(&dictionary("é4", false, "(1,)")).contains("is unknown"));
    assert!(refused_header(&dictionary("<f4", false, "(-1,)")).contains("not an extent"));
    let huge = format!("({},)", "9".repeat(30));
    assert!(refused_header(&dictionary("<f4", false, &huge)).contains("not an extent"));
    let overflow = format!("({0}, {0}, 0)", 1_u64 << 40);
    assert!(refused_header(&dictionary("<f4", false, &overflow)).contains("truncated"));
    let empty = format!("(0, {0}, {0})", 1_u64 << 40);
    assert!(refused_header(&dictionary("<f4", false, &empty)).contains("truncated"));
    let deep = format!("({})", "1,".repeat(65));
    assert!(refused_header(&dictionary("<f4", false, &deep)).contains("64 extents"));
    assert!(refused_header("{'descr': [('a', '<f4')]}").contains("named fields"));
    assert!(refused_header("{'descr': '<f4', 'descr': '<f4'}").contains("appears twice"));
    assert!(refused_header("{'descr': '<f4'}").contains("'fortran_order' is missing"));
    assert!(refused_header("{'pickle': 1}").contains("not a key"));
    let more = format!("{}1", dictionary("|u1", false, "(1,)"));
    assert!(refused_header(&more).contains("follows"));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Npy::parse(&bytes);
        let _ = Npy::parse(&file(1, &String::from_utf8_lossy(&bytes), &bytes));
    }

    #[test]
    fn fortran_order_agrees_with_a_naive_transposition(
        shape in prop::collection::vec(0_usize..5, 0..4), size in prop::sample::select(vec![1_usize, 2, 4]),
    ) {
        let count: usize = shape.iter().product();
        let data: Vec<u8> = (0..count * size).map(|at| at as u8).collect();
        let extents: Vec<String> = shape.iter().map(usize::to_string).collect();
        let comma = if shape.len() == 1 { "," } else { "" };
        let text = format!("({}{comma})", extents.join(", "));
        let descr = format!("<u{size}");
        let (_, _, got) = numbers(&file(1, &dictionary(&descr, true, &text), &data));
        // Naive: the position of each number by its indices.
        for at in 0..count {
            let (mut rest, mut from, mut stride) = (at, 0, 1);
            let mut indices = vec![0; shape.len()];
            for axis in (0..shape.len()).rev() {
                indices[axis] = rest % shape[axis];
                rest /= shape[axis];
            }
            for (index, extent) in indices.iter().zip(&shape) {
                from += index * stride;
                stride *= extent;
            }
            prop_assert_eq!(&got[at * size..][..size], &data[from * size..][..size]);
        }
    }
}
