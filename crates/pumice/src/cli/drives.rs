//! `pumice drives`: the drives that can be modelled, and where their numbers come from.

use serde::Serialize;

use super::{Outcome, print, print_json, wrapped};
use pumice_drive::base::Result;
use pumice_report::{Align, Cell, Column, Document, Number, Table};
use pumice_sim::profile::{Fact, Figures, PROFILES, Profile};

/// Columns of a basis: with key and value beside it a line has at most 100.
const BASIS_COLUMNS: usize = 62;

/// List drives that can be modelled, or explain one
///
/// Without NAME, the drives that come with the program. With it, all that is known of one: every
/// number with its unit and where it comes from (source: somebody published it; fitted: it makes
/// the model give published results; guess: nobody published it, and why it is likely), and what
/// follows from them by arithmetic.
///
/// NAME is one of the list, or a file: a profile of your own in TOML, in the form of those in
/// src/model/profiles.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  pumice drives
  pumice drives micro-center-64
  pumice drives ./my-drive.toml --json")]
pub(crate) struct Args {
    /// Name of a drive, or a file with a profile
    name: Option<String>,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// A line of the list.
#[derive(Serialize)]
struct Listed<'a> {
    id: &'a str,
    name: &'a str,
    about: &'a str,
    year: u16,
    kind: &'a str,
    size_bytes: u64,
    over_provisioning_percent: Option<f64>,
}

/// A drive, and what follows by arithmetic.
#[derive(Serialize)]
struct Explained<'a> {
    #[serde(flatten)]
    profile: &'a Profile,
    computed: Figures,
}

/// Runs the subcommand.
///
/// # Errors
/// There is no such drive or file, or the file is no profile.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    match &args.name {
        None => list(args.json)?,
        Some(name) => explain(&Profile::find(name)?, args.json)?,
    }
    Ok(Outcome::Good)
}

fn list(json: bool) -> Result<()> {
    let profiles: Vec<Profile> =
        PROFILES.iter().map(|(id, _)| Profile::find(id)).collect::<pumice_sim::Result<_>>()?;
    if json {
        return print_json(&profiles.iter().map(listed).collect::<Vec<_>>());
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
    print(&table.to_text())
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
        return print_json(&Explained { profile, computed: profile.figures() });
    }
    print(&document(profile).to_text())
}

fn document(profile: &Profile) -> Document {
    let mut document = Document::new(&profile.name, &profile.about);
    let facts = profile.facts();
    for facts in facts.chunk_by(|one, other| one.section == other.section) {
        match facts[0].section {
            "" => {
                let kind = format!("{}, of {}", profile.kind(), profile.year);
                document.section("drive").pairs([("kind", kind)]).block(table(facts))
            }
            section => document.section(section).block(table(facts)),
        };
    }
    document
        .section("computed")
        .paragraph("By arithmetic from the above, without queues and garbage collection:")
        .pairs(profile.figures().shown());
    document
}

/// Key, value and basis of each.
fn table(facts: &[Fact<'_>]) -> Table {
    let mut table = Table::new(&[("", Align::Left), ("", Align::Left), ("", Align::Left)]);
    for fact in facts {
        let basis = format!("{}: {}", fact.basis.word(), fact.basis.text());
        let basis = wrapped(&basis, BASIS_COLUMNS).join("\n");
        table.push([fact.key.to_owned(), fact.shown(), basis].map(Cell::from).into());
    }
    table
}
