//! The `pumice` program: the command line, and the ways to serve a drive other than NBD.

mod cli;
mod control;
#[cfg(feature = "http")]
mod http;
mod place;
mod watch;

fn main() -> std::process::ExitCode {
    cli::main()
}
