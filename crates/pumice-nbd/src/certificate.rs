//! The content of certificates and revocation lists, in addition to the checks of TLS: names and
//! validity.

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

/// Maximum number of names taken from one certificate. Arbitrary; certificates of clients have one
/// or two.
const NAMES_MAX: usize = 64;

/// The validity period of a certificate or a revocation list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The file that contains it.
    pub file: String,
    /// Its beginning, in seconds since 1970.
    pub from_s: i64,
    /// Its end, in seconds since 1970: "not after", or the next update of a list.
    pub until_s: i64,
}

/// Returns the common names of a certificate, then its alternative names: host names, mail
/// addresses, and URIs. Returns no names if it cannot be parsed.
pub(super) fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let common = parsed.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let alternative = parsed.subject_alternative_name().ok().flatten();
    let alternative = alternative.iter().flat_map(|extension| &extension.value.general_names);
    let alternative = alternative.filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
            Some(*name)
        }
        _ => None,
    });
    common.chain(alternative).take(NAMES_MAX).map(str::to_owned).collect()
}

/// Returns the validity of a certificate; `None` if it cannot be parsed.
pub(super) fn validity(file: &str, certificate: &CertificateDer<'_>) -> Option<Validity> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let validity = parsed.validity();
    let (from_s, until_s) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    Some(Validity { file: file.to_owned(), from_s, until_s })
}

/// Returns the validity of a revocation list; `None` if it has no end or cannot be parsed.
pub(super) fn validity_of_list(
    file: &str,
    list: &CertificateRevocationListDer<'_>,
) -> Option<Validity> {
    let (_, parsed) = CertificateRevocationList::from_der(list).ok()?;
    let (from_s, until_s) = (parsed.last_update().timestamp(), parsed.next_update()?.timestamp());
    Some(Validity { file: file.to_owned(), from_s, until_s })
}
