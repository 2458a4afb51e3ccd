//! `pumice completions` and `pumice man`: what shells and `man` want to know of the command line,
//! made from the definition that `--help` shows.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, Outcome, print};
use pumice_drive::base::{Error, Result};

/// Print the completions of a shell
///
/// For bash: pumice completions bash > /usr/share/bash-completion/completions/pumice
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// Shell to print them for
    shell: Shell,
}

/// Write the manual pages, one for each command
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice man /usr/local/share/man/man1
  man /usr/local/share/man/man1/pumice-serve.1")]
pub(crate) struct Man {
    /// Folder to write them to; it is made if need be
    directory: PathBuf,
}

/// Runs `pumice completions`.
///
/// # Errors
/// Those of printing.
pub(crate) fn completions(args: &Completions) -> Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "pumice", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(Outcome::Good)
}

/// Runs `pumice man`.
///
/// # Errors
/// The folder cannot be made, or a page not written.
pub(crate) fn man(args: &Man) -> Result<Outcome> {
    let cannot = |path: &Path, error| {
        let path = path.display();
        Error::os(format!("cannot write {path}: choose another folder"), error)
    };
    fs::create_dir_all(&args.directory).map_err(|error| cannot(&args.directory, error))?;
    clap_mangen::generate_to(Cli::command(), &args.directory)
        .map_err(|error| cannot(&args.directory, error))?;
    Ok(Outcome::Good)
}
