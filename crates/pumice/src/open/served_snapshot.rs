//! Advice for a snapshot of a drive that a server has locked: the server offers it.

use anyhow::Error;
use pumice_drive::base::Result;

use crate::control;
use crate::place::Place;
use pumice_drive::base;
use pumice_drive::base::ErrorKind;

/// Adds advice on reading a snapshot, if a server offers it, to the error for a drive that is in
/// use.
pub(crate) fn advise(place: &Place, error: Error) -> Error {
    let is_busy =
        error.downcast_ref::<base::Error>().map(base::Error::kind) == Some(ErrorKind::Busy);
    let (true, Some(snapshot)) = (is_busy, &place.snapshot) else { return error };
    let shown = format!("{}@{snapshot}", place.path.display());
    match uri(place) {
        Ok(Some(uri)) => error.context(format!(
            "{shown}: read it through the server of the drive, as in nbdcopy '{uri}' disk.img"
        )),
        Ok(None) if matches!(control::service(&place.path), Ok(Some(_))) => error.context(format!(
            "{shown}: `pumice attach --read-only` and `pumice clone` read it while the drive is \
             attached"
        )),
        _ => error,
    }
}

/// Returns the URI at which the drive's server offers a snapshot, if it does.
///
/// # Errors
/// The server belongs to another user, or does not answer.
pub(crate) fn uri(place: &Place) -> Result<Option<String>> {
    let (Some(snapshot), Some(service)) = (&place.snapshot, control::service(&place.path)?) else {
        return Ok(None);
    };
    Ok(service.uris.first().map(|uri| uri_of(uri, &service.export, snapshot)))
}

/// Returns the URI of a snapshot's export, given a URI of the drive.
fn uri_of(drive: &str, export: &str, snapshot: &str) -> String {
    let (before, query) = drive.split_once('?').unwrap_or((drive, ""));
    let (scheme, rest) = before.split_once("://").unwrap_or(("nbd", before));
    let server = rest.split('/').next().unwrap_or_default();
    let name = encoded(&format!("{export}@{snapshot}"));
    let query = if query.is_empty() { String::new() } else { format!("?{query}") };
    format!("{scheme}://{server}/{name}{query}")
}

/// Percent-encodes characters that have a meaning in a URI.
pub(crate) fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

#[cfg(test)]
mod tests {
    //! Goal: clients accept the URI.
    use super::*;

    #[test]
    fn a_snapshot_has_the_uri_of_its_drive_and_its_own_name() {
        for (drive, expected) in [
            ("nbd+unix:///?socket=/run/s", "nbd+unix:///a%40x%20y?socket=/run/s"),
            ("nbd+unix:///a?socket=/run/s", "nbd+unix:///a%40x%20y?socket=/run/s"),
            ("nbds://[::1]:10809", "nbds://[::1]:10809/a%40x%20y"),
            ("nbd://10.0.0.1:10809/a", "nbd://10.0.0.1:10809/a%40x%20y"),
        ] {
            assert_eq!(uri_of(drive, "a", "x y"), expected);
        }
    }
}
