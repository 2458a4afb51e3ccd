//! `pumice serve`: serves drives over NBD, and to virtual machines, until a signal or a command
//! ends it.

mod network;
mod plan;
mod tables;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Serialize;

use self::network::Network;
use self::plan::Names;
#[cfg(feature = "attach")]
pub(crate) use self::plan::name_of;
use self::tables::Exports;
pub(crate) use self::tables::TABLES;
use super::config::FoundTable;
use super::key_args::KeyArgs;
use super::opening::Opening;
use super::{LogOptions, Outcome, chain, print, print_schema, say_error, serve_args, thresholds};
use crate::server::{self, Announce, Described, Ended, Offer, Settings};
use pumice_drive::controller::{OpenOptions, WARN_THRESHOLDS_MAX};
use pumice_drive::runtime::Backend;

/// Serve drives over NBD until SIGINT or SIGTERM
///
/// Each drive is an export named after its file; a single drive is also the default export. Each
/// snapshot of a drive is the read-only export DRIVE@NAME. Without --unix, --listen, --vhost-user
/// or --run, the server listens on 127.0.0.1:10809, or on the sockets passed by systemd. On
/// shutdown it flushes all drives; a second signal ends it immediately. SIGHUP rereads
/// configuration and certificates. Access rules, limits, certificates, and added or removed drives
/// change while clients work; for any other change, or if nothing has changed, the server restarts,
/// possibly as a newer version, with the same arguments and sockets: clients notice only a pause.
/// On a terminal, or with --run, SIGHUP shuts the server down. The log goes to stderr; `pumice
/// --log debug serve` logs more.
#[derive(Clone, Debug, PartialEq, clap::Args)]
#[command(after_help = "\
Examples:
  pumice serve drive.pumice --unix /tmp/drive.sock
  pumice serve drives/ --listen 127.0.0.1:10809
  pumice serve drive.pumice --listen 0.0.0.0:10809 --tls-certificates /etc/pumice --tls-verify-peer
  pumice serve --follow s3://bucket/vm --unix /tmp/follower.sock
  pumice serve drive.pumice --run 'qemu-img convert -n -O raw disk.img \"$uri\"'")]
pub(crate) struct Args {
    /// Files, block devices, or directories: all *.pumice files in a directory are served
    #[arg(required_unless_present = "config", value_name = "PATH")]
    paths: Vec<PathBuf>,

    /// Read options from a TOML file: each long option is a key (unix = "...", read-only = true),
    /// drives are paths = ["..."]; the command line and the environment take precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Validate options, configuration and certificates, print the exports, then exit; opens no
    /// drive
    #[arg(long)]
    check: bool,

    #[command(flatten)]
    network: Network,

    #[command(flatten)]
    names: Names,

    #[command(flatten)]
    opening: Opening,

    /// Serve s3://BUCKET/NAME read-only while another machine writes it: checks for a newer commit
    /// at this interval, in seconds, switches to it between two requests, and writes nothing to the
    /// bucket [default: 5]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "5",
        value_parser = clap::value_parser!(u32).range(1..=3600), value_name = "SECONDS",
        conflicts_with = "diskless")]
    follow: Option<u32>,

    #[command(flatten)]
    keys: KeyArgs,

    /// Run a shell command with $uri set, then exit with its exit code
    #[arg(long, value_name = "COMMAND")]
    run: Option<String>,

    /// Used capacity at which to warn, up to four percentages; or none [default: the drive's own
    /// setting, see `pumice set`]
    #[arg(long, value_parser = thresholds, value_name = "PERCENT,...")]
    warn: Option<[u8; WARN_THRESHOLDS_MAX]>,

    /// I/O backend
    #[arg(long, value_enum, default_value_t = Io::Auto)]
    io: Io,

    /// Print the URIs as JSON once the drives are served
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    watch: super::watch::Args,

    /// Tables of the configuration
    #[arg(skip)]
    exports: Exports,

    /// The log options, which belong to the program
    #[arg(skip)]
    log: LogOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Io {
    /// io_uring if the kernel allows it, otherwise threads
    Auto,
    /// io_uring only
    Uring,
    /// System calls on helper threads
    Threads,
}

impl From<Io> for Backend {
    fn from(io: Io) -> Self {
        match io {
            Io::Auto => Self::Auto,
            Io::Uring => Self::Uring,
            Io::Threads => Self::Threads,
        }
    }
}

impl Args {
    /// Adds settings that are not flags of this subcommand: tables, and the log options.
    ///
    /// # Errors
    /// A table contradicts itself.
    pub(crate) fn take(&mut self, tables: Vec<FoundTable>, log: LogOptions) -> Result<()> {
        self.exports = Exports::new(tables)?;
        self.log = log;
        Ok(())
    }

