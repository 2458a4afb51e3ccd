//! Facts from this machine's servers about the Pumice drive of a target: an export, a device or a
//! folder on it.

use std::path::{Path, PathBuf};

use crate::cli::state::State;
use crate::control;
use pumice_bench::results::environment;
use pumice_bench::target::Location;
use pumice_nbd::client::Uri;

/// Facts of the medium's environment that belong to a drive.
const MEDIUM_FACTS: [&str; 5] =
    ["file system", "mount options", "device", "device stack", "device model"];

/// Returns facts about the drive of a target, if it is served or attached on this machine and its
/// server may be asked: its codec, geometry, fill and medium.
pub(super) fn served(location: &Location) -> Vec<(String, String)> {
    if matches!(location, Location::Drive(_) | Location::Sim(_)) {
        return Vec::new();
    }
    // Facts that a server does not return are omitted, like any fact that cannot be read.
    for (service, info) in control::servers(&[]).into_iter().flatten() {
        let path = PathBuf::from(&service.path);
        if !is_of(location, &State::of(&path, Some(service))) {
            continue;
        }
        let mut facts = vec![("drive".to_owned(), path.display().to_string())];
        facts.extend(environment::drive(&info));
        let below = environment::environment(Some(&path)).into_iter();
        let below = below.filter(|(name, _)| MEDIUM_FACTS.contains(&name.as_str()));
        facts.extend(below.map(|(name, fact)| (format!("medium {name}"), fact)));
        return facts;
    }
    Vec::new()
}

/// Whether a target is on a drive that is in use in this way.
fn is_of(location: &Location, state: &State) -> bool {
    let within = |path: &Path| {
        let Ok(path) = std::path::absolute(path) else { return false };
        let mounted = state.mountpoint.as_ref().is_some_and(|place| path.starts_with(place));
        mounted || state.devices.iter().any(|device| Path::new(device) == path)
    };
    match location {
        Location::Nbd(uri) => {
            state.uris.iter().any(|served| Uri::parse(served).is_ok_and(|served| served == *uri))
        }
        Location::File(path) | Location::Folder(path) | Location::Device(path) => within(path),
        Location::Existing(inner) => is_of(inner, state),
        Location::Drive(_) | Location::Sim(_) => false,
    }
}
