//! Requests of virtio-blk: decodes a chain of descriptors, and checks whether it is permitted.
//!
//! ```text
//! descriptors that the device reads | descriptors that it writes
//! head (16 bytes), data of a write  | data of a read, status (1 byte)
//! ```
//!
//! The guest chooses every byte, and may change the bytes at any time, so each one is read once.
//! The parts may be split over descriptors in any way.

use pumice_drive::base::{Error, ErrorKind, Result};
use virtio_queue::DescriptorChain;
use vm_memory::{Address, Bytes, GuestAddress, GuestMemoryMmap};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::buffers::PIECE_BYTES;
use crate::config::{RANGES_MAX, SECTOR_BYTES, SEGMENTS_MAX};

/// Maximum number of descriptors of a request: its data, its head and its status.
const DESCRIPTORS_MAX: usize = SEGMENTS_MAX as usize + 2;

/// Longest data of a read or write. Guests stay below 1 MiB because of [`SEGMENTS_MAX`], unless
/// they have large pages; NBD has the same limit.
const LENGTH_MAX: u64 = 32 << 20;

/// Bytes of a device's identifier.
pub const ID_BYTES: usize = 20;

/// The flag of a range that may be deallocated.
const UNMAP: u32 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Head {
    kind: U32,
    priority: U32,
    sector: U64,
}

/// A range of a discard or write-zeroes.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WireRange {
    sector: U64,
    sectors: U32,
    flags: U32,
}

/// The outcome of a request, as reported to the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Good = 0,
    Failed = 1,
    Unsupported = 2,
}

/// A part of the guest's memory, which need not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    address: GuestAddress,
    bytes: u32,
}

/// The parts of a request, reused from one request to the next.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// The data that the device reads.
    pub(crate) input: Vec<Segment>,
    /// The memory for the data that it returns.
    pub(crate) output: Vec<Segment>,
    kind: u32,
    sector: u64,
    pub(crate) status: GuestAddress,
}

/// The limits of a disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) size_bytes: u64,
    pub(crate) is_read_only: bool,
}

/// A range in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) may_unmap: bool,
}

/// A valid request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Read { offset: u64, length: u64 },
    Write { offset: u64, length: u64 },
    Flush,
    Identify,
    Discard(Vec<Range>),
    WriteZeroes(Vec<Range>),
}

