//! The `forkpoint` command.
fn main() {}
