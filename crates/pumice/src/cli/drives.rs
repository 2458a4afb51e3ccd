//! `pumice drives`: the drive profiles that can be simulated, and the sources of their numbers.

use anyhow::Result;
use schemars::JsonSchema;
use serde::Serialize;
use textwrap::{Options, WordSplitter};

use super::output::{self, columns};
use super::{Outcome, print, print_schema, print_schemas};
use pumice_report::{Align, Cell, Column, Document, Number, Table};
use pumice_sim::profile::{Fact, Figures, PROFILES, Profile};

/// Width of the column that holds a basis: with key and value, a line has at most 100 columns.
const BASIS_COLUMNS: usize = 62;

/// List the drive profiles that can be simulated, or explain one
///
/// Without NAME, lists the built-in profiles. With NAME, prints every number of the profile with
/// its unit and its basis, and the figures that follow from them by arithmetic. A basis is a source
/// (a published number), a fit (the value with which the simulation reproduces published results),
/// or a guess (nothing is published; the reason for the value is given).
///
/// NAME is a name from the list, or a TOML file with a profile in the format of those in
/// crates/pumice-sim/src/profiles.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice drives
  pumice drives micro-center-64
  pumice drives ./my-drive.toml --json")]
pub(crate) struct Args {
    /// Name of a built-in profile, or a profile file
    name: Option<String>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A row of the list.
#[derive(Serialize, JsonSchema)]
pub(super) struct Listed<'a> {
    /// Short name: its file name without the extension.
    id: &'a str,
    /// Product name.
    name: &'a str,
    /// One sentence about the drive.
    about: &'a str,
    /// Year of introduction.
    year: u16,
    /// `log`, `block-mapped` or `disk`.
    kind: &'a str,
    /// Size of the disk that the host sees.
    size_bytes: u64,
    /// (flash - size) / size, in percent; `None` for a disk.
    over_provisioning_percent: Option<f64>,
}

/// A profile and the figures computed from it.
#[derive(Serialize, JsonSchema)]
pub(super) struct Explained<'a> {
    #[serde(flatten)]
    profile: &'a Profile,
    /// Figures that follow from the profile.
    computed: Figures,
}

/// Runs the subcommand.
///
/// # Errors
/// The profile does not exist or is not valid.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    match &args.name {
        None => list(args.json)?,
        Some(name) => explain(&Profile::find(name)?, args.json)?,
    }
    Ok(Outcome::Good)
}

fn list(json: bool) -> Result<()> {
    let profiles: Vec<Profile> =
        PROFILES.iter().map(|(id, _)| Profile::find(id)).collect::<Result<_, _>>()?;
    if json {
        print_schemas("drives-1", &profiles.iter().map(listed).collect::<Vec<_>>())?;
        return Ok(());
    }
    let mut table = Table::with_columns(vec![
        Column::left("drive"),
        Column::left("name"),
        Column::left("kind"),
        Column::right("size").with_unit("GB"),
        Column::right("over-provisioning").with_unit("%"),
    ]);
    for profile in &profiles {
        let of = listed(profile);
        table.push(vec![
            of.id.into(),
            of.name.into(),
            of.kind.into(),
            Number::new(of.size_bytes as f64 / 1e9, 1).with_unit("GB").into(),
            of.over_provisioning_percent.map(|value| Number::new(value, 1).with_unit("%")).into(),
        ]);
    }
    print(&output::table(&table))?;
    Ok(())
}

fn listed(profile: &Profile) -> Listed<'_> {
    Listed {
        id: &profile.id,
        name: &profile.name,
        about: &profile.about,
        year: profile.year,
        kind: profile.kind(),
        size_bytes: profile.size_bytes.is,
        over_provisioning_percent: profile.over_provisioning_percent(),
    }
}

fn explain(profile: &Profile, json: bool) -> Result<()> {
    if json {
        print_schema("drive-1", &Explained { profile, computed: profile.figures() })?;
    } else {
        print(&document(profile).to_text_within(columns()))?;
    }
    Ok(())
}

fn document(profile: &Profile) -> Document {
    let mut document = Document::new(&profile.name, &profile.about);
    let facts = profile.facts();
    for facts in facts.chunk_by(|one, other| one.section == other.section) {
        match facts[0].section {
            "" => {
                let kind = format!("{}, from {}", profile.kind(), profile.year);
                document.section("drive").pairs([("kind", kind)]).block(table(facts))
            }
            section => document.section(section).block(table(facts)),
        };
    }
    document
        .section("computed")
        .paragraph("Derived from the numbers above, without queues and garbage collection:")
        .pairs(profile.figures().shown());
    document
}

/// Returns a table of facts with key, value and basis.
fn table(facts: &[Fact<'_>]) -> Table {
    let mut table = Table::new(&[("", Align::Left), ("", Align::Left), ("", Align::Left)]);
    let options =
        Options::new(BASIS_COLUMNS).word_splitter(WordSplitter::NoHyphenation).break_words(false);
    for fact in facts {
        let basis = format!("{}: {}", fact.basis.word(), fact.basis.text());
        let basis = textwrap::fill(&basis, &options);
        table.push([fact.key.to_owned(), fact.shown(), basis].map(Cell::from).into());
    }
    table
}
