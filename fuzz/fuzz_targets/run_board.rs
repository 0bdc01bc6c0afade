//! The interface between a program's processes and the launcher of `belady run`: messages in the
//! pipe, the variable that locates the board, and paths. Whatever the bytes are, decoding ends,
//! numbers fit, and a name below the dataset cannot lead elsewhere.

#![no_main]

use belady_board::message::ShimMessage;
use belady_board::path::{LONGEST, PathBuffer, PathLocation};
use belady_board::{Attach, DatasetPaths};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    messages(input);
    if let Some(attach) = Attach::parse(input) {
        assert_eq!(Attach::parse(attach.to_text().as_bytes()), Some(attach));
    }
    let middle = input.iter().position(|&byte| byte == 0).unwrap_or(0);
    let (directory, path) = input.split_at(middle);
    let dataset = DatasetPaths { given: b"/data/set", real: b"/d/s" };
    let mut buffer = PathBuffer::default();
    // The kernel's paths of directories are absolute and normalised.
    if directory.strip_prefix(b"/").is_some_and(is_normalised) {
        check(dataset.locate_from(directory, path, &mut buffer));
    }
    if path.starts_with(b"/") {
        check(dataset.locate(path, &mut buffer));
    }
});

fn messages(mut bytes: &[u8]) {
    while let Some((message, length)) = ShimMessage::decode(bytes) {
        assert!(length <= bytes.len());
        let mut buffer = [0; LONGEST];
        if let Some(again) = message.encode(&mut buffer) {
            assert_eq!(ShimMessage::decode(again), Some((message, again.len())));
        }
        bytes = &bytes[length..];
    }
}

fn check(location: PathLocation<'_>) {
    if let PathLocation::Below(name) = location {
        assert!(!name.is_empty() && name.len() < LONGEST);
        assert!(is_normalised(name));
    }
}

fn is_normalised(name: &[u8]) -> bool {
    name.split(|&byte| byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}
