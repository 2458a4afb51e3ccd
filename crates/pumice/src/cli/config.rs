//! Configuration files, whose keys are the long flags of a subcommand. Their entries become
//! arguments that are inserted into the command line before clap parses it.
//!
//! This module names no flag. The flags of the program, and of every subcommand with `--config
//! FILE`, are keys, because both are derived from clap's definition. Clap checks the values. A key
//! means the same as its flag: relative paths start from the working directory. The command line
//! and the environment take precedence over the file. Tables within the file, which no flag can
//! express, are parsed by a definition of their own, and returned in addition to the arguments.
//!
//! ```text
//! pumice serve --config FILE --listen ..                                      typed
//! pumice --log-format=json serve --unix=.. --config FILE --listen .. PATH     parsed
//!        `-------------- from the file ---------'                    `-- from the file
//! ```

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use pumice_drive::base::near::nearest;

/// The flag that names the file.
const FLAG: &str = "config";

/// Flags that are not keys: the flags that clap adds to every command, and the one that would make
/// a file include another.
const NO_KEYS: [&str; 3] = ["help", "version", FLAG];

/// Maximum size of a file in bytes: many times the length of all flags with all their values.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The arguments for clap, and the file from which some of them came.
pub(super) struct Arguments {
    pub(super) args: Vec<OsString>,
    /// The tables, which are not arguments.
    pub(super) tables: Vec<FoundTable>,
    file: Option<Source>,
}

/// A key whose value is a table of tables, each with flags of its own as keys.
pub(crate) struct Tables {
    /// The subcommand that has the key.
    pub(crate) command: &'static str,
    pub(crate) key: &'static str,
    /// Returns the flags that are keys of each table.
    pub(crate) keys: fn() -> Command,
}

/// One of these tables: `[KEY.NAME]`.
pub(crate) struct FoundTable {
    pub(crate) name: String,
    pub(crate) matches: ArgMatches,
    /// File, line, key and name.
    pub(crate) position: String,
}

/// A configuration file and the positions of its entries.
struct Source {
    path: PathBuf,
    entries: Vec<Entry>,
}

struct Entry {
    /// The argument as clap's errors show it.
    shown: String,
    key: String,
    line: usize,
}

impl Arguments {
    /// Returns the arguments `typed` with those of the configuration file that they name, if any.
    ///
    /// # Errors
    /// The file cannot be read, is not TOML, or has an unknown key or a value of the wrong type.
    pub(super) fn gather(program: Command, tables: &Tables, typed: Vec<OsString>) -> Result<Self> {
        let mut program = program;
        program.build();
        // Clap reports errors in the arguments when it parses all of them.
        let matches = program.clone().ignore_errors(true).try_get_matches_from(&typed);
        let found = matches.ok().and_then(|matches| {
            let (name, of_command) = matches.subcommand()?;
            let path = of_command.try_get_one::<PathBuf>(FLAG).ok()??.clone();
            Some((name.to_owned(), path, matches))
        });
        let Some((name, path, matches)) = found else {
            return Ok(Self { args: typed, tables: Vec::new(), file: None });
        };
        let command = program.find_subcommand(&name).expect("it was matched");
        let given = matches.subcommand().expect("it was matched").1;
        let text = read(&path)?;
        let mut reading = Reading { path: &path, text: &text, entries: Vec::new() };
        let (mut of_program, mut flags, mut values) = (Vec::new(), Vec::new(), Vec::new());
        let mut found_tables = Vec::new();
        for (key, value) in reading.table()? {
            if tables.command == name && tables.key == key.get_ref() {
                found_tables = reading.tables(tables, value)?;
                continue;
            }
            let (arg, given, flags) = match find(command, key.get_ref()) {
                Some(arg) => (arg, given, &mut flags),
                None => match find(&program, key.get_ref()) {
                    Some(arg) => (arg, &matches, &mut of_program),
                    None => return Err(reading.unknown(&key, [command, &program])),
                },
            };
            let words = reading.words(arg, &key, &value)?;
            if is_given(given, arg) {
                continue;
            }
            if arg.is_positional() {
                values.push((arg.get_index(), words));
            } else {
                flags.extend(words);
            }
        }
        // Their order in the file has no meaning.
        values.sort_by_key(|(index, _)| *index);
        let values: Vec<OsString> = values.into_iter().flat_map(|(_, words)| words).collect();
        // The first word is the program; no flag of the program takes the name of a subcommand as
        // its value.
        let at = 1 + typed.iter().skip(1).position(|arg| *arg == *name).expect("it was matched");
        let (program_s, command_s) = (&typed[1..=at], &typed[at + 1..]);
        let args = [&typed[..1], &of_program, program_s, &flags, command_s, &values].concat();
        let entries = reading.entries;
        Ok(Self { args, tables: found_tables, file: Some(Source { path, entries }) })
    }

