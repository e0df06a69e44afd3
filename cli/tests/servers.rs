//! `lockkeeper compare --servers`, with the servers that the command starts itself.

#[cfg(unix)]
#[path = "servers/command.rs"]
mod command;

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    command::main()
}

#[cfg(not(unix))]
fn main() {}
