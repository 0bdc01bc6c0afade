//! Memory that a thread uses again for every sample.

/// What a thread needs to run chains. Grows to what the largest sample took.
#[derive(Debug, Default)]
pub struct Scratch {}
