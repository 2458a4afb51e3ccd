//! The `pumice` program: the command line, the server, and the ways to a drive other than NBD.

mod cli;
mod control;
mod devices;
mod environment;
mod holder;
#[cfg(feature = "http")]
mod http;
mod keys;
mod leftovers;
mod members;
mod notify;
mod objects;
mod open;
mod partitions;
mod path_watch;
mod place;
mod remedy;
mod savings;
mod server;
mod signals;
mod storage;
mod watch;

fn main() -> std::process::ExitCode {
    cli::main()
}
