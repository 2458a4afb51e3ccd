//! The keys of encrypted drives, and the sources from which a process gets them.
//!
//! A key is never an argument, which other users of the machine could see: it comes from a file, a
//! descriptor, a command, or the terminal. Keys given to a process are stored here, and every
//! medium that the process opens is unlocked with them ([`unlock`]). A server that restarts passes
//! on the keys that cannot be read again, in memory without a name ([`hand_over`]).

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

/// The source of a key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// File with the key.
    KeyFile(PathBuf),
    /// Shell command that prints the key.
    KeyCommand(String),
    /// File with the passphrase.
    PassphraseFile(PathBuf),
    /// Open file descriptor to read the passphrase from.
    PassphraseFd(RawFd),
    /// File with the recovery code.
    RecoveryCodeFile(PathBuf),
}

/// The sources and keys that this process was given.
struct Given {
    /// The source for drives that do not have their own.
    source: Option<Source>,
    of_drives: BTreeMap<PathBuf, Source>,
    /// Secrets already read: a descriptor can be read only once, and a command should run once.
    read: BTreeMap<Source, Secret>,
    /// Passphrases from the terminal, for each drive.
    asked: BTreeMap<PathBuf, Secret>,
}

/// Passphrases that a process cannot obtain again, each with the descriptor or the drive that it
/// belongs to.
#[derive(Default, Serialize, Deserialize)]
struct Legacy {
    /// From descriptors.
    read: Vec<(RawFd, Vec<u8>)>,
    /// From the terminal, by the drives.
    asked: Vec<(PathBuf, Vec<u8>)>,
}

static GIVEN: Mutex<Given> = Mutex::new(Given {
    source: None,
    of_drives: BTreeMap::new(),
    read: BTreeMap::new(),
    asked: BTreeMap::new(),
});

fn given() -> std::sync::MutexGuard<'static, Given> {
    GIVEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns memory with the passphrases that the next program of this process cannot obtain again,
/// as a descriptor that the program inherits; `None` if there are none.
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
        let by_descriptor = given.read.iter().filter_map(|(source, one)| match source {
            Source::PassphraseFd(number) => Some((*number, bytes(one))),
            _ => None,
        });
        legacy.read = by_descriptor.collect();
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

/// Reads the passphrases that [`hand_over`] stored in a descriptor, and empties it.
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
    let read = read.into_iter();
    given.read.extend(read.map(|(number, bytes)| (Source::PassphraseFd(number), secret(bytes))));
    given.asked.extend(asked.into_iter().map(|(path, bytes)| (path, secret(bytes))));
    Ok(())
}

/// Uses a source for every drive that has none of its own.
pub(crate) fn provide(source: Option<Source>) {
    given().source = source;
}

/// Uses a source, if there is one, for the drive at `path`.
pub(crate) fn provide_for(path: &Path, source: Option<Source>) {
    let mut given = given();
    match source {
        Some(source) => given.of_drives.insert(path.to_owned(), source),
        None => given.of_drives.remove(path),
    };
}

impl Source {
    /// Returns the secret, which is read from the source once.
    ///
    /// # Errors
    /// The secret cannot be read, or is not valid.
    pub(crate) fn secret(&self) -> Result<Secret> {
        if let Some(secret) = given().read.get(self) {
            return Ok(secret.clone());
        }
        let secret = self.read()?;
        given().read.insert(self.clone(), secret.clone());
        Ok(secret)
    }

    fn read(&self) -> Result<Secret> {
        match self {
            Self::KeyFile(path) => key(read_file(path)?, &path.display().to_string()),
            Self::KeyCommand(command) => key(output_of(command)?, "the output of --key-command"),
            Self::PassphraseFile(path) => passphrase(read_file(path)?, &path.display().to_string()),
            Self::PassphraseFd(number) => {
                let bytes = read_file(&PathBuf::from(format!("/proc/self/fd/{number}")))?;
                passphrase(bytes, "the input of --passphrase-fd")
            }
            Self::RecoveryCodeFile(path) => {
                let bytes = read_file(path)?;
                let text = str::from_utf8(&bytes).unwrap_or_default();
                let code: std::result::Result<RecoveryCode, String> = text.trim().parse();
                code.map(|code| code.secret())
                    .map_err(|what| invalid(format!("{}: {what}", path.display())))
            }
        }
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

/// Like [`unlock`], for the origin of a clone, whose keys are given with those of the clone: the
/// origin may be unencrypted.
///
/// # Errors
/// Same as [`unlock`].
pub(crate) async fn unlock_origin(medium: Storage) -> Result<Storage> {
    unlock_as(medium, true).await
}

async fn unlock_as(medium: Storage, is_origin: bool) -> Result<Storage> {
    let path = medium.path().to_owned();
    let source = {
        let given = given();
        given.of_drives.get(&path).or(given.source.as_ref()).cloned()
    };
    let locked = match Locked::on(&*medium).await {
        Ok(Some(locked)) => locked,
        // An unencrypted drive may have been put in its place.
        Ok(None) if source.is_some() && !is_origin => {
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
    if let Some(source) = source {
        let cipher = locked.unlock(&source.secret()?, Randomness::System).map_err(named)?;
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
    let mut question = format!("Passphrase for {}: ", path.display());
    for _ in 0..PROMPTS {
        let secret = prompt(&question)?;
        match locked.unlock(&secret, Randomness::System) {
            Ok(cipher) => {
                given().asked.insert(path, secret);
                return Ok(medium.with_cipher(cipher));
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                question = format!("Wrong passphrase; passphrase for {}: ", path.display());
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
/// The source is not a recovery code, or belongs to another drive.
pub(crate) fn unlock_recovery(locked: &Locked, source: Option<Source>) -> Result<Cipher> {
    let Some(source @ Source::RecoveryCodeFile(_)) = source else {
        let what = "the drive is encrypted, and its superblocks are lost: only its recovery code \
                    opens it (--recovery-code-file)";
        return Err(Error::new(ErrorKind::PermissionDenied, what));
    };
    locked.unlock(&source.secret()?, Randomness::System)
}

/// Returns the secret of a source, or a passphrase read from the terminal.
///
/// # Errors
/// It cannot be read, or there is no terminal.
pub(crate) fn given_or_asked(source: Option<Source>, path: &Path) -> Result<Secret> {
    match source {
        Some(source) => source.secret(),
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

/// Returns the secret of a new slot: from a source, or a passphrase that is read twice from the
/// terminal.
///
/// # Errors
/// The secret cannot be read; there is no terminal, or the answers differ.
pub(crate) fn new_secret(source: Option<Source>) -> Result<Secret> {
    if let Some(source) = source {
        return source.secret();
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
