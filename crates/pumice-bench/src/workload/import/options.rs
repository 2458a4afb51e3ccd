//! The options of a job of fio, and those without an effect on its requests.
//!
//! Source: fio 3.33, HOWTO: meanings and defaults of the options.

use super::sections::Section;

/// Options that do not change the requests: they control accounting, reporting and the layout of
/// files.
const NEUTRAL: [&str; 49] = [
    "allow_file_create",
    "allow_mounted_write",
    "allrandrepeat",
    "bwavgtime",
    "clat_percentiles",
    "clocksource",
    "create_fsync",
    "create_on_open",
    "create_serialize",
    "description",
    "disable_bw_measurement",
    "disable_clat",
    "disable_lat",
    "disable_slat",
    "disk_util",
    "end_fsync",
    "eta",
    "eta-newline",
    "exitall",
    "fallocate",
    "file_service_type",
    "fsync_on_close",
    "group_reporting",
    "gtod_reduce",
    "iopsavgtime",
    "kb_base",
    "lat_percentiles",
    "log_avg_msec",
    "log_hist_msec",
    "log_max_value",
    "log_offset",
    "log_unix_epoch",
    "minimal",
    "name",
    "new_group",
    "overwrite",
    "per_job_logs",
    "percentile_list",
    "random_generator",
    "randrepeat",
    "randseed",
    "scramble_buffers",
    "slat_percentiles",
    "softrandommap",
    "thread",
    "unified_rw_reporting",
    "unit_base",
    "unlink",
    "write_bw_log",
];

/// Such options for logs, identified by the prefix of their names.
const NEUTRAL_PREFIXES: [&str; 2] = ["write_lat_log", "write_iops_log"];

/// Options that have no effect if they have these values.
const WITHOUT_EFFECT: [(&str, &[&str]); 12] = [
    ("continue_on_error", &["none"]),
    ("experimental_verify", &["0"]),
    ("hipri", &["0"]),
    ("iodepth_batch", &["0", "1"]),
    ("loops", &["1"]),
    ("nrfiles", &["1"]),
    ("openfiles", &["1"]),
    ("rate", &["0"]),
    ("startdelay", &["0"]),
    ("sync", &["0", "none"]),
    ("thinktime", &["0"]),
    ("verify", &["0"]),
];

/// The remaining options of a job. Supported options have been removed.
pub(super) struct Options<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Options<'a> {
    /// Returns the options of a job.
    pub(super) fn of(section: &'a Section) -> Self {
        let all = section.options.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        Self(all.collect())
    }

    /// Returns the value of an option with one of these names: the last one.
    pub(super) fn find(&self, names: &[&str]) -> Option<&'a str> {
        self.0.iter().rev().find(|(name, _)| names.contains(name)).map(|it| it.1)
    }

    /// Returns whether a switch is on.
    pub(super) fn is_on(&self, name: &str) -> bool {
        self.0.iter().any(|(one, value)| *one == name && *value != "0")
    }

    /// Removes the options with any of these names and returns the last value.
    pub(super) fn take(&mut self, names: &[&str]) -> Option<&'a str> {
        let found = self.find(names);
        self.0.retain(|(name, _)| !names.contains(name));
        found
    }

    /// Removes an option and parses its value.
    ///
    /// # Errors
    /// The error of the parser, with the name of the option.
    pub(super) fn take_as<T>(
        &mut self,
        names: &[&str],
        parse: fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let named = |what| format!("{}: {what}", names[0]);
        self.take(names).map(parse).transpose().map_err(named)
    }

    /// Returns the remaining options that have an effect.
    pub(super) fn left(&self) -> Vec<String> {
        let has_effect = |(name, value): &&(&str, &str)| {
            let is_off =
                |(known, values): &(&str, &[&str])| known == name && values.contains(value);
            let is_log = NEUTRAL_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
            !NEUTRAL.contains(name) && !is_log && !WITHOUT_EFFECT.iter().any(is_off)
        };
        let mut left: Vec<String> = self
            .0
            .iter()
            .filter(has_effect)
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        left.dedup();
        left
    }
}
