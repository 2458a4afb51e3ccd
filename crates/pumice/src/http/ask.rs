//! Questions of the HTTP thread to the drives' thread: a bounded channel, and an answer for each
//! question.
//!
//! The drives' thread sleeps in its runtime until a question wakes it. A question is refused at
//! once if the channel is full, and abandoned if it is not answered in time.

use std::rc::Rc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::watch::{Action, Snapshot, Watch};
use pumice_drive::base::Error;
use pumice_drive::controller::SegmentMap;
use pumice_drive::runtime::Runtime;

/// Questions that may wait. More come only if a drive has more than 16 clients watching it.
const QUESTIONS_MAX: usize = 16;

/// Time limit for a snapshot. The drives' thread answers in well under a millisecond; if it takes
/// two seconds, something is wrong, and the client should see that.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Time limit for an action: a flush of a slow medium.
const ACTION_MAX: Duration = Duration::from_secs(30);

/// A question with the channel for its answer. Drives are identified by name.
enum Ask {
    Snapshot(oneshot::Sender<Snapshot>),
    Segments(String, u32, oneshot::Sender<Option<SegmentMap>>),
    Act(String, Action, oneshot::Sender<Option<Result<(), Error>>>),
}

/// The drives' thread did not answer, or no longer exists.
#[derive(Debug)]
pub(super) struct Unanswered;

/// The asking end.
#[derive(Clone)]
pub(super) struct Asker(mpsc::Sender<Ask>);

/// The answering end.
pub(super) struct Answerer(mpsc::Receiver<Ask>);

/// Returns both ends.
pub(super) fn channel() -> (Asker, Answerer) {
    let (sender, receiver) = mpsc::channel(QUESTIONS_MAX);
    (Asker(sender), Answerer(receiver))
}

impl Asker {
    /// Returns a snapshot of the server and its drives.
    pub(super) async fn snapshot(&self) -> Result<Snapshot, Unanswered> {
        self.ask(Ask::Snapshot, ANSWER_MAX).await
    }

    /// Returns the segments of a drive in at most `cells_max` cells; none if there is no such
    /// drive.
    pub(super) async fn segments(
        &self,
        drive: String,
        cells_max: u32,
    ) -> Result<Option<SegmentMap>, Unanswered> {
        self.ask(|answer| Ask::Segments(drive, cells_max, answer), ANSWER_MAX).await
    }

    /// Carries out an action on a drive; returns `None` if there is no such drive.
    pub(super) async fn act(
        &self,
        drive: String,
        action: Action,
    ) -> Result<Option<Result<(), Error>>, Unanswered> {
        self.ask(|answer| Ask::Act(drive, action, answer), ACTION_MAX).await
    }

    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Ask,
        limit: Duration,
    ) -> Result<T, Unanswered> {
        let (sender, answer) = oneshot::channel();
        self.0.try_send(question(sender)).map_err(|_| Unanswered)?;
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            _ => Err(Unanswered),
        }
    }
}

impl Answerer {
    /// Answers on the drives' thread until the other end is closed. Drops the answer to a client
    /// that has left.
    pub(super) async fn run(mut self, runtime: Runtime, watch: Rc<Watch>) {
        while let Some(ask) = self.0.recv().await {
            match ask {
                Ask::Snapshot(answer) => {
                    let _ = answer.send(watch.snapshot(None));
                }
                Ask::Segments(name, cells_max, answer) => {
                    let drive = watch.find(&name);
                    let _ = answer.send(drive.map(|drive| drive.segment_map(cells_max)));
                }
                Ask::Act(name, action, answer) => match watch.find(&name) {
                    None => {
                        let _ = answer.send(None);
                    }
                    // Other questions are answered in the meantime.
                    Some(drive) => runtime.spawn(async move {
                        let _ = answer.send(Some(drive.act(action).await));
                    }),
                },
            }
        }
    }
}