    /// Returns the settings of the server.
    ///
    /// # Errors
    /// Errors of [`Self::offer`]; other machines can reach the HTTP server, and there is no token.
    fn settings(&self) -> Result<Settings> {
        let offer = self.offer()?;
        let threads = self.threads(offer.drives.len());
        let started = self.clone();
        Ok(Settings {
            offer,
            unix: self.network.sockets.unix.clone(),
            unix_access: self.network.unix_access(),
            tcp: self.network.listen,
            vhost_user: self.network.vhost_user().map(Path::to_owned),
            insecure: self.network.insecure,
            io: self.io.into(),
            threads,
            compressors: self.opening.compressors(),
            busy_poll_ns: self.opening.busy_poll_ns(),
            command: self.run.clone(),
            access: self.watch.access()?,
            terms: self.watch.terms(),
            announce: self.json.then_some(print_uris as Announce),
            reread: Box::new(move || started.reread()),
        })
    }

    /// Reads arguments and configuration again; returns the offer, or `None` if they differ from
    /// these in more than that.
    ///
    /// # Errors
    /// Same as [`serve_args`] and [`Self::offer`].
    fn reread(&self) -> Result<Option<Offer>> {
        let args = *serve_args()?;
        let (paths, exports) = (args.paths.clone(), args.exports.clone());
        let network = self.network.with_policy_of(&args.network);
        if args != (Self { paths, exports, network, ..self.clone() }) {
            return Ok(None);
        }
        args.offer().map(Some)
    }

    /// Returns the drives to serve, and the rules for clients.
    ///
    /// # Errors
    /// Options or tables that contradict each other; a certificate that cannot be used; a directory
    /// without drives.
    fn offer(&self) -> Result<Offer> {
        let has_drives = self.exports.has_drives() || !self.paths.is_empty();
        if let (false, Some(file)) = (has_drives, &self.config) {
            let file = file.display();
            bail!("{file} names no drive: add paths = [\"...\"], or a PATH argument");
        }
        let options = self.network.options(self.exports.rules())?;
        let access = self.opening.access(&self.paths);
        let found = plan::expand(&self.paths)?;
        self.network.check_device(found.len())?;
        let opening = |path: &Path| (access.clone(), self.options(path));
        let mut drives = plan::plan(found, &self.names, &self.exports, opening)?;
        self.network.check_device(drives.len())?;
        if let Some(seconds) = self.follow {
            if self.network.vhost_user().is_some() {
                bail!(
                    "--follow is for clients over NBD: a guest expects that its disk does not \
                       change"
                );
            }
            let every_ns = u64::from(seconds) * 1_000_000_000;
            drives.iter_mut().try_for_each(|drive| drive.follow(every_ns))?;
        }
        let names: Vec<_> = drives.iter().map(|drive| &*drive.name).collect();
        self.exports.check(&names, self.network.verifies_peers())?;
        Ok(Offer { drives, options })
    }

    fn options(&self, path: &Path) -> OpenOptions {
        OpenOptions { warn_percent: self.warn, ..self.opening.options(path) }
    }

    /// Returns how many threads serve this number of drives in addition to this one; 0 if this
    /// thread serves them itself.
    fn threads(&self, drives: usize) -> usize {
        let threads = self.opening.threads();
        // The virtual machine's memory belongs to this thread.
        if threads == 1 || self.network.vhost_user().is_some() {
            return 0;
        }
        threads.min(drives)
    }
}

/// Runs the subcommand.
///
/// # Errors
/// A drive cannot be opened, a socket is in use, or the command cannot be started.
pub(crate) fn run(args: &Args) -> Result<Outcome> {
    args.keys.provide()?;
    let settings = args.settings()?;
    if args.check {
        settings.check()?;
        let drives = settings.offer.drives.iter();
        let names: Vec<_> = drives.map(|drive| &*drive.name).collect();
        print(&format!("valid: would serve {}\n", names.join(", ")))?;
        return Ok(Outcome::Good);
    }
    match server::run(&settings)? {
        Ended::Well => Ok(Outcome::Good),
        Ended::Command(code) => Ok(Outcome::Code(code)),
        Ended::Badly(problem) => {
            say_error(&chain(&problem));
            Ok(Outcome::Problem)
        }
    }
}

/// The result as JSON.
#[derive(Serialize, JsonSchema)]
pub(super) struct Shown<'a> {
    /// The drives, in the order of the command line.
    drives: Vec<ServedDrive<'a>>,
}

/// A served drive.
#[derive(Serialize, JsonSchema)]
struct ServedDrive<'a> {
    /// Its file or device.
    path: &'a Path,
    /// Name of its export.
    name: &'a str,
    /// Addresses for clients, one for each endpoint.
    uris: &'a [String],
}

/// Prints the URIs as JSON.
fn print_uris(served: &[Described], uris: &[Vec<String>]) -> Result<()> {
    let drives = served.iter().zip(uris).map(|(drive, uris)| ServedDrive {
        path: &drive.path,
        name: &drive.name,
        uris,
    });
    print_schema("serve-1", &Shown { drives: drives.collect() })
}
