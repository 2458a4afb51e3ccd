//! Imports an fio job file as a preset.

use super::job::Job;
use super::sections::sections;
use super::sizes::{percent, size};
use super::{Imported, Notes, RUNS, table, unused};

/// One kind of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) bytes: u64,
    pub(super) share_percent: u32,
    pub(super) reads_percent: u32,
}

/// Returns the preset for a job file.
///
/// # Errors
/// The reason, with the line or job.
pub(super) fn import(text: &str, name: &str) -> Result<Imported, String> {
    let sections = sections(text)?;
    let mut notes = Notes::default();
    let mut jobs = Vec::new();
    for section in &sections {
        let job = Job::new(section, &mut notes);
        jobs.push(job.map_err(|what| format!("job '{}': {what}", section.name))?);
    }
    if let Some(late) = (1..jobs.len()).find(|index| !jobs[*index].waits) {
        let names = [&sections[late - 1].name, &sections[late].name];
        return Err(format!(
            "the jobs '{}' and '{}' run at once in fio, and one after the other here: add \
             stonewall to the second",
            names[0], names[1]
        ));
    }
    same(&jobs, "direct", |job| job.direct)?;
    same(&jobs, "invalidate", |job| job.is_warm)?;
    same(&jobs, "ramp_time", |job| job.ramp_seconds.to_bits())?;
    same(&jobs, "filename", |job| job.target.clone())?;
    let writing: Vec<&Job> = jobs.iter().filter(|job| job.writes).collect();
    if writing.windows(2).any(|pair| pair[0].data != pair[1].data) {
        return Err("the jobs write different data: use a file for each kind".into());
    }
    let data = &writing.first().copied().unwrap_or(&jobs[0]).data;
    let first = &jobs[0];
    let mut preset = table([
        ("about", format!("The jobs of {name} for fio.").into()),
        ("runs", RUNS.into()),
        ("direct", first.direct.into()),
        ("cache", if first.is_warm { "warm" } else { "dropped" }.into()),
        ("warm-up", first.ramp_seconds.into()),
        ("level", vec![toml::Value::Table(data.table())].into()),
    ]);
    let target = first.target.clone();
    let needs_span = jobs.iter().any(|job| !job.has_size);
    let mut names: Vec<String> = Vec::new();
    let mut tests = Vec::new();
    for (section, job) in sections.iter().zip(jobs) {
        let name = unused(&section.name, &names);
        let mut test = job.test;
        test.insert("name".into(), name.clone().into());
        names.push(name);
        tests.push(toml::Value::Table(test));
    }
    preset.insert("test".into(), tests.into());
    for notes in [&mut notes.requests, &mut notes.measuring] {
        let mut distinct: Vec<String> = Vec::new();
        notes.retain(|note| {
            let is_new = !distinct.contains(note);
            distinct.push(note.clone());
            is_new
        });
    }
    Ok(Imported { table: preset, notes, target, needs_span })
}

/// Refuses an option that differs between jobs, because a plan has only one value.
fn same<T: PartialEq>(jobs: &[Job], name: &str, value: fn(&Job) -> T) -> Result<(), String> {
    match jobs.windows(2).any(|pair| value(&pair[0]) != value(&pair[1])) {
        true => Err(format!("{name} differs between the jobs: use a file for each")),
        false => Ok(()),
    }
}

/// Returns the kinds of requests of a job with `reads_percent` of reads, from `bssplit` or `bs`.
///
/// # Errors
/// A size or share is malformed.
pub(super) fn kinds(
    split: Option<&str>,
    sizes: &str,
    reads_percent: u32,
) -> Result<Vec<Kind>, String> {
    let whole = |text: &str| Ok(vec![(size(text).map_err(|what| format!("bs: {what}"))?, 100)]);
    if split.is_none() && sizes.contains('-') {
        return Err(format!("bs={sizes}: a range of sizes is not supported; use bssplit"));
    }
    let text = split.unwrap_or(sizes);
    // One value for all directions, or one for each.
    let mut parts = text.split(',').map(str::trim);
    let of_reads = parts.next().unwrap_or_default();
    let of_writes = parts.next().filter(|part| !part.is_empty()).unwrap_or(of_reads);
    let of_reads = if of_reads.is_empty() { "4k" } else { of_reads };
    let of_writes = if of_writes.is_empty() { "4k" } else { of_writes };
    let parse = |part: &str| if split.is_some() { shares(part) } else { whole(part) };
    let (reads, writes) = (parse(of_reads)?, parse(of_writes)?);
    let kind = |&(bytes, share_percent): &(u64, u32), reads_percent| Kind {
        bytes,
        share_percent,
        reads_percent,
    };
    if reads_percent == 100 {
        return Ok(reads.iter().map(|it| kind(it, 100)).collect());
    }
    if reads_percent == 0 {
        return Ok(writes.iter().map(|it| kind(it, 0)).collect());
    }
    if reads == writes && split.is_some() {
        return Ok(reads.iter().map(|it| kind(it, reads_percent)).collect());
    }
    // Each direction has its own sizes and, if sequential, its own position.
    let mut kinds = Vec::new();
    for (list, share, of) in [(reads, reads_percent, 100), (writes, 100 - reads_percent, 0)] {
        for (bytes, percent) in list {
            let product = percent * share;
            if !product.is_multiple_of(100) {
                return Err(format!("{percent} % of {share} % is not a whole percentage"));
            }
            kinds.push(Kind { bytes, share_percent: product / 100, reads_percent: of });
        }
    }
    Ok(kinds)
}

/// Parses sizes with their shares, such as `512/10:4k/90`. Sizes without a share divide the
/// remainder.
fn shares(text: &str) -> Result<Vec<(u64, u32)>, String> {
    let wrong = |what: String| format!("bssplit: {what}");
    let mut sizes = Vec::new();
    for part in text.split(':') {
        let (bytes, share) = part.split_once('/').unwrap_or((part, ""));
        let share = Some(share).filter(|share| !share.is_empty()).map(percent).transpose();
        sizes.push((size(bytes).map_err(wrong)?, share.map_err(wrong)?));
    }
    let given: u32 = sizes.iter().filter_map(|(_, share)| *share).sum();
    let open = sizes.iter().filter(|(_, share)| share.is_none()).count() as u32;
    let rest = 100u32.checked_sub(given).ok_or_else(|| wrong(format!("{given} % in all")))?;
    if (open == 0 && rest > 0) || (open > 0 && !rest.is_multiple_of(open)) {
        return Err(wrong(format!("{rest} % are left: expected shares that add up to 100 %")));
    }
    Ok(sizes
        .into_iter()
        .map(|(bytes, share)| (bytes, share.unwrap_or(rest / open.max(1))))
        .collect())
}

#[cfg(test)]
mod tests;
