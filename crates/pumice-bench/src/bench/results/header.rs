//! The facts known before the first run.

use serde::{Deserialize, Serialize};

use super::environment;
use crate::bench::target::Location;
use crate::error::Result;
use crate::payload::{Finding, Survey};
use crate::workload::Plan;
use pumice_sim::profile::Profile;
use pumice_sim::system::SystemSpec;

/// Version of the format. Others are refused.
pub const FORMAT: u32 = 1;

/// Bytes of each level's data to measure before the first run.
const SURVEY_BYTES: usize = 8 << 20;

/// Everything known before the first run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub pumice_bench: u32,
    /// Origin of the measurement: `pumice 0.1.0`, or another tool whose results were imported.
    pub tool: String,
    /// Name of the preset.
    pub title: String,
    /// Description of the preset.
    pub about: String,
    /// The target, as specified.
    pub target: String,
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
    /// `begun_unix_s`: seconds since 1970.
    ///
    /// # Errors
    /// Data that cannot be generated; an unknown profile.
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
            payloads: survey(&plan)?,
            plan,
            command: words.collect::<Vec<_>>().join(" "),
            begun_unix_s,
            environment: match location {
                Location::Sim(text) => {
                    environment::simulated(&Profile::find(SystemSpec::profile_of(text))?)
                }
                _ => environment::environment(location.path().as_deref()),
            },
        })
    }
}

/// Measured savings of a level's data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
