//! The machine: its system, processor and memory.

use super::Facts;
use super::files::{Files, number};
use crate::workload::memory_of;
use pumice_drive::base::units::format_size;

/// The folder of the processor that represents all processors.
const CPU0: &str = "/sys/devices/system/cpu/cpu0/cpufreq";

/// Adds the facts about the machine.
pub(super) fn describe(files: &Files, facts: &mut Facts) {
    let system = rustix::system::uname();
    let word = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    facts.add("host", Some(word(system.nodename())));
    facts.add("distribution", distribution(files));
    facts.add("kernel", Some(format!("{} {}", word(system.sysname()), word(system.release()))));
    facts.add("machine", machine(files));
    facts.add("processor", processor(files));
    let processors = std::thread::available_parallelism().ok();
    facts.add("processors", processors.map(|count| count.to_string()));
    facts.add("threads of a core", threads(files));
    facts.add("governor", files.text(format!("{CPU0}/scaling_governor")));
    facts.add("turbo", turbo(files));
    facts.add("memory", memory_bytes(files).map(format_size));
    facts.add("load before", load(files));
    facts.add("program", Some(format!("pumice {}", env!("CARGO_PKG_VERSION"))));
}

/// Returns the memory size in bytes.
pub(super) fn memory_bytes(files: &Files) -> Option<u64> {
    memory_of(&files.text("/proc/meminfo")?)
}

/// Returns the name and version of the distribution.
///
/// Source: os-release(5).
fn distribution(files: &Files) -> Option<String> {
    let text = files.text("/etc/os-release").or_else(|| files.text("/usr/lib/os-release"))?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let value = line.trim().trim_matches(['"', '\'']);
        (!value.is_empty()).then(|| value.to_owned())
    };
    field("PRETTY_NAME=").or_else(|| field("NAME="))
}

/// Returns the vendor and model, and whether the machine is virtual.
fn machine(files: &Files) -> Option<String> {
    let field = |name: &str| files.text(format!("/sys/class/dmi/id/{name}"));
    let words: Vec<String> =
        [field("sys_vendor"), field("product_name")].into_iter().flatten().collect();
    let flags = files.text("/proc/cpuinfo").unwrap_or_default();
    let is_virtual = flags
        .lines()
        .find(|line| line.starts_with("flags"))
        .is_some_and(|line| line.split_whitespace().any(|flag| flag == "hypervisor"));
    let name = words.join(" ");
    match (name.is_empty(), is_virtual) {
        (true, true) => Some("virtual".to_owned()),
        (false, true) => Some(format!("{name}, virtual")),
        (true, false) => None,
        (false, false) => Some(name),
    }
}

fn processor(files: &Files) -> Option<String> {
    let text = files.text("/proc/cpuinfo")?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns whether a core has several threads (SMT).
fn threads(files: &Files) -> Option<String> {
    let active = files.text("/sys/devices/system/cpu/smt/active")?;
    Some(if active == "1" { "several (SMT)" } else { "one" }.to_owned())
}

/// Returns whether the processor may exceed its base frequency.
fn turbo(files: &Files) -> Option<String> {
    let folder = "/sys/devices/system/cpu";
    let flag = |name: &str| files.text(format!("{folder}/{name}"));
    let is_on = match flag("intel_pstate/no_turbo") {
        Some(off) => off == "0",
        None => flag("cpufreq/boost")? == "1",
    };
    Some(if is_on { "on" } else { "off" }.to_owned())
}

/// Returns the load averages over one minute and five minutes.
fn load(files: &Files) -> Option<String> {
    let text = files.text("/proc/loadavg")?;
    let mut averages = text.split_whitespace();
    Some(format!("{} (1 min), {} (5 min)", averages.next()?, averages.next()?))
}

/// Returns the current mean frequency of all processors in MHz.
pub(super) fn processor_mhz(files: &Files) -> Option<f64> {
    let policies = files.entries("/sys/devices/system/cpu/cpufreq");
    let current = |policy: &std::path::PathBuf| number(&policy.join("scaling_cur_freq"));
    let all: Vec<f64> = policies.iter().filter_map(current).collect();
    (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64 / 1e3)
}
