//! The transfer of a snapshot: the request of a client, and the snapshots that are sent for it.

use serde::{Deserialize, Serialize};

use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::controller::{Partial, SnapshotInfo};

/// The requested transfer: a snapshot by its name, and the name of one that the receiver has; or
/// the rest of a snapshot of which a receiver has a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    /// Name of the snapshot, or of the snapshot of the part if there is one.
    pub snapshot: Option<String>,
    /// Name of the base; `None` for a whole disk or a part.
    pub since: Option<String>,
    /// The part.
    pub resume: Option<Partial>,
}

/// The snapshots and the start of a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sending {
    /// The snapshot.
    pub snapshot: SnapshotInfo,
    /// The base of the transfer.
    pub since: Option<SnapshotInfo>,
    /// Byte of the disk at which the transfer starts.
    pub start: u64,
}

impl Wanted {
    /// Finds the snapshots among those of the drive.
    ///
    /// # Errors
    /// `NotFound`; `InvalidInput` if the part belongs to another snapshot.
    pub(crate) fn find(&self, all: &[SnapshotInfo]) -> Result<Sending> {
        let missing = |what: String| Error::new(ErrorKind::NotFound, what);
        let named = |name: &str| {
            let found = all.iter().find(|info| info.name == name).cloned();
            let what = || format!("there is no snapshot named {name}: see `pumice snapshot list`");
            found.ok_or_else(|| missing(what()))
        };
        let Some(Partial { snapshot, base, offset }) = self.resume else {
            let what = "name the snapshot: PATH@NAME, without / in NAME";
            let name = self.snapshot.as_deref();
            let name = name.ok_or_else(|| Error::new(ErrorKind::InvalidInput, what))?;
            let since = self.since.as_deref().map(named).transpose()?;
            return Ok(Sending { snapshot: named(name)?, since, start: 0 });
        };
        let known = |guid| {
            let found = all.iter().find(|info| info.guid == guid).cloned();
            let what = || format!("the snapshot with identity {guid} no longer exists");
            found.ok_or_else(|| missing(what()))
        };
        let snapshot = known(snapshot)?;
        if self.snapshot.as_ref().is_some_and(|name| *name != snapshot.name) {
            let what = format!("the token belongs to snapshot {}", snapshot.name);
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
        Ok(Sending { snapshot, since: base.map(known).transpose()?, start: offset })
    }
}

#[cfg(test)]
mod tests {
    //! Goal: names and tokens find their snapshots, and no others.
    use super::*;

    fn snapshot(name: &str, guid: u128) -> SnapshotInfo {
        serde_json::from_value(serde_json::json!({
            "name": name, "guid": uuid::Uuid::from_u128(guid), "sequence": guid,
            "created_seconds": 0, "size_bytes": 0, "mapped_bytes": 0, "live_bytes": 0,
            "written_bytes": 0, "alone_bytes": 0,
        }))
        .expect("a snapshot")
    }

    #[test]
    fn names_and_tokens_find_their_snapshots() {
        let all = [snapshot("a", 1), snapshot("b", 2)];
        let part = |snapshot, base: Option<u128>| Partial {
            snapshot: uuid::Uuid::from_u128(snapshot),
            base: base.map(uuid::Uuid::from_u128),
            offset: 4096,
        };
        let find = |snapshot: Option<&str>, since: Option<&str>, resume| {
            let (snapshot, since) = (snapshot.map(str::to_owned), since.map(str::to_owned));
            Wanted { snapshot, since, resume }.find(&all)
        };
        let named = find(Some("b"), Some("a"), None).unwrap();
        let [a, b] = all.clone();
        assert_eq!(named, Sending { snapshot: b.clone(), since: Some(a.clone()), start: 0 });
        let rest = find(None, None, Some(part(2, Some(1)))).unwrap();
        assert_eq!(rest, Sending { snapshot: b, since: Some(a), start: 4096 });
        for (wrong, mention) in [
            (find(None, None, None), "PATH@NAME"),
            (find(Some("c"), None, None), "no snapshot named c"),
            (find(Some("b"), Some("c"), None), "no snapshot named c"),
            (find(Some("a"), None, Some(part(2, None))), "belongs to snapshot b"),
            (find(None, None, Some(part(3, None))), "no longer exists"),
            (find(None, None, Some(part(2, Some(3)))), "no longer exists"),
        ] {
            let error = wrong.unwrap_err().to_string();
            assert!(error.contains(mention), "{error}");
        }
    }
}
