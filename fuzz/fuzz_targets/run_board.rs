//! What a program's processes and the launcher of `belady run` tell each other: messages in the pipe, the
//! variable with the board's place, and paths. Whatever the bytes are, messages end, numbers fit, and a name
//! below the dataset leads to no other place.

#![no_main]

use belady_board::message::Message;
use belady_board::path::{Buffer, LONGEST, Place};
use belady_board::{Attach, Dataset};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    messages(input);
    if let Some(attach) = Attach::parse(input) {
        assert_eq!(Attach::parse(attach.to_text().as_bytes()), Some(attach));
    }
    let middle = input.iter().position(|&byte| byte == 0).unwrap_or(0);
    let (directory, path) = input.split_at(middle);
    let dataset = Dataset { given: b"/data/set", real: b"/d/s" };
    let mut buffer = Buffer::default();
    // The kernel's own names of directories are absolute and clean.
    if directory.strip_prefix(b"/").is_some_and(is_clean) {
        clean(dataset.place_from(directory, path, &mut buffer));
    }
    if path.starts_with(b"/") {
        clean(dataset.place(path, &mut buffer));
    }
});

fn messages(mut bytes: &[u8]) {
    while let Some((message, length)) = Message::decode(bytes) {
        assert!(length <= bytes.len());
        let mut room = [0; LONGEST];
        if let Some(again) = message.encode(&mut room) {
            assert_eq!(Message::decode(again), Some((message, again.len())));
        }
        bytes = &bytes[length..];
    }
}

fn clean(place: Place<'_>) {
    if let Place::Below(name) = place {
        assert!(!name.is_empty() && name.len() < LONGEST);
        assert!(is_clean(name));
    }
}

fn is_clean(name: &[u8]) -> bool {
    name.split(|&byte| byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}
