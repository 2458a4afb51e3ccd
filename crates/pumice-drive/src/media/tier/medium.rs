//! A drive in a bucket as a medium: appends and syncs go to the journal, and reads are served from
//! the journal or from the bucket.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::{LocalBoxFuture, select};

use super::local::Slot;
use super::ranges::Ranges;
use super::state::{Evicted, Held, State};
use super::store::Store;
use super::uses::Use;
use super::{Status, Tier};
use crate::base::clock::Spawn;
use crate::base::{AlignedBuffer, Clock, Error, ErrorKind, Result, SegmentId};
use crate::crypt::Cipher;
use crate::media::{Capabilities, Geometry, Medium, Remote, SUPERBLOCK_BYTES};

/// The bytes of an append in progress, counted until this is dropped.
struct Room<'a, L, S, C>(&'a State<L, S, C>, u64);

impl<L, S, C> Drop for Room<'_, L, S, C> {
    fn drop(&mut self) {
        let left = self.0.appending_bytes.get().checked_sub(self.1);
        self.0.appending_bytes.set(left.expect("bytes of appends are counted"));
        self.0.progress.wake_all();
    }
}

/// An append to a use in progress, until this is dropped.
struct Appending<'a>(&'a Use, (u32, u32));

impl<'a> Appending<'a> {
    fn new(used: &'a Use, range: (u32, u32)) -> Self {
        let mut appending = used.appending.borrow_mut();
        let overlaps = |&(start, end): &(u32, u32)| start < range.1 && range.0 < end;
        assert!(!appending.iter().any(overlaps), "appends in progress do not overlap");
        appending.push(range);
        Self(used, range)
    }
}

impl Drop for Appending<'_> {
    fn drop(&mut self) {
        let mut appending = self.0.appending.borrow_mut();
        let at = appending.iter().position(|&range| range == self.1);
        appending.swap_remove(at.expect("an append ends once"));
    }
}

/// A use that is being renumbered, until this is dropped.
struct Moving<'a>(&'a Use);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        assert!(self.0.is_moving.replace(false), "a use gets its number once");
    }
}

/// Pause before slots that are being read are checked again: about the time of a local read.
const HELD_PAUSE_NS: u64 = 1_000_000;

const PAGE: u32 = 4096;

/// Zeroes that are written to a slot at a time.
const ZERO_BYTES: u32 = 1 << 20;

/// Divisor of the slot length: the page this far before the end shows whether a slot was written.
/// The end itself may be unused.
const LOOK_DIVISOR: u32 = 16;

impl<L: Medium, S: Store, C: Clock> State<L, S, C> {
    async fn append(
        &self,
        segment: u32,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
        durably: bool,
    ) -> Result<()> {
        let _room = self.room(buffer.len() as u64).await?;
        let end = offset + u32::try_from(buffer.len()).unwrap_or(u32::MAX - offset);
        let target = self.target(segment, (offset, end), durably).await;
        let (used, slot) = target.map_err(|error| self.as_full(error))?;
        self.touch(&used);
        let appending = Appending::new(&used, (offset, end));
        let in_one = durably && used.header_is_durable.get();
        self.local.append(&slot, offset, buffer, in_one).await?;
        if durably && !in_one {
            self.sync_local().await.map_err(crate::media::not_durable)?;
        }
        drop(appending);
        used.written.borrow_mut().insert(offset, end);
        if self.used(segment).is_some_and(|current| Rc::ptr_eq(&current, &used)) {
            self.add_dirty(&used, &Ranges::one(offset, end));
            self.note_change(Some(segment), self.clock.now_ns());
        }
        Ok(())
    }

    /// Returns the error of an append that fails because the bucket does not answer while the drive
    /// is being closed. The segment itself is intact.
    fn as_full(&self, error: Error) -> Error {
        if !self.store.is_ending() || error.kind() == ErrorKind::Poisoned {
            return error;
        }
        Error::new(ErrorKind::NoSpace, "the journal cannot take more").caused_by(error)
    }

