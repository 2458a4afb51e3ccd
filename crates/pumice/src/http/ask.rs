//! Questions from the HTTP thread to the threads of the drives: a bounded channel for each thread,
//! and an answer for each question.
//!
//! A thread of drives sleeps in its runtime until a question wakes it. A question is refused
//! immediately if the channel is full, and abandoned if it is not answered in time. A snapshot
//! shows the drives of the threads that answer.

use std::collections::HashMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::future::{FutureExt, OptionFuture, join_all};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Sleep, sleep};

use crate::watch::{Action, Names, Snapshot, Watch};
use pumice_drive::base::{Clock, Error};
use pumice_drive::controller::{SegmentMap, SnapshotInfo};
use pumice_drive::runtime::Runtime;

/// Maximum number of waiting requests. There are more only if more than 16 clients watch a drive.
const QUESTIONS_MAX: usize = 16;

/// Time limit for a snapshot. A thread of drives answers in well under a millisecond; if it takes
/// two seconds, something is wrong, and the client should see that.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Maximum age of a map of segments, and minimum time between two of them.
const MAP_AGE_MAX: Duration = Duration::from_secs(1);

/// Minimum lifetime of a list of snapshots, also as a multiple of the time that it took: requests
/// of pages take at most a hundredth of the drives' thread.
const LIST_AGE: Duration = Duration::from_secs(5);
const LIST_AGE_TIMES: u32 = 100;

/// Time limit for an action: a flush of a slow medium.
const ACTION_MAX: Duration = Duration::from_secs(30);

/// A question with the channel for its answer. Drives are identified by name.
enum Ask {
    Snapshot(oneshot::Sender<Snapshot>),
    Segments(String, u32, oneshot::Sender<Option<SegmentMap>>),
    Snapshots(String, oneshot::Sender<Option<MadeList>>),
    Act(String, Action, oneshot::Sender<Option<Result<(), Error>>>),
}

/// A thread of drives did not answer, or no longer exists.
#[derive(Debug)]
pub(super) struct Unanswered;

/// The asking end: one for each thread.
#[derive(Clone)]
pub(super) struct Asker(Arc<[Asked]>);

/// The last map of a drive.
struct LastMap {
    /// Ends when it is too old.
    age: Pin<Box<Sleep>>,
    /// The requested number of cells.
    cells_max: u32,
    map: SegmentMap,
}

/// The snapshots of a drive, and how long it took to list them.
struct MadeList(Vec<SnapshotInfo>, Duration);

/// The last list of a drive's snapshots.
struct LastList {
    /// Ends when it is too old.
    age: Pin<Box<Sleep>>,
    snapshots: Arc<[SnapshotInfo]>,
}

/// A thread that can be asked.
struct Asked {
    /// The names of its drives.
    drives: Names,
    questions: mpsc::Sender<Ask>,
    /// Locked while a map is made, so that only one is made at a time.
    maps: Mutex<HashMap<String, LastMap>>,
    /// Like `maps`.
    lists: Mutex<HashMap<String, LastList>>,
}

/// The answering end, of one thread.
pub(crate) struct Answerer(mpsc::Receiver<Ask>);

/// Returns the lifetime of a list that took this long.
fn age_of_list(taken: Duration) -> Duration {
    LIST_AGE.max(taken.saturating_mul(LIST_AGE_TIMES))
}

/// Returns both ends; `names` are those of the drives of each thread.
pub(super) fn channels(names: Vec<Names>) -> (Asker, Vec<Answerer>) {
    let channel = |drives| {
        let (questions, receiver) = mpsc::channel(QUESTIONS_MAX);
        (
            Asked { drives, questions, maps: Mutex::default(), lists: Mutex::default() },
            Answerer(receiver),
        )
    };
    let (asked, answerers): (Vec<_>, _) = names.into_iter().map(channel).unzip();
    (Asker(asked.into()), answerers)
}

impl Asker {
    /// Returns a snapshot of the server and its drives, without the drives of threads that do not
    /// answer; an error if no thread does.
    pub(super) async fn snapshot(&self) -> Result<Snapshot, Unanswered> {
        let answers = self.0.iter().map(|asked| asked.ask(Ask::Snapshot, ANSWER_MAX));
        let mut answered = join_all(answers).await.into_iter().flatten();
        let first = answered.next().ok_or(Unanswered)?;
        Ok(answered.fold(first, |mut all, next| {
            all.taken_ns += next.taken_ns;
            all.drives.extend(next.drives);
            all
        }))
    }

