//! A disk as a connection on another thread uses it.
//!
//! ```text
//!  the thread of the connection                    the thread of the disk
//!  session -> Relay ---- asked: an errand ----->   up to SLOTS_MAX of them at once -> Disk
//!                  <---- answered: the same ----
//! ```
//!
//! An *errand* carries a request and its data there, and what became of it back; its buffer is used
//! again. All that are ready travel on one wake-up. A request costs one copy of its data more than
//! on the thread of the disk, and no lock.
//!
//! Each side notices when the other one ends: a relay that is dropped ends the errands' task once
//! they are done, and a thread that ends early fails what is under way and disconnects the client.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use concurrent_queue::ConcurrentQueue;
use futures_util::task::AtomicWaker;

use super::PIECE_BYTES;
use super::caller::Caller;
use super::export::Export;
use super::request::Shape;
use super::slots::{SLOTS_MAX, Seat, Slots};
use super::spare_time::SpareTime;
use crate::Disk;
use crate::disk::{Change, Extent};
use pumice_drive::base::wait::WaitQueue;
use pumice_drive::base::{Error, ErrorKind, Result};
use pumice_drive::runtime::Runtime;

/// Bytes of buffers that a relay keeps for its next errands: those of a deep queue of short
/// requests, or of four long ones.
const KEPT_BYTES_MAX: usize = 4 * PIECE_BYTES;

/// Errands under way: the requests of a connection, and what it asks in between.
const SEATS: usize = 2 * SLOTS_MAX;

/// Extents that the first errand and later ones of a list bring: a long read wants few, and no
/// errand keeps the thread of the disk for longer than a piece of an answer.
const EXTENTS_MAX: (usize, usize) = (64, 1024);

/// The disk of an export on another thread.
pub(super) struct Relay {
    end: RelayEnd,
    desk: Rc<Desk>,
}

/// What both threads share.
struct Way {
    asked: ConcurrentQueue<Errand>,
    answered: ConcurrentQueue<Errand>,
    /// The task that carries errands out, and the one that takes them back.
    to_disk: AtomicWaker,
    to_relay: AtomicWaker,
    /// No more is asked.
    is_left: AtomicBool,
    /// No more is answered.
    is_over: AtomicBool,
    size_bytes: AtomicU64,
}

/// The end of a way at the disk. Once it is dropped, nothing is answered.
pub(super) struct DiskEnd(Arc<Way>);

/// The end of a way at the connection. Once it is dropped, nothing is asked.
pub(super) struct RelayEnd {
    way: Arc<Way>,
    is_read_only: bool,
}

/// A request, its data, and what became of it.
struct Errand {
    seat: usize,
    ask: Ask,
    /// What is written, or what was read.
    bytes: Vec<u8>,
    extents: Vec<Extent>,
    changes: Vec<Change>,
    result: Result<()>,
}

#[derive(Clone, Copy)]
enum Ask {
    Read {
        offset: u64,
    },
    Write {
        offset: u64,
        fua: bool,
    },
    Flush,
    Trim {
        offset: u64,
        len: u64,
        fua: bool,
    },
    WriteZeroes {
        offset: u64,
        len: u64,
        keep_allocated: bool,
        fua: bool,
    },
    Prefetch {
        offset: u64,
        len: u64,
    },
    Extents {
        offset: u64,
        len: u64,
        max: usize,
    },
    /// Since the state whose name the errand brings.
    Changes {
        offset: u64,
        len: u64,
        max: usize,
    },
    /// Nothing: the size of the disk comes back with every errand.
    Size,
}

/// Where the requests of a connection wait for their errands.
#[derive(Default)]
struct Desk {
    seats: RefCell<Vec<Place>>,
    /// Errands at rest.
    idle: RefCell<Vec<Errand>>,
    idle_bytes: Cell<usize>,
    /// Nothing comes back any more.
    is_over: Cell<bool>,
    over: WaitQueue,
    /// Wakes the task that takes errands back, and wakes the other thread for new ones.
    carrier: WaitQueue,
}

#[derive(Default)]
struct Place {
    returned: Option<Errand>,
    waker: Option<Waker>,
}

