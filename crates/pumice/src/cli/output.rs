//! A file that a result goes to.
//!
//! It is opened before the work starts, so that nothing is made for a file that cannot be written,
//! and never emptied here: what was there stays until its successor is known to come.

use std::fs::File;
use std::io::ErrorKind as IoErrorKind;
use std::path::Path;

use pumice_drive::base::{Error, ErrorKind, Result};

/// Opens a file for writing, one that exists only with `force`, and leaves its content as it is.
///
/// # Errors
/// `AlreadyExists` without `force`; `InvalidInput` for anything but a regular file; the operating
/// system's.
pub(crate) fn open_output(path: &Path, force: bool) -> Result<File> {
    let shown = path.display();
    if path.is_dir() {
        return Err(invalid(format!("{shown} is a directory: name a file in it")));
    }
    let failed = |error| Error::os(format!("cannot write {shown}"), error);
    let mut options = File::options();
    options.write(true);
    match force {
        false => options.create_new(true),
        true => options.create(true).truncate(false),
    };
    let file = options.open(path).map_err(|error| match error.kind() {
        IoErrorKind::AlreadyExists => {
            let what = format!("{shown} exists: use --force to overwrite it");
            Error::new(ErrorKind::AlreadyExists, what)
        }
        _ => failed(error),
    })?;
    if !file.metadata().map_err(failed)?.is_file() {
        let what = "is no regular file: give - and redirect stdout to write to anything else";
        return Err(invalid(format!("{shown} {what}")));
    }
    Ok(file)
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}
