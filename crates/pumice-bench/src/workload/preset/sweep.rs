//! The tests described by a `[[test]]` of a preset: one for each combination of its records, depths
//! and spans.

use serde::Deserialize;

use super::{
    Changes, Preset, QUICK_SECONDS, QUICK_SPAN_BYTES, SPAN_DEFAULT, TestText, WHOLE, bytes,
    invalid, percent,
};
use crate::error::Result;
use crate::workload::{Access, Ends, Operation, TESTS_MAX, Test, Workload, parse_span};
use pumice_drive::base::units::format_size_exact;

/// One kind of requests in a mix.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct AccessText {
    size: String,
    #[serde(default = "all")]
    share: String,
    #[serde(default = "all")]
    reads: String,
    #[serde(default = "all")]
    random: String,
    /// Alignment of random offsets; if absent, the request size.
    align: Option<String>,
    #[serde(default = "one")]
    burst: u32,
    #[serde(default)]
    pause_ms: u32,
}

fn all() -> String {
    "100%".to_owned()
}

fn one() -> u32 {
    1
}

impl Preset {
    pub(super) fn tests(&self, changes: &Changes) -> Result<Vec<Test>> {
        let mut tests = Vec::new();
        // A name such as "4K QD32 write" contains parameters. If these have changed, the name no
        // longer describes the test.
        let is_changed = !changes.records.is_empty() || changes.depth.is_some();
        let is_true = |name: &&str| !is_changed || !name.contains(|c: char| c.is_ascii_digit());
        for text in &self.tests {
            let chosen = &changes.operations;
            if !chosen.is_empty() && !chosen.contains(&text.operation) {
                continue;
            }
            let sweep = self.sweep(text, changes)?;
            for place in &sweep.places {
                let workload = self.workload(text, place, changes)?;
                let unit = text.own.unit.or(self.common.unit).unwrap_or_default();
                let name = sweep.name(text.name.as_deref().filter(is_true), &workload);
                tests.push(Test { name, unit, workload });
            }
            if tests.len() > TESTS_MAX {
                return Err(invalid(format!("more than {TESTS_MAX} tests")));
            }
        }
        // A change may have made two tests equal.
        let mut seen: Vec<Test> = Vec::new();
        tests.retain(|test| {
            let is_new = !seen.contains(test);
            seen.push(test.clone());
            is_new
        });
        if tests.is_empty() {
            let known: Vec<_> = self.tests.iter().map(|test| test.operation.name()).collect();
            let known = known.join(", ");
            return Err(invalid(format!(
                "the preset has no test of these operations; it has: {known}"
            )));
        }
        Ok(tests)
    }

    /// Returns all combinations of a test's spans, depths and records.
    fn sweep(&self, text: &TestText, changes: &Changes) -> Result<Sweep> {
        let (own, common) = (&text.own, &self.common);
        let sizes = text.mix.iter().map(|access| bytes(&access.size));
        let largest = sizes.collect::<Result<Vec<_>>>()?.into_iter().max();
        let own_records = text.records.iter().chain(&text.record).map(|size| bytes(size));
        let own_records: Vec<u64> = own_records.collect::<Result<_>>()?;
        let records = match largest {
            _ if !changes.records.is_empty() => changes.records.clone(),
            Some(largest) => vec![largest],
            None => own_records,
        };
        if records.is_empty() {
            return Err(invalid(format!("test {} has no record size", text.operation.name())));
        }
        let depths = match (changes.depth, own.depth, &own.depths) {
            // Some operations support only one request in flight, some of them also only one
            // thread.
            _ if text.operation.is_stdio() || text.operation.is_serial() => vec![1],
            (Some(depth), ..) | (None, Some(depth), None) => vec![depth],
            (None, _, Some(depths)) => depths.clone(),
            (None, None, None) => match (common.depth, &common.depths) {
                (_, Some(depths)) => depths.clone(),
                (depth, None) => vec![depth.unwrap_or(1)],
            },
        };
        let default = if self.needs_span { WHOLE } else { SPAN_DEFAULT };
        let spans = match (changes.span_bytes, &own.span, &own.spans) {
            (Some(span), ..) => vec![span],
            (None, Some(text), None) => vec![span(text, changes)?],
            (None, _, spans) => match (spans.as_ref().or(common.spans.as_ref()), &common.span) {
                (Some(spans), _) => {
                    spans.iter().map(|text| span(text, changes)).collect::<Result<_>>()?
                }
                (None, text) => vec![span(text.as_deref().unwrap_or(default), changes)?],
            },
        };
        let count = records.len().saturating_mul(depths.len()).saturating_mul(spans.len());
        if count > TESTS_MAX {
            return Err(invalid(format!("{count} tests: expected up to {TESTS_MAX}")));
        }
        let mut places = Vec::with_capacity(count);
        for &span_bytes in &spans {
            for &depth in &depths {
                let place = |&record_bytes: &u64| Place { record_bytes, depth, span_bytes };
                places.extend(records.iter().map(place));
            }
        }
        let several = [records.len() > 1, depths.len() > 1, spans.len() > 1];
        Ok(Sweep { places, several })
    }

