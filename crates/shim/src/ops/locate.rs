//! Where a path leads: below the dataset, elsewhere, or ambiguous.

use std::ffi::c_int;

use belady_board::path::{PathBuffer, PathLocation};

use super::directory_names::name_of_directory;
use super::kernel_path::EMPTY;
use super::{NamedFile, unrelated_directories};
use crate::attached_job::AttachedJob;
use crate::real;

/// Locates a file that is read. A file of the dataset may be taken for one elsewhere.
pub fn locate<'b>(
    job: &AttachedJob,
    file: NamedFile<'_>,
    buffer: &'b mut PathBuffer,
) -> PathLocation<'b> {
    let path = file.path.to_bytes();
    if !path.starts_with(b"/") && unrelated_directories::contains(file.at, path) {
        return PathLocation::Elsewhere;
    }
    locate_exactly(job, file, buffer)
}

/// Locates a file that is changed: a file of the dataset is never taken for one elsewhere.
pub fn locate_exactly<'b>(
    job: &AttachedJob,
    file: NamedFile<'_>,
    buffer: &'b mut PathBuffer,
) -> PathLocation<'b> {
    let path = file.path.to_bytes();
    if path.starts_with(b"/") {
        job.board.header().dataset().locate(path, buffer)
    } else {
        locate_from(job, file.at, path, buffer)
    }
}

// Not inlined: its buffer leaves the stack before more stack is needed.
#[inline(never)]
fn locate_from<'b>(
    job: &AttachedJob,
    at: c_int,
    path: &[u8],
    buffer: &'b mut PathBuffer,
) -> PathLocation<'b> {
    let mut kernel_path = EMPTY;
    let directory = if at == libc::AT_FDCWD {
        real::current_directory(&mut kernel_path)
    } else {
        let directory = name_of_directory(job, at, &mut kernel_path);
        if let Some(name) = directory {
            unrelated_directories::note(at, name, &job.board.header().dataset());
        }
        directory
    };
    match directory {
        Some(directory) => job.board.header().dataset().locate_from(directory, path, buffer),
        None => PathLocation::Ambiguous,
    }
}
