//! The library that stands between a program and libc (to be filled).
