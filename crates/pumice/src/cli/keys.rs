//! The keys of encrypted drives: the sources from which a command gets them.
//!
//! A key is never an argument, which other users of the machine could see: it comes from a file, a
//! descriptor, a command, or the terminal. Keys given to a process are kept here, and every medium
//! that the process opens is unlocked with them ([`unlock`]). A server that restarts hands on keys
//! that cannot be read again, in memory without a name ([`hand_over`]).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::storage::Storage;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::{Locked, SlotKind};
use pumice_drive::crypt::{Cipher, KEY_SECRET_BYTES_MIN, Randomness, RecoveryCode, Secret};
use zeroize::{Zeroize, Zeroizing};

/// Maximum bytes of a key or a passphrase. Arbitrary; far more than either needs.
const SECRET_BYTES_MAX: usize = 64 << 10;

/// Maximum bytes that a process hands over: more than the passphrases of a thousand drives.
const LEGACY_BYTES_MAX: u64 = 64 << 20;

/// Number of attempts to read a passphrase from the terminal.
const PROMPTS: usize = 3;

/// Flags that name the source of the key of an encrypted drive.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Encryption")]
pub(crate) struct KeyArgs {
    /// File with the key of an encrypted drive: at least 32 random bytes
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// Command for /bin/sh that prints the key, such as a client of a key service or `systemd-creds
    /// decrypt`
    #[arg(long, value_name = "COMMAND")]
    key_command: Option<String>,

    /// File with the passphrase; a line break at its end is not part of it
    #[arg(long, value_name = "FILE")]
    passphrase_file: Option<PathBuf>,

    /// Open file descriptor to read the passphrase from
    #[arg(long, value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(i32).range(0..))]
    passphrase_fd: Option<RawFd>,

    /// File with the recovery code
    #[arg(long, value_name = "FILE")]
    recovery_code_file: Option<PathBuf>,
}

/// Flags that name the source of a new key.
#[derive(Clone, Debug, Default, PartialEq, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "New key [default: prompt for a passphrase]")]
pub(crate) struct NewKeyArgs {
    /// File with the new key: at least 32 random bytes
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,

    /// Command for /bin/sh that prints the new key
    #[arg(long, value_name = "COMMAND")]
    new_key_command: Option<String>,

    /// File with the new passphrase
    #[arg(long, value_name = "FILE")]
    new_passphrase_file: Option<PathBuf>,

    /// Open file descriptor to read the new passphrase from
    #[arg(long, value_name = "NUMBER")]
    #[arg(value_parser = clap::value_parser!(i32).range(0..))]
    new_passphrase_fd: Option<RawFd>,

    /// Draw a recovery code, and print it
    #[arg(long)]
    new_recovery_code: bool,
}

impl NewKeyArgs {
    /// Returns the secret of the new key; a recovery code that was drawn for it is stored in
    /// `code`.
    ///
    /// # Errors
    /// As [`new_secret`].
    pub(crate) fn secret(&self, code: &mut Option<RecoveryCode>) -> Result<Secret> {
        let args = KeyArgs {
            key_file: self.new_key_file.clone(),
            key_command: self.new_key_command.clone(),
            passphrase_file: self.new_passphrase_file.clone(),
            passphrase_fd: self.new_passphrase_fd,
            recovery_code_file: None,
        };
        if !self.new_recovery_code {
            return new_secret(&args);
        }
        if !args.is_empty() {
            return Err(invalid("specify one new key: a recovery code counts as one".into()));
        }
        Ok(code.insert(RecoveryCode::draw(&Randomness::System)).secret())
    }
}

/// The flags and keys that this process was given.
struct Given {
    args: KeyArgs,
    /// Flags of drives that have their own.
    of_drives: BTreeMap<PathBuf, KeyArgs>,
    /// Secrets already read: a descriptor can be read only once, and a command should run once.
    read: BTreeMap<String, Secret>,
    /// Passphrases from the terminal, for each drive.
    asked: BTreeMap<PathBuf, Secret>,
}

/// Passphrases that a process cannot get again, each with the flags or the drive that it belongs
/// to.
#[derive(Default, Serialize, Deserialize)]
struct Legacy {
    /// From descriptors, by their flags.
    read: Vec<(String, Vec<u8>)>,
    /// From the terminal, by the drives.
    asked: Vec<(PathBuf, Vec<u8>)>,
}

