//! Published experiments: a drive, its workload and the published numbers.
//!
//! ```toml
//! drive = "micro-center-64"
//! title = "IOzone, records of 4 KiB"
//! source = "author, publication, date"
//! about = "which conditions are simulated, and how they are scaled"
//! conditions = "cache_bytes=480MiB"     # of the host: see SystemSpec::find
//! [preset]                              # as presets of the bench are
//! [[cell]]
//! test = "write, 4 KiB"
//! data = "98 % saved"                   # the name of a level
//! mean = 49739.9                        # optional: a prediction needs no number
//! deviation = 2349.23
//! basis = "calibrated"                  # or predicted, or host with a why
//! ```

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::workload::Plan;
use crate::workload::{Changes, Preset};
use pumice_drive::base::near::nearest;

/// Expands to the name and text of each file.
macro_rules! experiments {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("experiments/", $name, ".toml")))),*]
    };
}

/// The experiments included in the program.
pub const EXPERIMENTS: [(&str, &str); 14] = experiments![
    "micro-center-iozone-4k",
    "micro-center-iozone-1m",
    "micro-center-iozone-sizes",
    "corsair-force-iometer",
    "agility-2-iometer",
    "vertex-2-crystaldiskmark-ide",
    "vertex-2-crystaldiskmark-ahci",
    "x25-e-rated",
    "x25-m-g1-iometer",
    "x25-m-g2-rated",
    "vertex-iometer",
    "samsung-slc-iometer",
    "jmf602b-iometer",
    "hard-disk-iometer",
];

/// The relationship of a published cell to the profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// Parameters of the profile were fitted to the cell.
    Calibrated,
    /// No parameter was fitted to the cell.
    Predicted,
    /// The cell is dominated by an effect of the host.
    Host,
}

impl Basis {
    /// All kinds, in summary order.
    pub const ALL: [Self; 3] = [Self::Calibrated, Self::Predicted, Self::Host];

    /// Returns the printed name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Calibrated => "calibrated",
            Self::Predicted => "predicted",
            Self::Host => "host",
        }
    }
}

/// The quantity of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// MB/s or requests per second, according to the unit of the test.
    #[default]
    Value,
    /// Mean latency in ms.
    LatencyMean,
    /// Maximum latency in ms.
    LatencyMax,
}

/// One published number.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Name of the test.
    pub test: String,
    /// Name of the level.
    pub data: String,
    /// The quantity.
    #[serde(default)]
    pub measure: Measure,
    /// Mean, if it was published.
    pub mean: Option<f64>,
    /// Standard deviation of the runs.
    pub deviation: Option<f64>,
    /// See [`Basis`].
    pub basis: Basis,
    /// Remark about the cell; the explanation, if the cell shows an effect of the host.
    pub why: Option<String>,
}

/// A published experiment.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Profile of the drive.
    pub drive: String,
    /// Name of the workload.
    pub title: String,
    /// Author, publication and date.
    pub source: String,
    /// The simulated conditions, and how they were scaled.
    pub about: String,
    /// Settings of the host; see [`pumice_sim::system::SystemSpec::find`].
    #[serde(default)]
    pub conditions: String,
    preset: toml::Table,
    /// Published numbers.
    #[serde(rename = "cell")]
    pub cells: Vec<Published>,
}

