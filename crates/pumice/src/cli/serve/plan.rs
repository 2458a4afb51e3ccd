//! The drives that `pumice serve` is to serve, and their names.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::tables::{Exports, check_text};
use crate::keys;
use crate::members;
use crate::objects::BucketPlace;
use crate::place::Place;
use crate::server::Planned;
use crate::storage::Access;
use pumice_drive::controller::OpenOptions;

/// Suffix of a drive's file: selects files of a directory, and is not part of the name.
const SUFFIX: &str = ".pumice";

/// The file of a drive.
pub(super) struct Found {
    pub(super) path: PathBuf,
    snapshot: Option<String>,
    /// Whether it was found in a directory.
    is_found: bool,
}

impl Found {
    fn file(&self) -> Option<(u64, u64)> {
        fs::metadata(&self.path).ok().map(|found| (found.dev(), found.ino()))
    }

    /// Returns the file, and the disk in it to serve.
    fn disk(&self) -> Option<((u64, u64), Option<String>)> {
        Some((self.file()?, self.snapshot.clone()))
    }
}

/// Options for the name of an export.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
pub(super) struct Names {
    /// Export name, for a single drive [default: the file name without .pumice]
    #[arg(long, value_name = "NAME")]
    export_name: Option<String>,

    /// Export description, for a single drive
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

/// Returns the paths, with each directory replaced by its drives in sorted order.
///
/// # Errors
/// A directory cannot be read, or contains no drives.
pub(super) fn expand(paths: &[PathBuf]) -> Result<Vec<Found>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            let Place { path, snapshot } = Place::of(path)?;
            files.push(Found { path, snapshot, is_found: false });
            continue;
        }
        let unreadable = || format!("cannot read the directory {}", path.display());
        let mut found = Vec::new();
        for entry in fs::read_dir(path).with_context(unreadable)? {
            let file = entry.with_context(unreadable)?.path();
            let is_named = file.as_os_str().as_encoded_bytes().ends_with(SUFFIX.as_bytes());
            if is_named && file.is_file() {
                found.push(file);
            }
        }
        if found.is_empty() {
            bail!("{} contains no drives (*{SUFFIX})", path.display());
        }
        found.sort();
        let found = found.into_iter();
        files.extend(found.map(|path| Found { path, snapshot: None, is_found: true }));
    }
    // Several members of an array are one drive.
    let mut arrays = Vec::new();
    files.retain(|file| match members::header_at(&file.path) {
        Some(header) if arrays.contains(&(header.array, file.snapshot.clone())) => false,
        Some(header) => {
            arrays.push((header.array, file.snapshot.clone()));
            true
        }
        None => true,
    });
    Ok(files)
}

/// Returns the plan: the drives at `found`, and those of the tables. A drive that is in both is
/// served under the name of its table.
///
/// # Errors
/// Two drives have one name; a name or description that the protocol does not allow; a table with
/// several keys.
pub(super) fn plan(
    mut found: Vec<Found>,
    names: &Names,
    tables: &Exports,
    opening: impl Fn(&Path) -> (Access, OpenOptions),
) -> Result<Vec<Planned>> {
    let own = tables.0.iter().filter_map(|(name, (table, _))| {
        let path = table.drive.clone()?;
        let found = Place::of(&path);
        let found = found.map(|Place { path, snapshot }| Found { path, snapshot, is_found: false });
        Some(found.map(|found| (found, name.clone())))
    });
    let own = own.collect::<Result<Vec<_>>>()?;
    let own_files: Vec<_> = own.iter().filter_map(|(own, _)| own.disk()).collect();
    found.retain(|found| found.disk().is_none_or(|disk| !own_files.contains(&disk)));
    let named = names.of(&found)?;
    let all = found.into_iter().zip(named).chain(own).collect::<Vec<_>>();
    check_names(&all)?;
    let planned = all.into_iter().map(|(found, name)| {
        let table = tables.0.get(&name).map(|(table, _)| table);
        let (access, mut options) = opening(&found.path);
        options.read_only |= table.is_some_and(|table| table.read_only);
        options.read_only |= found.snapshot.is_some();
        let description = table.and_then(|table| table.description.clone());
        let description = description.or_else(|| names.description.clone());
        let file = found.file();
        if let Some(table) = table {
            keys::provide_for(&found.path, table.keys.source()?);
        }
        let Found { path, snapshot, is_found } = found;
        let follow_ns = None;
        let planned = Planned {
            path,
            name,
            description,
            access,
            options,
            is_found,
            file,
            snapshot,
            follow_ns,
        };
        Ok(planned)
    });
    planned.collect()
}

