//! `pumice payload`: generates data of a given compressibility, and profiles existing data.

use std::fs::File;
use std::io::{ErrorKind as IoErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use schemars::JsonSchema;
use serde::Serialize;

use super::output::{json_text, open_output};
use super::values::whole_number;
use super::{Outcome, print, print_schema, size};
use crate::signals::Interrupt;
use pumice_bench::payload::{
    Finding, KindName, Payload, PayloadOptions, Profile, Saving, Survey, UNIT_BYTES,
};
use pumice_drive::base::units::format_size;
use pumice_drive::codec::Codec;
use pumice_report::{Align, Table};

/// Bytes generated and written in one step. Each piece is measured as a whole or not at all.
const PIECE_BYTES: usize = 1 << 20;

/// Maximum number of pieces that are measured, evenly spaced: about a second of work.
const PIECES_MEASURED_MAX: u64 = 64;

/// Generate data of a given compressibility, and measure it
///
/// Writes data of one kind to a file or to stdout, then prints how much space LZ4 and zstd:1 save
/// in independent chunks of 4, 16 and 64 KiB (on stderr if the data goes to stdout). Without
/// --output, the data is only measured. All units, of 4 KiB or --record, differ unless --duplicates
/// is given; byte, like, replay and the IOzone kinds contain duplicates of their own. The same
/// options of the same version produce the same bytes.
///
/// Kinds:
///   random          incompressible
///   byte:0x00       one byte repeated, any value
///   exact           every chunk saves the share given by --saved with LZ4, zstd and zlib, up to
///                   four points less with Snappy and LZO: that share of each unit is zeroes, at
///                   its end. For a target that looks at smaller blocks than 4 KiB, set --record
///                   to their size: otherwise it finds most of them to be equal
///   spread          chunks differ as in real data and save the share given by --saved on average
///                   at 4 KiB; zstd saves more than LZ4, larger chunks more than smaller ones.
///                   Above 80%, more and more units are zeroes after 16 fresh bytes
///   like:PATH       statistically like a file, folder, device or profile, in the savings of its
///                   chunks, duplicates and zeroes
///   replay:PATH     the bytes of a file, repeated
///   iozone-3.420    the data of IOzone with -+w P -+y P -+C P, where P is --saved; its real
///   iozone-3.489    compressibility is different
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
#[command(after_help = "\
Examples:
  pumice payload --saved 50% --size 64M --output data
  pumice payload --kind spread --saved 40% --duplicates 20% --size 1G --output - | ssh ...
  pumice payload --profile-of /srv/data --output data.json
  pumice payload --kind like:data.json --size 10G --output data")]
pub(crate) struct Args {
    /// Kind of data, see above [default: exact with --saved, otherwise random]
    #[arg(long, value_name = "KIND")]
    kind: Option<KindName>,

    /// Compressibility of the data, as the share of space saved (not stored), such as 50%
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    saved: Option<Saving>,

    /// Amount of data to generate
    #[arg(long, value_parser = size, value_name = "SIZE", default_value = "64M",
        allow_hyphen_values = true)]
    size: u64,

    /// Output file; - for stdout
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,

    /// Random seed of the data
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = whole_number,
        allow_negative_numbers = true)]
    seed: u64,

    /// Number of the stream within the seed; different streams have no unit in common
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = whole_number,
        allow_negative_numbers = true)]
    stream: u64,

    /// Share of units that duplicate earlier units [default: none, or the share of like:PATH]
    #[arg(long, value_name = "SHARE", allow_hyphen_values = true)]
    duplicates: Option<Saving>,

    /// Codec to which --saved applies: lz4, zstd or zstd:LEVEL
    #[arg(long, value_name = "CODEC", default_value = "lz4")]
    codec: Codec,

    /// Record size that a host will write, 512 to 4K (IOzone kinds: up to 16M) [default: 4K]
    #[arg(long, value_parser = size, value_name = "SIZE")]
    record: Option<u64>,

    /// Measure a file, folder or device, and write its profile to --output; a profile contains none
    /// of the data itself
    #[arg(long, value_name = "PATH", conflicts_with_all =
        ["kind", "saved", "size", "seed", "stream", "duplicates", "codec", "record"])]
    profile_of: Option<PathBuf>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// The result for generated data.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Made {
    /// Kind of data.
    kind: String,
    /// The requested saving in percent; `None` if none was.
    asked_percent: Option<f64>,
    /// Seed of the data.
    seed: u64,
    /// Stream of the seed.
    stream: u64,
    /// Bytes generated.
    bytes: u64,
    /// Bytes that were measured.
    measured_bytes: u64,
    /// Savings by codec.
    measured: Vec<Finding>,
}

