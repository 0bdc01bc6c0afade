//! The data path: source → tier → stage. Its parts move bytes and decide nothing.
//!
//! | module | content |
//! |---|---|
//! | [`source`] | where a dataset is stored: read-only, shared, slow |
//! | [`tier`] | storage class j ≥ 1: RAM and local disk with a quota |
//! | [`stage`] | storage class 0: the ordered ring from which a consumer takes batches |
//! | [`sparse_table`] | numbers for few of many indices |
//!
//! [`source::Source`] and [`tier::Tier`] are traits with a conformance suite that every
//! implementation passes. Unusual outcomes (a miss, a full tier, a full ring) are values; errors
//! name what failed.

mod file;
pub mod source;
pub mod sparse_table;
pub mod stage;
pub mod tier;
