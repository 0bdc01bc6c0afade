//! Functions with the names of libc's. They turn pointers into what safe code can use, and call the
//! real function where that is the answer.

mod access;
mod change;
mod descriptor;
mod open;
mod stat;
mod stream;
mod text;

/// A function that programs call in the place of libc's.
macro_rules! hook {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller keeps to what libc's function of this name asks for, and nothing
                // else is asked for here.
                unsafe { $body }
            }
        )*
    };
}
pub(crate) use hook;