/// Checks that no two drives have one name.
fn check_names(all: &[(Found, String)]) -> Result<()> {
    for (index, (found, name)) in all.iter().enumerate() {
        if let Some((other, _)) = all[..index].iter().find(|(_, other)| other == name) {
            let (one, two) = (other.path.display(), found.path.display());
            bail!("{one} and {two} would both be the export '{name}'");
        }
    }
    Ok(())
}

impl Planned {
    /// Follows the drive, which another machine writes, and checks for newer commits every
    /// `every_ns`.
    ///
    /// # Errors
    /// The drive is not in a bucket, or this is a snapshot.
    pub(super) fn follow(&mut self, every_ns: u64) -> Result<()> {
        let path = self.path.display();
        if BucketPlace::of(&self.path)?.is_none() {
            bail!("{path}: --follow is for a drive at s3://BUCKET/NAME");
        }
        if self.snapshot.is_some() {
            bail!("{path}: a snapshot does not change: serve it without --follow");
        }
        self.follow_ns = Some(every_ns);
        self.options.read_only = true;
        Ok(())
    }
}

impl Names {
    /// Returns the names of the exports at these paths.
    fn of(&self, found: &[Found]) -> Result<Vec<String>> {
        let is_asked = self.export_name.is_some() || self.description.is_some();
        if is_asked && found.len() > 1 {
            bail!("--export-name and --description need a single drive");
        }
        if let Some(description) = &self.description {
            check_text("--description", description)?;
        }
        if let Some(name) = &self.export_name {
            check_text("--export-name", name)?;
            return Ok(found.iter().map(|_| name.clone()).collect());
        }
        let name = |found: &Found| match (name_of(&found.path), &found.snapshot) {
            (name, Some(snapshot)) if !name.is_empty() => format!("{name}@{snapshot}"),
            (name, _) => name,
        };
        let names: Vec<_> = found.iter().map(name).collect();
        if let Some(index) = names.iter().position(String::is_empty) {
            let path = found[index].path.display();
            bail!("{path} has no name before {SUFFIX}: rename it, or use --export-name");
        }
        Ok(names)
    }
}

/// Returns the name of a drive: the name of its file without the suffix.
pub(crate) fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    name.strip_suffix(SUFFIX).unwrap_or(&name).to_owned()
}

#[cfg(test)]
mod tests {
    //! Goal: a table changes its own export, and no other.
    use clap::Parser;

    use super::super::tables::Table;
    use super::*;

    /// Plans the drives found at these paths, with one table.
    fn planned(paths: &[&Path], name: &str, table: &[&str]) -> Vec<Planned> {
        let found =
            paths.iter().map(|path| Found { path: path.into(), snapshot: None, is_found: true });
        let table = Table::try_parse_from(["export"].iter().chain(table)).unwrap();
        let tables = Exports([(name.to_owned(), (table, String::new()))].into());
        let opening = |_: &Path| <(Access, OpenOptions)>::default();
        plan(found.collect(), &Names::default(), &tables, opening).unwrap()
    }

    #[test]
    fn a_table_is_about_one_export() {
        let paths = ["a.pumice", "b.pumice"].map(Path::new);
        let planned = planned(&paths, "a", &["--read-only", "--description=text"]);
        let told: Vec<_> = planned
            .iter()
            .map(|planned| {
                (&*planned.name, planned.options.read_only, planned.description.as_deref())
            })
            .collect();
        assert_eq!(told, [("a", true, Some("text")), ("b", false, None)]);
    }

    #[test]
    fn a_drive_that_a_table_names_is_served_once() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a.pumice", "b.pumice"].map(|name| folder.path().join(name));
        paths.iter().for_each(|path| fs::write(path, "").unwrap());
        let drive = format!("--drive={}", paths[0].display());
        let planned = planned(&[&paths[0], &paths[1]], "vm", &[&drive]);
        let names: Vec<_> = planned.iter().map(|planned| &*planned.name).collect();
        assert_eq!(names, ["b", "vm"]);
    }
}
