//! Where a name leads.

use std::ffi::{CStr, c_int};
use std::io::Write as _;
use std::mem::MaybeUninit;

use belady_board::path::{Buffer, LONGEST, Place};

use super::directory::directory;
use super::{Named, far};
use crate::job::Job;
use crate::real;

/// Room for a path that the kernel writes.
pub type Room = [MaybeUninit<u8>; LONGEST];

pub const ROOM: Room = [MaybeUninit::uninit(); LONGEST];

/// For reading: now and then a file of the dataset is not known as one.
pub fn place<'b>(job: &Job, file: Named<'_>, buffer: &'b mut Buffer) -> Place<'b> {
    let path = file.path.to_bytes();
    if !path.starts_with(b"/") && far::is_far(file.at, path) {
        return Place::Elsewhere;
    }
    place_exactly(job, file, buffer)
}

pub fn place_exactly<'b>(job: &Job, file: Named<'_>, buffer: &'b mut Buffer) -> Place<'b> {
    let path = file.path.to_bytes();
    if path.starts_with(b"/") {
        job.board.head().dataset().place(path, buffer)
    } else {
        place_from(job, file.at, path, buffer)
    }
}

// Not inlined: its room on the stack is given back before more is needed.
#[inline(never)]
fn place_from<'b>(job: &Job, at: c_int, path: &[u8], buffer: &'b mut Buffer) -> Place<'b> {
    let mut room = ROOM;
    let directory = if at == libc::AT_FDCWD {
        real::current_directory(&mut room)
    } else {
        let directory = directory(job, at, &mut room);
        if let Some(name) = directory {
            far::note(at, name, &job.board.head().dataset());
        }
        directory
    };
    match directory {
        Some(directory) => job.board.head().dataset().place_from(directory, path, buffer),
        None => Place::Odd,
    }
}

/// The absolute name of an open file, if it still has one.
pub fn name_of(descriptor: c_int, room: &mut Room) -> Option<&[u8]> {
    let name = kernel_name_of(descriptor, room)?;
    (name.starts_with(b"/") && !name.ends_with(DELETED)).then_some(name)
}

/// What the kernel puts behind names of files that have none any more.
pub const DELETED: &[u8] = b" (deleted)";

pub fn kernel_name_of(descriptor: c_int, room: &mut Room) -> Option<&[u8]> {
    let mut link = [0u8; 48];
    // Not /proc/self: a thread may have descriptors of its own.
    write!(&mut link[..47], "/proc/thread-self/fd/{descriptor}").ok()?;
    let link = CStr::from_bytes_until_nul(&link).ok()?;
    let (name, rest) = rustix::fs::readlinkat_raw(rustix::fs::CWD, link, &mut room[..]).ok()?;
    // A name without end may be cut.
    (!rest.is_empty()).then_some(&*name)
}
