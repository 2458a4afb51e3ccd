//! The subcommands, in the groups that `--help`, the manual and docs/cli.md show.
//!
//! Each group is an enum, so that every subcommand is in exactly one. The texts come from the
//! definitions of the subcommands.

use clap::Subcommand;
use textwrap::{Options, WordSplitter};

use super::*;

/// Every subcommand.
#[derive(Debug, Subcommand)]
pub(super) enum Command {
    #[command(flatten)]
    Drive(DriveCommand),
    #[cfg(feature = "bench")]
    #[command(flatten)]
    Measure(MeasureCommand),
    #[cfg(feature = "bench")]
    #[command(flatten)]
    Simulate(SimulateCommand),
    #[command(flatten)]
    Other(OtherCommand),
}

/// Subcommands that work on a drive.
#[derive(Debug, Subcommand)]
pub(super) enum DriveCommand {
    Create(Box<create::Args>),
    Serve(Box<serve::Args>),
    #[cfg(feature = "attach")]
    Attach(attach::Args),
    #[cfg(feature = "attach")]
    Detach(detach::Args),
    Info(Box<info::Args>),
    List(list::Args),
    Clients(clients::Args),
    Check(Box<check::Args>),
    Scrub(Box<scrub::Args>),
    Resize(Box<resize::Args>),
    Set(Box<set::Args>),
    Key(Box<key::Args>),
    Rekey(Box<rekey::Args>),
    Device(device::Args),
    Snapshot(Box<snapshot::Args>),
    Clone(Box<clone::Args>),
    Flatten(Box<flatten::Args>),
    Diff(Box<diff::Args>),
    Send(Box<send::Args>),
    Receive(Box<receive::Args>),
    Compact(Box<compact::Args>),
    Extract(Box<extract::Args>),
    Rebuild(Box<rebuild::Args>),
    #[cfg(feature = "top")]
    Top(top::Args),
}

/// Subcommands that measure targets and data.
#[cfg(feature = "bench")]
#[derive(Debug, Subcommand)]
pub(super) enum MeasureCommand {
    Bench(Box<bench::Args>),
    Compare(compare::Args),
    Report(report::Args),
    Payload(payload::Args),
    Scan(Box<scan::Args>),
}

/// Subcommands that simulate drives.
#[cfg(feature = "bench")]
#[derive(Debug, Subcommand)]
pub(super) enum SimulateCommand {
    Drives(drives::Args),
    Forecast(Box<forecast::Args>),
    Reproduce(reproduce::Args),
}

/// The demonstration, and commands for the shell, `man` and readers of JSON.
#[derive(Debug, Subcommand)]
pub(super) enum OtherCommand {
    #[cfg(feature = "bench")]
    Demo(demo::Args),
    Completions(manual::Completions),
    Man(manual::Man),
    Schema(schema::Args),
}

impl Command {
    /// Runs the subcommand.
    ///
    /// # Errors
    /// The subcommand could not run.
    pub(super) fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Drive(command) => command.run(),
            #[cfg(feature = "bench")]
            Self::Measure(command) => command.run(),
            #[cfg(feature = "bench")]
            Self::Simulate(command) => command.run(),
            Self::Other(command) => command.run(),
        }
    }
}

impl DriveCommand {
    fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Create(args) => create::run(&args),
            Self::Serve(args) => serve::run(&args),
            #[cfg(feature = "attach")]
            Self::Attach(args) => attach::run(&args),
            #[cfg(feature = "attach")]
            Self::Detach(args) => detach::run(&args),
            Self::Info(args) => info::run(&args),
            Self::List(args) => list::run(&args),
            Self::Clients(args) => clients::run(&args),
            Self::Check(args) => check::run(&args),
            Self::Scrub(args) => scrub::run(&args),
            Self::Resize(args) => resize::run(&args),
            Self::Set(args) => set::run(&args),
            Self::Key(args) => key::run(&args),
            Self::Rekey(args) => rekey::run(&args),
            Self::Device(args) => device::run(&args),
            Self::Snapshot(args) => snapshot::run(&args),
            Self::Clone(args) => clone::run(&args),
            Self::Flatten(args) => flatten::run(&args),
            Self::Diff(args) => diff::run(&args),
            Self::Send(args) => send::run(&args),
            Self::Receive(args) => receive::run(&args),
            Self::Compact(args) => compact::run(&args),
            Self::Extract(args) => extract::run(&args),
            Self::Rebuild(args) => rebuild::run(&args),
            #[cfg(feature = "top")]
            Self::Top(args) => top::run(&args),
        }
    }
}