/// The result for profiled data.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Profiled {
    /// Bytes of the data that was profiled.
    source_bytes: u64,
    /// Windows in which it was measured.
    windows: usize,
    /// Share of the units that repeat others, in percent.
    duplicate_percent: f64,
    /// Share of the units of one repeated byte, in percent.
    fill_percent: f64,
    /// Saving of LZ4 in chunks of 4 KiB.
    lz4: Saving,
    /// Saving of zstd:1 in chunks of 4 KiB.
    zstd_1: Saving,
}

/// Runs the subcommand.
///
/// # Errors
/// The options conflict, or a file cannot be read or written.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    let interrupt = Interrupt::catch()?;
    if let Some(path) = &args.profile_of {
        return profile(path, args);
    }
    if args.size == 0 {
        bail!("invalid value '0' for --size: expected a size such as 64M");
    }
    let payload = payload(args)?;
    let mut output = Output::open(args)?;
    output.begin()?;
    let mut stream = payload.stream(args.stream);
    let mut survey = Survey::default();
    let mut made = Made {
        kind: args.kind().to_string(),
        asked_percent: args.saved.map(Saving::percent),
        seed: args.seed,
        stream: args.stream,
        bytes: 0,
        measured_bytes: 0,
        measured: Vec::new(),
    };
    let pieces = args.size.div_ceil(PIECE_BYTES as u64);
    let measured_pieces = |number: u64| number * pieces.min(PIECES_MEASURED_MAX) / pieces;
    let mut piece = vec![0; PIECE_BYTES];
    let bar = super::progress::bytes(args.size);
    for number in 0..pieces {
        if interrupt.came() {
            bar.finish_and_clear();
            super::say_error("interrupted: the data is incomplete");
            return Ok(Outcome::Code(2));
        }
        let bytes = (args.size - made.bytes).min(PIECE_BYTES as u64) as usize;
        stream.fill(&mut piece[..bytes]);
        if !output.write(&piece[..bytes])? {
            // The reader, such as head, has read enough.
            bar.finish_and_clear();
            return Ok(Outcome::Good);
        }
        made.bytes += bytes as u64;
        if measured_pieces(number + 1) > measured_pieces(number) {
            survey.add(&piece[..bytes]);
            made.measured_bytes += bytes as u64;
        }
        bar.set_position(made.bytes);
    }
    output.end()?;
    bar.finish_and_clear();
    made.measured = survey.findings();
    output.report(args, ("payload-1", &made), &made.to_text())?;
    Ok(Outcome::Good)
}

impl Args {
    fn kind(&self) -> KindName {
        let default = if self.saved.is_some() { KindName::Exact } else { KindName::Random };
        self.kind.clone().unwrap_or(default)
    }
}

fn payload(args: &Args) -> Result<Payload> {
    let mut options = PayloadOptions::new(args.kind().load(args.saved)?);
    options.seed = args.seed;
    options.codec = args.codec;
    options.duplicates = args.duplicates.unwrap_or(options.duplicates);
    options.unit_bytes = args.record.map_or(UNIT_BYTES, |bytes| bytes as usize);
    Ok(Payload::new(options)?)
}

