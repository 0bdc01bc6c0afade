//! Functions with libc's names. They convert pointers for the safe code in `ops`, and call the real
//! function if needed.

mod access;
mod caller_path;
mod change;
mod descriptor;
mod open;
mod stat;
mod stream;

/// Defines functions that replace libc's.
macro_rules! hook {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller satisfies the contract of libc's function of this name, and no
                // more is required here.
                unsafe { $body }
            }
        )*
    };
}
pub(crate) use hook;