impl Experiment {
    /// Parses an experiment.
    ///
    /// # Errors
    /// [`Error::Invalid`] for malformed text, or for cells that name unknown tests or levels.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let wrong = |what: String| Error::invalid(format!("{name}: {what}"));
        let experiment: Self =
            toml::from_str(text).map_err(|error| wrong(error.message().to_owned()))?;
        let plan = experiment.plan()?;
        for cell in &experiment.cells {
            let Published { test, data, basis, .. } = cell;
            if !plan.tests.iter().any(|known| known.name == *test) {
                let names: Vec<&str> = plan.tests.iter().map(|test| test.name.as_str()).collect();
                return Err(wrong(format!("no test is called '{test}': {}", names.join("; "))));
            }
            if !plan.levels.iter().any(|level| level.name == *data) {
                return Err(wrong(format!("no level is called '{data}'")));
            }
            if *basis == Basis::Host && cell.why.is_none() {
                return Err(wrong(format!("'{test}' is an effect of the host: add 'why'")));
            }
        }
        Ok(experiment)
    }

    /// Returns the experiments on a drive, or all of them for `all`, in the order of
    /// [`EXPERIMENTS`].
    ///
    /// # Errors
    /// [`Error::NotFound`] with a list of the known drives.
    pub fn of_drive(drive: &str) -> Result<Vec<Self>> {
        let known = EXPERIMENTS.iter().map(|(name, text)| Self::parse(name, text));
        let known = known.collect::<Result<Vec<_>>>()?;
        let mut drives: Vec<String> = known.iter().map(|one| one.drive.clone()).collect();
        drives.dedup();
        let wanted: Vec<Self> =
            known.into_iter().filter(|one| drive == "all" || one.drive == drive).collect();
        if wanted.is_empty() {
            let names: Vec<&str> = drives.iter().map(String::as_str).collect();
            let near = nearest(drive, &names);
            let hint = near.map_or(".".into(), |near| format!(", did you mean {near}?"));
            let drives = names.join(", ");
            let what = format!("no experiment with drive {drive}{hint} Drives: all, {drives}");
            return Err(Error::NotFound(what));
        }
        Ok(wanted)
    }

    /// Returns the target of the experiment, without the prefix `sim:`.
    pub fn target(&self) -> String {
        if self.conditions.is_empty() {
            self.drive.clone()
        } else {
            format!("{}?{}", self.drive, self.conditions)
        }
    }

    /// Discards the parameters that were fitted to the drive's own published results. Parameters
    /// from other drives and from its data sheet remain. The error then measures the prediction for
    /// a new drive.
    pub fn leave_out(&mut self) {
        let join = if self.conditions.is_empty() { "" } else { "&" };
        self.conditions = format!("{}{join}without={}", self.conditions, self.drive);
    }

    /// Returns the plan for one run.
    ///
    /// # Errors
    /// The errors of presets.
    pub fn plan(&self) -> Result<Plan> {
        let preset = Preset::from_table(self.preset.clone(), &self.title)?;
        preset.plan(&Changes { runs: Some(1), ..Changes::default() })
    }
}

#[cfg(test)]
mod tests {
    //! Goal: every experiment can be run on an existing drive, and errors name the mistake.
    use super::*;
    use pumice_sim::system::SystemSpec;

    #[test]
    fn all_experiments_can_be_run() {
        let all = Experiment::of_drive("all").expect("experiments");
        assert_eq!(all.len(), EXPERIMENTS.len());
        for experiment in all {
            let spec = SystemSpec::find(&experiment.target()).expect(&experiment.title);
            let plan = experiment.plan().expect(&experiment.title);
            assert!(spec.size_bytes() >= plan.end_bytes(), "{}", experiment.title);
            assert_eq!(plan.runs, 1);
        }
    }

    #[test]
    fn mistakes_are_named() {
        let (name, text) = EXPERIMENTS[0];
        for (is, becomes, words) in [
            ("drive = ", "drvie = ", "unknown field"),
            ("test = \"write, 4 KiB\"", "test = \"wirte\"", "no test is called 'wirte'"),
            ("data = \"98 % dedupable\"", "data = \"x\"", "no level is called 'x'"),
            ("basis = \"calibrated\"", "basis = \"host\"", "effect of the host: add 'why'"),
            ("record = \"4K\"", "recrod = \"4K\"", "unknown key 'recrod'"),
        ] {
            assert!(text.contains(is), "{is}");
            let error = Experiment::parse(name, &text.replacen(is, becomes, 1)).unwrap_err();
            assert!(error.to_string().contains(words), "{words}: {error}");
        }
        let unknown = Experiment::of_drive("micro-centre-64").unwrap_err().to_string();
        assert!(unknown.contains("did you mean micro-center-64?"), "{unknown}");
    }
}
