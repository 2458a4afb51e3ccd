//! Merges the results of all hosts: their totals, from the common start to the end of the last
//! host.

use crate::bench::results::{Header, RunResult};
use crate::error::{Error, Result};
use crate::workload::Plan;

/// Maximum start delay of a host, in nanoseconds, without a warning. Ten milliseconds matter to the
/// shortest runs.
const LATE_NS_MAX: u64 = 10_000_000;

/// A host and its clock offset.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) name: String,
    /// Time of day of the host minus the time of day of this machine, in nanoseconds.
    pub(super) ahead_ns: i64,
    /// Half of the measurement's round trip, which is its error.
    pub(super) error_ns: u64,
}

/// Returns the combined header of all hosts: facts that all hosts share appear once, other facts
/// once for each host.
pub(super) fn header(plan: &Plan, hosts: &[Named], headers: &[Header]) -> Header {
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    let mut facts = vec![("hosts".to_owned(), names.join(", "))];
    for Named { name, ahead_ns, error_ns } in hosts {
        let ms = |ns: f64| ns / 1e6;
        let fact = format!("{:+.3} ms, ± {:.3} ms", ms(*ahead_ns as f64), ms(*error_ns as f64));
        facts.push((format!("clock of {name}"), fact));
    }
    let value = |header: &Header, name: &str| {
        let mut facts = header.environment.iter();
        facts.find(|(other, _)| other == name).map(|(_, value)| value.clone())
    };
    let mut seen: Vec<&String> = Vec::new();
    for (name, _) in headers.iter().flat_map(|header| &header.environment) {
        if seen.contains(&name) {
            continue;
        }
        seen.push(name);
        let values: Vec<Option<String>> =
            headers.iter().map(|header| value(header, name)).collect();
        match &values[0] {
            Some(first) if values.iter().all(|value| value.as_ref() == Some(first)) => {
                facts.push((name.clone(), first.clone()));
            }
            _ => {
                let own = hosts
                    .iter()
                    .zip(values)
                    .filter_map(|(host, value)| Some((format!("{name} of {}", host.name), value?)));
                facts.extend(own);
            }
        }
    }
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    Header {
        plan: plan.clone(),
        environment: facts,
        command: words.collect::<Vec<_>>().join(" "),
        ..headers[0].clone()
    }
}

/// A run of one host.
pub(super) struct Own {
    pub(super) late_ns: u64,
    pub(super) run: RunResult,
}

/// Merges one run of all hosts.
///
/// # Errors
/// A host has measured another cell, or its numbers are implausible.
pub(super) fn run(plan: &Plan, hosts: &[Named], runs: &[Own]) -> Result<RunResult> {
    let mut merged: Option<RunResult> = None;
    for (host, Own { late_ns, run }) in hosts.iter().zip(runs) {
        let wrong = |what: &str| Err(Error::host(&host.name, what));
        if run.test >= plan.tests.len() || run.level >= plan.levels.len() {
            return wrong("a run of a test or level that the plan does not contain");
        }
        if !run.sample.is_plausible() {
            return wrong("a run with impossible numbers");
        }
        let mut warnings: Vec<String> =
            run.warnings.iter().map(|warning| format!("{}: {warning}", host.name)).collect();
        if *late_ns > LATE_NS_MAX {
            let ms = *late_ns as f64 / 1e6;
            warnings.push(format!("{}: the run began {ms:.0} ms after the others", host.name));
        }
        let Some(all) = &mut merged else {
            // Each host has its own devices.
            merged = Some(RunResult { warnings, device: None, ..run.clone() });
            continue;
        };
        let cell = |run: &RunResult| (run.round, run.test, run.level, run.place);
        if cell(all) != cell(run) {
            return wrong("its run differs from the runs of the others");
        }
        all.sample.join(&run.sample, hosts.len() as u32);
        all.processor_share = all.processor_share.max(run.processor_share);
        all.warnings.extend(warnings);
    }
    merged.ok_or_else(|| Error::invalid("no host has run anything"))
}