/// Returns both ends of a way to a disk of this shape.
pub(super) fn way(shape: Shape) -> (DiskEnd, RelayEnd) {
    let way = Arc::new(Way {
        asked: ConcurrentQueue::bounded(SEATS),
        answered: ConcurrentQueue::bounded(SEATS),
        to_disk: AtomicWaker::new(),
        to_relay: AtomicWaker::new(),
        is_left: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
        size_bytes: AtomicU64::new(shape.size_bytes),
    });
    let relay = RelayEnd { way: way.clone(), is_read_only: shape.is_read_only };
    (DiskEnd(way), relay)
}

impl Drop for DiskEnd {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
        self.0.to_relay.wake();
    }
}

impl Drop for RelayEnd {
    fn drop(&mut self) {
        self.way.leave();
    }
}

impl Way {
    fn leave(&self) {
        self.is_left.store(true, Ordering::Release);
        self.to_disk.wake();
    }
}

/// Carries out what comes along the way, on the thread of the disk, until the other end leaves and
/// all is done.
pub(super) async fn carry_out<D: Disk + 'static>(
    runtime: Runtime,
    spare_time: Rc<SpareTime>,
    export: Rc<Export<D>>,
    end: DiskEnd,
) {
    let way = &end.0;
    // Dropped before the end is, so that the disk is free once the other side notices.
    let slots = {
        let (export, way) = (export.clone(), way.clone());
        let time = (runtime, spare_time);
        Slots::new(move |seat| run(time.clone(), export.clone(), way.clone(), seat))
    };
    poll_fn(|context| {
        way.to_disk.register(context.waker());
        way.size_bytes.store(export.disk.size_bytes(), Ordering::Relaxed);
        let is_left = way.is_left.load(Ordering::Acquire);
        loop {
            while slots.count() < SLOTS_MAX {
                let Ok(errand) = way.asked.pop() else { break };
                slots.start(errand);
            }
            slots.poll(context);
            if way.asked.is_empty() || slots.count() == SLOTS_MAX {
                break;
            }
        }
        // One wake-up for all that this turn has done.
        if !way.answered.is_empty() {
            way.to_relay.wake();
        }
        if is_left && slots.count() == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    drop((slots, export));
}

async fn run<D: Disk>(
    (runtime, spare_time): (Runtime, Rc<SpareTime>),
    export: Rc<Export<D>>,
    way: Arc<Way>,
    seat: Seat<Errand>,
) {
    loop {
        let mut errand = seat.job().await;
        // A read asks for few.
        let is_question = match errand.ask {
            Ask::Extents { max, .. } => max > EXTENTS_MAX.0,
            Ask::Changes { .. } => true,
            _ => false,
        };
        errand.result = if is_question {
            spare_time.piece(&runtime, errand.run(&*export.disk)).await
        } else {
            spare_time.note_other();
            errand.run(&*export.disk).await
        };
        assert!(way.answered.push(errand).is_ok(), "there is room for an errand of each seat");
        seat.release();
    }
}

impl Errand {
    async fn run<D: Disk>(&mut self, disk: &D) -> Result<()> {
        match self.ask {
            Ask::Read { offset } => disk.read(offset, &mut self.bytes).await,
            Ask::Write { offset, fua } => {
                let at_once = if fua { None } else { disk.try_write(offset, &self.bytes) };
                match at_once {
                    Some(result) => result,
                    None => disk.write(offset, &self.bytes, fua).await,
                }
            }
            Ask::Flush => disk.flush().await,
            Ask::Trim { offset, len, fua } => disk.trim(offset, len, fua).await,
            Ask::WriteZeroes { offset, len, keep_allocated, fua } => {
                disk.write_zeroes(offset, len, keep_allocated, fua).await
            }
            Ask::Prefetch { offset, len } => disk.prefetch(offset, len).await,
            Ask::Extents { offset, len, max } => {
                let extents = &mut self.extents;
                extents.clear();
                let visit = |extent| {
                    extents.push(extent);
                    extents.len() < max
                };
                disk.extents(offset, len, visit).await
            }
            Ask::Changes { offset, len, max } => {
                let Self { changes, bytes, .. } = self;
                changes.clear();
                let visit = |change| {
                    changes.push(change);
                    changes.len() < max
                };
                disk.changes(&String::from_utf8_lossy(bytes), offset, len, visit).await
            }
            Ask::Size => Ok(()),
        }
    }
}

impl Relay {
    /// Returns the disk at the other end, for tasks of this thread. `caller` is disconnected if the
    /// thread of the disk ends early.
    pub(super) fn new(runtime: &Runtime, end: RelayEnd, caller: Arc<Caller>) -> Self {
        let desk = Rc::new(Desk::default());
        runtime.spawn(take_back(end.way.clone(), desk.clone(), caller));
        Self { end, desk }
    }

    /// Asks for no more, and waits until the thread of the disk has let it go.
    pub(super) async fn close(&self) {
        self.end.way.leave();
        self.desk.over.wait_for(|| self.desk.is_over.get().then_some(())).await;
    }

    /// Sends an errand, with data that `fill` puts into its buffer, and returns it when it is back.
    async fn send(&self, ask: Ask, fill: impl FnOnce(&mut Vec<u8>)) -> Result<Returned<'_>> {
        let mut errand = self.desk.errand()?;
        let seat = errand.seat;
        errand.ask = ask;
        fill(&mut errand.bytes);
        let way = &self.end.way;
        assert!(way.asked.push(errand).is_ok(), "there is room for an errand of each seat");
        // Its task runs when this one has asked for all that it can.
        self.desk.carrier.wake_all();
        let errand = poll_fn(|context| self.desk.poll(seat, context)).await?;
        Ok(Returned { desk: &self.desk, errand: Some(errand) })
    }

    async fn call(&self, ask: Ask) -> Result<()> {
        self.send(ask, |_| ()).await?.result()
    }
}

/// An errand that is back; it is at rest again when this is dropped.
struct Returned<'a> {
    desk: &'a Desk,
    errand: Option<Errand>,
}

