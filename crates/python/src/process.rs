//! Things that belong to one process.
//!
//! A forked child inherits the parent's memory but not its threads: whatever waits for one waits
//! for ever, and a lock that a thread held is never released. So in a child nothing of this is
//! used, and nothing is taken down: the child leaks its copy.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use belady_data::fork::generation;
use pyo3::prelude::*;

use crate::errors::BeladyError;

/// Something that only the process that made it may use or take down.
#[derive(Debug)]
pub struct Home<T> {
    value: ManuallyDrop<T>,
    made_in: u32,
}

impl<T> Home<T> {
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), made_in: generation() }
    }

    pub fn is_here(&self) -> bool {
        self.made_in == generation()
    }

    /// The thing itself, at home; `what` names it elsewhere.
    pub fn get(&self, what: &str) -> PyResult<&T> {
        if self.is_here() {
            return Ok(&self.value);
        }
        Err(BeladyError::new_err(format!(
            "this {what} was made in another process; make it anew here"
        )))
    }
}

/// For what is only looked at, without waiting for anyone.
impl<T> Deref for Home<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Home<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
