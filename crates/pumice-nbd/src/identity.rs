//! The identity of a server under TLS, and the clients it accepts.
//!
//! The files have the names that qemu and libnbd use, in one directory: `server-cert.pem` (the
//! certificate, followed by intermediate ones), `server-key.pem`, and, to verify clients,
//! `ca-cert.pem` and optionally `ca-crl.pem`. TLS 1.2 and 1.3 with the defaults of the library;
//! pre-shared keys are not supported by the library.
//!
//! An identity never changes. A server that gets another identity uses it for new connections, and
//! checks with it whether the present clients would still be accepted.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::certificate::{Validity, validity, validity_of_list};
use pumice_drive::base::{Error, ErrorKind, Result};

const CHAIN: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";
const AUTHORITY: &str = "ca-cert.pem";
const REVOKED: &str = "ca-crl.pem";

/// The identity of a server, including the clients that it accepts.
#[derive(Clone)]
pub struct Identity {
    config: Arc<ServerConfig>,
    /// Checks the certificates of clients.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    validities: Vec<Validity>,
    /// A hash of the files.
    fingerprint: u64,
}

/// Files of a directory, as they are read.
struct Files<'a> {
    directory: &'a Path,
    hasher: DefaultHasher,
}

impl Identity {
    /// Reads the files of a directory; see the header of the module. With `verifies_clients`, a
    /// client needs a certificate that the authority in `ca-cert.pem` has signed and that
    /// `ca-crl.pem`, if it exists, does not revoke. If that list has expired, no client is
    /// accepted. Logs a warning if every user can read the key.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] and similar for a file; [`ErrorKind::InvalidInput`] if the content
    /// of a file is invalid, or if key and certificate do not belong together.
    pub fn load(directory: &Path, verifies_clients: bool) -> Result<Self> {
        let mut files = Files { directory, hasher: DefaultHasher::new() };
        let mut validities = Vec::new();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| files.unusable("", &error))?;
        let verifier: Option<Arc<dyn ClientCertVerifier>> = if verifies_clients {
            let mut roots = RootCertStore::empty();
            for certificate in files.certificates(AUTHORITY)? {
                validities.extend(validity(AUTHORITY, &certificate));
                roots.add(certificate).map_err(|error| files.unusable(AUTHORITY, &error))?;
            }
            let lists = files.revocations()?;
            validities.extend(lists.iter().filter_map(|list| validity_of_list(REVOKED, list)));
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                .with_crls(lists)
                // An old list would admit clients whose certificates were revoked since.
                .enforce_revocation_expiration()
                .build()
                .map_err(|error| files.unusable(AUTHORITY, &error))?;
            Some(verifier)
        } else {
            None
        };
        let builder = match &verifier {
            Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
            None => builder.with_no_client_auth(),
        };
        let chain = files.certificates(CHAIN)?;
        validities.extend(chain.iter().filter_map(|certificate| validity(CHAIN, certificate)));
        let key = PrivateKeyDer::from_pem_slice(&files.read(KEY)?)
            .map_err(|error| files.unusable(KEY, &error))?;
        files.warn_of_readers(KEY);
        let config = builder.with_single_cert(chain, key);
        let config = config.map_err(|error| files.unusable(KEY, &error))?;
        let fingerprint = files.hasher.finish();
        Ok(Self { config: Arc::new(config), verifier, validities, fingerprint })
    }

    /// Returns the validity of the server's certificates, the authorities and the revocation lists.
    pub fn validities(&self) -> &[Validity] {
        &self.validities
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.config.clone()
    }

    /// Returns whether a client that has presented this certificate chain, or none, is accepted
    /// now.
    pub(super) fn accepts(&self, chain: Option<&[CertificateDer<'_>]>) -> bool {
        let Some(verifier) = &self.verifier else { return true };
        let Some([first, others @ ..]) = chain else { return false };
        verifier.verify_client_cert(first, others, UnixTime::now()).is_ok()
    }
}

/// Identities are equal if they come from files with the same contents.
impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint && self.verifier.is_some() == other.verifier.is_some()
    }
}

/// Does not show the key.
impl fmt::Debug for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Identity").field("validities", &self.validities).finish()
    }
}

impl Files<'_> {
    fn unusable(&self, name: &str, error: &dyn std::error::Error) -> Error {
        let what = format!("cannot use {}: {error}", self.directory.join(name).display());
        Error::new(ErrorKind::InvalidInput, what)
    }

    fn read(&mut self, name: &str) -> Result<Vec<u8>> {
        let path = self.directory.join(name);
        let bytes = std::fs::read(&path)
            .map_err(|error| Error::os(format!("cannot read {}", path.display()), error))?;
        (name, &bytes).hash(&mut self.hasher);
        Ok(bytes)
    }

    fn certificates(&mut self, name: &str) -> Result<Vec<CertificateDer<'static>>> {
        let certificates: std::result::Result<Vec<_>, _> =
            CertificateDer::pem_slice_iter(&self.read(name)?).collect();
        match certificates {
            Ok(certificates) if !certificates.is_empty() => Ok(certificates),
            _ => {
                let what = format!("{} holds no certificate", self.directory.join(name).display());
                Err(Error::new(ErrorKind::InvalidInput, what))
            }
        }
    }

    fn revocations(&mut self) -> Result<Vec<CertificateRevocationListDer<'static>>> {
        if !self.directory.join(REVOKED).exists() {
            return Ok(Vec::new());
        }
        CertificateRevocationListDer::pem_slice_iter(&self.read(REVOKED)?)
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| self.unusable(REVOKED, &error))
    }

    fn warn_of_readers(&self, name: &str) {
        let path = self.directory.join(name);
        let mode = std::fs::metadata(&path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o004 != 0 {
            let path = path.display();
            tracing::warn!(%path, "every user can read the private key: chmod o-r");
        }
    }
}
