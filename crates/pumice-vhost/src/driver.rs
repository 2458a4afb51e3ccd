//! A front end and a driver in one, for tests and measurements. It shares memory of its own, keeps
//! rings in it, and performs any operation on them that a test requests, even one that no driver
//! performs.
//!
//! ```text
//! guest address 0        rings, heads and statuses: 4 MiB
//! guest address 4 GiB    data: one slot of 1 MiB and a page for each request, so that short data
//!                        of several does not share the same sets of the processor's caches
//! ```
//!
//! The front end's addresses differ, so that a device that confuses them is detected.
#![allow(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "the numbers are those of a test"
)]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::vhost_user::message::{VhostUserConfigFlags, VhostUserHeaderFlag};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::mmap::MmapRegion;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};
use vmm_sys_util::poll::PollContext;

/// Maximum bytes of data in a request.
pub const SLOT_BYTES: u64 = 1 << 20;

/// Bytes from one slot to the next.
pub const SLOT_STRIDE: u64 = SLOT_BYTES + 4096;

/// Address of the first slot for data.
pub const DATA: u64 = 4 << 30;

/// Bytes of the first region.
const RINGS_BYTES: u64 = 4 << 20;

/// Bytes of the first region that a ring occupies, with its heads and statuses.
const RING_BYTES: u64 = 128 << 10;

/// The front end's address of the guest's address 0.
const USER: u64 = 0x7f00_0000_0000;

/// Offsets of the parts of a ring.
const AVAILABLE: u64 = 32 << 10;
const USED: u64 = 48 << 10;
const HEADS: u64 = 64 << 10;

/// Flags of a descriptor.
pub const NEXT: u16 = 1;
/// The device writes the memory.
pub const WRITE: u16 = 2;
/// The descriptor refers to a table of descriptors.
pub const INDIRECT: u16 = 4;

/// The feature that makes notifications depend on indices.
pub const EVENT_INDEX: u64 = 1 << 29;

/// How long to wait for an answer before a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// The setup of a device.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Number of rings.
    pub rings: usize,
    /// Entries of each ring: a power of two. A request uses three descriptors.
    pub size: u16,
    /// Features to accept, if they are offered.
    pub features: u64,
    /// Index at which each ring begins.
    pub base: u16,
}

impl Default for Setup {
    fn default() -> Self {
        Self { rings: 1, size: 128, features: u64::MAX, base: 0 }
    }
}

/// A connected device.
pub struct Driver {
    /// Absent while disconnected.
    front: Option<(Frontend, UnixStream)>,
    guest: GuestMemoryMmap<()>,
    files: [File; 2],
    rings: Vec<Ring>,
    features: u64,
    setup: Setup,
}

struct Ring {
    start: u64,
    size: u16,
    /// Index of the next request to offer.
    next: u16,
    /// Index of the next completion to take.
    used: u16,
    free: Vec<u16>,
    events: Events,
}

/// The descriptors of a ring.
struct Events {
    kick: EventFd,
    call: EventFd,
    /// Waits for `call`.
    called: PollContext<u32>,
    error: EventFd,
}

impl Events {
    fn new() -> io::Result<Self> {
        let event = || EventFd::new(EFD_NONBLOCK);
        let (kick, call, error) = (event()?, event()?, event()?);
        let called = PollContext::new().map_err(os)?;
        called.add(&call, 0).map_err(os)?;
        Ok(Self { kick, call, called, error })
    }
}

/// A request that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The slot of the request.
    pub slot: u16,
    /// 0 good, 1 failed, 2 unsupported; 255 not written.
    pub status: u8,
    /// Bytes that the device reports as written.
    pub written: u32,
}

/// A descriptor: address, length, flags, next.
pub type Descriptor = (u64, u32, u16, u16);

/// Kinds of requests.
pub mod kind {
    /// Read.
    pub const READ: u32 = 0;
    /// Write.
    pub const WRITE: u32 = 1;
    /// Flush.
    pub const FLUSH: u32 = 4;
    /// Return the serial number.
    pub const ID: u32 = 8;
    /// Discard ranges.
    pub const DISCARD: u32 = 11;
    /// Write zeroes to ranges.
    pub const ZEROES: u32 = 13;
}

