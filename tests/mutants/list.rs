//! The list of planted bugs: `tests/mutants/*.toml`, one file per promise, read and checked.
//!
//! ```toml
//! [[mutant]]
//! name = "what is broken, in words"
//! file = "crates/pumice-drive/src/room/file.rs"
//! find = 'text that occurs exactly once in the file'
//! replace = 'what stands there instead'
//! unit = "room::file::tests::name_of_the_test_that_must_fail"   # or: it = "file::name_of_test"
//! package = "pumice-torture"   # only if the test is in another crate than the file
//! ```
//!
//! Shared by the runner and by `tests/tidy`, which checks the list against the sources. Runs
//! nothing.

use serde::Deserialize;

/// The binary with the test that must fail.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// The unit tests of a crate.
    Unit(String),
    /// `tests/it`, which runs the built program.
    It,
}

/// A bug to plant, and the test that must detect it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutant {
    /// Description of the bug.
    pub(crate) name: String,
    /// The file, relative to the root.
    pub(crate) file: String,
    find: String,
    replace: String,
    unit: Option<String>,
    it: Option<String>,
    /// The crate with the test, unless it is the crate of the file.
    package: Option<String>,
    /// The file that lists it, which stands for the promise that it breaks.
    #[serde(skip)]
    pub(crate) room: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    mutant: Vec<Mutant>,
}

impl Mutant {
    /// Returns the test that must fail, by its full name.
    pub(crate) fn test(&self) -> (Target, &str) {
        match (&self.unit, &self.it) {
            (Some(test), _) => (Target::Unit(self.package().to_owned()), test),
            (None, Some(test)) => (Target::It, test),
            (None, None) => (Target::It, ""),
        }
    }

    /// Returns the crate with the unit test.
    fn package(&self) -> &str {
        let of_file = || self.file.split('/').nth(1).unwrap_or_default();
        self.package.as_deref().unwrap_or_else(of_file)
    }

    /// Returns `source` with the bug in it.
    ///
    /// # Errors
    /// The reason why it cannot be planted there.
    pub(crate) fn plant(&self, source: &str) -> Result<String, String> {
        let count = source.matches(&self.find).count();
        if self.find.is_empty() || count != 1 {
            return Err(format!("its text occurs {count} times in {}, not once", self.file));
        }
        if self.find == self.replace {
            return Err("it changes nothing".to_owned());
        }
        Ok(source.replacen(&self.find, &self.replace, 1))
    }
}

/// Reads one file of the list.
///
/// # Errors
/// The text is no such list, an entry does not name exactly one test, or a name occurs twice.
pub(crate) fn parse(room: &str, text: &str) -> Result<Vec<Mutant>, String> {
    let mut list: List = toml::from_str(text).map_err(|error| error.to_string())?;
    for mutant in &mut list.mutant {
        if mutant.unit.is_some() == mutant.it.is_some() {
            return Err(format!("'{}' must name one test, as `unit` or as `it`", mutant.name));
        }
        mutant.room = room.to_owned();
    }
    let mut names: Vec<&str> = list.mutant.iter().map(|mutant| mutant.name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(format!("two mutants are called '{}'", pair[0])),
        None => Ok(list.mutant),
    }
}
