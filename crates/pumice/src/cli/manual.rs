//! `pumice completions` and `pumice man`: shell completions and manual pages, generated from the
//! same definition as `--help`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap_complete::Shell;
use clap_mangen::Man as Page;

use super::commands::{groups, program};
use super::{Outcome, print};

/// Print a completion script for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice completions bash > /usr/share/bash-completion/completions/pumice")]
pub(crate) struct Completions {
    /// Shell that will read the script
    shell: Shell,
}

/// Write the manual pages, one for each command
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice man /usr/local/share/man/man1
  man /usr/local/share/man/man1/pumice-serve.1")]
pub(crate) struct Man {
    /// Directory for the pages; it is created if necessary
    directory: PathBuf,
}

/// Runs `pumice completions`.
///
/// # Errors
/// The script cannot be printed.
pub(crate) fn completions(args: &Completions) -> Result<Outcome> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program(), "pumice", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(Outcome::Good)
}

/// Runs `pumice man`.
///
/// # Errors
/// The directory cannot be created, or a page cannot be written.
pub(crate) fn man(args: &Man) -> Result<Outcome> {
    write_pages(&args.directory).with_context(|| {
        format!("cannot write to {} (choose another directory)", args.directory.display())
    })?;
    Ok(Outcome::Good)
}

fn write_pages(directory: &Path) -> std::io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(program(), directory)?;
    fs::write(directory.join("pumice.1"), overview()?)
}

/// Returns the page of the program, with the subcommands in groups, which clap_mangen cannot do.
fn overview() -> std::io::Result<Vec<u8>> {
    let page = Page::new(program().disable_help_subcommand(true));
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    for group in groups() {
        let mut section = Vec::new();
        let command = group.command.subcommand_help_heading(group.title);
        Page::new(command).render_subcommands_section(&mut section)?;
        let section = String::from_utf8_lossy(&section);
        // Headings of manual pages are in capitals.
        let section = section.replacen(group.title, &group.title.to_uppercase(), 1);
        text.extend_from_slice(section.as_bytes());
    }
    page.render_extra_section(&mut text)?;
    page.render_version_section(&mut text)?;
    Ok(text)
}
