//! A slow file system over a folder, for honest end-to-end runs.

fn main() {}