    /// Returns the position in the file of the argument that clap rejects; `None` if the argument
    /// is not from the file.
    pub(super) fn position_of(&self, error: &clap::Error) -> Option<String> {
        self.file.as_ref()?.position_of(error)
    }
}

impl Source {
    fn position_of(&self, error: &clap::Error) -> Option<String> {
        let named = match error.get(ContextKind::InvalidArg)? {
            ContextValue::String(one) => std::slice::from_ref(one),
            ContextValue::Strings(several) => several.as_slice(),
            _ => return None,
        };
        let path = self.path.display();
        match self.entries.iter().find(|entry| named.contains(&entry.shown)) {
            Some(entry) => Some(format!("{path}:{}: {}", entry.line, entry.key)),
            // An entry may require another flag or conflict with one.
            None => match error.kind() {
                ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict => {
                    Some(format!("with {path}"))
                }
                _ => None,
            },
        }
    }
}

/// Reads the file.
///
/// # Errors
/// The file cannot be read, is not text, or is too long.
fn read(path: &Path) -> Result<String> {
    let shown = path.display();
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text))
        .with_context(|| format!("cannot read the configuration {shown}"))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        bail!("{shown} is longer than {FILE_BYTES_MAX} bytes: expected a configuration file");
    }
    Ok(text)
}

/// Returns the key for `arg`, if it has one.
fn key_of(arg: &Arg) -> Option<&str> {
    let name = arg.get_long().unwrap_or(arg.get_id().as_str());
    let is_key = arg.get_long().is_some() || arg.is_positional();
    (is_key && !NO_KEYS.contains(&name)).then_some(name)
}

fn find<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| key_of(arg) == Some(key))
}

