//! The real world around the policies.