fn os(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

fn region(bytes: u64, guest_address: u64) -> io::Result<(File, GuestRegionMmap<()>)> {
    let file = File::from(memfd_create("driver", MemfdFlags::CLOEXEC)?);
    ftruncate(&file, bytes)?;
    let offset = FileOffset::new(file.try_clone()?, 0);
    let mapped = MmapRegion::from_file(offset, bytes as usize).map_err(os)?;
    let region = GuestRegionMmap::new(mapped, GuestAddress(guest_address));
    Ok((file, region.ok_or_else(|| os("no such region"))?))
}

/// Connects to a device, and negotiates features.
fn greet(socket: &Path, features: u64) -> io::Result<((Frontend, UnixStream), u64)> {
    let stream = UnixStream::connect(socket)?;
    let mut front = Frontend::from_stream(stream.try_clone()?, 64);
    front.set_owner().map_err(os)?;
    let features = front.get_features().map_err(os)? & features;
    front.set_features(features).map_err(os)?;
    let protocol = front.get_protocol_features().map_err(os)?;
    front.set_protocol_features(protocol).map_err(os)?;
    if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
        front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    }
    Ok(((front, stream), features))
}

impl Driver {
    /// Connects to a device and sets up its rings.
    ///
    /// # Errors
    /// The device refuses a step, or does not exist.
    pub fn connect(socket: &Path, setup: Setup) -> io::Result<Self> {
        let (front, features) = greet(socket, setup.features)?;
        let slots = u64::from(setup.size / 3) * setup.rings as u64;
        let (low, low_region) = region(RINGS_BYTES, 0)?;
        let (high, high_region) = region(slots.max(1) * SLOT_STRIDE, DATA)?;
        let guest = GuestMemoryMmap::from_regions(vec![low_region, high_region]).map_err(os)?;
        let mut driver = Self {
            front: Some(front),
            guest,
            files: [low, high],
            rings: Vec::new(),
            features,
            setup,
        };
        driver.share_memory()?;
        for number in 0..setup.rings {
            driver.set_up(number, setup.base)?;
        }
        Ok(driver)
    }

    /// Sends the table of memory.
    ///
    /// # Errors
    /// The device refuses the table.
    pub fn share_memory(&mut self) -> io::Result<()> {
        let mut table = Vec::new();
        for (file, guest_phys_addr) in self.files.iter().zip([0, DATA]) {
            table.push(VhostUserMemoryRegionInfo {
                guest_phys_addr,
                memory_size: file.metadata()?.len(),
                userspace_addr: USER + guest_phys_addr,
                mmap_offset: 0,
                mmap_handle: file.as_raw_fd(),
            });
        }
        self.front().set_mem_table(&table).map_err(os).map(drop)
    }

    fn data_region(&self) -> io::Result<VhostUserMemoryRegionInfo> {
        Ok(VhostUserMemoryRegionInfo {
            guest_phys_addr: DATA,
            memory_size: self.files[1].metadata()?.len(),
            userspace_addr: USER + DATA,
            mmap_offset: 0,
            mmap_handle: self.files[1].as_raw_fd(),
        })
    }

    /// Adds the memory for data to the shared memory.
    ///
    /// # Errors
    /// The device refuses.
    pub fn add_data_memory(&mut self) -> io::Result<()> {
        let region = self.data_region()?;
        self.front().add_mem_region(&region).map_err(os).map(drop)
    }

    /// Removes the memory for data from the shared memory.
    ///
    /// # Errors
    /// The device refuses.
    pub fn remove_data_memory(&mut self) -> io::Result<()> {
        let region = self.data_region()?;
        self.front().remove_mem_region(&region).map_err(os)
    }

    fn set_up(&mut self, number: usize, base: u16) -> io::Result<()> {
        let start = number as u64 * RING_BYTES;
        // An earlier life of the ring, in which all requests are used.
        self.put(start + AVAILABLE + 2, &base.to_le_bytes());
        self.put(start + USED + 2, &base.to_le_bytes());
        let events = self.attach(number, base)?;
        let size = self.setup.size;
        let free = (0..size / 3).rev().collect();
        let ring = Ring { start, size, next: base, used: base, free, events };
        match self.rings.get_mut(number) {
            Some(old) => *old = ring,
            None => self.rings.push(ring),
        }
        Ok(())
    }

