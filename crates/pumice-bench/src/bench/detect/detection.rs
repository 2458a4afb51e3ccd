//! The result of a detection, in its printed and stored form.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Data;
use crate::stats::Comparison;

/// Version of the JSON format.
pub const FORMAT: u32 = 1;

/// Result of a detection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Detection {
    /// Version of the form: [`FORMAT`].
    pub pumice_detection: u32,
    /// The target, as specified.
    pub target: String,
    /// Facts about the machine and the device below the target.
    pub environment: Vec<(String, String)>,
    /// Bytes written in each run.
    pub span_bytes: u64,
    /// Seed of the data and of the order of runs.
    pub seed: u64,
    /// Whether the page cache was bypassed (O_DIRECT).
    pub direct: bool,
    /// Whether the detection was stopped early; later results are then missing.
    pub stopped: bool,
    /// Conclusion from all evidence.
    pub answer: Answer,
    /// The conclusion and its reasons, in a paragraph.
    pub verdict: String,
    /// Evidence from space: an account for each readable usage source.
    pub accounts: Vec<Account>,
    /// Evidence from speed.
    pub speeds: Vec<Speed>,
    /// How zeroes are stored.
    pub zeroes: Zeroes,
    /// Smallest saving that saves space, in percent; absent if space showed no compression.
    pub threshold: Option<Sweep>,
    /// Largest distance at which repeats are saved, in bytes; absent if space showed no
    /// compression.
    pub reach: Option<Sweep>,
    /// Remarks for readers.
    pub remarks: Vec<String>,
}

/// Conclusion from all evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// Compressible data takes less space.
    Compresses,
    /// Duplicate data takes less space.
    Deduplicates,
    /// Compressible data and duplicate data both take less space.
    Both,
    /// The readable sources show neither effect.
    ShowsNone,
    /// No source is readable, or only speed suggests compression.
    CannotTell,
}

/// Kind of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Used space as reported.
    Usage,
    /// Bytes written, as counted by an underlying device.
    Counter,
}

/// Strength of evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Strength {
    /// Space was saved.
    Sure,
    /// A saving would have been visible, and there was none.
    Nothing,
    /// Not conclusive.
    Unusable,
}

/// Evidence from one usage source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Account {
    /// Name of the source.
    pub name: String,
    /// Kind of evidence.
    pub class: Class,
    /// Strength of the evidence.
    pub strength: Strength,
    /// The reason, if the source is unusable.
    pub unusable: Option<String>,
    /// Space used by each kind of data; incompressible data is first.
    pub amounts: Vec<Amount>,
}

impl Account {
    pub(super) fn is_usable(&self) -> bool {
        self.unusable.is_none() && !self.amounts.is_empty()
    }

    pub(super) fn saved(&self, data: Data) -> Option<f64> {
        self.amounts.iter().find(|amount| amount.data == data)?.saved
    }
}

/// Space of one kind of data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Amount {
    /// The data.
    pub data: Data,
    /// Growth of the source in each run, in bytes.
    pub bytes: Vec<i64>,
    /// Share saved relative to incompressible data, from the medians; negative if the data took
    /// more space.
    pub saved: Option<f64>,
    /// Whether the saving is evidence.
    pub shown: bool,
}

/// Operation with the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Written and flushed.
    Write,
    /// Read back.
    Read,
}

/// Speed of one kind of data relative to incompressible data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Speed {
    /// The data.
    pub data: Data,
    /// The operation.
    pub operation: Operation,
    /// Speed with incompressible data in each run, in 10^6 bytes per second.
    pub base_rates: Vec<f64>,
    /// Speed with this data in each run, in 10^6 bytes per second.
    pub rates: Vec<f64>,
    /// The comparison, corrected for the number of comparisons in the detection.
    pub comparison: Comparison,
    /// Whether the difference is evidence: this data is faster by more than 10 %, and significantly
    /// so.
    pub counts: bool,
}

/// How zeroes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Zeroes {
    /// Zeroes take as much space as other data.
    Stored,
    /// Zeroes take some space, as highly compressible data does.
    Compressed,
    /// Zeroes take no space; whether as holes or as a recorded value is unknown.
    LeftOut,
    /// Zeroes take no space: their value is recorded.
    Fill,
    /// Zeroes take no space: they are unmapped.
    Unmapped,
    /// No usable source.
    Unknown,
}

/// A series of runs with a varying parameter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Sweep {
    /// The source of the readings.
    #[serde(rename = "witness")]
    pub usage_source: String,
    /// Steps, one run each.
    pub steps: Vec<SweepStep>,
    /// The last step that saved space; `None` if none did.
    pub limit: Option<f64>,
}

/// One run of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SweepStep {
    /// Possible saving in percent, or distance between repeats in bytes.
    pub value: f64,
    /// Growth of the source in bytes.
    pub taken_bytes: i64,
    /// Share saved relative to the first step.
    pub saved: f64,
    /// Whether the saving is large enough to count.
    pub is_saved: bool,
}