impl Returned<'_> {
    fn errand(&mut self) -> &mut Errand {
        self.errand.as_mut().expect("until it is dropped")
    }

    fn result(&mut self) -> Result<()> {
        mem::replace(&mut self.errand().result, Ok(()))
    }
}

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        self.desk.idle.borrow_mut().extend(self.errand.take().map(|errand| self.desk.rest(errand)));
    }
}

/// Takes errands back to the requests that wait for them, until no more come.
async fn take_back(way: Arc<Way>, desk: Rc<Desk>, caller: Arc<Caller>) {
    let mut asked = pin!(desk.carrier.wait_for(|| {
        if !way.asked.is_empty() {
            way.to_disk.wake();
        }
        None::<()>
    }));
    poll_fn(|context| {
        way.to_relay.register(context.waker());
        let _endless = asked.as_mut().poll(context);
        // Before the last errands are taken: none follows them then.
        let is_over = way.is_over.load(Ordering::Acquire);
        while let Ok(errand) = way.answered.pop() {
            desk.put(errand);
        }
        if is_over { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    desk.end();
    if !way.is_left.load(Ordering::Acquire) {
        tracing::warn!(client = %caller, "closing a connection: the thread of its disk has ended");
        caller.cut();
    }
}

impl Desk {
    /// Returns an errand at rest, or a new one.
    fn errand(&self) -> Result<Errand> {
        if self.is_over.get() {
            return Err(gone());
        }
        if let Some(errand) = self.idle.borrow_mut().pop() {
            self.idle_bytes.update(|bytes| bytes - errand.bytes.capacity());
            return Ok(errand);
        }
        let mut seats = self.seats.borrow_mut();
        let seat = seats.len();
        if seat == SEATS {
            return Err(Error::new(ErrorKind::Io, "too many requests at once"));
        }
        seats.push(Place::default());
        let (bytes, extents, changes) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Errand { seat, ask: Ask::Size, bytes, extents, changes, result: Ok(()) })
    }

    /// Returns an errand as it waits for the next request: without a buffer if too many are kept.
    fn rest(&self, mut errand: Errand) -> Errand {
        if self.idle_bytes.get() + errand.bytes.capacity() > KEPT_BYTES_MAX {
            errand.bytes = Vec::new();
        }
        self.idle_bytes.update(|bytes| bytes + errand.bytes.capacity());
        errand
    }

    fn poll(&self, seat: usize, context: &Context<'_>) -> Poll<Result<Errand>> {
        let mut seats = self.seats.borrow_mut();
        let place = seats.get_mut(seat).expect("seats are never taken down");
        match place.returned.take() {
            Some(errand) => Poll::Ready(Ok(errand)),
            None if self.is_over.get() => Poll::Ready(Err(gone())),
            None => {
                match &mut place.waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    none => *none = Some(context.waker().clone()),
                }
                Poll::Pending
            }
        }
    }

    fn put(&self, errand: Errand) {
        let mut seats = self.seats.borrow_mut();
        let place = seats.get_mut(errand.seat).expect("an errand comes from a seat");
        place.returned = Some(errand);
        let waker = place.waker.clone();
        drop(seats);
        waker.inspect(Waker::wake_by_ref);
    }

    fn end(&self) {
        self.is_over.set(true);
        let wakers: Vec<_> = self.seats.borrow().iter().map(|place| place.waker.clone()).collect();
        wakers.into_iter().flatten().for_each(Waker::wake);
        self.over.wake_all();
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Io, "the thread of the disk has ended")
}

impl Disk for Relay {
    fn size_bytes(&self) -> u64 {
        self.end.way.size_bytes.load(Ordering::Relaxed)
    }

    fn is_read_only(&self) -> bool {
        self.end.is_read_only
    }

    async fn refresh(&self) {
        // A thread that has ended fails the requests that follow.
        let _ = self.call(Ask::Size).await;
    }

    async fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let mut at = offset;
        for part in out.chunks_mut(PIECE_BYTES) {
            let length = part.len();
            let mut errand =
                self.send(Ask::Read { offset: at }, |bytes| fit(bytes, length)).await?;
            errand.result()?;
            part.copy_from_slice(&errand.errand().bytes);
            at += length as u64;
        }
        Ok(())
    }

    /// Always waits: it would have to, for the other thread.
    fn try_write(&self, _offset: u64, _data: &[u8]) -> Option<Result<()>> {
        None
    }

    async fn write(&self, offset: u64, data: &[u8], fua: bool) -> Result<()> {
        let fill = |bytes: &mut Vec<u8>| {
            bytes.clear();
            bytes.extend_from_slice(data);
        };
        self.send(Ask::Write { offset, fua }, fill).await?.result()
    }

    async fn flush(&self) -> Result<()> {
        self.call(Ask::Flush).await
    }

    async fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        self.call(Ask::Trim { offset, len, fua }).await
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        keep_allocated: bool,
        fua: bool,
    ) -> Result<()> {
        self.call(Ask::WriteZeroes { offset, len, keep_allocated, fua }).await
    }

    async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.call(Ask::Prefetch { offset, len }).await
    }

    async fn extents(
        &self,
        offset: u64,
        len: u64,
        mut visit: impl FnMut(Extent) -> bool,
    ) -> Result<()> {
        let (mut at, end) = (offset, offset + len);
        let (mut max, later_max) = EXTENTS_MAX;
        while at < end {
            let mut errand =
                self.send(Ask::Extents { offset: at, len: end - at, max }, |_| ()).await?;
            errand.result()?;
            let extents = &errand.errand().extents;
            for &extent in extents {
                at += extent.bytes;
                if !visit(extent) {
                    return Ok(());
                }
            }
            if extents.len() < max {
                return Ok(());
            }
            max = later_max;
        }
        Ok(())
    }

    async fn changes(
        &self,
        since: &str,
        offset: u64,
        len: u64,
        mut visit: impl FnMut(Change) -> bool,
    ) -> Result<()> {
        let (mut at, end) = (offset, offset + len);
        let max = EXTENTS_MAX.1;
        while at < end {
            let name = |bytes: &mut Vec<u8>| {
                bytes.clear();
                bytes.extend_from_slice(since.as_bytes());
            };
            let mut errand =
                self.send(Ask::Changes { offset: at, len: end - at, max }, name).await?;
            errand.result()?;
            let changes = &errand.errand().changes;
            for &change in changes {
                at += change.bytes;
                if !visit(change) {
                    return Ok(());
                }
            }
            if changes.len() < max {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Makes a buffer `length` bytes long; what is new of it is zeroed, once.
fn fit(bytes: &mut Vec<u8>, length: usize) {
    bytes.resize(length, 0);
}
