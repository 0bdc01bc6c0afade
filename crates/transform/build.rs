//! Compiles the C shim around libjpeg, whose errors use longjmp.

fn main() {
    println!("cargo:rerun-if-changed=src/codec/jpeg/shim.c");
    let mut shim = cc::Build::new();
    // The headers of the library that turbojpeg-sys has built.
    let headers = std::env::var("DEP_TURBOJPEG_INCLUDE").unwrap_or_default();
    shim.includes(headers.split(',').filter(|path| !path.is_empty()));
    shim.file("src/codec/jpeg/shim.c").warnings(true).compile("belady_jpeg");
}
