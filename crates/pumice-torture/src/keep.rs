//! Stores the states of a world in files, for other programs that read drives: the medium before a
//! life, as the file of a drive, the disk that the life found on it and the oracle accepted, and
//! the expected content of each snapshot.
//!
//! Not stored: the state after a killed process whose unsynced data is still in the fault layer,
//! which is not in memory yet. Storing states does not change the run: it draws no random numbers
//! and takes no virtual time.

use std::fs::File;
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use pumice_drive::base::{AlignedBuffer, SegmentId};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::media::{Geometry, Medium, SUPERBLOCK_SLOTS, SUPERBLOCK_STRIDE};
use pumice_drive::runtime::Runtime;

/// Unit in which files are sparse, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// The files of one world.
#[derive(Clone, Debug)]
pub(super) struct Keep {
    /// Folder of the files, which exists.
    pub(super) folder: PathBuf,
    /// Seed of the world.
    pub(super) seed: u64,
}

impl Keep {
    fn create(&self, life: u64, extension: &str, bytes: u64) -> Result<File> {
        let name = format!("world-{}-life-{life}.{extension}", self.seed);
        let file = File::create(self.folder.join(name))?;
        file.set_len(bytes)?;
        Ok(file)
    }

    /// Writes the medium as it is before a life.
    pub(super) fn medium(
        &self,
        life: u64,
        memory: &MemMedium,
        geometry: Geometry,
        runtime: &Runtime,
    ) -> Result<()> {
        let file = self.create(life, "pumice", geometry.medium_bytes())?;
        for slot in 0..SUPERBLOCK_SLOTS {
            let bytes = runtime.block_on(memory.read_superblock(slot));
            let bytes = bytes.expect("memory does not fail");
            file.write_all_at(&bytes, u64::from(slot) * SUPERBLOCK_STRIDE)?;
        }
        let segment_bytes = geometry.segment_bytes;
        let mut buffer = AlignedBuffer::zeroed(segment_bytes as usize);
        for segment in 0..geometry.segment_count {
            buffer = runtime.block_on(memory.read(SegmentId(segment), 0, buffer)).0;
            let offset = geometry.data_offset + u64::from(segment) * u64::from(segment_bytes);
            write_sparse(&file, offset, &buffer)?;
        }
        Ok(())
    }

    /// Writes the disk that a life found.
    pub(super) fn disk(&self, life: u64, disk: &[u8]) -> Result<()> {
        write_sparse(&self.create(life, "img", disk.len() as u64)?, 0, disk)
    }

    /// Writes the disk of a snapshot that the medium has before a life.
    pub(super) fn snapshot(&self, life: u64, name: &str, disk: &[u8]) -> Result<()> {
        let file = self.create(life, &format!("{name}.img"), disk.len() as u64)?;
        write_sparse(&file, 0, disk)
    }
}

/// Writes the chunks that are not zero.
fn write_sparse(file: &File, offset: u64, bytes: &[u8]) -> Result<()> {
    for (index, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
        if chunk.iter().any(|&byte| byte != 0) {
            file.write_all_at(chunk, offset + (index * CHUNK_BYTES) as u64)?;
        }
    }
    Ok(())
}
