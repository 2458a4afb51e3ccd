//! The state of the bucket: the newest claim, the newest commit, and the content of its image.
//! Found without listings, which may lag: claims are numbered without gaps and never deleted, and
//! enough commits of an epoch are retained to find the newest by checking which exist.
//!
//! ```text
//! commits of an epoch that exist:   1 . . 256 . . 512 . . 768 769 770 (newest)
//! ```

use super::commits::KEPT_EVERY;
use super::object::{
    Claim, Commit, CommitId, DRIVE_NAME, DriveObject, EPOCH_MAX, Index, NUMBER_MAX, claim_name,
};
use super::state::Superblocks;
use super::store::{Patient, Store};
use crate::base::{Clock, Error, ErrorContext, ErrorKind, Result, ensure};

/// Maximum number of consecutive claims without a commit that a search skips. Each is an opening
/// that failed after its claim, which takes ten seconds. Otherwise arbitrary: two days of such
/// openings.
const EPOCHS_EMPTY_MAX: u32 = 1 << 14;

/// The newest image in the bucket.
pub(super) struct Newest {
    pub(super) id: CommitId,
    pub(super) superblocks: Superblocks,
    pub(super) index: Index,
}

/// Returns the last number from `first` on for which `exists` holds, provided that it holds up to
/// some number and not beyond; `None` if it holds for none. The number of calls is about twice the
/// logarithm of the answer.
async fn last<F: Future<Output = Result<bool>>>(
    first: u64,
    exists: impl Fn(u64) -> F,
) -> Result<Option<u64>> {
    if !exists(first).await? {
        return Ok(None);
    }
    let (mut low, mut step) = (first, 1);
    while exists(low + step).await? {
        low += step;
        step *= 2;
    }
    // Exists at `low`, not at `high`.
    let mut high = low + step;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if exists(middle).await? {
            low = middle
        } else {
            high = middle
        }
        assert!(first <= low && low < high, "a search has the answer between its bounds");
    }
    Ok(Some(low))
}

/// Returns the drive in the bucket.
///
/// # Errors
/// `NotFound` if there is none; `NotADrive`; errors of the store.
pub(super) async fn drive<S: Store, C: Clock>(store: &Patient<S, C>) -> Result<DriveObject> {
    let bytes = store.get(DRIVE_NAME, None).await?;
    DriveObject::decode(&bytes.or_error(ErrorKind::NotFound, "there is no drive in the bucket")?)
}

/// Returns the newest claim.
///
/// # Errors
/// `Corrupt` if there is none, or it does not belong to the drive; errors of the store.
pub(super) async fn newest_claim<S: Store, C: Clock>(
    store: &Patient<S, C>,
    drive: &DriveObject,
) -> Result<Claim> {
    let exists = async |epoch: u64| match u32::try_from(epoch) {
        Ok(epoch @ ..=EPOCH_MAX) => store.exists(&claim_name(epoch)).await,
        _ => Ok(false),
    };
    let epoch = last(1, exists).await?.and_then(|epoch| u32::try_from(epoch).ok());
    let what = "the drive in the bucket has no claim: its creation was interrupted; delete its \
                objects and create it again";
    let name = claim_name(epoch.or_error(ErrorKind::Corrupt, what)?);
    let bytes = store.get(&name, None).await?;
    let claim = Claim::decode(&bytes.or_error(ErrorKind::Corrupt, what)?, &name)?;
    let what = format!("{name} belongs to another drive");
    ensure(claim.uuid == drive.uuid, ErrorKind::Corrupt, what)?;
    Ok(claim)
}

/// Returns the number of the newest commit of an epoch, if it has any.
async fn newest_of<S: Store, C: Clock>(store: &Patient<S, C>, epoch: u32) -> Result<Option<u64>> {
    let exists = async |number: u64| {
        Ok(number <= NUMBER_MAX && store.exists(&CommitId { epoch, number }.name()).await?)
    };
    if !exists(1).await? {
        return Ok(None);
    }
    let kept = last(1, async |block: u64| exists(block * KEPT_EVERY).await).await?;
    let from = kept.map_or(1, |block| block * KEPT_EVERY);
    last(from, exists).await
}

/// Returns the newest image of epochs up to `epoch`.
///
/// # Errors
/// `Corrupt` if there is none, or it does not belong to the drive; errors of the store.
pub(super) async fn newest_commit<S: Store, C: Clock>(
    store: &Patient<S, C>,
    drive: &DriveObject,
    epoch: u32,
) -> Result<Newest> {
    let given_up = epoch.saturating_sub(EPOCHS_EMPTY_MAX);
    for epoch in (given_up + 1..=epoch).rev() {
        if let Some(number) = newest_of(store, epoch).await? {
            return image(store, drive, CommitId { epoch, number }).await;
        }
    }
    let what = format!("none of the last {EPOCHS_EMPTY_MAX} claims has a commit");
    ensure(given_up == 0, ErrorKind::Corrupt, what)?;
    let what = "the drive in the bucket has no commit: its creation was interrupted; delete its \
                objects and create it again";
    Err(Error::new(ErrorKind::Corrupt, what))
}

/// Returns the image of a commit.
async fn image<S: Store, C: Clock>(
    store: &Patient<S, C>,
    drive: &DriveObject,
    id: CommitId,
) -> Result<Newest> {
    assert!(id.epoch > 0 && id.number > 0, "commits are numbered from 1");
    let commit = load(store, drive, id).await?;
    let mut index = Index::new();
    let base = match commit.base {
        0 => None,
        number => Some(load(store, drive, CommitId { number, ..id }).await?),
    };
    let of_base = base.map(|base| base.changes).unwrap_or_default();
    for (segment, entry) in of_base.into_iter().chain(commit.changes) {
        match entry {
            Some(entry) => _ = index.insert(segment, entry),
            None => _ = index.remove(&segment),
        }
    }
    Ok(Newest { id, superblocks: commit.superblocks, index })
}

async fn load<S: Store, C: Clock>(
    store: &Patient<S, C>,
    drive: &DriveObject,
    id: CommitId,
) -> Result<Commit> {
    let name = id.name();
    let bytes = store.get(&name, None).await?;
    let missing =
        || format!("{name} is missing: another machine writes the drive, or it is damaged");
    let commit = Commit::decode(
        &bytes.or_error(ErrorKind::Corrupt, missing())?,
        &name,
        drive.segment_bytes,
    )?;
    let is_ours = commit.uuid == drive.uuid && commit.id == id;
    ensure(is_ours, ErrorKind::Corrupt, format!("{name} holds a commit of another name"))?;
    Ok(commit)
}
