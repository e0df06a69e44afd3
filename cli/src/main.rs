//! The command `lockkeeper`.
fn main() {}
