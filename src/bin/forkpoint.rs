//! The `forkpoint` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(forkpoint::cli::main(std::env::args_os()))
}
