//! The contract, on every backend of the workspace side by side.
fn main() {}
