//! A simulated drive and its host as a target, in virtual time.
//!
//! Every run starts from the final state of the previous run: the drive is new only for the first
//! run. Closing the target leaves the drive open.

use std::rc::Rc;
use std::sync::Arc;

use super::Target;
use crate::error::Result;
use pumice_drive::base::AlignedBuffer;
use pumice_sim::system::System;

/// A shared simulated drive.
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
