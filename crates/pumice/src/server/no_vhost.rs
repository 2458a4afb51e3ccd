//! Replaces `vhost` in a program built without that feature, which has no device.

use anyhow::Result;

use super::Settings;
use super::exports::Served;
use pumice_drive::runtime::Runtime;

/// No socket.
pub(super) struct Socket;

/// No device.
#[derive(Default)]
pub(super) struct Device;

impl Socket {
    pub(super) fn bind(_: &Settings, _: &Runtime) -> Result<Self> {
        Ok(Self)
    }

    pub(super) fn serve(self, _: &Runtime, _: &[Served], _: Option<&str>) -> Device {
        Device
    }
}

impl Device {
    pub(super) async fn shutdown(&self) -> Result<()> {
        Ok(())
    }

    pub(super) async fn hand_over(&self, _: impl Future<Output = ()>) -> Result<Option<String>> {
        Ok(None)
    }
}
