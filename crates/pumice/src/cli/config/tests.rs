//! Goal: every flag is a key, the command line wins, and errors are named with their line.
//!
//! Method: configuration files are generated from the program's own definition of its command line,
//! so no list here repeats it.

use std::io::Write;

use clap::{CommandFactory, Parser};
use tempfile::NamedTempFile;

use super::super::commands::{Command as Chosen, DriveCommand};
use super::super::serve::TABLES;
use super::super::{Cli, chain};
use super::*;

fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn gather(text: &str, typed: &[&str]) -> Result<Arguments> {
    let file = file(text);
    let path = file.path().to_str().unwrap();
    let typed = ["pumice"].iter().chain(typed).map(|arg| arg.replace("FILE", path).into());
    Arguments::gather(Cli::command(), &TABLES, typed.collect())
}

/// Returns the resulting arguments, without the path of the file.
fn args(text: &str, typed: &[&str]) -> Vec<String> {
    let args = gather(text, typed).unwrap_or_else(|error| panic!("{text}: {error}")).args;
    let args = args.into_iter().map(|arg| arg.into_string().unwrap());
    let folder = std::env::temp_dir();
    let is_file = |arg: &str| Path::new(arg).starts_with(&folder);
    args.map(|arg| if is_file(&arg) { "FILE".into() } else { arg }).collect()
}

fn refusal(text: &str) -> String {
    chain(&gather(text, &["serve", "--config", "FILE"]).err().expect("refused"))
}

/// Returns a valid value of a flag.
fn sample(arg: &Arg) -> String {
    if is_switch(arg) {
        return "true".into();
    }
    if let Some(value) = arg.get_possible_values().first() {
        return format!("\"{}\"", value.get_name());
    }
    let name = arg.get_value_names().expect("values have a name")[0].as_str();
    let value = match name {
        "SOCKET" | "FILE" | "DIR" | "NAME" | "TEXT" | "COMMAND" | "PATH" => "\"some\"",
        "SIZE" => "\"64M\"",
        "ADDR:PORT" => "\"127.0.0.1:7\"",
        "MODE" => "0o660",
        "USER[:GROUP]" => "\"0:0\"",
        "CODEC" => "\"zstd\"",
        "NUMBER" | "SECONDS" | "MICROSECONDS" => "7",
        "USD" => "\"0.5\"",
        "PERCENT|off" => "20",
        "PERCENT,..." => "\"80,90\"",
        _ => panic!("{arg}: what is a {name}? Add a sample of it here"),
    };
    if takes_several(arg) { format!("[{value}, {value}]") } else { value.into() }
}

#[test]
fn every_flag_of_serve_is_a_key() {
    let program = Cli::command();
    let serve = program.find_subcommand("serve").unwrap();
    let flags = serve.get_arguments().chain(program.get_arguments());
    let keys: Vec<(&str, String)> =
        flags.filter_map(|arg| Some((key_of(arg)?, sample(arg)))).collect();
    let longs = serve.get_arguments().filter_map(Arg::get_long);
    let missing: Vec<&str> = longs.filter(|long| keys.iter().all(|(key, _)| key != long)).collect();
    assert_eq!(missing, ["config"], "no keys");
    assert!(keys.len() > 25, "{keys:?}");
    for (key, value) in &keys {
        let is_in = |args: &[String]| {
            let word =
                |arg: &String| arg == &format!("--{key}") || arg.starts_with(&format!("--{key}="));
            args.iter().any(word) || (*key == "paths" && args.iter().any(|arg| arg == "some"))
        };
        let alone = args(&format!("{key} = {value}\n"), &["serve", "--config", "FILE"]);
        assert!(is_in(&alone), "{key}: {alone:?}");
    }
    // Together they keep each other's requirements, except flags that exclude an earlier one.
    let excluded = |key: &&str| {
        let arg = find(serve, key)?;
        let others = serve.get_arg_conflicts_with(arg).into_iter().filter_map(key_of);
        let before = keys.iter().take_while(|(before, _)| before != key);
        before.map(|(key, _)| *key).find(|key| others.clone().any(|other| other == *key))
    };
    let together = keys.iter().filter(|(key, _)| excluded(key).is_none());
    let all: String = together.map(|(key, value)| format!("{key} = {value}\n")).collect();
    let args = gather(&all, &["serve", "--config", "FILE"]).unwrap().args;
    let cli = Cli::try_parse_from(args).unwrap_or_else(|error| panic!("{all}\n{error}"));
    assert!(matches!(cli.command, Chosen::Drive(DriveCommand::Serve(_))));
}

#[test]
fn the_command_line_wins() {
    let text = "unix = 'a'\nread-only = true\npaths = ['b', '-c']\nlog-format = 'json'\n";
    assert_eq!(
        args(text, &["serve", "--config", "FILE"]),
        ["pumice", "--log-format=json", "serve", "--unix=a", "--read-only", "--config", "FILE"]
            .iter()
            .chain(&["b", "./-c"])
            .copied()
            .collect::<Vec<_>>()
    );
    let typed =
        ["--log-format", "text", "serve", "d", "--unix", "e", "--read-only", "--config=FILE"];
    let seen = args(text, &typed);
    assert_eq!(seen[..8], ["pumice"].iter().chain(&typed[..7]).copied().collect::<Vec<_>>()[..]);
    assert_eq!(seen.len(), 9, "nothing of the file: {seen:?}");
}

