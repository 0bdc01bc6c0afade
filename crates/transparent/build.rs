//! Builds the shim (crates/shim), which this crate embeds.
//!
//! Cargo has no stable way to depend on another package's library file. So this script runs cargo
//! again, in a separate target directory because the one in use is locked.

use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = "belady-shim";
const FILE: &str = "libbelady_shim.so";
/// A profile of the root manifest.
const PROFILE: &str = "shim";

fn main() {
    let crates = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("..");
    for watched in [
        "shim/src",
        "shim/Cargo.toml",
        "board/src",
        "board/Cargo.toml",
        "../Cargo.toml",
        "../Cargo.lock",
    ] {
        println!("cargo::rerun-if-changed={}", crates.join(watched).display());
    }
    println!("cargo::rerun-if-changed=build.rs");

    let triple = variable("TARGET");
    let out = PathBuf::from(variable("OUT_DIR"));
    let target = target_directory(&out, &triple).join("shim");
    let status = build(&crates.join("shim/Cargo.toml"), &triple, &target).status();
    assert!(
        status.as_ref().is_ok_and(std::process::ExitStatus::success),
        "cargo could not build {PACKAGE} in {}: {status:?}",
        target.display()
    );
    let library = target.join(&triple).join(PROFILE).join(FILE);
    let copy = out.join(FILE);
    if let Err(error) = std::fs::copy(&library, &copy) {
        panic!("cannot copy {} to {}: {error}", library.display(), copy.display());
    }
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name} for build scripts"))
}

/// Returns the target directory in use. All profiles share the shim that is built below it.
fn target_directory(out: &Path, triple: &str) -> PathBuf {
    // TARGET[/TRIPLE]/PROFILE/build/PACKAGE-HASH/out
    let above = out.ancestors().nth(4).unwrap_or(out);
    if above.ends_with(triple) { above.parent().unwrap_or(above).into() } else { above.into() }
}

fn build(manifest: &Path, triple: &str, target: &Path) -> Command {
    let mut cargo = Command::new(variable("CARGO"));
    cargo
        .args(["build", "--locked", "--package", PACKAGE, "--profile", PROFILE])
        .args(["--target", triple])
        .arg("--manifest-path")
        .arg(manifest)
        .arg("--target-dir")
        .arg(target);
    // These are for the outer package; clippy's wrapper would check instead of build.
    for name in ["RUSTC_WORKSPACE_WRAPPER", "CLIPPY_ARGS", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS"] {
        cargo.env_remove(name);
    }
    cargo
}
