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
use std::rc::Rc;

use anyhow::Result;

use super::exports::Planned;
use super::threads::Drives;
use super::{Args, expiry, uris};
use crate::cli::{chain, serve_args};
use pumice_drive::base::Clock;
use pumice_drive::runtime::Runtime;
use pumice_nbd::{Endpoint, Security, Server};

/// The configuration that a server serves.
pub(super) struct Live {
    args: Args,
    security: Security,
    plan: Vec<Planned>,
    endpoints: Vec<Endpoint>,
    /// Whether a change failed halfway, so that only a restart helps.
    is_broken: bool,
}

/// A change of the configuration.
struct Change {
    args: Args,
    security: Security,
    plan: Vec<Planned>,
    added: Vec<Planned>,
    /// Names of removed drives.
    removed: Vec<String>,
}

impl Live {
    /// Returns the configuration of a server that was started with these arguments.
    pub(super) fn new(
        args: &Args,
        security: &Security,
        plan: &[Planned],
        endpoints: Vec<Endpoint>,
    ) -> Self {
        let (args, security, plan) = (args.clone(), security.clone(), plan.to_vec());
        Self { args, security, plan, endpoints, is_broken: false }
    }

    /// Reads arguments and configuration again and applies the changes. Returns whether it has; if
    /// not, the server has to restart.
    ///
    /// # Errors
    /// The configuration is wrong; nothing has changed.
    pub(super) fn reload(
        &mut self,
        runtime: &Runtime,
        server: &Rc<Server>,
        drives: &mut Drives,
        is_replaced: bool,
    ) -> Result<bool> {
        if is_replaced || self.is_broken || !drives.are_whole() {
            return Ok(false);
        }
        let Some(change) = self.change(drives)? else { return Ok(false) };
        let begun_ns = runtime.now_ns();
        let Change { args, security, plan, added, removed } = change;
        for name in &removed {
            match drives.remove(runtime, server, name) {
                Ok(()) => tracing::info!(export = name, "removed a drive"),
                Err(error) => {
                    self.is_broken = true;
                    let error = chain(&error);
                    tracing::error!(export = name, %error, "cannot remove a drive");
                }
            }
        }
        // Set before the exports to which the rules apply are offered.
        server.set_policy(args.policy());
        if security != self.security {
            server.set_security(security.clone());
            expiry::warn(&server.tally().validities());
        }
        (self.args, self.security, self.plan) = (args, security, plan);
        let added = self.add(runtime, server, drives, added);
        let milliseconds = (runtime.now_ns() - begun_ns) / 1_000_000;
        let removed = removed.len();
        tracing::info!(added, removed, milliseconds, "reloaded");
        Ok(true)
    }

    /// Opens drives; returns the number opened.
    fn add(
        &mut self,
        runtime: &Runtime,
        server: &Rc<Server>,
        drives: &mut Drives,
        wanted: Vec<Planned>,
    ) -> usize {
        let mut added = Vec::new();
        for planned in wanted {
            let (name, path) = (planned.name.clone(), planned.path.clone());
            match drives.add(runtime, server, planned) {
                Ok(true) => added.push(path),
                Ok(false) => {}
                Err(error) => {
                    let (drive, error) = (path.display(), chain(&error));
                    tracing::error!(export = name, %drive, %error, "cannot add a drive");
                }
            }
        }
        // A single drive is the default export, but no longer when there are two.
        let described = drives.described().concat();
        let needs_tls = matches!(self.security, Security::Require(_));
        let uris = uris::of(&self.endpoints, &described, needs_tls);
        drives.set_uris(&uris);
        let is_new = |path: &Path| added.iter().any(|added| added == path);
        let new = described.into_iter().zip(uris).filter(|(drive, _)| is_new(&drive.path));
        let (new, uris): (Vec<_>, Vec<_>) = new.unzip();
        uris::log(&new, &uris);
        added.len()
    }

    /// Returns the changes; `None` if there are none, or if not all of them can be applied while
    /// clients are served.
    fn change(&self, drives: &Drives) -> Result<Option<Change>> {
        let args = *serve_args()?;
        let (paths, exports) = (args.paths.clone(), args.exports.clone());
        let network = self.args.network.with_policy_of(&args.network);
        if args != (Args { paths, exports, network, ..self.args.clone() }) {
            return Ok(None);
        }
        let (security, plan) = args.prepare()?;
        let served = drives.described().concat();
        let is_served = |name: &str| served.iter().any(|drive| drive.name == name);
        // Drives that could not be opened before are tried again.
        let added: Vec<_> =
            plan.iter().filter(|wanted| !is_served(&wanted.name)).cloned().collect();
        let is_wanted = |name: &str| plan.iter().any(|wanted| wanted.name == name);
        let names = served.iter().map(|drive| drive.name.clone());
        let removed: Vec<_> = names.filter(|name| !is_wanted(name)).collect();
        // Unchanged since the start, or since the last reload.
        let is_known = |wanted: &Planned| self.plan.iter().any(|old| old.is_same(wanted));
        let stays = |wanted: &&Planned| is_served(&wanted.name);
        let are_same = plan.iter().filter(stays).all(is_known);
        let no_drive_changes = added.is_empty() && removed.is_empty();
        // A device keeps its drive until the server ends.
        let has_device = args.network.vhost_user().is_some();
        let is_nothing = added.iter().all(is_known)
            && removed.is_empty()
            && security == self.security
            && args.policy() == self.args.policy();
        if is_nothing || !are_same || (has_device && !no_drive_changes) {
            return Ok(None);
        }
        Ok(Some(Change { args, security, plan, added, removed }))
    }
}
