//! The drive as a vhost-user device, for virtual machines.

use std::path::PathBuf;
use std::rc::Rc;

use anyhow::Result;

use super::Settings;
use super::exports::Served;
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Lineage, Listen, Listener};
use pumice_vhost::{Identity, KnownGuest, SERIAL_BYTES, Server};

/// The socket for front ends, if one is configured.
pub(super) struct Socket(Option<(Listener, PathBuf)>);

/// The device of a server, if there is one, and the state of its drive when the server ends.
#[derive(Default)]
pub(super) struct Device(Option<(Rc<Server>, String)>);

impl Socket {
    /// Listens.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub(super) fn bind(settings: &Settings, runtime: &Runtime) -> Result<Self> {
        let Some(path) = &settings.vhost_user else { return Ok(Self(None)) };
        let listener = settings.bind(runtime, &Listen::Unix(path.to_owned()))?;
        Ok(Self(Some((listener, path.to_owned()))))
    }

    /// Serves the only drive. `inherited` is the value that [`Device::hand_over`] returned in the
    /// server that restarted as this one.
    pub(super) fn serve(
        self,
        runtime: &Runtime,
        served: &[Served],
        inherited: Option<&str>,
    ) -> Device {
        let (Some((listener, socket)), [only]) = (self.0, served) else { return Device(None) };
        if let Some(snapshots) = &only.snapshots {
            snapshots.note_device();
        }
        let mut serial = only.drive.get().info().uuid.simple().to_string();
        serial.truncate(SERIAL_BYTES);
        // A guest continues only on the disk on which it ran, and only if no data was lost since.
        let Lineage { follows, leaves } = &only.export.lineage;
        let guest = inherited.and_then(|text| guest_of(text, follows));
        let identity = Identity { serial, guest };
        let server = Server::new(runtime.clone(), only.export.disk.clone(), &identity);
        runtime.spawn(server.clone().serve(listener));
        let (drive, socket) = (only.path.display(), socket.display());
        tracing::info!(%drive, %socket, "serving a vhost-user device");
        Device(Some((server, leaves.clone())))
    }
}

/// Returns the guest described by a previous server, if that server left the drive in this state.
fn guest_of(text: &str, state: &str) -> Option<KnownGuest> {
    text.strip_prefix(state)?.strip_prefix(' ')?.parse().ok()
}

impl Device {
    /// Ends the session with the front end.
    ///
    /// # Errors
    /// The error of the flush: data acknowledged since the last good one may be lost.
    pub(super) async fn shutdown(&self) -> Result<()> {
        match &self.0 {
            Some((server, _)) => Ok(server.shutdown().await?),
            None => Ok(()),
        }
    }

    /// Ends the session with the front end. Returns the guest that may continue after it has
    /// reconnected to the next server, as which this one restarts once it has closed the drive.
    /// Waits for the requests in flight until `interrupted`; then no guest may continue.
    ///
    /// # Errors
    /// See [`Self::shutdown`].
    pub(super) async fn hand_over(
        &self,
        interrupted: impl Future<Output = ()>,
    ) -> Result<Option<String>> {
        let Some((server, state)) = &self.0 else { return Ok(None) };
        let guest = server.hand_over(interrupted).await?;
        if guest.is_none() {
            tracing::warn!("a signal ended the wait for requests: restart the guest");
        }
        Ok(guest.map(|guest| format!("{state} {guest}")))
    }
}
