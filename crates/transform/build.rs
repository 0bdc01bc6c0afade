//! Compiles the few lines of C around libjpeg, whose errors jump where Rust must not.

fn main() {
    println!("cargo:rerun-if-changed=src/codec/jpeg/shim.c");
    let mut shim = cc::Build::new();
    // Where turbojpeg-sys has put the headers of the library it has built.
    let headers = std::env::var("DEP_TURBOJPEG_INCLUDE").unwrap_or_default();
    shim.includes(headers.split(',').filter(|path| !path.is_empty()));
    shim.file("src/codec/jpeg/shim.c").warnings(true).compile("belady_jpeg");
}
