//! Configuration files: a file whose keys are the long flags of a subcommand, turned into arguments
//! that stand before those of the command line.
//!
//! Knows no flag by name. A subcommand with `--config FILE` has all its flags as keys, and the
//! program's own, because both come from clap's definition; values are checked where those of the
//! command line are. A key says what its flag says: a relative path starts from the working
//! directory. What the command line or the environment says wins over the file.
//!
//! ```text
//! pumice serve --config FILE --listen ..      what was typed
//! pumice --log-format=json serve --unix=.. --config FILE --listen .. PATH     what clap reads
//!        `-------------- from the file ---------'                    `--' too
//! ```

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind as ErrorOf};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use pumice_drive::base::near::nearest;
use pumice_drive::base::{Error, ErrorKind, Result};

/// The flag that names the file.
const FLAG: &str = "config";

/// What clap adds to every command, and what would lead from file to file.
const NO_KEYS: [&str; 3] = ["help", "version", FLAG];

/// Bytes of a file at most: many times what all flags with all their words take.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What clap is to read, and what of it a file says.
pub(super) struct Arguments {
    pub(super) args: Vec<OsString>,
    file: Option<Source>,
}

/// The file, and where in it stands what it says.
struct Source {
    path: PathBuf,
    said: Vec<Said>,
}

struct Said {
    /// As clap's errors show it.
    shown: String,
    key: String,
    line: usize,
}

impl Arguments {
    /// The arguments `typed`, with those of the file that they name if they name one.
    ///
    /// # Errors
    /// The file cannot be read, is no TOML, or has a key or a type that is not known.
    pub(super) fn gather(program: Command, typed: Vec<OsString>) -> Result<Self> {
        let mut program = program;
        program.build();
        // What is wrong with the arguments is said when all of them are read.
        let matches = program.clone().ignore_errors(true).try_get_matches_from(&typed);
        let found = matches.ok().and_then(|matches| {
            let (name, of_command) = matches.subcommand()?;
            let path = of_command.try_get_one::<PathBuf>(FLAG).ok()??.clone();
            Some((name.to_owned(), path, matches))
        });
        let Some((name, path, matches)) = found else {
            return Ok(Self { args: typed, file: None });
        };
        let command = program.find_subcommand(&name).expect("it was matched");
        let given = matches.subcommand().expect("it was matched").1;
        let text = read(&path)?;
        let mut reading = Reading { path: &path, text: &text, said: Vec::new() };
        let [mut of_program, mut flags, mut values] = [(); 3].map(|()| Vec::new());
        for (key, value) in reading.table()? {
            let (arg, given, flags) = match find(command, key.get_ref()) {
                Some(arg) => (arg, given, &mut flags),
                None => match find(&program, key.get_ref()) {
                    Some(arg) => (arg, &matches, &mut of_program),
                    None => return Err(reading.unknown(&key, [command, &program])),
                },
            };
            let words = reading.words(arg, &key, &value)?;
            if !is_given(given, arg) {
                (if arg.is_positional() { &mut values } else { flags }).extend(words);
            }
        }
        // The first word is the program, and none of its flags takes the name of a command.
        let at = 1 + typed.iter().skip(1).position(|arg| *arg == *name).expect("it was matched");
        let (program_s, command_s) = (&typed[1..=at], &typed[at + 1..]);
        let args = [&typed[..1], &of_program, program_s, &flags, command_s, &values].concat();
        let said = reading.said;
        Ok(Self { args, file: Some(Source { path, said }) })
    }

    /// The place in the file of what clap complains about; `None` if it is not from there.
    pub(super) fn place_of(&self, error: &clap::Error) -> Option<String> {
        let source = self.file.as_ref()?;
        let named = match error.get(ContextKind::InvalidArg)? {
            ContextValue::String(one) => std::slice::from_ref(one),
            ContextValue::Strings(several) => several.as_slice(),
            _ => return None,
        };
        let path = source.path.display();
        match source.said.iter().find(|said| named.contains(&said.shown)) {
            Some(said) => Some(format!("{path}:{}: {}", said.line, said.key)),
            // One flag may need another, or rule it out.
            None => match error.kind() {
                ErrorOf::MissingRequiredArgument | ErrorOf::ArgumentConflict => {
                    Some(format!("with {path}"))
                }
                _ => None,
            },
        }
    }
}

