//! A session with one front end: negotiates, sets up rings, and stops them at the end.
//!
//! Messages are answered in order, one at a time. Only a message that stops a ring has to wait, for
//! the ring's requests in flight.
//!
//! The session hangs up last: the front end then uses the index of used requests as the base at
//! which its rings continue.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};

use zerocopy::IntoBytes;

use crate::channel::{Channel, End, Received};
use crate::config::{self, QUEUES_MAX, feature};
use crate::execute::{self, Device};
use crate::guest::Start;
use crate::memory::Memory;
use crate::message::{Addresses, Head, Message, decode};
use crate::ring::{GuestAddresses, Ring};
use pumice_drive::base::Clock;
use pumice_drive::runtime::Runtime;

/// Maximum number of regions of memory: the limit of QEMU (`VHOST_USER_MAX_RAM_SLOTS`).
const REGIONS_MAX: usize = 509;

/// Interval between checks of the size of the disk.
const WATCH_NS: u64 = 1_000_000_000;

/// A session with a front end.
pub(crate) struct Session {
    device: Rc<Device>,
    channel: Channel,
    /// Whether the guest of this session is served.
    is_admitted: Cell<bool>,
    /// Whether the guest was refused.
    is_refused: Cell<bool>,
    rings: RefCell<Vec<Option<Rc<Ring>>>>,
    memory: RefCell<Memory>,
    features: Cell<u64>,
    /// The channel for reporting a change of the configuration.
    back_channel: RefCell<Option<Channel>>,
    /// The size of the disk that the front end has read in this session. It may still use an older
    /// one.
    told_size_bytes: Cell<Option<u64>>,
    is_ending: Cell<bool>,
    /// Whether a message was refused. A guest may make its front end send such messages.
    has_refused: Cell<bool>,
}

/// The answer to a message.
enum Answer {
    /// Done. A reply is sent only if the front end requests one.
    Done,
    Number(u64),
    Bytes(Vec<u8>),
}

/// The reason why a message was refused.
enum Refusal {
    /// The front end may continue with other messages.
    Message(String),
    /// The guest is not served.
    Guest(String),
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::Message(why)
    }
}

impl From<&str> for Refusal {
    fn from(why: &str) -> Self {
        Self::Message(why.into())
    }
}

impl Session {
    /// Returns the session over `channel`.
    pub(crate) fn new(device: Rc<Device>, channel: Channel) -> Rc<Self> {
        // Until the driver announces flushes, it does not send any.
        device.has_flush.set(false);
        Rc::new(Self {
            device,
            channel,
            is_admitted: Cell::new(false),
            is_refused: Cell::new(false),
            rings: RefCell::new(vec![None; usize::from(QUEUES_MAX)]),
            memory: RefCell::default(),
            features: Cell::new(0),
            back_channel: RefCell::default(),
            told_size_bytes: Cell::new(None),
            is_ending: Cell::new(false),
            has_refused: Cell::new(false),
        })
    }

    /// Serves the front end until it disconnects or [`Self::end`] is called. Every request taken
    /// has then ended.
    pub(crate) async fn serve(self: Rc<Self>) {
        let runtime = self.device.runtime.clone();
        self.device.runtime.spawn(Self::watch_size(Rc::downgrade(&self), runtime));
        let end = loop {
            if self.is_ending.get() {
                break End::Shutdown;
            }
            match self.channel.receive().await {
                Ok(received) => {
                    if let Err(end) = self.answer(received).await {
                        break end;
                    }
                }
                Err(end) => break end,
            }
            // There may already be another message, and another after that.
            self.device.runtime.yield_now().await;
        };
        match end {
            End::Closed | End::Shutdown if self.is_admitted.get() => {
                tracing::info!("front end disconnected");
            }
            // A refused guest retries endlessly.
            End::Closed | End::Shutdown => {}
            End::Malformed(what) => {
                tracing::warn!(error = what.0, "front end disconnected: malformed message");
            }
            End::Broken(error) => tracing::warn!(%error, "front end disconnected"),
        }
        self.stop_all().await;
        self.note_rings();
        self.channel.shut_down();
    }

    /// Makes [`Self::serve`] return once the requests in flight have ended.
    pub(crate) fn end(&self) {
        self.is_ending.set(true);
        self.channel.interrupt();
    }

