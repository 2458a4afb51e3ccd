//! The facts known before the first run.

use rustix::time::{ClockId, clock_gettime};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::environment;
use crate::bench::target::{Contender, Location, drive_info};
use crate::error::Result;
use crate::payload::{Finding, Survey};
use crate::workload::Plan;
use pumice_drive::base::checksum::crc64;
use pumice_sim::profile::Profile;
use pumice_sim::system::SystemSpec;

/// Version of the format. Version 1 can also be read, and its files have one target. Other versions
/// are refused.
pub const FORMAT: u32 = 2;

/// Maximum number of targets that take turns. More would make a round too long.
pub const TARGETS_MAX: usize = 16;

/// Bytes of each level's data that are measured before the first run.
const SURVEY_BYTES: usize = 8 << 20;

/// The facts known before the first run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Header {
    /// Version of the format: [`FORMAT`].
    pub pumice_bench: u32,
    /// Source of the measurement: `pumice 0.1.0`, or another tool whose results were imported.
    pub tool: String,
    /// Name of the preset.
    pub title: String,
    /// Description of the preset.
    pub about: String,
    /// The target, as specified.
    pub target: String,
    /// Name of the target in reports; empty if the target itself is its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// The target's place among the targets that took turns; absent for a single target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<Turns>,
    /// The plan.
    pub plan: Plan,
    /// The command line; empty if unknown.
    pub command: String,
    /// Start of the benchmark, in seconds since 1970, UTC; 0 if unknown.
    pub begun_unix_s: u64,
    /// Names with values, in reading order.
    pub environment: Vec<(String, String)>,
    /// Measured savings of each level's data; empty if unknown.
    pub payloads: Vec<LevelFindings>,
}

impl Header {
    /// Collects the facts about this machine and measures 8 MiB of each level's data.
    /// `begun_unix_s` is in seconds since 1970.
    ///
    /// # Errors
    /// The data cannot be generated, the profile is unknown, or the drive cannot be opened.
    pub fn new(
        title: &str,
        about: &str,
        location: &Location,
        plan: Plan,
        begun_unix_s: u64,
    ) -> Result<Self> {
        let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
        Ok(Self {
            pumice_bench: FORMAT,
            tool: format!("pumice {}", env!("CARGO_PKG_VERSION")),
            title: title.to_owned(),
            about: about.to_owned(),
            target: location.to_string(),
            label: String::new(),
            turns: None,
            // No data is written to a read-only target.
            payloads: match location {
                Location::Existing(_) => Vec::new(),
                _ => survey(&plan)?,
            },
            plan,
            command: words.collect::<Vec<_>>().join(" "),
            begun_unix_s,
            environment: facts(location)?,
        })
    }

    /// Returns the headers of targets that take turns. `self` is the header of the first.
    ///
    /// # Errors
    /// A profile is unknown, or a drive cannot be opened.
    pub(crate) fn in_turns(self, contenders: &[Contender]) -> Result<Vec<Self>> {
        let session = self.session();
        let all = contenders.iter().enumerate();
        all.map(|(index, Contender { location, label })| {
            let mut header = self.clone();
            header.target = location.to_string();
            header.label.clone_from(label);
            if contenders.len() > 1 {
                let (index, of) = (index as u32, contenders.len() as u32);
                header.turns = Some(Turns { session: session.clone(), index, of });
            }
            if index > 0 {
                header.environment = facts(location)?;
            }
            Ok(header)
        })
        .collect()
    }

    /// Returns a name that is unique to this session: a checksum of the command, its process and
    /// the time.
    fn session(&self) -> String {
        let now = clock_gettime(ClockId::Monotonic);
        let (command, begun, process) = (&self.command, self.begun_unix_s, std::process::id());
        let text = format!("{command} {begun} {process} {}.{}", now.tv_sec, now.tv_nsec);
        format!("{:016x}", crc64(text.as_bytes()))
    }

    /// Returns the name of the target in reports.
    pub fn name(&self) -> &str {
        if self.label.is_empty() { &self.target } else { &self.label }
    }

    /// Returns a fact of the environment; `None` if it is unknown.
    pub fn fact(&self, name: &str) -> Option<&str> {
        let mut facts = self.environment.iter();
        facts.find(|(other, _)| other == name).map(|(_, fact)| fact.as_str())
    }

    /// Returns whether both targets took turns in one session.
    pub fn is_in_turns_with(&self, other: &Self) -> bool {
        let session = |header: &Self| header.turns.as_ref().map(|turns| turns.session.clone());
        session(self).is_some_and(|own| session(other) == Some(own))
    }
}

/// The place of a target among the targets that took turns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Turns {
    /// Unique name of the session.
    pub session: String,
    /// Index of the target, from 0.
    pub index: u32,
    /// Number of targets, 2 to [`TARGETS_MAX`].
    pub of: u32,
}

/// Returns the facts about this machine and the target, or about a simulated drive.
fn facts(location: &Location) -> Result<Vec<(String, String)>> {
    Ok(match location {
        Location::Sim(text) => {
            environment::simulated(&Profile::find(SystemSpec::profile_of(text))?)
        }
        _ => {
            let mut facts = environment::environment(location.path().as_deref());
            let is_read = matches!(location, Location::Existing(_));
            if let Location::Drive(file) = location.inner() {
                facts.extend(environment::drive(&drive_info(file, is_read)?));
            }
            if is_read {
                let fact = "read without changes; nothing was written".to_owned();
                facts.push(("target's data".to_owned(), fact));
            }
            facts
        }
    })
}

/// Measured savings of a level's data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LevelFindings {
    /// Name of the level.
    pub level: String,
    /// Findings by codec and chunk size.
    pub findings: Vec<Finding>,
}

/// Measures the savings of each level's data.
fn survey(plan: &Plan) -> Result<Vec<LevelFindings>> {
    let record_bytes = plan.tests.iter().map(|test| test.workload.record_bytes).max();
    let mut findings = Vec::new();
    for level in &plan.levels {
        let unit_bytes = level.unit_bytes(record_bytes.expect("a checked plan has tests"));
        // No run uses this stream.
        let mut stream = level.payload(plan.seed, unit_bytes)?.stream(u64::MAX);
        let mut data = vec![0; SURVEY_BYTES];
        stream.fill(&mut data);
        let mut survey = Survey::default();
        survey.add(&data);
        findings.push(LevelFindings { level: level.name.clone(), findings: survey.findings() });
    }
    Ok(findings)
}
