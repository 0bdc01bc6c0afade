//! The shim in real processes: a C program calls each replaced function with and without the shim,
//! and the results have to be the same.
//!
//! Copies have other bytes than their sources, so that the bytes show which file was read.

mod changes;
mod reads;
mod special;
mod stage;

use std::collections::BTreeSet;
use std::process::Command;

/// All names that the shim exports.
const HOOKS: &str = "
    open open64 openat openat64 __open_2 __open64_2 __openat_2 __openat64_2 creat creat64
    fopen fopen64 freopen freopen64
    stat stat64 lstat lstat64 fstat fstat64 fstatat fstatat64 statx
    __xstat __xstat64 __lxstat __lxstat64 __fxstat __fxstat64 __fxstatat __fxstatat64
    access faccessat euidaccess eaccess
    truncate truncate64 unlink unlinkat remove rename renameat renameat2 link linkat
    chmod fchmod fchmodat chown lchown fchown fchownat
    utime utimes lutimes futimes futimesat utimensat futimens
    setxattr lsetxattr removexattr lremovexattr fsetxattr fremovexattr fgetxattr flistxattr";

#[test]
fn the_shim_exports_these_names_and_no_others() {
    let stage = stage::Stage::new(belady_board::Revalidate::Start);
    let listed =
        stage::output(Command::new("nm").args(["-D", "--defined-only"]).arg(&stage.library));
    let exported: BTreeSet<&str> =
        listed.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(exported, HOOKS.split_whitespace().collect());
}

#[test]
fn the_probe_calls_each_replaced_function() {
    let probe = concat!(include_str!("reads.c"), include_str!("changes.c"));
    for name in HOOKS.split_whitespace() {
        assert!(probe.contains(&format!("\"{name}\"")), "the probe does not call {name}");
    }
}
