//! Decides which guests may continue with their rings in place, and which must start over.
//!
//! A guest that ran before relies on each completed write, and offers each of its requests once.
//! Its rings do not show whether this server fulfils these expectations. A ring is therefore
//! admitted only if
//!
//! * it is new: its base is 0, and no request was ever marked as used in it; or
//! * this server, or its predecessor that restarted as this server, was the last to serve it, and
//!   all requests taken from it have ended. A ring is identified by its number and the file of the
//!   memory that contains it. It may begin where it ended, or at 0, since its driver may have reset
//!   it.
//!
//! In both cases, the base must equal the index of used requests: otherwise requests would be
//! executed twice, or never. Every other guest, even if its server ended in an orderly way, is
//! refused until it has been restarted, and the state of a guest that was refused while it was
//! served is forgotten. The state of a guest exists in the server's memory, and is handed over only
//! by a server that has flushed and closed its drive.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::str::FromStr;

/// A file of a guest's memory: its device and its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the identity of `file`.
    ///
    /// # Errors
    /// The error of `fstat`.
    pub(crate) fn of(file: &File) -> std::io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self { device: metadata.dev(), inode: metadata.ino() })
    }
}

/// The position at which a ring ended, once all its requests have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// The file that contains the ring.
    pub(crate) file: FileId,
    /// The next request to take.
    pub(crate) index: u16,
}

/// A server's knowledge of its guest once it has no request in flight, for the server that replaces
/// it in the same process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownGuest {
    /// Keyed by the number of the ring.
    rings: BTreeMap<usize, Ended>,
}

/// As `number:device:inode:index` of each ring.
impl fmt::Display for KnownGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (number, ended)) in self.rings.iter().enumerate() {
            let Ended { file: FileId { device, inode }, index } = ended;
            let space = if at > 0 { " " } else { "" };
            write!(f, "{space}{number}:{device}:{inode}:{index}")?;
        }
        Ok(())
    }
}

/// The error for a text that does not describe a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAGuest;

impl fmt::Display for NotAGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a description of a guest")
    }
}

impl std::error::Error for NotAGuest {}

impl FromStr for KnownGuest {
    type Err = NotAGuest;

    fn from_str(text: &str) -> Result<Self, NotAGuest> {
        let ring = |word: &str| {
            let mut numbers = word.split(':');
            let number = numbers.next()?.parse().ok()?;
            let (device, inode) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
            let index = numbers.next()?.parse().ok()?;
            let ended = Ended { file: FileId { device, inode }, index };
            numbers.next().is_none().then_some((number, ended))
        };
        let words = text.split(' ').filter(|_| !text.is_empty());
        let rings = words.map(|word| ring(word).ok_or(NotAGuest)).collect::<Result<_, _>>()?;
        Ok(Self { rings })
    }
}

/// The knowledge of guests that all sessions of a server share.
#[derive(Debug)]
pub(crate) struct Guests {
    /// The last guest that was served.
    known: RefCell<KnownGuest>,
    /// The last guest that was refused, so that the refusal is logged once and not at every
    /// attempt.
    refused: RefCell<Vec<FileId>>,
}

impl Guests {
    /// Returns the initial knowledge of a server that was given `guest`.
    pub(crate) fn new(guest: Option<KnownGuest>) -> Self {
        Self { known: RefCell::new(guest.unwrap_or_default()), refused: RefCell::default() }
    }

    /// Returns the knowledge of the last guest that was served, which has no request in flight.
    pub(crate) fn known(&self) -> KnownGuest {
        self.known.borrow().clone()
    }

    /// Returns where a ring of the last guest that was served ended.
    pub(crate) fn ended(&self, ring: usize) -> Option<Ended> {
        self.known.borrow().rings.get(&ring).copied()
    }

    /// Records that the guest whose memory consists of these files is served. No other guest may
    /// continue then.
    pub(crate) fn admit(&self, files: &[FileId]) {
        self.known.borrow_mut().rings.retain(|_, ended| files.contains(&ended.file));
        self.refused.take();
    }

    /// Records where a ring of the guest that is being served has ended.
    pub(crate) fn note(&self, ring: usize, ended: Ended) {
        self.known.borrow_mut().rings.insert(ring, ended);
    }

    /// Forgets the last guest that was served, which must then start over.
    pub(crate) fn forget(&self) {
        self.known.take();
    }

    /// Records that the guest with these files is refused. Returns whether the refusal is new.
    pub(crate) fn refuse(&self, files: Vec<FileId>) -> bool {
        self.refused.replace(files.clone()) != files
    }
}

/// The position at which a ring begins, according to its base and its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// The next request to take.
    pub(crate) base: u16,
    /// The number of requests that are marked as used.
    pub(crate) used: u16,
    /// Whether no request was ever marked as used.
    pub(crate) is_untouched: bool,
    /// The file that contains the ring.
    pub(crate) file: FileId,
}

impl Start {
    /// Checks whether a ring may begin here, given where it `ended` at this server.
    ///
    /// # Errors
    /// The reason for the refusal: the guest must be restarted.
    pub(crate) fn check(&self, ended: Option<Ended>) -> Result<(), &'static str> {
        if self.base != self.used {
            return Err("requests in flight when its front end was disconnected are not known");
        }
        let is_new = self.base == 0 && self.is_untouched;
        let continues = |ended: Ended| self.base == ended.index || self.base == 0;
        let ended_here = ended.filter(|ended| ended.file == self.file);
        if is_new || ended_here.is_some_and(continues) {
            return Ok(());
        }
        Err("it ran on another server, which may have lost writes that it relies on")
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a successor understands the text that its predecessor hands over; every other text is
    //! refused.
    use super::*;

    #[test]
    fn a_guest_survives_being_text() {
        let ended = |device, inode, index| Ended { file: FileId { device, inode }, index };
        let rings = [(0, ended(1, u64::MAX, 3)), (63, ended(26, 3, u16::MAX))];
        for count in 0..=2 {
            let guest = KnownGuest { rings: rings.into_iter().take(count).collect() };
            assert_eq!(guest.to_string().parse(), Ok(guest));
        }
        for text in [" ", "no", "1:2:3", "1:2:3:4:5", "0:1:2:3  1:1:2:3", "0:-1:2:3", "0:1:2:65536"]
        {
            assert_eq!(text.parse::<KnownGuest>(), Err(NotAGuest), "{text}");
        }
    }
}
