//! `pumice diff`: the ranges written between two snapshots of a drive, or since one.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use schemars::JsonSchema;
use serde::Serialize;

use super::Outcome;
use super::key_args::KeyArgs;
use super::output::{counted, print_long_schema, print_with};
use crate::open;
use crate::place::Place;
use pumice_drive::base::units::format_size;
use pumice_drive::controller::{Changed, Content, OpenOptions};
use pumice_drive::runtime::{Backend, Runtime};

/// List the ranges written between two snapshots of a drive, or since one
///
/// The earlier one may be a bookmark, see `pumice snapshot bookmark`. Prints offset and length in
/// bytes of each range, in order, exact to blocks of 4 KiB, and whether it now holds data or
/// zeroes. Reads only the maps. The drive must not be in use; its server offers the same
/// information as the metadata context qemu:dirty-bitmap:NAME.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice diff drive.pumice@monday drive.pumice@tuesday
  pumice diff drive.pumice@monday --json")]
pub(crate) struct Args {
    /// File or block device, and the name of the earlier snapshot or bookmark
    #[arg(value_name = "PATH@NAME")]
    from: PathBuf,

    /// A later snapshot of the same drive [default: the current disk]
    #[arg(value_name = "PATH[@NAME]")]
    to: Option<PathBuf>,

    #[command(flatten)]
    keys: KeyArgs,

    /// Print the ranges as JSON
    #[arg(long)]
    json: bool,
}

/// The result as JSON.
#[derive(Default, Serialize, JsonSchema)]
pub(super) struct Shown {
    /// Size of the later disk.
    size_bytes: u64,
    /// Bytes of all ranges.
    changed_bytes: u64,
    /// The written ranges, in order.
    ranges: Vec<Range>,
}

/// A range of bytes that was written.
#[derive(Serialize, JsonSchema)]
struct Range {
    /// Its beginning in bytes.
    offset: u64,
    /// Its length.
    bytes: u64,
    /// Whether it reads as zeroes now.
    is_zero: bool,
}

/// Runs the subcommand.
///
/// # Errors
/// The drive cannot be opened, there is no such snapshot, or the first is not the earlier one.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let place = Place::of(&args.from)?;
    if place.snapshot.is_none() {
        bail!("{}: name the earlier snapshot: PATH@NAME", args.from.display());
    }
    let later = args.to.as_ref().unwrap_or(&place.path);
    let runtime = Runtime::new(Backend::Auto)?;
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let open = |path, options| open::drive(&runtime, path, options);
    let from = open(&args.from, OpenOptions { incomplete: true, ..options })?;
    let to = open(later, options)?;
    let mut shown = Shown { size_bytes: to.size_bytes(), ..Shown::default() };
    let visit = |Changed { offset, bytes, content }: Changed| {
        let is_zero = content != Content::Data;
        shown.changed_bytes += bytes;
        match shown.ranges.last_mut() {
            Some(last) if last.offset + last.bytes == offset && last.is_zero == is_zero => {
                last.bytes += bytes;
            }
            _ => shown.ranges.push(Range { offset, bytes, is_zero }),
        }
        true
    };
    let compared = runtime.block_on(to.changes_since(&from, visit));
    runtime.drop_tasks();
    compared.with_context(|| later.display().to_string())?;
    if args.json {
        print_long_schema("diff-1", &shown)?;
    } else {
        print_with(|out| write_text(&shown, out))?;
    }
    Ok(Outcome::Good)
}

fn write_text(shown: &Shown, out: &mut impl Write) -> std::io::Result<()> {
    for Range { offset, bytes, is_zero } in &shown.ranges {
        let content = if *is_zero { "zero" } else { "data" };
        writeln!(out, "{offset} {bytes} {content}")?;
    }
    let (ranges, changed) = (shown.ranges.len() as u64, format_size(shown.changed_bytes));
    let size = format_size(shown.size_bytes);
    writeln!(out, "{changed} of {size} were written, in {}", counted(ranges, "range"))
}