/// The error for a chain that is not a request. Such a chain has no status, so only the ring can
/// report the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl Parts {
    /// Splits a chain into its parts.
    ///
    /// # Errors
    /// The chain is longer than allowed, does not end, or has no space for a head or a status.
    pub(crate) fn parse(
        &mut self,
        guest: &GuestMemoryMmap<()>,
        chain: DescriptorChain<&GuestMemoryMmap<()>>,
    ) -> std::result::Result<(), Malformed> {
        self.input.clear();
        self.output.clear();
        // The iterator ends without an error where a chain is broken.
        let mut is_complete = false;
        for (count, descriptor) in chain.enumerate() {
            if count == DESCRIPTORS_MAX {
                return Err(Malformed("a chain of too many descriptors"));
            }
            is_complete = !descriptor.has_next();
            let segment = Segment { address: descriptor.addr(), bytes: descriptor.len() };
            if descriptor.is_write_only() {
                self.output.push(segment);
            } else if self.output.is_empty() {
                self.input.push(segment);
            } else {
                return Err(Malformed("a descriptor to read after one to write"));
            }
        }
        if !is_complete {
            return Err(Malformed("a chain that does not end"));
        }
        self.take_status()?;
        self.take_head(guest)
    }

    /// Splits the last byte off the output.
    fn take_status(&mut self) -> std::result::Result<(), Malformed> {
        const NONE: Malformed = Malformed("no room for a status");
        while self.output.pop_if(|segment| segment.bytes == 0).is_some() {}
        let last = self.output.last_mut().ok_or(NONE)?;
        last.bytes -= 1;
        self.status = last.address.checked_add(last.bytes.into()).ok_or(NONE)?;
        Ok(())
    }

    /// Reads the first 16 bytes of the input, and removes them from it.
    fn take_head(&mut self, guest: &GuestMemoryMmap<()>) -> std::result::Result<(), Malformed> {
        const NONE: Malformed = Malformed("no head");
        let mut head = [0; size_of::<Head>()];
        copy_in(guest, &self.input, 0, &mut head).map_err(|_| NONE)?;
        let Head { kind, sector, .. } = zerocopy::transmute!(head);
        (self.kind, self.sector) = (kind.get(), sector.get());
        let mut left = size_of::<Head>() as u64;
        for segment in &mut self.input {
            // At most 16.
            #[expect(clippy::cast_possible_truncation, reason = "at most 16")]
            let taken = left.min(segment.bytes.into()) as u32;
            segment.address = segment.address.checked_add(taken.into()).ok_or(NONE)?;
            segment.bytes -= taken;
            left -= u64::from(taken);
            if left == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Returns the length of the input without the head.
    pub(crate) fn input_bytes(&self) -> u64 {
        length(&self.input)
    }

    /// Returns the length of the output without the status.
    pub(crate) fn output_bytes(&self) -> u64 {
        length(&self.output)
    }

    /// Decodes the request.
    ///
    /// # Errors
    /// The status of a request that cannot be executed.
    pub(crate) fn command(
        &self,
        guest: &GuestMemoryMmap<()>,
        limits: Limits,
    ) -> std::result::Result<Command, Status> {
        let changes = |command| if limits.is_read_only { Err(Status::Failed) } else { Ok(command) };
        match self.kind {
            0 => {
                let (offset, length) = self.data(&self.output, limits)?;
                Ok(Command::Read { offset, length })
            }
            1 => {
                let (offset, length) = self.data(&self.input, limits)?;
                changes(Command::Write { offset, length })
            }
            4 => Ok(Command::Flush),
            8 if self.output_bytes() >= ID_BYTES as u64 => Ok(Command::Identify),
            8 => Err(Status::Failed),
            11 => changes(Command::Discard(self.ranges(guest, limits, 0)?)),
            13 => changes(Command::WriteZeroes(self.ranges(guest, limits, UNMAP)?)),
            _ => Err(Status::Unsupported),
        }
    }

    /// Returns offset and length of a read or write.
    fn data(
        &self,
        segments: &[Segment],
        limits: Limits,
    ) -> std::result::Result<(u64, u64), Status> {
        let length = length(segments);
        if length == 0 || !length.is_multiple_of(SECTOR_BYTES) || length > LENGTH_MAX {
            return Err(Status::Failed);
        }
        let offset = limits.place(self.sector, length).ok_or(Status::Failed)?;
        Ok((offset, length))
    }

    /// Returns the ranges of a discard or write-zeroes, with only the `allowed` flags.
    fn ranges(
        &self,
        guest: &GuestMemoryMmap<()>,
        limits: Limits,
        allowed: u32,
    ) -> std::result::Result<Vec<Range>, Status> {
        const RANGE_BYTES: usize = size_of::<WireRange>();
        let mut bytes = [0; RANGE_BYTES * RANGES_MAX as usize];
        let length = usize::try_from(length(&self.input)).unwrap_or(usize::MAX);
        let bytes = bytes.get_mut(..length).ok_or(Status::Failed)?;
        if bytes.is_empty() || !bytes.len().is_multiple_of(RANGE_BYTES) {
            return Err(Status::Failed);
        }
        copy_in(guest, &self.input, 0, bytes).map_err(|_| Status::Failed)?;
        let ranges = bytes.chunks_exact(RANGE_BYTES).map(|bytes| {
            let range = WireRange::read_from_bytes(bytes).map_err(|_| Status::Failed)?;
            let flags = range.flags.get();
            if flags & !allowed != 0 {
                return Err(Status::Unsupported);
            }
            let length = u64::from(range.sectors.get()) * SECTOR_BYTES;
            let offset = limits.place(range.sector.get(), length).ok_or(Status::Failed)?;
            Ok(Range { offset, length, may_unmap: flags & UNMAP != 0 })
        });
        ranges.collect()
    }
}

impl Limits {
    /// Returns the offset of `length` bytes from `sector`, if they are on the disk.
    fn place(self, sector: u64, length: u64) -> Option<u64> {
        let offset = sector.checked_mul(SECTOR_BYTES)?;
        offset.checked_add(length).filter(|&end| end <= self.size_bytes).map(|_| offset)
    }
}

fn length(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.bytes)).sum()
}

/// Fills `out` with the bytes of `segments` from `skip` on.
///
/// # Errors
/// The segments are shorter, or not in the guest's memory.
pub(crate) fn copy_in(
    guest: &GuestMemoryMmap<()>,
    segments: &[Segment],
    skip: u64,
    out: &mut [u8],
) -> Result<()> {
    let length = out.len();
    let mut rest = out;
    each(segments, skip, length, |address, bytes| {
        let (piece, others) = std::mem::take(&mut rest).split_at_mut(bytes);
        rest = others;
        guest.read_slice(piece, address).map_err(outside)
    })
}

