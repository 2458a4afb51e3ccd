//! Imports an fio job file as a preset.

use super::job::Job;
use super::sections::sections;
use super::{Imported, Notes, RUNS, table, unused};

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

#[cfg(test)]
mod tests;
