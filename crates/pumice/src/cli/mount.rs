//! The program under the names `mount.pumice` and `umount.pumice`, under which mount(8) and
//! umount(8) call it, so that lines of fstab and units of systemd can name a drive.
//!
//! ```text
//! mount -t pumice DRIVE DIR -o OPTIONS    mount.pumice DRIVE DIR -o OPTIONS     pumice attach ..
//! umount DIR                              umount.pumice DIR                     pumice detach DIR
//! ```
//!
//! A mount of this kind is marked `helper=pumice`, so that umount(8) finds `umount.pumice`. An
//! option that is a flag of `pumice attach` is passed as that flag; options that only mount(8) and
//! systemd understand are dropped; all others are for the file system on the drive.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, anyhow, bail};

use super::attach::Attachment;
use super::commands::program;
use super::{chain, say_error};

/// Exit code for wrong arguments. Source: mount(8), EXIT STATUS.
const USAGE: u8 = 1;

/// Options about when, and not how, a file system is mounted.
///
/// Source: mount(8), systemd.mount(5).
const NOT_FOR_THE_DRIVE: [&str; 7] =
    ["defaults", "auto", "noauto", "nofail", "_netdev", "rw", "loop"];

/// Flags of `pumice attach` that are not accepted as options: they would destroy the file system at
/// the next boot, or are set here.
const NO_OPTIONS: [&str; 8] =
    ["mkfs", "force", "foreground", "in-background", "step", "json", "mount-options", "help"];

/// The task of a helper.
enum Task {
    /// Run as `pumice` with these arguments.
    Run(Vec<OsString>),
    /// Nothing: the task is already done, or is not one for a helper.
    Nothing,
}

/// Runs as a helper if the program was called as one.
pub(super) fn helper() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    let name = PathBuf::from(args.next()?);
    let args: Vec<OsString> = args.collect();
    let task = match name.file_name()?.to_str()? {
        "mount.pumice" => mount(&args),
        "umount.pumice" => umount(&args),
        _ => return None,
    };
    let error = match task {
        Ok(Task::Nothing) => return Some(ExitCode::SUCCESS),
        Ok(Task::Run(args)) => become_pumice(&args),
        Err(error) => error,
    };
    say_error(&chain(&error));
    Some(ExitCode::from(USAGE))
}

/// Executes the program under its own name; returns only on failure.
fn become_pumice(args: &[OsString]) -> anyhow::Error {
    match std::env::current_exe() {
        // mount(8) prints nothing on success.
        Ok(path) => Command::new(path).arg0("pumice").args(args).stdout(Stdio::null()).exec(),
        Err(error) => error,
    }
    .into()
}

/// The arguments from mount(8) or umount(8).
#[derive(Default)]
struct Passed<'a> {
    paths: Vec<&'a Path>,
    /// Letters of the options without a value.
    letters: String,
    /// Values of `-o`.
    options: Vec<&'a OsStr>,
}

impl<'a> Passed<'a> {
    fn parse(args: &'a [OsString]) -> Result<Self> {
        let mut passed = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("-o") => passed.options.push(args.next().context("-o needs a value")?),
                // The type is known.
                Some("-t") => drop(args.next()),
                Some("-N") => bail!("drives cannot be mounted in another namespace (-N)"),
                Some(letters) if letters.len() > 1 && letters.starts_with('-') => {
                    passed.letters += &letters[1..];
                }
                _ => passed.paths.push(Path::new(arg)),
            }
        }
        Ok(passed)
    }
}