    /// Executes a message and replies.
    async fn answer(&self, received: Received) -> Result<(), End> {
        let Received { head, body, descriptors } = received;
        let message = decode(&head, &body).map_err(|malformed| {
            tracing::debug!(code = head.code(), "malformed message");
            End::Malformed(malformed)
        })?;
        let reply =
            |body: &[u8]| self.channel.send(&head.reply(body.len()), body).map_err(End::Broken);
        match self.carry_out(message, descriptors).await {
            Ok(Answer::Number(number)) => reply(number.as_bytes()),
            Ok(Answer::Bytes(bytes)) => reply(&bytes),
            Ok(Answer::Done) if head.needs_reply() => reply(0_u64.as_bytes()),
            Ok(Answer::Done) => Ok(()),
            Err(Refusal::Guest(why)) => {
                self.is_refused.set(true);
                if self.is_admitted.get() {
                    // Other rings of the guest may have run by now.
                    self.device.guests.forget();
                }
                if self.device.guests.refuse(self.memory.borrow().files()) {
                    tracing::warn!(error = why, "guest refused: restart the guest");
                }
                if head.needs_reply() {
                    reply(1_u64.as_bytes())?;
                }
                Err(End::Shutdown)
            }
            Err(Refusal::Message(why)) => {
                let (code, message) = (head.code(), "front end's message refused");
                if self.has_refused.replace(true) {
                    tracing::debug!(code, error = %why, "{message}");
                } else {
                    tracing::warn!(code, error = %why, "{message}");
                }
                if head.needs_reply() {
                    reply(1_u64.as_bytes())
                } else {
                    // The front end would not learn that the message had no effect.
                    Err(End::Broken(std::io::Error::other(why)))
                }
            }
        }
    }

