//! The `belady` command as a program.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(belady::run(std::env::args_os()))
}
