//! Waiting until garbage collection has emptied the segments to be removed: segments beyond the end
//! of a shrinking drive, and segments under an earlier key.
//!
//! This module does not know which segments these are.

use super::super::core::{Core, Evacuation, Wakes};
use super::super::drive::Drive;
use crate::base::{Error, ErrorKind, Result};

/// Interval between checks for empty segments.
const LOOK_NS: u64 = 5_000_000;

/// Maximum time for which the number of segments to be emptied may stay the same before the wait
/// fails: many times the time for moving the largest segment.
const STALL_NS: u64 = 60_000_000_000;

impl Drive {
    /// Waits until segments are empty. `step` is called before each check, and `evacuation` returns
    /// the progress; `check_hindrance` returns the cause as an error if emptying takes too long.
    ///
    /// # Errors
    /// `Corrupt` if a segment cannot be emptied; the errors of `check_hindrance`; `NoSpace` if
    /// nothing was emptied for a minute; `ReadOnly`; `Poisoned`.
    pub(super) async fn until_emptied(
        &self,
        step: impl Fn(&mut Core),
        evacuation: impl Fn(&Core) -> Evacuation,
        check_hindrance: impl Fn(&Core) -> Result<()>,
    ) -> Result<()> {
        let mut left = u32::MAX;
        let mut since_ns = self.clock.now_ns();
        loop {
            self.with_core(|core| {
                core.check_writable(0, 0)?;
                step(core);
                Ok(())
            })?;
            self.with_room(|core| Ok(core.leave_going_segments()?.then_some(()))).await?;
            let evacuation = evacuation(&self.core());
            let now = match evacuation {
                Evacuation::Done => return Ok(()),
                Evacuation::Left(segments) => segments,
                Evacuation::Stuck(segment) => {
                    let what = "a segment cannot be emptied because something in it is damaged: \
                                a scrub lists the damage";
                    return Err(Error::new(ErrorKind::Corrupt, what).in_segment(segment));
                }
            };
            if now != left {
                (left, since_ns) = (now, self.clock.now_ns());
            }
            if self.clock.now_ns() - since_ns > STALL_NS {
                check_hindrance(&self.core())?;
                let what = format!("{left} segments cannot be emptied: the drive is too full");
                return Err(Error::new(ErrorKind::NoSpace, what));
            }
            self.with_core(|core| core.wake(Wakes::COLLECTOR));
            self.clock.sleep_ns(LOOK_NS).await;
        }
    }
}