    async fn carry_out(
        &self,
        message: Message,
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<Answer, Refusal> {
        let disk = &self.device.disk;
        match message {
            Message::GetFeatures => {
                return Ok(Answer::Number(config::features(disk.is_read_only())));
            }
            Message::GetProtocolFeatures => return Ok(Answer::Number(config::protocol_features())),
            Message::GetQueueNumber => return Ok(Answer::Number(QUEUES_MAX.into())),
            Message::GetMemorySlots => return Ok(Answer::Number(REGIONS_MAX as u64)),
            Message::GetConfig { offset, size } => return Ok(self.config(offset, size)),
            Message::GetRingBase { ring } => {
                let stopped = self.ring(ring)?;
                stopped.stop().await;
                stopped.forget_kick();
                let state = [u32::try_from(ring).unwrap_or(u32::MAX), stopped.base().into()];
                return Ok(Answer::Bytes(state.as_bytes().to_vec()));
            }
            Message::SetOwner => {}
            Message::ResetOwner => self.stop_all().await,
            Message::SetFeatures(features) => self.set_features(features)?,
            Message::SetProtocolFeatures(features) => {
                if features & !config::protocol_features() != 0 {
                    return Err("features of the protocol that were not offered".into());
                }
            }
            Message::SetConfig => return Err("no field of the configuration can be set".into()),
            Message::SetBackChannel => {
                let socket = descriptors.pop().ok_or("no descriptor of a socket")?;
                let channel = Channel::new(self.device.runtime.clone(), socket);
                *self.back_channel.borrow_mut() = Some(channel);
            }
            Message::SetMemory(table) => self.set_memory(Memory::map(&table, descriptors)?),
            Message::AddMemory(region) => {
                let file = descriptors.pop().ok_or("no descriptor of memory")?;
                if self.memory.borrow().region_count() >= REGIONS_MAX {
                    return Err("too many regions of memory".into());
                }
                let memory = self.memory.borrow().with(region, file)?;
                self.set_memory(memory);
            }
            Message::RemoveMemory(region) => {
                let memory = self.memory.borrow().without(&region)?;
                self.set_memory(memory);
            }
            of_ring => self.set_ring(of_ring, descriptors.pop()).await?,
        }
        Ok(Answer::Done)
    }

    /// Changes one ring.
    async fn set_ring(&self, message: Message, event: Option<OwnedFd>) -> Result<(), Refusal> {
        match message {
            Message::SetRingSize { ring, size } => self.ring(ring)?.set_size(size)?,
            Message::SetRingAddresses { ring, addresses } => {
                let addresses = self.translate(&addresses)?;
                self.ring(ring)?.set_addresses(&addresses)?;
            }
            Message::SetRingBase { ring, base } => {
                let base = u16::try_from(base).map_err(|error| error.to_string())?;
                self.ring(ring)?.set_base(base)?;
            }
            Message::SetRingEnabled { ring, enabled } => {
                let ring = self.ring(ring)?;
                ring.set_enabled(enabled);
                if enabled { self.start(&ring)? } else { ring.stop().await }
            }
            Message::SetKick { ring, has_descriptor: true } => {
                let ring = self.ring(ring)?;
                // A new descriptor for a running ring.
                ring.stop().await;
                ring.set_kick(event.ok_or("no descriptor")?)?;
                if self.features.get() & feature::PROTOCOL == 0 {
                    ring.set_enabled(true);
                }
                self.start(&ring)?;
            }
            Message::SetKick { .. } => return Err("a ring without a kick is not polled".into()),
            Message::SetCall { ring, has_descriptor } => {
                self.ring(ring)?.set_call(event.filter(|_| has_descriptor))?;
            }
            Message::SetError { ring, has_descriptor } => {
                self.ring(ring)?.set_error(event.filter(|_| has_descriptor))?;
            }
            _ => return Err("not a message about a ring".into()),
        }
        Ok(())
    }

    /// Starts a ring that is enabled once it is set up.
    ///
    /// # Errors
    /// The guest is refused, or the ring is not in its memory.
    fn start(&self, ring: &Rc<Ring>) -> Result<(), Refusal> {
        if !(ring.is_enabled() && ring.is_set_up()) {
            return Ok(());
        }
        // Before the first ring runs, check those that are set up but not yet enabled.
        let rings: Vec<_> = self.rings.borrow().iter().flatten().cloned().collect();
        for other in rings.iter().filter(|other| other.is_set_up() && other.is_current()) {
            self.check_guest(other)?;
        }
        let start = self.check_guest(ring)?;
        if !self.is_admitted.replace(true) {
            self.device.guests.admit(&self.memory.borrow().files());
            tracing::info!("front end connected");
        }
        execute::start(&self.device, ring, start);
        Ok(())
    }

    /// Checks that the guest may use a ring from its beginning.
    ///
    /// # Errors
    /// The guest is not admitted, or the ring is not in its memory.
    fn check_guest(&self, ring: &Ring) -> Result<Start, Refusal> {
        let start = ring.beginning(&self.memory.borrow())?;
        let ended = ring.ended().or_else(|| self.device.guests.ended(ring.number()));
        match start.check(ended) {
            Ok(()) => Ok(start),
            Err(why) => Err(Refusal::Guest(format!("ring {}: {why}", ring.number()))),
        }
    }

    /// Records where the rings of the guest that is being served have ended, so that it may
    /// continue after this session. A guest that was refused may not.
    fn note_rings(&self) {
        if !self.is_admitted.get() || self.is_refused.get() {
            return;
        }
        for ring in self.rings.borrow().iter().flatten() {
            if let Some(ended) = ring.ended() {
                self.device.guests.note(ring.number(), ended);
            }
        }
    }

    /// Returns a ring, created if necessary.
    fn ring(&self, number: usize) -> Result<Rc<Ring>, Refusal> {
        let mut rings = self.rings.borrow_mut();
        let ring = rings.get_mut(number).ok_or("no such ring")?;
        let new = || {
            let Device { runtime, buffers, .. } = &*self.device;
            let guest = self.memory.borrow().guest().clone();
            let ring = Ring::new(runtime.clone(), buffers.clone(), number, guest);
            ring.set_event_index(self.features.get() & feature::EVENT_INDEX != 0);
            ring
        };
        Ok(ring.get_or_insert_with(new).clone())
    }

    async fn stop_all(&self) {
        let rings: Vec<_> = self.rings.borrow().iter().flatten().cloned().collect();
        rings.iter().for_each(|ring| ring.begin_stop());
        for ring in rings {
            ring.stopped().await;
            ring.forget_kick();
        }
    }

    fn set_features(&self, features: u64) -> Result<(), Refusal> {
        let offered = config::features(self.device.disk.is_read_only()) | config::TOLERATED;
        if features & !offered != 0 {
            let unknown = features & !offered;
            return Err(format!("features that were not offered: {unknown:#x}").into());
        }
        self.features.set(features);
        self.device.has_flush.set(features & feature::FLUSH != 0);
        for ring in self.rings.borrow().iter().flatten() {
            ring.set_event_index(features & feature::EVENT_INDEX != 0);
        }
        Ok(())
    }

    fn set_memory(&self, memory: Memory) {
        for ring in self.rings.borrow().iter().flatten() {
            ring.set_memory(memory.guest());
        }
        *self.memory.borrow_mut() = memory;
    }

    fn translate(&self, addresses: &Addresses) -> Result<GuestAddresses, Refusal> {
        let memory = self.memory.borrow();
        let translate =
            |address| memory.translate(address).ok_or("a ring outside of the guest's memory");
        Ok(GuestAddresses {
            descriptors: translate(addresses.descriptors)?,
            available: translate(addresses.available)?,
            used: translate(addresses.used)?,
        })
    }

    /// Returns a part of the configuration space, after the fields of the request.
    fn config(&self, offset: u32, size: u32) -> Answer {
        let size_bytes = self.device.disk.size_bytes();
        self.told_size_bytes.set(Some(size_bytes));
        let bytes = config::read(size_bytes, offset, size);
        let mut body = [offset, size, 0].as_bytes().to_vec();
        body.extend(bytes);
        Answer::Bytes(body)
    }

    /// Requests once a second that the front end read the size of the disk, unless it has read it.
    async fn watch_size(session: Weak<Self>, runtime: Runtime) {
        while let Some(session) = session.upgrade() {
            session.report_size();
            drop(session);
            runtime.sleep_ns(WATCH_NS).await;
        }
    }

    fn report_size(&self) {
        let size_bytes = self.device.disk.size_bytes();
        if self.told_size_bytes.get() == Some(size_bytes) {
            return;
        }
        let back_channel = self.back_channel.borrow();
        let Some(back_channel) = &*back_channel else { return };
        if let Err(error) = back_channel.send(&Head::config_changed(), &[]) {
            tracing::debug!(%error, size_bytes, "cannot report the new size to the front end");
        }
    }
}