    /// Returns the current names of the drives.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(Asked::drives)
    }

    /// Returns the names of the drives that a snapshot lacks.
    pub(super) fn missing(&self, snapshot: &Snapshot) -> Vec<String> {
        let is_there = |name: &String| snapshot.drives.iter().any(|drive| drive.name == *name);
        self.names().filter(|name| !is_there(name)).collect()
    }

    /// Returns the segments of a drive in at most `cells_max` cells, at most a second old; `None`
    /// if there is no such drive. Its thread makes at most one map a second: each walks all
    /// segments.
    pub(super) async fn segments(
        &self,
        drive: String,
        cells_max: u32,
    ) -> Result<Option<SegmentMap>, Unanswered> {
        let Some(asked) = self.of(&drive) else { return Ok(None) };
        let mut maps = asked.maps.lock().await;
        if let Some(last) = maps.get_mut(&drive) {
            if last.cells_max == cells_max && last.age.as_mut().now_or_never().is_none() {
                return Ok(Some(last.map.clone()));
            }
            last.age.as_mut().await;
        }
        let name = drive.clone();
        let made = asked.ask(|answer| Ask::Segments(name, cells_max, answer), ANSWER_MAX).await?;
        // Only existing drives have maps, so their number is bounded.
        let drives = asked.drives();
        maps.retain(|name, _| drives.contains(name));
        let age = Box::pin(sleep(MAP_AGE_MAX));
        maps.extend(made.clone().map(|map| (drive, LastMap { age, cells_max, map })));
        Ok(made)
    }

    /// Returns the snapshots of a drive, oldest first; `None` if there is no such drive. They may
    /// be as old as [`LIST_AGE`], or older if listing takes long.
    pub(super) async fn snapshots(
        &self,
        drive: String,
    ) -> Result<Option<Arc<[SnapshotInfo]>>, Unanswered> {
        let Some(asked) = self.of(&drive) else { return Ok(None) };
        let mut lists = asked.lists.lock().await;
        if let Some(last) = lists.get_mut(&drive)
            && last.age.as_mut().now_or_never().is_none()
        {
            return Ok(Some(last.snapshots.clone()));
        }
        let name = drive.clone();
        let made = asked.ask(|answer| Ask::Snapshots(name, answer), ANSWER_MAX).await?;
        let drives = asked.drives();
        lists.retain(|name, _| drives.contains(name));
        let Some(MadeList(snapshots, taken)) = made else { return Ok(None) };
        let snapshots: Arc<[SnapshotInfo]> = snapshots.into();
        let age = Box::pin(sleep(age_of_list(taken)));
        lists.insert(drive, LastList { age, snapshots: snapshots.clone() });
        Ok(Some(snapshots))
    }

    /// Carries out an action on a drive; returns `None` if there is no such drive.
    pub(super) async fn act(
        &self,
        drive: String,
        action: Action,
    ) -> Result<Option<Result<(), Error>>, Unanswered> {
        let Some(asked) = self.of(&drive) else { return Ok(None) };
        asked.ask(|answer| Ask::Act(drive, action, answer), ACTION_MAX).await
    }

    fn of(&self, drive: &String) -> Option<&Asked> {
        self.0.iter().find(|asked| asked.drives().contains(drive))
    }
}

impl Asked {
    fn drives(&self) -> Vec<String> {
        self.drives.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Ask,
        limit: Duration,
    ) -> Result<T, Unanswered> {
        let (sender, answer) = oneshot::channel();
        self.questions.try_send(question(sender)).map_err(|_| Unanswered)?;
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            _ => Err(Unanswered),
        }
    }
}

impl Answerer {
    /// Answers on a thread of drives until the other end is closed. Drops the answer to a client
    /// that has left.
    pub(crate) async fn run(mut self, runtime: Runtime, watch: Rc<Watch>) {
        while let Some(ask) = self.0.recv().await {
            match ask {
                Ask::Snapshot(answer) => {
                    let _ = answer.send(watch.snapshot(None));
                }
                Ask::Segments(name, cells_max, answer) => {
                    let drive = watch.find(&name);
                    let _ = answer.send(drive.map(|drive| drive.segment_map(cells_max)));
                }
                // The next two wait for the drive; other questions are answered in the meantime.
                Ask::Snapshots(name, answer) => {
                    let (drive, clock) = (watch.find(&name), runtime.clone());
                    runtime.spawn(async move {
                        let begun_ns = clock.now_ns();
                        let listing = drive.map(|drive| async move { drive.snapshots().await });
                        let listed = OptionFuture::from(listing).await;
                        let taken = Duration::from_nanos(clock.now_ns() - begun_ns);
                        let _ = answer.send(listed.map(|listed| MadeList(listed, taken)));
                    });
                }
                Ask::Act(name, action, answer) => {
                    let drive = watch.find(&name);
                    runtime.spawn(async move {
                        let acting = drive.map(|drive| async move { drive.act(action).await });
                        let _ = answer.send(OptionFuture::from(acting).await);
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: pages that ask often do not make a drive's thread list its snapshots again and again.
    //! Method: a list that took an hour, so that no second one is due while the test runs.
    use super::*;

    #[test]
    fn a_list_of_snapshots_is_cached_according_to_its_cost() {
        assert_eq!(age_of_list(Duration::ZERO), LIST_AGE);
        assert_eq!(age_of_list(Duration::from_millis(200)), Duration::from_secs(20));
        let names = Names::default();
        names.lock().unwrap().push("d".into());
        let (asker, answerers) = channels(vec![names]);
        let [Answerer(mut questions)] = <[Answerer; 1]>::try_from(answerers).ok().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let answering = async {
                let Some(Ask::Snapshots(name, answer)) = questions.recv().await else {
                    panic!("another question")
                };
                assert_eq!(name, "d");
                let _ = answer.send(Some(MadeList(Vec::new(), Duration::from_secs(3600))));
            };
            let (first, ()) =
                futures_util::future::join(asker.snapshots("d".into()), answering).await;
            let first = first.unwrap().unwrap();
            // No thread answers any more.
            drop(questions);
            let second = asker.snapshots("d".into()).await.unwrap().unwrap();
            assert!(Arc::ptr_eq(&first, &second));
            assert!(asker.snapshots("e".into()).await.unwrap().is_none());
        });
    }
}
