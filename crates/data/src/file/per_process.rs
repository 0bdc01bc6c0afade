//! Values of a thread that a forked child must not use.

use belady_base::fork::generation;

/// A thread-local value of this process. After a fork the child's thread has a copy of it that it
/// cannot use: its memory is not inherited, and a queue belongs to the parent.
pub(super) struct PerProcess<T> {
    value: T,
    generation: u32,
}

impl<T> PerProcess<T> {
    fn new(value: T) -> Self {
        Self { value, generation: generation() }
    }

    /// Returns the value in `place`, and makes a new one if it is empty or belongs to the parent.
    pub fn get_or_make(place: &mut Option<Self>, make: impl FnOnce() -> T) -> &mut T {
        let inherited = place.as_ref().is_some_and(|value| value.generation != generation());
        if inherited {
            *place = None;
        }
        &mut place.get_or_insert_with(|| Self::new(make())).value
    }
}
