//! Values that belong to one process.
//!
//! A forked child inherits the parent's memory but not its threads: a wait for a thread never ends,
//! and a lock that a thread held is never released. A child therefore neither uses nor drops such
//! values: it leaks its copy.

use std::mem::ManuallyDrop;
use std::ops::Deref;

use belady_base::fork::generation;
use pyo3::prelude::*;

use crate::errors::BeladyError;

/// A value that only the process that made it can use or drop.
#[derive(Debug)]
pub struct Home<T> {
    value: ManuallyDrop<T>,
    made_in: u32,
}

impl<T> Home<T> {
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), made_in: generation() }
    }

    /// Returns whether this process made the value.
    pub fn is_here(&self) -> bool {
        self.made_in == generation()
    }

    /// Returns the value. `what` names it in the error.
    ///
    /// # Errors
    /// In another process than the one that made it.
    pub fn get(&self, what: &str) -> PyResult<&T> {
        if self.is_here() {
            return Ok(&self.value);
        }
        Err(BeladyError::new_err(format!(
            "this {what} was made in another process: make a new one in this process"
        )))
    }
}

/// For reads that wait for no thread and take no lock.
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