    /// Waits until the journal may accept more bytes that are not in the bucket. A drive that is
    /// being closed need not wait: it has few bytes left, and they belong in the journal.
    async fn room(&self, bytes: u64) -> Result<Room<'_, L, S, C>> {
        let has_room = || {
            let lag = self.lag_bytes() + self.appending_bytes.get();
            let has_room = lag == 0 || lag + bytes <= self.options.lag_bytes_max;
            (has_room || self.store.is_ending() || self.check().is_err()).then_some(())
        };
        if has_room().is_none() {
            self.hurry();
            self.progress.wait_for(has_room).await;
        }
        self.check()?;
        self.appending_bytes.set(self.appending_bytes.get() + bytes);
        Ok(Room(self, bytes))
    }

    /// Returns the use that an append belongs to, and its slot.
    async fn target(
        &self,
        segment: u32,
        (offset, end): (u32, u32),
        durably: bool,
    ) -> Result<(Rc<Use>, Rc<Slot>)> {
        let ready = |used: Rc<Use>| {
            let begins = offset == 0 && used.has_beginning(end);
            let is_plain = !begins && !used.is_moving.get() && !used.is_uploaded(offset, end);
            let slot = used.slot().filter(|_| is_plain)?;
            Some((used, slot))
        };
        if let Some(found) = self.used(segment).and_then(ready) {
            return Ok(found);
        }
        let _turn = self.beginning.turn().await;
        match self.used(segment) {
            Some(used) if offset == 0 && used.has_beginning(end) => {
                self.begin_use(segment, durably).await
            }
            None => self.begin_use(segment, durably).await,
            Some(used) => {
                let slot = match used.slot() {
                    Some(slot) => slot,
                    None => self.fetch(&used).await?,
                };
                if used.is_uploaded(offset, end) {
                    return self.rename(&used, slot).await;
                }
                Ok((used, slot))
            }
        }
    }

    /// Begins a use of a segment, in a free slot.
    async fn begin_use(&self, segment: u32, durably: bool) -> Result<(Rc<Use>, Rc<Slot>)> {
        // No other append may go to the use that ends.
        self.hold(segment, Some(Held::Beginning));
        self.note_change(Some(segment), self.clock.now_ns());
        let slot = Rc::new(self.free_slot(durably).await?);
        let used = Rc::new(Use::new(segment, self.next_use_id(), Some(slot.clone())));
        self.local.write_header(&slot, segment, used.id).await?;
        self.new_headers.borrow_mut().push(used.clone());
        assert!(self.used(segment).is_none(), "one use of a segment is begun at a time");
        self.hold(segment, Some(Held::Use(used.clone())));
        Ok((used, slot))
    }

    /// Copies a use from the bucket to a slot, so that appends to it can continue.
    async fn fetch(&self, used: &Rc<Use>) -> Result<Rc<Slot>> {
        let slot = Rc::new(self.free_slot(false).await?);
        let chunks = used.chunks.borrow().clone();
        for chunk in &chunks {
            let mut buffer = AlignedBuffer::zeroed(chunk.bytes as usize);
            let place = (used.segment, used.id);
            self.reading.read(&self.store, place, &chunks, chunk.offset, &mut buffer).await?;
            self.reading.verify(place, chunk, &buffer);
            self.local.append(&slot, chunk.offset, Arc::new(buffer), false).await?;
        }
        // The header vouches for the entire slot. An earlier slot of the use must not be found
        // again.
        self.local.erase_dropped().await?;
        self.sync_local().await?;
        used.header_is_durable.set(false);
        self.local.write_header(&slot, used.segment, used.id).await?;
        self.new_headers.borrow_mut().push(used.clone());
        let before = used.slot.replace(Some(slot.clone()));
        assert!(before.is_none(), "a use has one slot");
        Ok(slot)
    }

    /// Changes the number of a use before an append overwrites bytes of it that are in the bucket:
    /// remains of batches that were never durable. The entire use is uploaded again.
    async fn rename(&self, old: &Rc<Use>, slot: Rc<Slot>) -> Result<(Rc<Use>, Rc<Slot>)> {
        assert!(!old.is_moving.replace(true), "a use is renamed once at a time");
        let _moving = Moving(old);
        let used = loop {
            // Bytes must not change while they are being uploaded or appended.
            let is_quiet = || self.committing.is_empty() && old.appending.borrow().is_empty();
            let may_go_on = || (is_quiet() || self.check().is_err()).then_some(());
            self.progress.wait_for(may_go_on).await;
            self.check()?;
            let id = self.next_use_id();
            self.local.write_header(&slot, old.segment, id).await?;
            self.sync_local().await?;
            if self.committing.is_empty() {
                let (segment, bytes) = (old.segment, self.local.segment_bytes());
                break Rc::new(Use::found(segment, id, Some(slot.clone()), Vec::new(), bytes));
            }
        };
        assert!(old.appending.borrow().is_empty(), "no append goes to a use that is renamed");
        let dirty = used.dirty.take();
        self.hold(used.segment, Some(Held::Use(used.clone())));
        self.add_dirty(&used, &dirty);
        self.note_change(Some(used.segment), self.clock.now_ns());
        Ok((used, slot))
    }

    /// Waits for a free slot, preferably a warm one if it is for durable appends.
    async fn free_slot(&self, durably: bool) -> Result<Slot> {
        loop {
            self.check()?;
            // A sync costs less than the use of a cold slot.
            let reclaims = durably && !self.local.has_warm() && self.local.can_reclaim();
            if !reclaims && let Some(slot) = self.local.allocate(durably) {
                return Ok(slot);
            }
            if self.local.can_reclaim() {
                self.local.erase_dropped().await?;
                self.sync_local().await?;
                continue;
            }
            match self.evict() {
                Evicted::One => {}
                Evicted::AllHeld => self.clock.sleep_ns(HELD_PAUSE_NS).await,
                Evicted::None if self.store.is_over() => {
                    let what = "the journal is full of data that the bucket lacks, and the bucket \
                                does not answer";
                    return Err(Error::new(ErrorKind::NoSpace, what));
                }
                Evicted::None => {
                    self.hurry();
                    let mut is_woken = false;
                    let woken = || std::mem::replace(&mut is_woken, true).then_some(());
                    let woken = pin!(self.progress.wait_for(woken));
                    select(woken, pin!(self.store.until_over())).await;
                }
            }
        }
    }

    /// Warms a slot for the next segment that is begun by a durable append, unless a warm slot
    /// exists.
    async fn prepare(&self) -> Result<()> {
        let prepared = self.warm_slot().await;
        // The slot is free again, and a task may be waiting for it.
        self.progress.wake_all();
        prepared
    }

    async fn warm_slot(&self) -> Result<()> {
        if self.local.has_warm() {
            return Ok(());
        }
        let Some(slot) = self.local.take_cold() else { return Ok(()) };
        let segment_bytes = self.local.segment_bytes();
        // Bytes that an earlier process left there serve as well as zeroes.
        let at = segment_bytes / PAGE / LOOK_DIVISOR * (LOOK_DIVISOR - 1) * PAGE;
        assert!(at + PAGE <= segment_bytes, "a page of the slot is looked at");
        let page = AlignedBuffer::zeroed(PAGE as usize);
        let (page, read) = self.local.read(&slot, at, page).await;
        read?;
        if page.iter().any(|&byte| byte != 0) {
            self.local.set_warm(slot);
            return Ok(());
        }
        let zeroes = Arc::new(AlignedBuffer::zeroed(ZERO_BYTES.min(segment_bytes) as usize));
        for offset in (0..segment_bytes).step_by(zeroes.len()) {
            let begun_ns = self.clock.now_ns();
            let left = (segment_bytes - offset) as usize;
            let zeroes = match left < zeroes.len() {
                true => Arc::new(AlignedBuffer::zeroed(left)),
                false => zeroes.clone(),
            };
            self.local.append(&slot, offset, zeroes, false).await?;
            // Half of the medium's time is left to the host.
            self.clock.sleep_ns(self.clock.now_ns() - begun_ns).await;
            if self.store.is_ending() {
                return Ok(());
            }
        }
        self.sync_local().await?;
        self.local.set_warm(slot);
        Ok(())
    }

    /// Syncs the journal, which covers all headers written before.
    async fn sync_local(&self) -> Result<()> {
        let covered = self.new_headers.take();
        let result = self.local.sync().await;
        match result {
            Ok(()) => covered.iter().for_each(|used| used.header_is_durable.set(true)),
            Err(_) => self.new_headers.borrow_mut().extend(covered),
        }
        result
    }

    async fn sync(&self) -> Result<()> {
        self.check()?;
        self.sync_local().await?;
        if !self.is_durable_in_bucket() {
            return self.check();
        }
        let committed = self.until_committed(true).await;
        committed.map_err(|error| self.lacking(ErrorKind::Medium, error))
    }

    /// Waits until a counted commit covers everything that has completed.
    ///
    /// # Errors
    /// `Poisoned`; the error of a commit that fails meanwhile, if the drive is being closed or
    /// unless `is_patient`; `Io` if the time for closing has expired.
    pub(super) async fn until_committed(&self, is_patient: bool) -> Result<()> {
        assert!(self.counted_cut.get() <= self.cut.get(), "an image is cut before it counts");
        if !self.has_changes() && self.counted_cut.get() == self.cut.get() {
            return self.check();
        }
        // A commit that was cut earlier may lack operations that have completed since.
        let needed = self.cut.get() + 1;
        self.superblocks_changed.set(true);
        self.hurry();
        let failures = self.failures.get();
        let is_counted = || self.counted_cut.get() >= needed;
        let has_failed =
            || (!is_patient || self.store.is_ending()) && self.failures.get() > failures;
        let is_known = || is_counted() || has_failed() || self.check().is_err();
        let known = pin!(self.progress.wait_for(|| is_known().then_some(())));
        select(known, pin!(self.store.until_over())).await;
        if is_counted() {
            return Ok(());
        }
        self.check()?;
        let why = match has_failed() {
            true => self.failure.borrow().clone(),
            false => self.store.trouble(),
        };
        let why = why.unwrap_or_else(|| "the object store does not answer".into());
        Err(Error::new(ErrorKind::Io, format!("a commit has failed: {why}")))
    }

    async fn read(
        &self,
        segment: u32,
        offset: u32,
        mut buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        let Some(used) = self.used(segment) else {
            buffer.fill(0);
            return (buffer, Ok(()));
        };
        self.touch(&used);
        if let Some(slot) = used.slot() {
            let read = self.local.read(&slot, offset, buffer).await;
            drop(slot);
            if self.local.can_reclaim() {
                self.progress.wake_all();
            }
            return read;
        }
        let chunks = used.chunks.borrow().clone();
        let place = (segment, used.id);
        let read = self.reading.read(&self.store, place, &chunks, offset, &mut buffer).await;
        (
            buffer,
            read.map_err(|error| error.in_segment(SegmentId(segment)).at_offset(offset.into())),
        )
    }

    async fn discard(&self, segment: u32) -> Result<()> {
        self.check()?;
        let _turn = self.beginning.turn().await;
        if self.segments.borrow().contains_key(&segment) {
            self.hold(segment, None);
            self.note_change(Some(segment), self.clock.now_ns());
        }
        self.local.erase_dropped().await
    }
}

