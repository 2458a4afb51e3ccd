//! A simulated drive and its host as a target, in virtual time.
//!
//! Every run of a benchmark meets the drive as the one before left it: it is new once, and then
//! used. Closing it ends nothing.

use std::rc::Rc;
use std::sync::Arc;

use super::Target;
use pumice_drive::base::{AlignedBuffer, Result};
use pumice_sim::system::System;

/// A simulated drive that others hold too.
pub struct SimTarget(pub Rc<System>);

impl Target for SimTarget {
    async fn read(&self, offset: u64, mut buffer: AlignedBuffer) -> (AlignedBuffer, Result<()>) {
        let result = self.0.read(offset, &mut buffer).await;
        (buffer, result.map_err(Into::into))
    }

    async fn write(&self, offset: u64, buffer: &Arc<AlignedBuffer>) -> Result<()> {
        Ok(self.0.write(offset, buffer).await?)
    }

    async fn flush(&self) -> Result<()> {
        Ok(self.0.flush().await?)
    }

    async fn trim(&self, offset: u64, len: u64) -> Result<()> {
        Ok(self.0.trim(offset, len).await?)
    }

    async fn close(&self) -> Result<()> {
        Ok(())
    }
}