#[cfg(feature = "bench")]
impl MeasureCommand {
    fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Bench(args) => bench::run(&args),
            Self::Compare(args) => compare::run(&args),
            Self::Report(args) => report::run(&args),
            Self::Payload(args) => payload::run(&args),
            Self::Scan(args) => scan::run(&args),
        }
    }
}

#[cfg(feature = "bench")]
impl SimulateCommand {
    fn run(self) -> anyhow::Result<Outcome> {
        match self {
            Self::Drives(args) => drives::run(&args),
            Self::Forecast(args) => forecast::run(&args),
            Self::Reproduce(args) => reproduce::run(&args),
        }
    }
}

impl OtherCommand {
    fn run(self) -> anyhow::Result<Outcome> {
        match self {
            #[cfg(feature = "bench")]
            Self::Demo(args) => demo::run(&args),
            Self::Completions(args) => manual::completions(&args),
            Self::Man(args) => manual::man(&args),
            Self::Schema(args) => schema::run(&args),
        }
    }
}

/// A group of subcommands.
pub(super) struct Group {
    /// The heading above it.
    pub(super) title: &'static str,
    /// A command that has the group's subcommands and nothing else.
    pub(super) command: clap::Command,
}

/// Returns the groups, in the order in which they are shown.
pub(super) fn groups() -> Vec<Group> {
    fn group<T: Subcommand>(title: &'static str) -> Group {
        let command = T::augment_subcommands(clap::Command::new("pumice"));
        Group { title, command: command.disable_help_subcommand(true) }
    }
    vec![
        group::<DriveCommand>("Drive commands"),
        #[cfg(feature = "bench")]
        group::<MeasureCommand>("Measurement commands"),
        #[cfg(feature = "bench")]
        group::<SimulateCommand>("Simulation commands"),
        group::<OtherCommand>("Other commands"),
    ]
}

/// Returns the definition of the command line, whose help lists the subcommands in groups.
pub(super) fn program() -> clap::Command {
    let mut built = Cli::command();
    built.build();
    let help = built.find_subcommand("help").expect("clap adds the help command").clone();
    let mut groups = groups();
    if let Some(last) = groups.last_mut() {
        last.command = last.command.clone().subcommand(help);
    }
    let names = groups.iter().flat_map(|group| group.command.get_subcommands());
    let width = names.map(|command| command.get_name().len()).max().unwrap_or(0);
    let columns = output::columns().into();
    let heading = *built.get_styles().get_header();
    let mut template = "{before-help}{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    for group in &groups {
        template += &format!("{heading}{}:{heading:#}\n", group.title);
        for command in group.command.get_subcommands() {
            let name = format!("  {:width$}  ", command.get_name());
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let indent = " ".repeat(name.len());
            let options = Options::new(columns)
                .initial_indent(&name)
                .subsequent_indent(&indent)
                .word_splitter(WordSplitter::NoHyphenation);
            template += &(textwrap::fill(&about, options) + "\n");
        }
        template.push('\n');
    }
    template += &format!("{heading}Options:{heading:#}\n{{options}}{{after-help}}");
    Cli::command().help_template(template).term_width(columns)
}

/// Returns the names of the subcommands in their groups, a paragraph for each.
pub(super) fn names() -> String {
    let paragraph = |group: &Group| {
        let names = group.command.get_subcommands().map(clap::Command::get_name);
        let line = format!("{}: {}", group.title, names.collect::<Vec<_>>().join(", "));
        textwrap::fill(&line, Options::new(output::columns().into()).subsequent_indent("  "))
    };
    groups().iter().map(paragraph).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    //! Goal: the help lists every subcommand once.
    use super::*;

    #[test]
    fn every_subcommand_is_in_the_help_once() {
        let help = program().render_help().to_string();
        for command in Cli::command().get_subcommands() {
            let start = format!("  {} ", command.get_name());
            let lines = help.lines().filter(|line| line.starts_with(&start));
            assert_eq!(lines.count(), 1, "{start}\n{help}");
        }
    }
}