    fn workload(&self, text: &TestText, place: &Place, changes: &Changes) -> Result<Workload> {
        let (own, common) = (text.own.clone(), &self.common);
        let quick = changes.quick;
        let seconds = own.seconds.or(common.seconds).unwrap_or(5.0);
        let seconds = if quick { seconds.min(QUICK_SECONDS) } else { seconds };
        let shift = own.shift.as_deref().or(common.shift.as_deref()).unwrap_or("0");
        let reads = own.reads.or(common.reads.clone());
        // A record size from the command line replaces the mix.
        let mix: Vec<_> = match changes.records.is_empty() {
            true => text.mix.iter().map(access).collect::<Result<_>>()?,
            false => Vec::new(),
        };
        let reads_percent = if mix.is_empty() {
            reads.as_deref().map_or(Ok(50.0), percent)? as u32
        } else {
            mix.iter().map(|it| it.share_percent * it.reads_percent).sum::<u32>() / 100
        };
        // A duration from the command line limits tests that end with the span in the preset.
        let is_short = changes.ends.is_none() && (quick || changes.seconds.is_some());
        let asked = changes.ends.or(own.ends).or(common.ends).unwrap_or_default();
        let ends = match asked {
            _ if text.operation.is_stdio() || text.operation.is_serial() => Ends::Usual,
            Ends::Span if is_short && text.operation.is_timed() => Ends::First,
            asked => asked,
        };
        let threads = match text.operation.is_serial() {
            true => Some(1),
            false => changes.threads.or(own.threads).or(common.threads),
        };
        Ok(Workload {
            operation: text.operation,
            record_bytes: place.record_bytes,
            depth: place.depth,
            threads: threads.unwrap_or(1),
            span_bytes: place.span_bytes,
            shift_bytes: changes.shift_bytes.map_or_else(|| bytes(shift), Ok)?,
            pattern: changes.pattern.or(own.pattern).or(common.pattern).unwrap_or_default(),
            reads_percent,
            seconds: changes.seconds.unwrap_or(seconds),
            flush: changes.flush.or(own.flush).or(common.flush).unwrap_or_default(),
            ends,
            mix,
        })
    }
}

/// One combination in a test's sweep.
struct Place {
    record_bytes: u64,
    depth: u32,
    span_bytes: u64,
}

/// The combinations of a test.
struct Sweep {
    places: Vec<Place>,
    /// Whether there are several records, depths and spans, respectively.
    several: [bool; 3],
}

impl Sweep {
    /// Returns the name of a test: the preset's name with the distinguishing parameters, or a
    /// description.
    fn name(&self, given: Option<&str>, workload: &Workload) -> String {
        let [records, depths, spans] = self.several;
        let mut name = match given {
            Some(name) => name.to_owned(),
            None => test_name(workload),
        };
        if given.is_some() && records {
            name += &format!(", {}", format_size_exact(workload.record_bytes));
        }
        if given.is_some() && depths {
            name += &format!(", depth {}", workload.depth);
        }
        if spans {
            name += &format!(", {} span", format_size_exact(workload.span_bytes));
        }
        name
    }
}

/// Returns the size of a span in bytes. A span of the whole target is not shortened: it is not
/// filled, regardless of how long it takes to read.
fn span(text: &str, changes: &Changes) -> Result<u64> {
    let text = match (text, changes.whole_bytes) {
        (WHOLE, Some(whole_bytes)) => return Ok(whole_bytes),
        (WHOLE, None) => SPAN_DEFAULT,
        _ => text,
    };
    let span_bytes = parse_span(text).map_err(invalid)?;
    Ok(if changes.quick { span_bytes.min(QUICK_SPAN_BYTES) } else { span_bytes })
}

fn access(text: &AccessText) -> Result<Access> {
    let size = bytes(&text.size)?;
    let share = |text: &str| percent(text).map(|percent| percent.round() as u32);
    Ok(Access {
        bytes: size,
        share_percent: share(&text.share)?,
        reads_percent: share(&text.reads)?,
        random_percent: share(&text.random)?,
        align_bytes: text.align.as_deref().map_or(Ok(size), bytes)?,
        burst: text.burst,
        pause_ms: text.pause_ms,
    })
}

/// Returns the default name of a test.
fn test_name(workload: &Workload) -> String {
    let mut name = workload.operation.name().replace('-', " ");
    if workload.operation == Operation::Mixed {
        name = format!("{} % reads", workload.reads_percent);
    }
    let up_to = if workload.mix.len() > 1 { "up to " } else { "" };
    name += &format!(", {up_to}{}", format_size_exact(workload.record_bytes));
    if workload.depth > 1 {
        name += &format!(", depth {}", workload.depth);
    }
    if workload.threads > 1 {
        name += &format!(", {} threads", workload.threads);
    }
    name
}