static GIVEN: Mutex<Given> = Mutex::new(Given {
    args: KeyArgs {
        key_file: None,
        key_command: None,
        passphrase_file: None,
        passphrase_fd: None,
        recovery_code_file: None,
    },
    of_drives: BTreeMap::new(),
    read: BTreeMap::new(),
    asked: BTreeMap::new(),
});

fn given() -> std::sync::MutexGuard<'static, Given> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns memory with the passphrases that the next program of this process cannot get again, as a
/// descriptor that the program inherits; `None` if there are none.
///
/// # Errors
/// The system has no memory for it.
pub(crate) fn hand_over() -> Result<Option<OwnedFd>> {
    let mut legacy = Legacy::default();
    {
        let given = given();
        let bytes = |secret: &Secret| match secret {
            Secret::Passphrase(bytes) => bytes.to_vec(),
            Secret::Key(_) | Secret::Recovery(_) => Vec::new(),
        };
        let by_descriptor = given.read.iter().filter(|(flags, _)| flags.contains(BY_DESCRIPTOR));
        legacy.read = by_descriptor.map(|(flags, one)| (flags.clone(), bytes(one))).collect();
        let asked = given.asked.iter();
        legacy.asked = asked.map(|(path, one)| (path.clone(), bytes(one))).collect();
    }
    if legacy.read.is_empty() && legacy.asked.is_empty() {
        return Ok(None);
    }
    let failed = |error| Error::os("cannot hand keys over".to_owned(), error);
    let json = serde_json::to_vec(&legacy).map_err(|error| failed(error.into()))?;
    let json = Zeroizing::new(json);
    for (_, bytes) in &mut legacy.read {
        bytes.zeroize();
    }
    for (_, bytes) in &mut legacy.asked {
        bytes.zeroize();
    }
    // Not closed on exec.
    let memory =
        memfd_create("pumice", MemfdFlags::empty()).map_err(|error| failed(error.into()))?;
    let mut file = File::from(memory);
    file.write_all(&json).map_err(failed)?;
    Ok(Some(file.into()))
}

/// The debug text by which [`Given::read`] recognizes flags that name a descriptor.
const BY_DESCRIPTOR: &str = "passphrase_fd: Some";

/// Takes the passphrases that [`hand_over`] has left in a descriptor, and empties it.
///
/// # Errors
/// The descriptor cannot be read: keys have to be given again.
pub(crate) fn take_over(descriptor: RawFd) -> Result<()> {
    let failed = |error| Error::os("cannot take keys over".to_owned(), error);
    let path = format!("/proc/self/fd/{descriptor}");
    let file = File::options().read(true).write(true).open(path).map_err(failed)?;
    let mut json = Zeroizing::new(Vec::new());
    let read = (&file).take(LEGACY_BYTES_MAX).read_to_end(&mut json);
    // Programs that this one starts would inherit it.
    read.and_then(|_| file.set_len(0)).map_err(failed)?;
    let legacy = serde_json::from_slice(&json).map_err(|error| failed(error.into()))?;
    let Legacy { read, asked } = legacy;
    let mut given = given();
    let secret = |bytes: Vec<u8>| Secret::Passphrase(Zeroizing::new(bytes));
    given.read.extend(read.into_iter().map(|(flags, bytes)| (flags, secret(bytes))));
    given.asked.extend(asked.into_iter().map(|(path, bytes)| (path, secret(bytes))));
    Ok(())
}

impl KeyArgs {
    /// Uses these flags for every drive that has none of its own.
    pub(crate) fn provide(&self) {
        given().args = self.clone();
    }

    /// Uses these flags, if there are any, for the drive at `path`.
    pub(crate) fn provide_for(&self, path: &Path) {
        let mut given = given();
        if self.is_empty() {
            given.of_drives.remove(path);
        } else {
            given.of_drives.insert(path.to_owned(), self.clone());
        }
    }

    /// Whether no flag was given.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the secret that the flags name; `None` without flags.
    ///
    /// # Errors
    /// The secret cannot be read, or is not valid.
    pub(crate) fn secret(&self) -> Result<Option<Secret>> {
        if self.is_empty() {
            return Ok(None);
        }
        let name = format!("{self:?}");
        if let Some(secret) = given().read.get(&name) {
            return Ok(Some(secret.clone()));
        }
        let secret = self.read()?;
        given().read.insert(name, secret.clone());
        Ok(Some(secret))
    }

