//! The `pumice` program: the command line, and the ways to serve a drive other than NBD.

mod cli;
mod control;
mod devices;
mod holder;
#[cfg(feature = "http")]
mod http;
mod objects;
mod partitions;
mod place;
mod remedy;
mod storage;
mod watch;

fn main() -> std::process::ExitCode {
    cli::main()
}
