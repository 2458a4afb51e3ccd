//! Applies a changed configuration while clients are served, where that is possible.
//!
//! | changed | clients |
//! |---|---|
//! | certificates, list of revocations | stay, unless theirs is not accepted any more |
//! | rules, limits, `no-list` | stay, unless a rule shuts them out |
//! | drives added | stay |
//! | drives removed | stay, but those of the drives |
//! | anything else, the program, or nothing | are parked: the server restarts |
//!
//! A reload without any change requests a restart, because there must be a way to request one.

use std::path::Path;

use anyhow::Result;

use super::{Offer, Planned, Server, expiry, uris};
use crate::remedy::chain_of as chain;
use pumice_drive::base::Clock;

/// A change of the configuration.
struct Change {
    offer: Offer,
    added: Vec<Planned>,
    /// Names of removed drives.
    removed: Vec<String>,
}

impl Server<'_> {
    /// Reads the settings again and applies the changes. Returns whether it has; if not, the server
    /// has to restart.
    ///
    /// # Errors
    /// The configuration is wrong; nothing has changed.
    pub(super) fn reload(&mut self, is_replaced: bool) -> Result<bool> {
        if is_replaced || self.is_broken || !self.drives.are_whole() {
            return Ok(false);
        }
        let Some(change) = self.change()? else { return Ok(false) };
        let begun_ns = self.runtime.now_ns();
        let Change { offer, added, removed } = change;
        for name in &removed {
            match self.drives.remove(&self.runtime, &self.server, name) {
                Ok(()) => tracing::info!(export = name, "removed a drive"),
                Err(error) => {
                    self.is_broken = true;
                    let error = chain(&error);
                    tracing::error!(export = name, %error, "cannot remove a drive");
                }
            }
        }
        // Set before the exports to which the rules apply are offered.
        self.server.set_policy(offer.options.policy.clone());
        if offer.options.security != self.offer.options.security {
            self.server.set_security(offer.options.security.clone());
            expiry::warn(&self.server.tally().validities());
        }
        self.offer = offer;
        let added = self.add(added);
        let milliseconds = (self.runtime.now_ns() - begun_ns) / 1_000_000;
        let removed = removed.len();
        tracing::info!(added, removed, milliseconds, "reloaded");
        Ok(true)
    }

    /// Opens drives; returns the number opened.
    fn add(&mut self, wanted: Vec<Planned>) -> usize {
        let mut added = Vec::new();
        for planned in wanted {
            let (name, path) = (planned.name.clone(), planned.path.clone());
            match self.drives.add(&self.runtime, &self.server, planned) {
                Ok(true) => added.push(path),
                Ok(false) => {}
                Err(error) => {
                    let (drive, error) = (path.display(), chain(&error));
                    tracing::error!(export = name, %drive, %error, "cannot add a drive");
                }
            }
        }
        // A single drive is the default export, but no longer when there are two.
        let (described, uris) = self.described();
        self.drives.set_uris(&uris);
        let is_new = |path: &Path| added.iter().any(|added| added == path);
        let new = described.into_iter().zip(uris).filter(|(drive, _)| is_new(&drive.path));
        let (new, uris): (Vec<_>, Vec<_>) = new.unzip();
        uris::log(&new, &uris);
        added.len()
    }

    /// Returns the changes; `None` if there are none, or if not all of them can be applied while
    /// clients are served.
    fn change(&self) -> Result<Option<Change>> {
        let Some(offer) = (self.settings.reread)()? else { return Ok(None) };
        let plan = &offer.drives;
        let served = self.drives.described().concat();
        let is_served = |name: &str| served.iter().any(|drive| drive.name == name);
        // Drives that could not be opened before are tried again.
        let added: Vec<_> =
            plan.iter().filter(|wanted| !is_served(&wanted.name)).cloned().collect();
        let is_wanted = |name: &str| plan.iter().any(|wanted| wanted.name == name);
        let names = served.iter().map(|drive| drive.name.clone());
        let removed: Vec<_> = names.filter(|name| !is_wanted(name)).collect();
        // Unchanged since the start, or since the last reload.
        let is_known = |wanted: &Planned| self.offer.drives.iter().any(|old| old.is_same(wanted));
        let stays = |wanted: &&Planned| is_served(&wanted.name);
        let are_same = plan.iter().filter(stays).all(is_known);
        let no_drive_changes = added.is_empty() && removed.is_empty();
        // A device keeps its drive until the server ends.
        let has_device = self.settings.vhost_user.is_some();
        let is_nothing = added.iter().all(is_known)
            && removed.is_empty()
            && offer.options.security == self.offer.options.security
            && offer.options.policy == self.offer.options.policy;
        if is_nothing || !are_same || (has_device && !no_drive_changes) {
            return Ok(None);
        }
        Ok(Some(Change { offer, added, removed }))
    }
}