/// Whether the command line or the environment sets the argument.
fn is_given(matches: &ArgMatches, arg: &Arg) -> bool {
    let source = matches.value_source(arg.get_id().as_str());
    matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

fn takes_several(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

/// A file that is being read.
struct Reading<'a> {
    path: &'a Path,
    text: &'a str,
    entries: Vec<Entry>,
}

type Key<'a> = Spanned<std::borrow::Cow<'a, str>>;

impl<'a> Reading<'a> {
    fn table(&self) -> Result<Vec<(Key<'a>, Spanned<DeValue<'a>>)>> {
        let table = DeTable::parse(self.text).map_err(|error| {
            let position = self.position(error.span().unwrap_or(0..0));
            let message = error.message().replace('\n', ", ");
            anyhow!("{position}: {message}: expected KEY = VALUE, with text in quotes")
        })?;
        Ok(sorted(table.into_inner()))
    }

    /// Returns the tables below a key.
    fn tables(&self, tables: &Tables, value: Spanned<DeValue<'a>>) -> Result<Vec<FoundTable>> {
        let wrong = |value: &Spanned<DeValue<'_>>| {
            let (position, found) = (self.position(value.span()), kind(value.get_ref()));
            let key = tables.key;
            anyhow!("{position}: {key}: expected tables [{key}.NAME], found {found}")
        };
        if !matches!(value.get_ref(), DeValue::Table(_)) {
            return Err(wrong(&value));
        }
        let DeValue::Table(all) = value.into_inner() else { unreachable!("it is a table") };
        let mut found = Vec::new();
        for (name, value) in sorted(all) {
            if !matches!(value.get_ref(), DeValue::Table(_)) {
                return Err(wrong(&value));
            }
            let DeValue::Table(table) = value.into_inner() else { unreachable!("it is a table") };
            let place = self.position(name.span());
            let name = name.into_inner().into_owned();
            let position = format!("{place}: {}.{name}", tables.key);
            let matches = self.one_table(tables, &name, table)?;
            found.push(FoundTable { name, matches, position });
        }
        Ok(found)
    }

    /// Parses one table as arguments.
    fn one_table(&self, tables: &Tables, name: &str, table: DeTable<'a>) -> Result<ArgMatches> {
        let mut command = (tables.keys)();
        command.build();
        let mut inner = Reading { path: self.path, text: self.text, entries: Vec::new() };
        let mut words = vec![OsString::from(tables.key)];
        for (key, value) in sorted(table) {
            let Some(arg) = find(&command, key.get_ref()) else {
                let keys: Vec<&str> = command.get_arguments().filter_map(key_of).collect();
                let meant = meant(key.get_ref(), &keys);
                let (position, key) = (self.position(key.span()), key.get_ref());
                bail!("{position}: unknown key '{key}': {meant}Keys are {}", keys.join(", "));
            };
            // An empty list would mean the same as no list, although the user means the opposite.
            if matches!(value.get_ref(), DeValue::Array(values) if values.is_empty()) {
                let (position, key) = (self.position(value.span()), key.get_ref());
                bail!("{position}: {key}: expected at least one value");
            }
            words.extend(inner.words(arg, &key, &value)?);
        }
        let source = Source { path: self.path.to_owned(), entries: inner.entries };
        command.try_get_matches_from_mut(words).map_err(|error| {
            let position = source.position_of(&error).unwrap_or_else(|| name.to_owned());
            let said = error.to_string();
            let line = said.lines().next().unwrap_or_default();
            anyhow!("{position}: {}", line.strip_prefix("error: ").unwrap_or(line))
        })
    }

    fn position(&self, span: Range<usize>) -> String {
        format!("{}:{}", self.path.display(), self.line(&span))
    }

    fn line(&self, span: &Range<usize>) -> usize {
        1 + self.text.bytes().take(span.start).filter(|byte| *byte == b'\n').count()
    }

    fn unknown(&self, key: &Key<'_>, commands: [&Command; 2]) -> anyhow::Error {
        let keys = commands.into_iter().flat_map(Command::get_arguments).filter_map(key_of);
        let keys: Vec<&str> = keys.collect();
        anyhow!(
            "{}: unknown key '{}': {}Keys are the long flags of `pumice {} --help`",
            self.position(key.span()),
            key.get_ref(),
            meant(key.get_ref(), &keys),
            commands[0].get_name()
        )
    }

    /// Returns the arguments for a key.
    fn words(
        &mut self,
        arg: &Arg,
        key: &Key<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<OsString>> {
        let wrong = |expected: &str| {
            let (position, found) = (self.position(value.span()), kind(value.get_ref()));
            anyhow!("{position}: {}: expected {expected}, found {found}", key.get_ref())
        };
        let word = |text: &str| match arg.get_long() {
            Some(long) => OsString::from(format!("--{long}={text}")),
            // Clap must not mistake the value for a flag.
            None if text.starts_with('-') => OsString::from(format!("./{text}")),
            None => OsString::from(text),
        };
        let words = match value.get_ref() {
            DeValue::Boolean(is_on) if is_switch(arg) => {
                let flag = || OsString::from(format!("--{}", key.get_ref()));
                is_on.then(flag).into_iter().collect()
            }
            _ if is_switch(arg) => return Err(wrong("true or false")),
            DeValue::Array(values) if takes_several(arg) => {
                let text = |value: &Spanned<DeValue<'_>>| plain(value.get_ref());
                let texts: Option<Vec<String>> = values.iter().map(text).collect();
                let texts = texts.ok_or_else(|| wrong("a list of strings or numbers"))?;
                texts.iter().map(|text| word(text)).collect()
            }
            value => match plain(value) {
                Some(text) => vec![word(&text)],
                None if takes_several(arg) => return Err(wrong("a list of strings or numbers")),
                None => return Err(wrong("a string in quotes or a number")),
            },
        };
        let line = self.line(&value.span());
        self.entries.push(Entry { shown: arg.to_string(), key: key.get_ref().to_string(), line });
        Ok(words)
    }
}

/// Returns the entries of a table in the order of the file.
fn sorted<'a>(table: DeTable<'a>) -> Vec<(Key<'a>, Spanned<DeValue<'a>>)> {
    let mut entries: Vec<_> = table.into_iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// Returns the question about the intended key, if one is similar.
fn meant(key: &str, keys: &[&str]) -> String {
    nearest(key, keys).map_or_else(String::new, |near| format!("did you mean '{near}'? "))
}

/// Returns the text of a value as it would be typed.
fn plain(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        _ => None,
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(values) if values.iter().all(|value| plain(value.get_ref()).is_some()) => {
            "a list"
        }
        DeValue::Array(_) => "a list of other values",
        DeValue::Table(_) => "a table",
    }
}

#[cfg(test)]
mod tests;
