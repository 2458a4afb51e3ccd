//! The guest's memory: files that the front end shares, mapped into this process.
//!
//! A map never changes: a new one replaces it, and requests in flight retain their map. Mappings
//! are checked against the size of their file when they are created.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals};
use vm_memory::mmap::MmapRegion;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap};

use crate::guest::FileId;
use crate::message::Region;

/// The guest's memory, as mapped into this process.
pub(crate) type Guest = Rc<GuestMemoryMmap<()>>;

/// All regions, with their addresses in the front end.
#[derive(Clone)]
pub(crate) struct Memory {
    regions: Vec<Mapped>,
    guest: Guest,
}

/// A mapped region.
#[derive(Clone)]
struct Mapped {
    region: Region,
    file: FileId,
    memory: Arc<GuestRegionMmap<()>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { regions: Vec::new(), guest: Rc::new(GuestMemoryMmap::new()) }
    }
}

impl Memory {
    /// Maps all regions of a table.
    ///
    /// # Errors
    /// A file is shorter than its region, regions overlap, or the system cannot map them.
    pub(crate) fn map(table: &[Region], files: Vec<OwnedFd>) -> Result<Self, String> {
        if table.len() != files.len() {
            return Err(format!("{} regions with {} descriptors", table.len(), files.len()));
        }
        let mapped = table.iter().zip(files);
        let mapped = mapped.map(|(region, file)| map(region, file));
        Self::of(mapped.collect::<Result<_, String>>()?)
    }

    /// Returns this memory with one more region.
    ///
    /// # Errors
    /// See [`Memory::map`].
    pub(crate) fn with(&self, region: Region, file: OwnedFd) -> Result<Self, String> {
        let mut regions = self.regions.clone();
        regions.push(map(&region, file)?);
        Self::of(regions)
    }

    /// Returns this memory without one region.
    ///
    /// # Errors
    /// There is no such region.
    pub(crate) fn without(&self, region: &Region) -> Result<Self, String> {
        // The file's offset is not part of a region's identity.
        let is_it =
            |other: &Region| Region { file_offset: region.file_offset, ..*other } == *region;
        let mut regions = self.regions.clone();
        regions.retain(|other| !is_it(&other.region));
        if regions.len() == self.regions.len() {
            return Err("no such region of memory".into());
        }
        Self::of(regions)
    }

    fn of(regions: Vec<Mapped>) -> Result<Self, String> {
        let mut mapped: Vec<_> = regions.iter().map(|region| region.memory.clone()).collect();
        mapped.sort_by_key(|region| vm_memory::GuestMemoryRegion::start_addr(&**region));
        if mapped.is_empty() {
            return Ok(Self::default());
        }
        let guest = GuestMemoryMmap::from_arc_regions(mapped).map_err(|error| error.to_string())?;
        Ok(Self { regions, guest: Rc::new(guest) })
    }

    pub(crate) fn guest(&self) -> &Guest {
        &self.guest
    }

    pub(crate) fn region_count(&self) -> usize {
        self.regions.len()
    }

    /// Returns the files of all regions, in order.
    pub(crate) fn files(&self) -> Vec<FileId> {
        let mut files: Vec<_> = self.regions.iter().map(|region| region.file).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Returns the file that contains an address of the guest.
    pub(crate) fn file_of(&self, address: GuestAddress) -> Option<FileId> {
        let holds = |region: &Region| {
            address.0.checked_sub(region.guest_address).is_some_and(|offset| offset < region.bytes)
        };
        self.regions.iter().find(|mapped| holds(&mapped.region)).map(|mapped| mapped.file)
    }

    /// Returns the guest's address for an address of the front end.
    pub(crate) fn translate(&self, user_address: u64) -> Option<GuestAddress> {
        self.regions
            .iter()
            .find_map(|Mapped { region, .. }| {
                let offset = user_address.checked_sub(region.user_address)?;
                (offset < region.bytes).then(|| region.guest_address.checked_add(offset))?
            })
            .map(GuestAddress)
    }
}

fn map(region: &Region, file: OwnedFd) -> Result<Mapped, String> {
    let bytes = usize::try_from(region.bytes).map_err(|error| error.to_string())?;
    // Seals cannot be read from a file without support for them, as in hugetlbfs of old kernels.
    let is_fixed = fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    if !is_fixed {
        tracing::debug!(bytes, "the file of the guest's memory can be truncated");
    }
    let file = File::from(file);
    let id = FileId::of(&file).map_err(|error| error.to_string())?;
    let file = FileOffset::new(file, region.file_offset);
    let memory = MmapRegion::from_file(file, bytes).map_err(|error| error.to_string())?;
    let memory = GuestRegionMmap::new(memory, GuestAddress(region.guest_address))
        .ok_or("a region beyond the address space")?;
    Ok(Mapped { region: *region, file: id, memory: Arc::new(memory) })
}
