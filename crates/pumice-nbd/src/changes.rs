//! Changes to a running server: to its exports, certificates and policy.
//!
//! A change does not affect other clients. Clients that would no longer be admitted are
//! disconnected, so that a change that removes access takes effect immediately.

use std::rc::Rc;
use std::sync::Arc;

use super::caller::Caller;
use super::export::{Announcement, Earlier, Export};
use super::options::Security;
use super::policy::Policy;
use super::server::Server;
use super::session::{Place, Shared, Stage};
use pumice_drive::base::Clock;

/// Number of checks for idle connections within the longest allowed idle time, and the shortest and
/// longest time between two checks.
const IDLE_PARTS: u64 = 8;
const IDLE_LOOK_NS: (u64, u64) = (100_000_000, 60_000_000_000);

/// Longest wait for clients that have ended their connection.
const LEAVING_NS: u64 = 1_000_000_000;

impl Server {
    /// Changes the policy. Clients that may no longer use their export are disconnected. Connection
    /// limits apply to new connections, and rate limits to the next request.
    pub fn set_policy(self: &Rc<Self>, policy: Policy) {
        let shared = &self.shared;
        let had_idle_max = shared.policy.replace(policy).idle_max_ns.is_some();
        self.apply_rates();
        let policy = shared.policy.borrow();
        if policy.idle_max_ns.is_some() && !had_idle_max {
            self.start_to_watch_idle();
        }
        self.drop_clients(|caller| policy.objection(caller.rules()?, caller));
    }

    /// Uses other certificates for new connections. Clients whose certificates are no longer
    /// accepted are disconnected.
    ///
    /// # Panics
    /// If only one of the old and the new security allows TLS, or only one requires it. That needs
    /// a new server, where no client has connected under the old conditions.
    pub fn set_security(&self, security: Security) {
        let old = self.shared.security.replace(security.clone());
        let are_alike = std::mem::discriminant(&old) == std::mem::discriminant(&security);
        assert!(are_alike, "certificates change, but not whether they are required");
        self.note_validities();
        let reason = "its certificate is no longer accepted";
        self.drop_clients(|caller| {
            // Clients without TLS have none; clients in their handshake are checked at its end.
            let is_concerned = caller.certificate().is_some();
            (is_concerned && !security.accepts(caller, old.identity())).then_some(reason)
        });
    }

    /// Adds an export on this thread. Rules for it must be set before. Returns false, and adds
    /// nothing, if it is an earlier state of a disk and another export has its name. A disk
    /// replaces an earlier state of the same name.
    pub fn add(&self, export: Rc<Export>) -> bool {
        let mut exports = self.shared.exports.borrow_mut();
        if export.earlier.is_none() {
            self.tally().add_refused(export.refused());
            exports.retain(|other| other.earlier.is_none() || other.name != export.name);
        } else if exports.iter().any(|other| other.name == export.name) {
            return false;
        }
        self.apply_rate(&Place::Local(export.clone()));
        exports.push(export);
        true
    }

    /// Adds the export of a disk on another thread, whose server has added it: the thread at this
    /// position in [`Server::in_front_of`]. Rules for it must be set before.
    ///
    /// # Panics
    /// If there is no such thread.
    pub fn announce(&self, thread: usize, export: Announcement) {
        self.tally().add_refused(&export.refused);
        for other in &self.shared.remote {
            let is_in_the_way =
                |other: &Announcement| other.earlier.is_some() && other.name == export.name;
            other.exports.borrow_mut().retain(|other| !is_in_the_way(other));
        }
        self.push(thread, export);
    }

    /// Offers exactly these earlier states of a disk on another thread, except states whose names
    /// other exports have.
    ///
    /// # Panics
    /// If there is no such thread.
    pub fn announce_earlier(&self, thread: usize, of: &str, states: Vec<Announcement>) {
        let other = self.shared.remote.get(thread).expect("a thread of this server");
        let stays = |export: &Announcement| match &export.earlier {
            Some(earlier) if earlier.of == of => {
                states.iter().any(|state| state.earlier == export.earlier)
            }
            _ => true,
        };
        other.exports.borrow_mut().retain(|export| stays(export));
        for state in states {
            if self.shared.places().iter().all(|place| place.name() != state.name) {
                self.push(thread, state);
            }
        }
    }

    fn push(&self, thread: usize, export: Announcement) {
        let other = self.shared.remote.get(thread).expect("a thread of this server");
        let export = Arc::new(export);
        self.apply_rate(&Place::Remote(other.clone(), export.clone()));
        other.exports.borrow_mut().push(export);
    }

