//! `pumice bench --hosts`: the benchmark on several hosts at the same time.
//!
//! The result file has the combined results of all hosts; each host also has a result file of its
//! own, next to it.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::measure::{self, say_left_out};
use super::show::Shown;
use super::{Args, dry};
use crate::cli::{Outcome, print, print_schema, say_error};
use crate::environment::unix_seconds;
use crate::signals::{self, Interrupt};
use pumice_bench::hosts::{Connection, run_on_hosts};
use pumice_bench::results::{Header, RunResult};
use pumice_bench::runner::End;
use pumice_bench::target::Location;
use pumice_bench::workload::{Plan, Preset};
use pumice_bench::{Benchmark, Contest, FileSink, Sink, Status};

/// Connects to a host without prompts, and ends once the host has been unreachable for 15 seconds.
const SSH: &str = "ssh -o BatchMode=yes -o ServerAliveInterval=5";

/// Takes part in the benchmark of another machine.
///
/// # Errors
/// The other machine cannot be reached or sends an unknown message.
pub(super) fn serve() -> Result<Outcome> {
    let stop = signals::flag()?;
    pumice_bench::hosts::serve(std::io::stdin(), std::io::stdout(), &stop)?;
    Ok(Outcome::Good)
}

/// Runs the preset on all hosts, or shows the plan.
///
/// # Errors
/// The options and the preset do not fit together, or a host fails.
pub(super) fn run(args: &Args) -> Result<Outcome> {
    let [target] = &args.targets[..] else { bail!("--hosts needs one target") };
    let preset = Preset::load(&args.preset)?;
    let plan = plan(args, &preset, target)?;
    if args.dry_run {
        if args.json {
            print_schema("plan-1", &plan)?;
        } else {
            let each: Vec<_> =
                args.hosts.iter().map(|host| format!("{target} on {host}")).collect();
            let locations: Vec<Location> = Location::parse(target).into_iter().collect();
            let text = dry::text(&plan, &each, &locations);
            print(&text.replacen(" in turns", " at once", 1))?;
        }
        return Ok(Outcome::Good);
    }
    let path = args.output(&args.preset);
    let paths = host_paths(&path, &args.hosts)?;
    let interrupt = Interrupt::catch()?;
    let shell = args.ssh.as_deref().unwrap_or(SSH);
    let shell: Vec<String> = shell.split_whitespace().map(str::to_owned).collect();
    let program = [&*args.hosts_program, "bench", "--agent"].map(str::to_owned);
    let connections = args.hosts.iter().map(|host| Connection::start(&shell, host, &program));
    let connections = connections.collect::<pumice_bench::Result<Vec<_>>>()?;
    let benchmark = Benchmark {
        title: args.preset.clone(),
        about: preset.about,
        plan,
        destroy: args.destroy_data,
        begun_unix_s: unix_seconds(),
    };
    let mut sink = Together {
        shown: Shown::new(FileSink::new(path.clone()), 0),
        hosts: paths.into_iter().map(FileSink::new).collect(),
        label: args.labels.first().cloned().unwrap_or_default(),
    };
    let ended = run_on_hosts(&benchmark, target, connections, interrupt.flag(), &mut sink);
    match ended {
        Ok(Contest { end: End::Stopped, .. }) => {
            sink.shown.finish();
            let kept = sink.shown.kept().unwrap_or(0);
            say_error(&format!("interrupted: all hosts have ended; runs in the files: {kept}"));
            Ok(Outcome::Code(2))
        }
        ended => {
            let first = |mut contest: Contest| {
                contest.results.truncate(1);
                contest
            };
            measure::conclude(args, &path, &sink.shown, ended.map(first))
        }
    }
}

fn plan(args: &Args, preset: &Preset, target: &str) -> Result<Plan> {
    let mut plan = preset.plan(&args.changes())?;
    if plan.direct || target.contains("://") {
        say_left_out(plan.leave_out_stdio(), "a file and buffered I/O");
        if target.contains("://") {
            say_left_out(plan.leave_out_copies(), "a folder");
        }
        plan.check()?;
    }
    Ok(plan)
}

/// Returns the result file of each host: the common path with the host's name added.
///
/// # Errors
/// A host is named twice; a file exists.
fn host_paths(path: &Path, hosts: &[String]) -> Result<Vec<PathBuf>> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let plain = |c: char| if c.is_alphanumeric() || ".@_".contains(c) { c } else { '-' };
    let mut paths: Vec<PathBuf> = Vec::new();
    for host in hosts {
        let name: String = host.chars().map(plain).collect();
        let own = path.with_file_name(format!("{stem}-{name}.jsonl"));
        if paths.contains(&own) {
            bail!("host {host} is named twice, or has the same file name as another host");
        }
        paths.push(own);
    }
    let exists =
        std::iter::once(path).chain(paths.iter().map(|own| &**own)).find(|own| own.exists());
    match exists {
        Some(own) => bail!("{} exists: specify another file with --output", own.display()),
        None => Ok(paths),
    }
}

/// Shows the progress, and stores the combined results of all hosts and the results of each host.
struct Together {
    shown: Shown,
    hosts: Vec<FileSink>,
    label: String,
}

impl Sink for Together {
    fn begin(&mut self, headers: &[Header]) -> pumice_bench::Result<()> {
        let mut all = headers[0].clone();
        all.label.clone_from(&self.label);
        self.shown.begin(&[all])?;
        for (host, header) in self.hosts.iter_mut().zip(&headers[1..]) {
            host.begin(std::slice::from_ref(header))?;
        }
        Ok(())
    }

    fn progress(&mut self, status: Status) {
        self.shown.progress(status);
    }

    fn keep(&mut self, target: usize, run: &RunResult) -> pumice_bench::Result<()> {
        match target.checked_sub(1) {
            None => self.shown.keep(0, run),
            Some(host) => self.hosts[host].keep(0, run),
        }
    }
}