fn mount(args: &[OsString]) -> Result<Task> {
    let passed = Passed::parse(args)?;
    let [drive, directory] = passed.paths[..] else {
        bail!("expected mount.pumice DRIVE DIRECTORY [-o OPTIONS]");
    };
    if passed.letters.contains('f') || is_mounted(drive, directory) {
        return Ok(Task::Nothing);
    }
    let mut args = vec![OsString::from("attach")];
    let mut of_file_system = "helper=pumice".to_owned();
    let program = program();
    let attach = program.find_subcommand("attach").context("this program cannot attach")?;
    let flags: Vec<&str> = attach.get_arguments().filter_map(|arg| arg.get_long()).collect();
    for options in passed.options {
        let options = options.to_str().context("the options are not UTF-8")?;
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let name = option.split_once('=').map_or(option, |(name, _)| name);
            if option == "ro" {
                args.push("--read-only".into());
            } else if NO_OPTIONS.contains(&name) {
                bail!("{name} is not an option of a mount: use `pumice attach --{name}` once");
            } else if name == "remount" {
                bail!("a drive cannot be mounted again: unmount {}, then mount", drive.display());
            } else if flags.contains(&name) {
                args.push(format!("--{option}").into());
            } else if !NOT_FOR_THE_DRIVE.contains(&name)
                && !["x-", "X-", "comment="].iter().any(|start| option.starts_with(start))
            {
                of_file_system += &format!(",{option}");
            }
        }
    }
    args.extend(["--mount-options".into(), of_file_system.into(), "--".into()]);
    args.extend([drive.into(), directory.into()]);
    Ok(Task::Run(args))
}

/// Whether there is nothing to do: `mount -a` cannot see that the mounted device belongs to the
/// drive.
fn is_mounted(drive: &Path, directory: &Path) -> bool {
    let found = Attachment::of(drive).ok().flatten();
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    found.is_some_and(|found| found.process().is_some() && found.is_mounted_at(&directory))
}

fn umount(args: &[OsString]) -> Result<Task> {
    let passed = Passed::parse(args)?;
    let [target] = passed.paths[..] else { bail!("expected umount.pumice DIRECTORY") };
    if let Some(letter) = passed.letters.chars().find(|letter| "fl".contains(*letter)) {
        return Err(anyhow!(
            "-{letter} cannot unmount a drive: stop the processes that use it, or discard \
             unflushed writes with `pumice detach --force {}`",
            target.display()
        ));
    }
    Ok(Task::Run(vec!["detach".into(), "--".into(), target.into()]))
}

#[cfg(test)]
mod tests {
    //! Goal: the arguments of mount(8) become those of `pumice attach`.
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn run(task: Result<Task>) -> String {
        match task.unwrap() {
            Task::Run(args) => args.join(OsStr::new(" ")).into_string().unwrap(),
            Task::Nothing => "nothing".into(),
        }
    }

    #[test]
    fn options_go_where_they_belong() {
        let options = "rw,nofail,x-systemd.automount,noatime,map-cache=64M,discard,sector-size=512";
        assert_eq!(
            run(mount(&words(&format!("/no/drive /mnt -s -n -o {options} -t pumice")))),
            "attach --map-cache=64M --sector-size=512 --mount-options \
             helper=pumice,noatime,discard -- /no/drive /mnt"
        );
        let read_only = run(mount(&words("/no/drive /mnt -o defaults,ro")));
        assert_eq!(read_only, "attach --read-only --mount-options helper=pumice -- /no/drive /mnt");
        assert_eq!(run(mount(&words("/no/drive /mnt -f -v"))), "nothing");
        assert_eq!(run(umount(&words("/mnt -n -r"))), "detach -- /mnt");
    }

    #[test]
    fn options_that_destroy_data_at_each_boot_are_refused() {
        for line in [
            "/no/drive /mnt -o mkfs=ext4",
            "/no/drive /mnt -o force",
            "/no/drive /mnt -o remount,ro",
            "/no/drive /mnt -N 4711",
            "/no/drive /mnt -o",
            "/no/drive",
        ] {
            assert!(mount(&words(line)).is_err(), "{line}");
        }
        for line in ["/mnt -l", "/mnt -f", "-n"] {
            assert!(umount(&words(line)).is_err(), "{line}");
        }
    }
}
