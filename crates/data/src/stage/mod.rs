//! The stage: an ordered ring of batches per consumer.
//!
//! The engine reserves a batch's space as a whole, before any of its samples is claimed;
//! many threads fill its slots; it is published, taken in order by the consumer, lent
//! without copying, and its space comes back when the last reference to it is dropped.
//! The ring's memory may be shared with another process, where the consumer then lives.
