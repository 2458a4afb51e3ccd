//! The `pumice` program: the command line, and the ways to serve a drive other than NBD.

mod cli;
mod control;
#[cfg(feature = "attach")]
mod fuse;
#[cfg(feature = "http")]
mod http;
mod watch;

fn main() -> std::process::ExitCode {
    cli::main()
}