    /// Withdraws a disk, on this thread or another one, and earlier states of it. Disconnects its
    /// clients, and waits until they and their requests have ended. Returns whether they ended
    /// within [`Options::grace_ns`](super::Options::grace_ns).
    pub async fn withdraw(&self, name: &str) -> bool {
        let Shared { runtime, options, changed, exports, remote, .. } = &*self.shared;
        let is_of_it = |own: &str, earlier: &Option<Earlier>| match earlier {
            None => own == name,
            Some(earlier) => earlier.of == name,
        };
        exports.borrow_mut().retain(|export| !is_of_it(&export.name, &export.earlier));
        for other in remote {
            let mut exports = other.exports.borrow_mut();
            exports.retain(|export| !is_of_it(&export.name, &export.earlier));
        }
        let withdrawn = "the export is no longer served";
        self.drop_clients(|caller| (caller.rules() == Some(name)).then_some(withdrawn));
        let gone = changed.wait_for(|| (self.shared.clients_ruled_by(name) == 0).then_some(()));
        runtime.timeout(options.grace_ns, gone).await.is_some()
    }

    /// Withdraws an earlier state of a disk on this thread, unless clients read it, as their export
    /// or to compare with it. Waits for clients that are leaving. A client in its handshake is then
    /// refused.
    ///
    /// # Errors
    /// The number of clients that read it. Nothing has changed then.
    pub async fn retract(&self, export: &Rc<Export>) -> std::result::Result<(), usize> {
        let Shared { runtime, changed, exports, .. } = &*self.shared;
        let Some(state) = &export.earlier else { return Ok(()) };
        let readers = || self.shared.readers_of(&export.name, state);
        // Must happen in the same poll that finds no readers.
        let retract = || {
            let is_free = readers() == 0;
            if is_free {
                exports.borrow_mut().retain(|other| !Rc::ptr_eq(other, export));
            }
            is_free.then_some(())
        };
        match runtime.timeout(LEAVING_NS, changed.wait_for(retract)).await {
            Some(()) => Ok(()),
            None => Err(readers()),
        }
    }

    /// Waits until no client uses this export, which is on this thread, if all its clients are
    /// leaving.
    pub async fn until_unused(&self, export: &str) {
        let Shared { runtime, changed, .. } = &*self.shared;
        let unused = changed.wait_for(|| (self.users_of(export) == 0).then_some(()));
        runtime.timeout(LEAVING_NS, unused).await;
    }

    /// Applies the [`Options`](super::Options) to a new server.
    pub(super) fn settle(self: &Rc<Self>) {
        self.apply_rates();
        self.note_validities();
        if self.shared.policy.borrow().idle_max_ns.is_some() {
            self.start_to_watch_idle();
        }
    }

    fn note_validities(&self) {
        let security = self.shared.security.borrow();
        let validities = security.identity().map(|identity| identity.validities().to_vec());
        self.tally().set_validities(validities.unwrap_or_default());
    }

    fn apply_rates(&self) {
        self.shared.places().iter().for_each(|place| self.apply_rate(place));
    }

    fn apply_rate(&self, place: &Place) {
        place.limits().set(self.shared.policy.borrow().rate(place.ruled_by()));
    }

    /// Disconnects the clients for which `reason` returns a reason.
    fn drop_clients(&self, reason: impl Fn(&Caller) -> Option<&'static str>) {
        let links = self.shared.links.borrow().clone();
        for link in links.iter().filter(|link| link.is_own) {
            if let Some(reason) = reason(&link.caller) {
                self.shared.note_refused(&link.caller, link.caller.export(), reason);
                link.cut();
            }
        }
    }

    /// Disconnects idle clients, in a task that runs until no limit is set.
    fn start_to_watch_idle(self: &Rc<Self>) {
        let server = self.clone();
        self.shared.runtime.spawn(async move {
            let Shared { runtime, policy, changed, stage, .. } = &*server.shared;
            let is_ending = || (stage.get() != Stage::Open).then_some(());
            loop {
                let Some(max_ns) = policy.borrow().idle_max_ns else { return };
                let (least_ns, most_ns) = IDLE_LOOK_NS;
                let pause_ns = (max_ns / IDLE_PARTS).clamp(least_ns, most_ns);
                if runtime.timeout(pause_ns, changed.wait_for(is_ending)).await.is_some() {
                    return;
                }
                let now_ns = runtime.now_ns();
                server.drop_clients(|caller| {
                    let is_idle =
                        caller.export().is_some() && caller.meter.idle_ns(now_ns) > max_ns;
                    is_idle.then_some("it was idle for too long")
                });
            }
        });
    }
}