#[test]
fn a_switch_may_be_off() {
    assert_eq!(args("read-only = false", &["serve", "--config", "FILE"]).len(), 4);
}

#[test]
fn without_a_file_nothing_changes() {
    for typed in [&["serve", "a", "--unix", "b"][..], &["serve", "--bogus"], &["info", "a"], &[]] {
        assert_eq!(args("", typed)[1..], *typed);
    }
}

#[test]
fn a_mistake_is_named_with_its_line() {
    for (text, at, words) in [
        ("\nreed-only = true", 2, "unknown key 'reed-only': did you mean 'read-only'? Keys are"),
        ("config = 'x'", 1, "unknown key 'config'"),
        ("help = true", 1, "unknown key 'help'"),
        ("[unix]\n", 1, "unix: expected a string in quotes or a number, found a table"),
        ("unix = ['a']", 1, "unix: expected a string in quotes or a number, found a list"),
        ("#\n\nread-only = 'yes'", 3, "read-only: expected true or false, found a string"),
        ("paths = true", 1, "expected a list of strings or numbers, found true or false"),
        ("paths = [['a']]", 1, "expected a list of strings or numbers, found a list of other"),
        ("warn = 2026-01-01", 1, "found a date"),
        ("unix = 'a'\nunix = 'b'", 2, "duplicate key"),
        ("unix = a", 1, "expected KEY = VALUE, with text in quotes"),
    ] {
        let refusal = refusal(text);
        assert!(refusal.contains(&format!(":{at}: ")), "{text}: {refusal}");
        assert!(refusal.contains(words) && !refusal.contains('\n'), "{text}: {refusal}");
    }
}

#[test]
fn tables_are_parsed_as_flags_are_and_mistakes_are_named_with_their_lines() {
    let text = "read-only = true\n[export.a]\ndrive = 'x'\nallow-users = [0, 'root']\n\
                [export.'b c']\niops = 5\n";
    let arguments = gather(text, &["serve", "--config", "FILE"]).unwrap();
    let names: Vec<_> = arguments.tables.iter().map(|table| table.name.as_str()).collect();
    assert_eq!(names, ["a", "b c"]);
    assert!(arguments.tables[1].position.ends_with(":5: export.b c"));
    for (text, at, words) in [
        ("export = 5", 1, "export: expected tables [export.NAME], found a number"),
        ("[export]\na = 5", 2, "export: expected tables [export.NAME], found a number"),
        ("[export.a]\nreed-only = true", 2, "unknown key 'reed-only': did you mean 'read-only'?"),
        ("[export.a]\nallow-users = []", 2, "allow-users: expected at least one value"),
        ("[export.a]\niops = true", 2, "iops: expected a string in quotes or a number"),
        ("[export.a]\n\niops = 0", 3, "invalid value '0' for '--iops"),
        ("[export.a]\nallow-addresses = ['10.0.0.0/33']", 2, "expected an address, or a network"),
        ("[export.a]\nallow-users = ['no such user']", 2, "no such user"),
    ] {
        let refusal = refusal(text);
        assert!(refusal.contains(&format!(":{at}: ")), "{text}: {refusal}");
        assert!(refusal.contains(words) && !refusal.contains('\n'), "{text}: {refusal}");
    }
    // No other command has tables.
    let typed = ["attach", "--config", "FILE"];
    let refused = gather("[export.a]\n", &typed).err().map(|error| chain(&error));
    assert!(refused.is_none_or(|refused| refused.contains("unknown key 'export'")));
}

#[test]
fn values_that_clap_refuses_are_named_with_their_line() {
    for (text, words) in [
        ("paths = ['a']\nmap-cache = '12Q'", ":2: map-cache"),
        ("paths = ['a']\n\nunix-mode = '0999'", ":3: unix-mode"),
        ("paths = ['a']\nunix-mode = 0o660", "with "),
    ] {
        let arguments = gather(text, &["serve", "--config", "FILE"]).unwrap();
        let error = Cli::try_parse_from(&arguments.args).expect_err(text);
        let position = arguments.position_of(&error).expect("a position");
        assert!(position.contains(words), "{text}: {position}: {error}");
    }
    let arguments = gather("paths = ['a']", &["serve", "--config", "FILE", "--bogus"]).unwrap();
    let error = Cli::try_parse_from(&arguments.args).unwrap_err();
    assert_eq!(arguments.position_of(&error), None, "{error}");
}

#[test]
fn endless_and_absent_files_are_refused() {
    for (path, words) in [("/dev/zero", "longer than"), ("/nowhere", "cannot read")] {
        let typed = ["pumice", "serve", "--config", path].map(OsString::from);
        let refusal = Arguments::gather(Cli::command(), &TABLES, typed.into()).err().expect(path);
        assert!(refusal.to_string().contains(words), "{refusal}");
    }
}