/// What the file says.
///
/// # Errors
/// It cannot be read, is not text, or is far too long.
fn read(path: &Path) -> Result<String> {
    let cannot =
        |error| Error::os(format!("cannot read the configuration {}", path.display()), error);
    let mut text = String::new();
    let file = File::open(path).map_err(cannot)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(cannot)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let what = format!(
            "{} is longer than {FILE_BYTES_MAX} bytes: name a configuration",
            path.display()
        );
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(text)
}

/// The name under which a file may say what `arg` says.
fn key_of(arg: &Arg) -> Option<&str> {
    let name = arg.get_long().unwrap_or(arg.get_id().as_str());
    let is_key = arg.get_long().is_some() || arg.is_positional();
    (is_key && !NO_KEYS.contains(&name)).then_some(name)
}

fn find<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| key_of(arg) == Some(key))
}

/// Whether the command line or the environment says it already.
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
    said: Vec<Said>,
}

type Key<'a> = Spanned<std::borrow::Cow<'a, str>>;

impl<'a> Reading<'a> {
    fn table(&self) -> Result<Vec<(Key<'a>, Spanned<DeValue<'a>>)>> {
        let table = DeTable::parse(self.text).map_err(|error| {
            let mut what = format!("{}: ", self.place(error.span().unwrap_or(0..0)));
            let _ = write!(what, "{}: write KEY = VALUE, text in quotes", error.message());
            Error::new(ErrorKind::InvalidInput, what.replace('\n', ", "))
        })?;
        let mut entries: Vec<_> = table.into_inner().into_iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        Ok(entries)
    }

    fn place(&self, span: Range<usize>) -> String {
        format!("{}:{}", self.path.display(), self.line(&span))
    }

    fn line(&self, span: &Range<usize>) -> usize {
        1 + self.text.bytes().take(span.start).filter(|byte| *byte == b'\n').count()
    }

    fn unknown(&self, key: &Key<'_>, commands: [&Command; 2]) -> Error {
        let keys = commands.into_iter().flat_map(Command::get_arguments).filter_map(key_of);
        let keys: Vec<&str> = keys.collect();
        let near = nearest(key.get_ref(), &keys).map(|near| format!("is '{near}' meant? "));
        let what = format!(
            "{}: there is no key '{}': {}Keys are the long flags of `pumice {} --help`",
            self.place(key.span()),
            key.get_ref(),
            near.unwrap_or_default(),
            commands[0].get_name()
        );
        Error::new(ErrorKind::InvalidInput, what)
    }

    /// What to put among the arguments for a key.
    fn words(
        &mut self,
        arg: &Arg,
        key: &Key<'_>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Vec<OsString>> {
        let wrong = |is: &str| {
            let place = self.place(value.span());
            let what = format!("{place}: {} is {is}, not {}", key.get_ref(), kind(value.get_ref()));
            Error::new(ErrorKind::InvalidInput, what)
        };
        let word = |text: &str| match arg.get_long() {
            Some(long) => OsString::from(format!("--{long}={text}")),
            // Not a flag, whatever it begins with.
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
                let texts = texts.ok_or_else(|| wrong("a list of texts or numbers"))?;
                texts.iter().map(|text| word(text)).collect()
            }
            value => match plain(value) {
                Some(text) => vec![word(&text)],
                None if takes_several(arg) => return Err(wrong("a list of texts or numbers")),
                None => return Err(wrong("a text in quotes or a number")),
            },
        };
        let line = self.line(&value.span());
        self.said.push(Said { shown: arg.to_string(), key: key.get_ref().to_string(), line });
        Ok(words)
    }
}

/// What a flag would be given.
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
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(values) if values.iter().all(|value| plain(value.get_ref()).is_some()) => {
            "a list"
        }
        DeValue::Array(_) => "a list of something else",
        DeValue::Table(_) => "a table",
    }
}

#[cfg(test)]
mod tests;