impl<L, S, C> Medium for Tier<L, S, C>
where
    L: Medium + 'static,
    S: Store + 'static,
    C: Spawn + Clone + 'static,
{
    fn capabilities(&self) -> Capabilities {
        let local = self.state.local.medium().capabilities();
        let durable_appends = local.durable_appends && !self.state.is_durable_in_bucket();
        Capabilities::default()
            .with_write_unit(local.write_unit)
            .with_read_unit(local.read_unit)
            .with_discard(true)
            .with_durable_appends(durable_appends)
            .with_prefers_written(durable_appends && local.prefers_written)
    }

    fn cipher(&self) -> &Cipher {
        &self.cipher
    }

    fn set_geometry(&self, geometry: Geometry) -> Result<()> {
        super::check_geometry(geometry, self.state.local.segment_bytes())?;
        let removed = self
            .state
            .segments
            .borrow()
            .range(geometry.segment_count..)
            .map(|(&at, _)| at)
            .collect::<Vec<_>>();
        for segment in removed {
            self.state.hold(segment, None);
            self.state.note_change(Some(segment), self.state.clock.now_ns());
        }
        Ok(())
    }

    fn reserve(&self) -> Result<()> {
        let what = "the space of a drive in a bucket cannot be reserved";
        Err(Error::new(ErrorKind::Unsupported, what))
    }

    fn misplaced(&self) -> Option<String> {
        self.state.local.medium().misplaced()
    }

    async fn append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.state.append(segment.0, offset, buffer, false).await
    }

    async fn append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.state.append(segment.0, offset, buffer, true).await
    }

    fn spare_buffer(&self) -> Option<AlignedBuffer> {
        self.state.local.medium().spare_buffer()
    }

    async fn read(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: AlignedBuffer,
    ) -> (AlignedBuffer, Result<()>) {
        self.state.read(segment.0, offset, buffer).await
    }

    async fn sync(&self) -> Result<()> {
        self.state.sync().await
    }

    async fn prepare(&self, _: SegmentId) -> Result<bool> {
        self.state.prepare().await.map(|()| true)
    }

    async fn discard(&self, segment: SegmentId) -> Result<()> {
        self.state.discard(segment.0).await
    }

    fn as_remote(&self) -> Option<&dyn Remote> {
        Some(self)
    }

    async fn read_superblock(&self, slot: u32) -> Result<AlignedBuffer> {
        Ok(super::superblock(&self.state.superblocks.borrow(), slot))
    }

    async fn write_superblock(&self, slot: u32, bytes: AlignedBuffer) -> Result<()> {
        self.state.check()?;
        assert_eq!(bytes.len(), SUPERBLOCK_BYTES, "a superblock fills its slot");
        let bytes = Arc::new(bytes);
        self.state.local.write_superblock(slot, bytes.clone()).await?;
        if let Some(superblock) = self.state.superblocks.borrow_mut().get_mut(slot as usize) {
            *superblock = Some(bytes);
        }
        self.state.note_change(None, self.state.clock.now_ns());
        Ok(())
    }
}

impl<L, S, C> Remote for Tier<L, S, C>
where
    L: Medium + 'static,
    S: Store + 'static,
    C: Spawn + Clone + 'static,
{
    fn status(&self) -> Status {
        let state = &self.state;
        let now_ns = state.clock.now_ns();
        let since_ns = state.committing_since_ns.get().or(state.changed_ns.get());
        Status {
            place: state.options.place.clone(),
            durable: state.options.durable,
            lag_bytes: state.lag_bytes(),
            lag_bytes_max: state.options.lag_bytes_max,
            lag_ns: since_ns.map_or(0, |since_ns| now_ns - since_ns),
            lag_ns_max: state.options.lag_ns,
            stored_bytes: state.stored_bytes.get(),
            epoch: state.epoch,
            commit: state.counted_number(),
            requests: state.store.requests(),
            damaged_object: state.reading.damaged_object(),
            trouble: state.store.trouble(),
            poison: state.poison.borrow().clone().filter(|_| !state.is_for_reading.get()),
        }
    }

    fn ending(&self) {
        self.state.begin_ending();
    }

    fn finish(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(Tier::finish(self))
    }
}
