//! Report files, in the formats that the flags request.
//!
//! All files are opened before the work starts, so that no work is wasted on a file that cannot be
//! written. An existing file is truncated only when its new content is complete in memory.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::output::{open_output, print_bytes};
use pumice_report::{Document, Table};

/// The error for two results on stdout.
pub(crate) const JSON_AND_STDOUT: &str =
    "--json and a report would both go to stdout: write the report to a file";

/// Flags for report files.
#[derive(Debug, clap::Args)]
pub(crate) struct Documents {
    /// Write a self-contained HTML page with charts; - for stdout
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write an Excel workbook with numbers and charts; - for stdout
    #[arg(long, value_name = "FILE")]
    xlsx: Option<PathBuf>,

    /// Write the numbers of every cell as CSV; - for stdout
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Write the whole report as Markdown; - for stdout
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Overwrite existing files
    #[arg(long)]
    force: bool,
}

/// The format of a report.
#[derive(Clone, Copy, Debug)]
enum Format {
    Html,
    Xlsx,
    Csv,
    Markdown,
}

/// The open destinations of a report.
pub(crate) struct Opened(Vec<Output>);

/// A report in one format.
struct Output {
    format: Format,
    destination: Destination,
}

enum Destination {
    Stdout,
    File { file: File, path: PathBuf, is_new: bool },
}

impl Documents {
    /// Whether existing files may be overwritten.
    pub(crate) fn force(&self) -> bool {
        self.force
    }

    /// Opens all files. Dropping the result removes new files that were not written.
    ///
    /// # Errors
    /// A file exists and `--force` is not given; an output is also an input; stdout or a file is
    /// named twice; I/O errors.
    pub(crate) fn open(&self, inputs: &[&Path]) -> Result<Opened> {
        let requested = [
            (Format::Html, &self.html),
            (Format::Xlsx, &self.xlsx),
            (Format::Csv, &self.csv),
            (Format::Markdown, &self.markdown),
        ];
        let mut opened = Opened(Vec::new());
        for (format, path) in requested {
            let Some(path) = path else { continue };
            let destination = if path != Path::new("-") {
                self.file(path, inputs, &opened)?
            } else if opened.uses_stdout() {
                bail!("only one of the outputs can go to stdout");
            } else {
                Destination::Stdout
            };
            opened.0.push(Output { format, destination });
        }
        Ok(opened)
    }

    fn file(&self, path: &Path, inputs: &[&Path], opened: &Opened) -> Result<Destination> {
        let is_new = !path.exists();
        let same = |other: &Path| match (path.canonicalize(), other.canonicalize()) {
            (Ok(one), Ok(other)) => one == other,
            _ => false,
        };
        if inputs.iter().any(|input| same(input)) {
            bail!("{} is an input: name another file to write to", path.display());
        }
        let mut others = opened.0.iter().filter_map(|output| match &output.destination {
            Destination::File { path, .. } => Some(path),
            Destination::Stdout => None,
        });
        if others.any(|other| same(other)) {
            bail!("{} is named twice", path.display());
        }
        let file = open_output(path, self.force)?;
        Ok(Destination::File { file, path: path.to_owned(), is_new })
    }
}

impl Opened {
    /// Whether there is no report to write.
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of the destinations is stdout.
    pub(crate) fn uses_stdout(&self) -> bool {
        self.0.iter().any(|output| matches!(output.destination, Destination::Stdout))
    }

    /// Writes the document, or for CSV the table, to all destinations.
    ///
    /// # Errors
    /// I/O errors; a document that does not fit into a workbook.
    pub(crate) fn write(mut self, document: &Document, table: &Table) -> Result<()> {
        for Output { format, destination } in &mut self.0 {
            let bytes = match format {
                Format::Html => document.to_html().into_bytes(),
                Format::Xlsx => {
                    document.to_xlsx().context("the results do not fit into a workbook")?
                }
                Format::Csv => table.to_csv().into_bytes(),
                Format::Markdown => document.to_markdown().into_bytes(),
            };
            destination.write(&bytes)?;
        }
        Ok(())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        for Output { destination, .. } in &self.0 {
            if let Destination::File { path, is_new: true, .. } = destination {
                // The earlier error matters more.
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

impl Destination {
    /// Writes the whole content. From then on, a new file is kept.
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Stdout => print_bytes(bytes),
            Self::File { file, path, is_new } => {
                let written = file.set_len(0).and_then(|()| file.write_all(bytes));
                written.with_context(|| format!("cannot write {}", path.display()))?;
                *is_new = false;
                Ok(())
            }
        }
    }
}
