//! The flags that name the source of a key.

use std::os::fd::RawFd;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::keys::{self, Source};
use pumice_drive::crypt::{Randomness, RecoveryCode, Secret};

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

    /// File with the passphrase; a trailing line break is ignored
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

impl KeyArgs {
    /// Returns the source that the flags name; `None` without flags.
    ///
    /// # Errors
    /// The flags name several sources.
    pub(super) fn source(&self) -> Result<Option<Source>> {
        let sources = [
            self.key_file.clone().map(Source::KeyFile),
            self.key_command.clone().map(Source::KeyCommand),
            self.passphrase_file.clone().map(Source::PassphraseFile),
            self.passphrase_fd.map(Source::PassphraseFd),
            self.recovery_code_file.clone().map(Source::RecoveryCodeFile),
        ];
        let mut sources = sources.into_iter().flatten();
        let source = sources.next();
        if sources.next().is_some() {
            bail!("specify one key: use only one of the flags for keys");
        }
        Ok(source)
    }

    /// Uses these flags for every drive that has none of its own.
    ///
    /// # Errors
    /// Same as [`Self::source`].
    pub(super) fn provide(&self) -> Result<()> {
        keys::provide(self.source()?);
        Ok(())
    }

    /// Whether no flag was given.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl NewKeyArgs {
    /// Returns the secret of the new key; a recovery code that was drawn for it is stored in
    /// `code`.
    ///
    /// # Errors
    /// The flags name several keys; errors of [`keys::new_secret`].
    pub(super) fn secret(&self, code: &mut Option<RecoveryCode>) -> Result<Secret> {
        let args = KeyArgs {
            key_file: self.new_key_file.clone(),
            key_command: self.new_key_command.clone(),
            passphrase_file: self.new_passphrase_file.clone(),
            passphrase_fd: self.new_passphrase_fd,
            recovery_code_file: None,
        };
        let source = args.source()?;
        if !self.new_recovery_code {
            return Ok(keys::new_secret(source)?);
        }
        if source.is_some() {
            bail!("specify one new key: a recovery code counts as one");
        }
        Ok(code.insert(RecoveryCode::draw(&Randomness::System)).secret())
    }
}