    /// Sends the device the setup of a ring that is in memory.
    fn attach(&mut self, number: usize, base: u16) -> io::Result<Events> {
        let start = number as u64 * RING_BYTES;
        let size = self.setup.size;
        let events = Events::new()?;
        let front = self.front();
        front.set_vring_num(number, size).map_err(os)?;
        front.set_vring_base(number, base).map_err(os)?;
        let addresses = VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: USER + start,
            used_ring_addr: USER + start + USED,
            avail_ring_addr: USER + start + AVAILABLE,
            log_addr: None,
        };
        front.set_vring_addr(number, &addresses).map_err(os)?;
        front.set_vring_err(number, &events.error).map_err(os)?;
        front.set_vring_call(number, &events.call).map_err(os)?;
        front.set_vring_kick(number, &events.kick).map_err(os)?;
        front.set_vring_enable(number, true).map_err(os)?;
        Ok(events)
    }

    /// Disconnects without a message. Memory and rings remain.
    pub fn disconnect(&mut self) {
        self.front = None;
    }

    /// Connects again, with the same memory and rings, like a front end whose device hung up: each
    /// ring continues where the device has marked its requests as used.
    ///
    /// # Errors
    /// See [`Self::connect`].
    pub fn reconnect(&mut self, socket: &Path) -> io::Result<()> {
        self.disconnect();
        let (front, features) = greet(socket, self.setup.features)?;
        (self.front, self.features) = (Some(front), features);
        self.share_memory()?;
        for number in 0..self.rings.len() {
            let base = self.used_index(number);
            self.reattach(number, base)?;
        }
        Ok(())
    }

    /// Sets up an unchanged ring in memory again, from `base` on.
    ///
    /// # Errors
    /// The device refuses.
    pub fn reattach(&mut self, number: usize, base: u16) -> io::Result<()> {
        let events = self.attach(number, base)?;
        self.rings[number].events = events;
        Ok(())
    }

    /// Returns the number of requests that the device has marked as used.
    pub fn used_index(&self, ring: usize) -> u16 {
        let index = GuestAddress(self.rings[ring].start + USED + 2);
        self.guest.load(index, Ordering::Acquire).expect("in the memory")
    }

    /// Writes an entry into the used ring, as if a request had ended there.
    pub fn pretend_used(&self, ring: usize, entry: u16) {
        self.put(ring as u64 * RING_BYTES + USED + 4 + u64::from(entry) * 8, &[0, 0, 0, 0, 1]);
    }

    /// Sets the number of requests that are marked as used, as if another device had done so.
    pub fn pretend_used_index(&self, ring: usize, index: u16) {
        self.put(self.rings[ring].start + USED + 2, &index.to_le_bytes());
    }

    /// Replaces the descriptor by which the device notifies. Returns whether the device notifies
    /// through it within `limit`.
    ///
    /// # Errors
    /// The device refuses.
    pub fn replace_call(&mut self, ring: usize, limit: Duration) -> io::Result<bool> {
        let Events { call, called, .. } = Events::new()?;
        self.front().set_vring_call(ring, &call).map_err(os)?;
        let is_called = called.wait_timeout(limit).map_err(os)?.iter().next().is_some();
        let events = &mut self.rings[ring].events;
        (events.call, events.called) = (call, called);
        Ok(is_called)
    }

    /// Returns whether the device hangs up within a limited time.
    ///
    /// # Errors
    /// The connection cannot be watched.
    pub fn hangs_up(&self, limit: Duration) -> io::Result<bool> {
        let mut stream = self.stream();
        stream.set_read_timeout(Some(limit))?;
        match stream.read(&mut [0]) {
            Ok(0) => Ok(true),
            Ok(_) => Err(os("an unrequested message")),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the number of the file of the guest's rings, as in `/proc/self/maps`.
    ///
    /// # Errors
    /// The error of the system.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(std::os::unix::fs::MetadataExt::ino(&self.files[0].metadata()?))
    }

    /// Stops a ring, and returns the index at which it would continue.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn stop(&mut self, ring: usize) -> io::Result<u16> {
        self.front().get_vring_base(ring).map(|base| base as u16).map_err(os)
    }

    /// Sets up a ring again, at an index.
    ///
    /// # Errors
    /// The device refuses.
    pub fn restart(&mut self, ring: usize, base: u16) -> io::Result<()> {
        self.set_up(ring, base)
    }

    /// Returns the features that were accepted.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Returns the configuration space.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn config(&mut self) -> io::Result<Vec<u8>> {
        let flags = VhostUserConfigFlags::WRITABLE;
        let (_, bytes) = self.front().get_config(0, 96, flags, &[0; 96]).map_err(os)?;
        Ok(bytes)
    }

    /// Sends the socket on which the device reports changes.
    ///
    /// # Errors
    /// The device refuses.
    pub fn set_back_channel(&mut self, socket: &impl AsRawFd) -> io::Result<()> {
        self.front().set_backend_request_fd(socket).map_err(os)
    }

    /// Returns the connection, for invalid messages.
    ///
    /// # Panics
    /// If disconnected.
    pub fn front(&mut self) -> &mut Frontend {
        &mut self.front.as_mut().expect("connected").0
    }

    /// Returns the socket, for bytes that are not a message.
    ///
    /// # Panics
    /// If disconnected.
    pub fn stream(&self) -> &UnixStream {
        &self.front.as_ref().expect("connected").1
    }

    /// Writes bytes to the guest's memory.
    pub fn put(&self, address: u64, bytes: &[u8]) {
        self.guest.write_slice(bytes, GuestAddress(address)).expect("in the driver's memory");
    }

    /// Reads bytes of the guest's memory.
    pub fn get(&self, address: u64, bytes: &mut [u8]) {
        self.guest.read_slice(bytes, GuestAddress(address)).expect("in the driver's memory");
    }

    /// Returns the address of the data of a slot.
    pub fn data(&self, ring: usize, slot: u16) -> u64 {
        let slots = u64::from(self.setup.size / 3);
        DATA + (ring as u64 * slots + u64::from(slot)) * SLOT_STRIDE
    }

    /// Returns the address of the head of a slot. Its status follows 16 bytes later.
    pub fn head(&self, ring: usize, slot: u16) -> u64 {
        self.rings[ring].start + HEADS + u64::from(slot) * 32
    }

    /// Writes a descriptor into the table of a ring.
    pub fn describe(&self, ring: usize, index: u16, descriptor: Descriptor) {
        let table = self.rings[ring].start;
        self.put(table + u64::from(index) * 16, &descriptor_bytes(descriptor));
    }

    /// Takes a free slot.
    pub fn take(&mut self, ring: usize) -> u16 {
        self.rings[ring].free.pop().expect("a free slot")
    }

    /// Writes head, descriptors and status of a request into a slot.
    pub fn prepare(&self, ring: usize, slot: u16, kind: u32, sector: u64, length: u32) {
        let (head, data) = (self.head(ring, slot), self.data(ring, slot));
        self.put(head, &head_bytes(kind, sector));
        self.put(head + 16, &[255]);
        let is_input = matches!(kind, kind::READ | kind::ID);
        let first = slot * 3;
        self.describe(ring, first, (head, 16, NEXT, first + if length > 0 { 1 } else { 2 }));
        let flags = NEXT | if is_input { WRITE } else { 0 };
        self.describe(ring, first + 1, (data, length, flags, first + 2));
        self.describe(ring, first + 2, (head + 16, 1, WRITE, 0));
    }

    /// Offers the chain that begins with a descriptor, without notifying the device.
    pub fn offer(&mut self, ring: usize, first: u16) {
        let Ring { start, size, next, .. } = &mut self.rings[ring];
        let entry = *start + AVAILABLE + 4 + u64::from(*next % *size) * 2;
        *next = next.wrapping_add(1);
        let (index, next) = (*start + AVAILABLE + 2, *next);
        self.put(entry, &first.to_le_bytes());
        self.guest.store(next, GuestAddress(index), Ordering::Release).expect("in the memory");
    }

    /// Sets the index up to which requests are offered, without offering any.
    pub fn offer_up_to(&mut self, ring: usize, index: u16) {
        let address = self.rings[ring].start + AVAILABLE + 2;
        self.put(address, &index.to_le_bytes());
    }

    /// Notifies the device of the requests offered since index `since`, if it has enabled
    /// notifications.
    pub fn announce(&self, ring: usize, since: u16) {
        let Ring { start, size, next, .. } = self.rings[ring];
        std::sync::atomic::fence(Ordering::SeqCst);
        let load = |address| {
            self.guest.load::<u16>(GuestAddress(address), Ordering::Relaxed).expect("in the memory")
        };
        let wants = if self.features & EVENT_INDEX != 0 {
            let event = load(start + USED + 4 + u64::from(size) * 8);
            next.wrapping_sub(event).wrapping_sub(1) < next.wrapping_sub(since)
        } else {
            load(start + USED) & 1 == 0
        };
        if wants {
            self.kick(ring);
        }
    }

    /// Notifies the device, whether or not it has enabled notifications.
    pub fn kick(&self, ring: usize) {
        self.rings[ring].events.kick.write(1).expect("an eventfd");
    }

    /// Returns whether the device has noticed all kicks of a ring. The device takes the offered
    /// requests before it checks for a later kick.
    pub fn is_kick_noticed(&self, ring: usize) -> bool {
        let kicked = PollContext::<u32>::new().expect("a descriptor");
        kicked.add(&self.rings[ring].events.kick, 0).expect("an eventfd");
        let events = kicked.wait_timeout(Duration::ZERO).expect("an eventfd");
        events.iter().next().is_none()
    }

    /// Returns the index of the next request to offer.
    pub fn next(&self, ring: usize) -> u16 {
        self.rings[ring].next
    }

    /// Begins a request whose data is in its slot.
    pub fn submit(&mut self, ring: usize, slot: u16, kind: u32, sector: u64, length: u32) {
        self.prepare(ring, slot, kind, sector, length);
        let since = self.next(ring);
        self.offer(ring, slot * 3);
        self.announce(ring, since);
    }

    /// Returns a completed request, if there is one.
    pub fn completed(&mut self, ring: usize) -> Option<Completion> {
        let Ring { start, size, used, .. } = self.rings[ring];
        let index = GuestAddress(start + USED + 2);
        if self.guest.load::<u16>(index, Ordering::Acquire).expect("in the memory") == used {
            return None;
        }
        let mut entry = [0; 8];
        self.get(start + USED + 4 + u64::from(used % size) * 8, &mut entry);
        let first = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let written = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let slot = (first / 3) as u16;
        let mut status = [0];
        self.get(self.head(ring, slot) + 16, &mut status);
        self.rings[ring].used = used.wrapping_add(1);
        if !self.rings[ring].free.contains(&slot) {
            self.rings[ring].free.push(slot);
        }
        Some(Completion { slot, status: status[0], written })
    }

    /// Waits for a request to end.
    ///
    /// # Errors
    /// No request has ended after 20 seconds.
    pub fn wait(&mut self, ring: usize) -> io::Result<Completion> {
        self.wait_for(ring, PATIENCE)
    }

    /// Waits for a request to end, for a limited time since the last notification.
    ///
    /// # Errors
    /// No request has ended by then.
    pub fn wait_for(&mut self, ring: usize, limit: Duration) -> io::Result<Completion> {
        loop {
            if let Some(completion) = self.completed(ring) {
                return Ok(completion);
            }
            // Requests a notification of the next completion.
            let Ring { start, size, used, .. } = self.rings[ring];
            self.put(start + AVAILABLE + 4 + u64::from(size) * 2, &used.to_le_bytes());
            std::sync::atomic::fence(Ordering::SeqCst);
            if let Some(completion) = self.completed(ring) {
                return Ok(completion);
            }
            let Events { call, called, .. } = &self.rings[ring].events;
            if called.wait_timeout(limit).map_err(os)?.iter().next().is_none() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let _ = call.read();
        }
    }

    /// Returns whether the device has declared a ring broken.
    pub fn is_broken(&self, ring: usize) -> bool {
        self.rings[ring].events.error.read().is_ok()
    }

    /// Performs one request, and returns its status.
    ///
    /// # Errors
    /// The request does not end.
    pub fn call(&mut self, kind: u32, sector: u64, data: &[u8]) -> io::Result<u8> {
        let slot = self.take(0);
        self.put(self.data(0, slot), data);
        self.submit(0, slot, kind, sector, data.len() as u32);
        self.wait(0).map(|completion| completion.status)
    }

    /// Like [`Self::call`], while other requests wait. Does not wait for their end.
    ///
    /// # Errors
    /// The first request to end is another one, or none ends.
    pub fn call_beside(&mut self, kind: u32, sector: u64, data: &[u8]) -> io::Result<u8> {
        let slot = self.take(0);
        self.put(self.data(0, slot), data);
        self.submit(0, slot, kind, sector, data.len() as u32);
        match self.wait(0)? {
            completion if completion.slot == slot => Ok(completion.status),
            other => Err(os(format!("another request has ended: {other:?}"))),
        }
    }

    /// Reads bytes of the disk.
    ///
    /// # Errors
    /// The request fails, or does not end.
    pub fn read(&mut self, sector: u64, bytes: &mut [u8]) -> io::Result<()> {
        let slot = self.take(0);
        self.submit(0, slot, kind::READ, sector, bytes.len() as u32);
        let completion = self.wait(0)?;
        self.get(self.data(0, slot), bytes);
        match completion.status {
            0 if completion.written as usize == bytes.len() + 1 => Ok(()),
            _ => Err(os(format!("{completion:?}"))),
        }
    }
}

/// Returns a descriptor as bytes.
pub fn descriptor_bytes((address, length, flags, next): Descriptor) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}

/// Returns the head of a request.
pub fn head_bytes(kind: u32, sector: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&kind.to_le_bytes());
    bytes[8..].copy_from_slice(&sector.to_le_bytes());
    bytes
}

/// Returns one range of a discard or write-zeroes.
pub fn range_bytes(sector: u64, sectors: u32, flags: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sector.to_le_bytes());
    bytes[8..12].copy_from_slice(&sectors.to_le_bytes());
    bytes[12..].copy_from_slice(&flags.to_le_bytes());
    bytes
}