/// Copies `bytes` to `segments` from `skip` on.
///
/// # Errors
/// See [`copy_in`].
pub(crate) fn copy_out(
    guest: &GuestMemoryMmap<()>,
    segments: &[Segment],
    skip: u64,
    bytes: &[u8],
) -> Result<()> {
    let mut rest = bytes;
    each(segments, skip, bytes.len(), |address, bytes| {
        let (piece, others) = rest.split_at(bytes);
        rest = others;
        guest.write_slice(piece, address).map_err(outside)
    })
}

/// Calls `visit` with each part of `length` bytes of `segments` from `skip` on.
fn each(
    segments: &[Segment],
    mut skip: u64,
    length: usize,
    mut visit: impl FnMut(GuestAddress, usize) -> Result<()>,
) -> Result<()> {
    let mut left = length;
    for segment in segments {
        let bytes = u64::from(segment.bytes);
        if skip >= bytes {
            skip -= bytes;
            continue;
        }
        let count = usize::try_from(bytes - skip).unwrap_or(usize::MAX).min(left);
        visit(GuestAddress(segment.address.0.saturating_add(skip)), count)?;
        (skip, left) = (0, left - count);
        if left == 0 {
            break;
        }
    }
    if left == 0 { Ok(()) } else { Err(Error::new(ErrorKind::InvalidInput, "too little data")) }
}

fn outside(error: vm_memory::GuestMemoryError) -> Error {
    let what = "data outside of the guest's memory";
    Error::new(ErrorKind::InvalidInput, what).caused_by(error)
}

/// Splits `length` bytes into pieces: their positions and lengths.
pub(crate) fn pieces(length: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..length)
        .step_by(PIECE_BYTES)
        .map(move |at| (at, usize::try_from(length - at).unwrap_or(usize::MAX).min(PIECE_BYTES)))
}

/// Offsets of the parts of the ring that [`fuzz`] reads.
const FUZZ_AVAILABLE: u32 = 0x100;
const FUZZ_USED: u32 = 0x200;

/// Splits the chains of a ring into their parts, and copies the data that they describe. The ring
/// of 16 entries is in a guest's memory of 64 KiB that begins with `bytes`. Returns whether there
/// was a valid request. Must not panic.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) -> bool {
    use virtio_queue::{Queue, QueueOwnedT, QueueT};
    const MEMORY_BYTES: usize = 64 << 10;
    let memory = GuestMemoryMmap::from_ranges(&[(GuestAddress(0), MEMORY_BYTES)]);
    let guest = memory.expect("64 KiB of memory");
    let bytes = bytes.get(..MEMORY_BYTES).unwrap_or(bytes);
    guest.write_slice(bytes, GuestAddress(0)).expect("cut to the length of the memory");
    let mut queue = Queue::new(16).expect("a power of two");
    queue.set_desc_table_address(Some(0), Some(0));
    queue.set_avail_ring_address(Some(FUZZ_AVAILABLE), Some(0));
    queue.set_used_ring_address(Some(FUZZ_USED), Some(0));
    queue.set_ready(true);
    let Ok(chains) = queue.iter(&guest) else { return false };
    let mut parts = Parts::default();
    let mut is_accepted = false;
    for chain in chains {
        if parts.parse(&guest, chain).is_err() {
            continue;
        }
        assert!(parts.input.len() + parts.output.len() <= DESCRIPTORS_MAX);
        is_accepted |= fuzz_command(&parts, &guest);
    }
    is_accepted
}

/// Performs the steps of a request that need no disk. Returns whether the request is valid.
fn fuzz_command(parts: &Parts, guest: &GuestMemoryMmap<()>) -> bool {
    let limits = Limits { size_bytes: 1 << 30, is_read_only: false };
    let is_inside = |offset: u64, length: u64| {
        assert!(offset.checked_add(length).is_some_and(|end| end <= limits.size_bytes));
    };
    let Ok(command) = parts.command(guest, limits) else { return false };
    match command {
        Command::Read { offset, length } | Command::Write { offset, length } => {
            is_inside(offset, length);
            assert!(length <= LENGTH_MAX);
            let mut data = [0; 512];
            for (at, _) in pieces(length) {
                let _ = copy_in(guest, &parts.input, at, &mut data);
                let _ = copy_out(guest, &parts.output, at, &data);
            }
        }
        Command::Discard(ranges) | Command::WriteZeroes(ranges) => {
            ranges.iter().for_each(|range| is_inside(range.offset, range.length));
        }
        Command::Flush | Command::Identify => {}
    }
    true
}