fn profile(path: &Path, args: &Args) -> Result<Outcome> {
    let mut output = Output::open(args)?;
    let profile = Profile::of_path(path).inspect_err(|_| output.abandon())?;
    output.begin()?;
    output.write(profile.to_json().as_bytes())?;
    output.end()?;
    let savings = profile.saved();
    let profiled = Profiled {
        source_bytes: profile.source_bytes(),
        windows: profile.window_count(),
        duplicate_percent: profile.duplicates().percent(),
        fill_percent: profile.fills().percent(),
        lz4: savings[0],
        zstd_1: savings[1],
    };
    let text = format!(
        "{} in {}, {} windows measured: duplicates {:.1} %, fills {:.1} %\n\
         lz4 at 4 KiB: {}\nzstd:1 at 4 KiB: {}\n",
        format_size(profiled.source_bytes),
        path.display(),
        profiled.windows,
        profiled.duplicate_percent,
        profiled.fill_percent,
        profiled.lz4,
        profiled.zstd_1
    );
    output.report(args, ("profile-1", &profiled), &text)?;
    Ok(Outcome::Good)
}

impl Made {
    fn to_text(&self) -> String {
        let columns = ["codec", "chunk", "saved %", "stored fraction", "ratio", "deviation"];
        let mut table = Table::new(&columns.map(|name| match name {
            "codec" => (name, Align::Left),
            _ => (name, Align::Right),
        }));
        for finding in &self.measured {
            table.row(vec![
                finding.codec.clone(),
                format!("{} KiB", finding.chunk_bytes >> 10),
                format!("{:.1}", finding.saved.percent()),
                format!("{:.3}", finding.saved.stored_fraction()),
                format!("{:.2}", finding.saved.ratio()),
                format!("{:.1}", finding.deviation_points),
            ]);
        }
        let asked =
            self.asked_percent.map_or(String::new(), |asked| format!(", requested {asked} %"));
        let (bytes, measured) = (format_size(self.bytes), format_size(self.measured_bytes));
        format!("{bytes}, kind {}{asked}, {measured} measured:\n{}", self.kind, table.to_text())
    }
}

/// The destination of the data.
enum Output {
    Nowhere,
    Stdout,
    File { file: File, path: PathBuf, is_new: bool },
}

impl Output {
    /// Opens the output file, before the work starts.
    fn open(args: &Args) -> Result<Self> {
        let Some(path) = &args.output else { return Ok(Self::Nowhere) };
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let is_new = !path.exists();
        let file = open_output(path, args.force)?;
        Ok(Self::File { file, path: path.clone(), is_new })
    }

    /// Truncates an existing file. If the file is also the input, it has been read by now.
    fn begin(&mut self) -> Result<()> {
        match self {
            Self::File { file, path, .. } => {
                file.set_len(0).with_context(|| format!("cannot write {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Removes a file that was created for a result that could not be computed.
    fn abandon(&self) {
        if let Self::File { path, is_new: true, .. } = self {
            // The earlier error matters more.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Writes bytes. Returns false if the reader has closed stdout.
    fn write(&mut self, bytes: &[u8]) -> Result<bool> {
        match self {
            Self::Nowhere => Ok(true),
            Self::Stdout => match std::io::stdout().lock().write_all(bytes) {
                Ok(()) => Ok(true),
                Err(error) if error.kind() == IoErrorKind::BrokenPipe => Ok(false),
                Err(error) => Err(error).context("cannot write to stdout"),
            },
            Self::File { file, path, .. } => {
                let written = file.write_all(bytes);
                written.with_context(|| format!("cannot write {}", path.display()))?;
                Ok(true)
            }
        }
    }

    fn end(&mut self) -> Result<()> {
        match self {
            Self::Stdout => match std::io::stdout().flush() {
                Err(error) if error.kind() == IoErrorKind::BrokenPipe => Ok(()),
                flushed => flushed.context("cannot write to stdout"),
            },
            _ => Ok(()),
        }
    }

    /// Prints the result, on stderr if the data goes to stdout.
    fn report(
        &self,
        args: &Args,
        (schema, result): (&'static str, &impl Serialize),
        text: &str,
    ) -> Result<()> {
        match (self, args.json) {
            (Self::Stdout, json) => {
                let text = if json { json_text(schema, result) } else { text.to_owned() };
                // A closed stderr is not an error: the data has been written.
                let _ = std::io::stderr().write_all(text.as_bytes());
                Ok(())
            }
            (_, true) => Ok(print_schema(schema, result)?),
            (_, false) => Ok(print(text)?),
        }
    }
}
