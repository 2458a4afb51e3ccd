//! The remains of a world's drive are extracted, and rebuilt into a new drive.
//!
//! Both must return the disk; where the medium is damaged, blocks may be lost, but the returned
//! data is right. From records alone, `rebuild` may bring back trimmed or filled blocks, and states
//! an upper bound of their number: then only that bound is checked.

use super::oracle::Mismatch;
use super::world::World;
use pumice_drive::base::Result;
use pumice_drive::base::units::BLOCK_BYTES;
use pumice_drive::controller::{
    DamagedDrive, Drive, Extract, Extracted, Identity, OpenOptions, RebuiltFrom, Spec, copy_into,
    create,
};
use pumice_drive::media::mem::MemMedium;
use pumice_drive::runtime::Runtime;
use std::rc::Rc;

/// A disk that was read from a drive as a whole.
struct Given {
    bytes: Vec<u8>,
    /// Blocks that are lost.
    lost: Vec<(u64, u64)>,
}

impl Given {
    fn of(size_bytes: u64) -> Self {
        Self { bytes: vec![0; size_bytes as usize], lost: Vec::new() }
    }

    fn take(&mut self, part: &Extracted<'_>) {
        let target = |offset: u64, len: u64| offset as usize..(offset + len) as usize;
        match part {
            Extracted::Data { offset, bytes } => {
                self.bytes[target(*offset, bytes.len() as u64)].copy_from_slice(bytes);
            }
            Extracted::Fill { offset, len, byte } => self.bytes[target(*offset, *len)].fill(*byte),
            Extracted::Lost(problem) => {
                self.lost.push((problem.lba.unwrap_or(0), problem.lba_count.unwrap_or(0)));
            }
        }
    }
}

impl World {
    /// Rebuilds a drive that no longer opens. The lost data is unknown, so only completion is
    /// checked.
    pub(super) fn rebuild_wreck(&self) -> Result<(), Mismatch> {
        let runtime = self.scene.runtime.clone();
        self.scene.tally.borrow_mut().rescues += 1;
        let rebuilt = runtime.block_on(rebuild(&self.memory, &runtime));
        rebuilt.map(drop).map_err(|error| Mismatch {
            promised: "a drive that does not open can be rebuilt".to_owned(),
            found: error.chain(),
        })
    }

    /// Extracts the closed drive, rebuilds it, and compares both with the oracle.
    pub(super) fn rescue(&self) -> Result<(), Mismatch> {
        let runtime = self.scene.runtime.clone();
        let failed = |what: &str, error: &pumice_drive::base::Error| Mismatch {
            promised: format!("{what} completes"),
            found: error.chain(),
        };
        if !self.scene.is_damaged.get() {
            let extracted = runtime.block_on(extract(&self.memory, &runtime, self.options));
            let given = extracted.map_err(|error| failed("an extraction", &error))?;
            self.judge_given("extracted", &given, 0)?;
        }
        let rebuilt = runtime.block_on(rebuild(&self.memory, &runtime));
        let (given, from, doubtful) = rebuilt.map_err(|error| failed("a rebuild", &error))?;
        // Where a header is damaged, the records that followed it are unknown.
        if from != RebuiltFrom::Records || !self.scene.is_damaged.get() {
            self.judge_given("rebuilt", &given, doubtful)?;
        }
        self.scene.tally.borrow_mut().rescues += 1;
        Ok(())
    }

    fn judge_given(&self, how: &str, given: &Given, doubtful: u64) -> Result<(), Mismatch> {
        let is_lost = |lba: u64| {
            given.lost.iter().any(|&(first, count)| (first..first + count).contains(&lba))
        };
        if !given.lost.is_empty() && !self.scene.is_damaged.get() {
            return Err(Mismatch {
                promised: format!("an {how} disk is whole where nothing is damaged"),
                found: format!("lost blocks: {:?}", given.lost),
            });
        }
        let mut wrong = Vec::new();
        for (lba, block) in (0..).zip(given.bytes.chunks(BLOCK_BYTES)) {
            if !is_lost(lba) && !self.scene.oracle.borrow().may_hold(lba as usize, block) {
                wrong.push(lba);
            }
        }
        if wrong.len() as u64 <= doubtful {
            return Ok(());
        }
        Err(Mismatch {
            promised: format!("an {how} disk is unchanged, except for {doubtful} blocks"),
            found: format!("{} wrong blocks, the first is LBA {}", wrong.len(), wrong[0]),
        })
    }
}

async fn extract(memory: &MemMedium, runtime: &Runtime, options: OpenOptions) -> Result<Given> {
    let options = OpenOptions { read_only: true, ..options };
    let drive = Drive::open(Rc::new(memory.clone()), runtime.clock(), options).await?;
    let mut given = Given::of(drive.size_bytes());
    let mut extract = Extract::new(&drive);
    while let Some(part) = extract.next().await {
        given.take(&part);
    }
    drive.close().await?;
    Ok(given)
}

/// Rebuilds a drive into a new one, and reads the new one.
async fn rebuild(memory: &MemMedium, runtime: &Runtime) -> Result<(Given, RebuiltFrom, u64)> {
    let identity = Identity::of_superblocks(memory).await?;
    let identity = identity.expect("a world keeps a superblock");
    let size_bytes = identity.size_bytes();
    // Noise may replace all lost data, and take more space than it did.
    let spec = identity.spec(uuid::Uuid::from_u128(0x7e5c), None);
    let spec = Spec { capacity_bytes: None, ..spec };
    let target = MemMedium::new(spec.geometry()?.medium_bytes());
    create(&target, &spec).await?;
    let drive = Drive::open(Rc::new(target), runtime.clock(), OpenOptions::default()).await?;
    let mut damaged =
        DamagedDrive::open(Rc::new(memory.clone()), runtime.clock(), identity).await?;
    let mut lost = Given::of(0);
    let mut parts = damaged.parts();
    while let Some(part) = parts.next().await {
        copy_into(&part, &drive).await?;
        if let Extracted::Lost(_) = part {
            lost.take(&part);
        }
    }
    drop(parts);
    let mut bytes = vec![0; size_bytes as usize];
    for (offset, part) in (0..).step_by(1 << 20).zip(bytes.chunks_mut(1 << 20)) {
        drive.read(offset, part).await?;
    }
    drive.close().await?;
    Ok((Given { bytes, lost: lost.lost }, damaged.rebuilt_from(), damaged.doubtful_blocks()))
}
