//! An export of any NBD server as a target, accessed with this project's client.
//!
//! Each thread has its own connection. Requests of one turn are sent together, and only the client
//! copies data. An export without FLUSH is assumed to have no volatile cache, as in the kernel's
//! client, so a flush completes immediately.

use std::sync::Arc;

use super::Target;
use super::blank::{LABEL_BYTES, too_small};
use crate::error::{Error, Result};
use pumice_drive::base::AlignedBuffer;
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::Durability;
use pumice_nbd::client::{Client, Uri};

/// Maximum time for reading the labels ([`LABEL_BYTES`]): long enough for a server with remote
/// storage.
const LABELS_NS: u64 = 30_000_000_000;

/// A connection to an export.
pub struct NbdTarget(Client);

impl NbdTarget {
    /// Connects, and starts a task of the runtime for the connection.
    ///
    /// # Errors
    /// The errors of [`Client::connect`].
    pub async fn open(runtime: &Runtime, uri: &Uri) -> Result<Self> {
        Ok(Self(Client::connect(runtime, uri).await?))
    }
}

impl Target for NbdTarget {
    async fn read(&self, offset: u64, buffer: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        let (buffer, result) = self.0.read(offset, buffer).await;
        (buffer, result.map_err(Error::from))
    }

    async fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> Result<()> {
        Ok(self.0.write_shared(offset, buffer, Durability::Volatile).await?)
    }

    async fn flush(&self) -> Result<()> {
        if self.0.capabilities().has_flush {
            self.0.flush().await?;
        }
        Ok(())
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        Ok(self.0.trim(offset, len, Durability::Volatile).await?)
    }

    async fn close(&self) -> Result<()> {
        Ok(self.0.disconnect().await?)
    }
}

/// Returns the size of an export in bytes.
pub(super) fn size_bytes(uri: &Uri) -> Result<u64> {
    let runtime = Runtime::new(Backend::Auto)?;
    let size_bytes = runtime.block_on(async {
        let client = Client::connect(&runtime, uri).await?;
        let size_bytes = client.size_bytes();
        // The size is already known, so disconnection errors do not matter.
        let _ = client.disconnect().await;
        Ok(size_bytes)
    });
    runtime.drop_tasks();
    size_bytes
}

/// Implements [`Location::prepare`](super::Location::prepare) for an export.
pub(super) fn prepare(uri: &Uri, bytes: u64, destroy: bool) -> Result<()> {
    prepare_within(uri, bytes, destroy, LABELS_NS)
}

fn prepare_within(uri: &Uri, bytes: u64, destroy: bool, limit_ns: u64) -> Result<()> {
    let runtime = Runtime::new(Backend::Auto)?;
    let looked = runtime.block_on(async {
        let client = Client::connect(&runtime, uri).await?;
        let looking = look(&client, uri, bytes, destroy);
        let Some(result) = runtime.timeout(limit_ns, looking).await else {
            let seconds = limit_ns as f64 / 1e9;
            let what = format!("{uri} did not answer a read within {seconds} s");
            return Err(Error::Busy(what));
        };
        // The result is already known, so disconnection errors do not matter.
        let _ = client.disconnect().await;
        result
    });
    runtime.drop_tasks();
    looked
}

async fn look(client: &Client, uri: &Uri, bytes: u64, destroy: bool) -> Result<()> {
    let size_bytes = client.size_bytes();
    if client.is_read_only() {
        return Err(Error::ReadOnly(format!("{uri} is read-only")));
    }
    if size_bytes < bytes {
        return Err(too_small(uri, size_bytes, bytes));
    }
    if destroy {
        return Ok(());
    }
    let mut label = AlignedBuffer::zeroed(LABEL_BYTES.min(size_bytes) as usize);
    for offset in [0, size_bytes - label.len() as u64] {
        let (buffer, result) = client.read(offset, label).await;
        result?;
        label = buffer;
        if label.iter().any(|byte| *byte != 0) {
            return Err(Error::AlreadyExists(format!(
                "{uri} is not blank: use --destroy-data to overwrite its content"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    //! Goal: an export that does not answer is refused. Method: a thread acts as its server, up to
    //! the first request.
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;
    use pumice_drive::base::ErrorKind;

    #[test]
    fn a_silent_export_times_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let server = std::thread::spawn(move || {
            let mut socket = listener.accept().unwrap().0;
            socket.write_all(b"NBDMAGICIHAVEOPT\0\0").unwrap();
            // The client's flags; an option's magic, number and length; the name.
            socket.read_exact(&mut [0; 4 + 16 + "disk".len()]).unwrap();
            socket.write_all(&[&4096u64.to_be_bytes()[..], &[0, 1], &[0; 124]].concat()).unwrap();
            let mut asked = Vec::new();
            socket.read_to_end(&mut asked).unwrap();
            asked
        });
        let refused = prepare_within(&Uri::unix(&path, "disk"), 4096, false, 1_000_000);
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy, "{}", refused.chain());
        assert!(refused.to_string().ends_with("did not answer a read within 0.001 s"));
        assert_eq!(server.join().unwrap().len(), 28, "a read and nothing after it");
    }
}
