//! Stands in for `vhost` in a program without that feature: there is no device.

use anyhow::Result;

use super::exports::Served;
use super::network::Network;
use pumice_drive::runtime::Runtime;

/// No socket.
pub(super) struct Socket;

/// No device.
pub(super) struct Device;

/// Does nothing: there is no option to check.
pub(super) fn check(_: &Network, _: usize) -> Result<()> {
    Ok(())
}

impl Socket {
    pub(super) fn bind(_: &Network, _: &Runtime) -> Result<Self> {
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