    fn read(&self) -> Result<Secret> {
        let Self { key_file, key_command, passphrase_file, passphrase_fd, recovery_code_file } =
            self;
        let files = [key_file, passphrase_file, recovery_code_file];
        let count = files.iter().filter(|file| file.is_some()).count()
            + usize::from(key_command.is_some())
            + usize::from(passphrase_fd.is_some());
        if count > 1 {
            return Err(invalid("specify one key: use only one of the flags for keys".into()));
        }
        if let Some(path) = &self.key_file {
            let named = || path.display().to_string();
            return key(read_file(path)?, &named());
        }
        if let Some(command) = &self.key_command {
            return key(output_of(command)?, "the output of --key-command");
        }
        if let Some(path) = &self.passphrase_file {
            return passphrase(read_file(path)?, &path.display().to_string());
        }
        if let Some(number) = self.passphrase_fd {
            let bytes = read_file(&PathBuf::from(format!("/proc/self/fd/{number}")))?;
            return passphrase(bytes, "the input of --passphrase-fd");
        }
        let path = self.recovery_code_file.as_deref().expect("some flag was given");
        let bytes = read_file(path)?;
        let text = str::from_utf8(&bytes).unwrap_or_default();
        let code: std::result::Result<RecoveryCode, String> = text.trim().parse();
        code.map(|code| code.secret())
            .map_err(|what| invalid(format!("{}: {what}", path.display())))
    }
}

/// Returns the medium with the keys of the drive on it, if the drive is encrypted.
///
/// # Errors
/// `PermissionDenied` without its key, or with a key though the drive is not encrypted; nothing was
/// changed then. Opening the drive reports all other errors.
pub(crate) async fn unlock(medium: Storage) -> Result<Storage> {
    unlock_as(medium, false).await
}

/// As [`unlock`], for the origin of a clone, whose keys are given with those of the clone: the
/// origin may be unencrypted.
///
/// # Errors
/// As [`unlock`].
pub(crate) async fn unlock_origin(medium: Storage) -> Result<Storage> {
    unlock_as(medium, true).await
}

async fn unlock_as(medium: Storage, is_origin: bool) -> Result<Storage> {
    let path = medium.path().to_owned();
    let args = {
        let given = given();
        given.of_drives.get(&path).unwrap_or(&given.args).clone()
    };
    let locked = match Locked::on(&medium).await {
        Ok(Some(locked)) => locked,
        // An unencrypted drive may have been put in its place.
        Ok(None) if !args.is_empty() && !is_origin => {
            let what = format!("{} is not encrypted, and a key was given for it", path.display());
            return Err(Error::new(ErrorKind::PermissionDenied, what));
        }
        // Opening the drive reports the error.
        Ok(None) | Err(_) => return Ok(medium),
    };
    let named = |error: Error| {
        let what = format!("{} is encrypted, and stays locked", path.display());
        Error::new(error.kind(), what).caused_by(error)
    };
    if let Some(secret) = args.secret()? {
        let cipher = locked.unlock(&secret, Randomness::System).map_err(named)?;
        return Ok(medium.with_cipher(cipher));
    }
    if !locked.has(SlotKind::Passphrase) {
        return Err(locked_error(&path));
    }
    let asked = given().asked.get(&path).cloned();
    if let Some(Ok(cipher)) = asked.map(|secret| locked.unlock(&secret, Randomness::System)) {
        return Ok(medium.with_cipher(cipher));
    }
    if !std::io::stdin().is_terminal() {
        return Err(locked_error(&path));
    }
    let mut refused = None;
    for _ in 0..PROMPTS {
        let secret = prompt(&format!("Passphrase for {}: ", path.display()))?;
        match locked.unlock(&secret, Randomness::System) {
            Ok(cipher) => {
                given().asked.insert(path, secret);
                return Ok(medium.with_cipher(cipher));
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                super::say_error("wrong passphrase");
                refused = Some(error);
            }
            Err(error) => return Err(named(error)),
        }
    }
    Err(named(refused.expect("every attempt was refused")))
}

