//! The disk tier's index: whatever the bytes are, reading them ends, with an index or with
//! what is wrong.

#![no_main]

use belady_data::tier::disk::check_index;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = check_index(bytes);
});
