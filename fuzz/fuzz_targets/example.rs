//! tf.train.Example: whatever the bytes are, they are features whose names and values lie in them,
//! or an error; and looking a feature up finds the last of its name.

#![no_main]

use belady_data::source::tf_example::{self, Values};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Ok(features) = tf_example::features(input) else { return };
    assert!(features.len() <= input.len());
    for feature in &features {
        let found = tf_example::find(&features, feature.name).expect("a name that is there");
        assert_eq!(found.name, feature.name);
        let within = |bytes: &[u8]| {
            bytes.is_empty() || input.as_ptr_range().contains(&bytes.as_ptr())
        };
        assert!(within(feature.name.as_bytes()));
        match feature.values() {
            Ok(Values::Bytes(values)) => assert!(values.iter().all(|value| within(value))),
            Ok(Values::Floats(values)) => assert!(4 * values.len() <= input.len()),
            Ok(Values::Ints(values)) => assert!(values.len() <= input.len()),
            Err(_) => {}
        }
    }
});