/// Returns the cipher of a drive whose superblocks are lost: its recovery code opens it.
///
/// # Errors
/// The flags name no recovery code, or the one of another drive.
pub(crate) fn unlock_recovery(locked: &Locked, args: &KeyArgs) -> Result<Cipher> {
    let secret = args.secret()?.filter(|secret| matches!(secret, Secret::Recovery(_)));
    let what = "the drive is encrypted, and its superblocks are lost: only its recovery code opens \
                it (--recovery-code-file)";
    let secret = secret.ok_or_else(|| Error::new(ErrorKind::PermissionDenied, what))?;
    locked.unlock(&secret, Randomness::System)
}

/// Returns the secret that the flags name, or a passphrase read from the terminal.
///
/// # Errors
/// It cannot be read, or there is no terminal.
pub(crate) fn given_or_asked(args: &KeyArgs, path: &Path) -> Result<Secret> {
    match args.secret()? {
        Some(secret) => Ok(secret),
        None if std::io::stdin().is_terminal() => {
            prompt(&format!("Passphrase for {}: ", path.display()))
        }
        None => Err(locked_error(path)),
    }
}

fn locked_error(path: &Path) -> Error {
    let what = format!(
        "{} is encrypted: give its key with --key-file, --key-command, --passphrase-file, \
         --passphrase-fd or --recovery-code-file",
        path.display()
    );
    Error::new(ErrorKind::PermissionDenied, what)
}

/// Returns the secret of a new slot: the one that the flags name, or a passphrase that is read
/// twice from the terminal.
///
/// # Errors
/// There is no terminal, or the answers differ.
pub(crate) fn new_secret(args: &KeyArgs) -> Result<Secret> {
    if let Some(secret) = args.secret()? {
        return Ok(secret);
    }
    if !std::io::stdin().is_terminal() {
        return Err(invalid(
            "a key is needed: use --key-file, --key-command, --passphrase-file or \
             --passphrase-fd, or run this in a terminal"
                .into(),
        ));
    }
    let first = prompt("New passphrase: ")?;
    let second = prompt("The same again: ")?;
    match (&first, &second) {
        (Secret::Passphrase(one), Secret::Passphrase(other)) if one == other => Ok(first),
        _ => Err(invalid("the passphrases differ".into())),
    }
}

fn prompt(text: &str) -> Result<Secret> {
    let typed = rpassword::prompt_password(text);
    let typed =
        typed.map_err(|error| invalid("cannot ask for a passphrase".into()).caused_by(error))?;
    passphrase(Zeroizing::new(typed.into_bytes()), "the passphrase")
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}

fn key(bytes: Zeroizing<Vec<u8>>, source: &str) -> Result<Secret> {
    if bytes.len() < KEY_SECRET_BYTES_MIN {
        return Err(invalid(format!(
            "{source} has {} bytes, but a key needs {KEY_SECRET_BYTES_MIN} random bytes: create \
             one with `head -c 32 /dev/urandom`, or use --passphrase-file for a passphrase",
            bytes.len()
        )));
    }
    Ok(Secret::Key(bytes))
}

fn passphrase(mut bytes: Zeroizing<Vec<u8>>, source: &str) -> Result<Secret> {
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
    }
    if bytes.is_empty() {
        return Err(invalid(format!("{source} is empty")));
    }
    Ok(Secret::Passphrase(bytes))
}

fn read_file(path: &Path) -> Result<Zeroizing<Vec<u8>>> {
    let named = path.display().to_string();
    let file = File::open(path);
    let file = file.map_err(|error| Error::os(format!("cannot read the key in {named}"), error))?;
    read_all(file, &named)
}

fn read_all(source: impl Read, named: &str) -> Result<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_BYTES_MAX + 1));
    let read = source.take(SECRET_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::os(format!("cannot read the key from {named}"), error))?;
    if bytes.len() > SECRET_BYTES_MAX {
        return Err(invalid(format!(
            "{named} has more than {SECRET_BYTES_MAX} bytes: it is not a key"
        )));
    }
    Ok(bytes)
}

fn output_of(command: &str) -> Result<Zeroizing<Vec<u8>>> {
    let failed = |error| Error::os("cannot run --key-command".to_owned(), error);
    let mut shell = Command::new("/bin/sh");
    let shell = shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = shell.spawn().map_err(failed)?;
    let output = child.stdout.take().expect("stdout is a pipe");
    let bytes = read_all(output, "--key-command");
    let status = child.wait().map_err(failed)?;
    if !status.success() {
        return Err(invalid(format!("--key-command has failed: {status}")));
    }
    bytes
}
