//! Metadata contexts: the properties of a range, besides its bytes, that a client can query.
//!
//! | context | status of an extent |
//! |---|---|
//! | `base:allocation` | bit 0: not mapped; bit 1: reads as zeroes |
//! | `x-pumice:stored` | its space in the log, in 65536ths of its length |
//! | `qemu:dirty-bitmap:NAME` | bit 0: was written since the earlier state of this name |
//! | `x-pumice:changed:NAME` | the same, for clients that mistake the above for QEMU's |
//!
//! The status is a share, not a number of bytes, because clients join extents of equal status. The
//! space of a range in the log is its length times its status over 65536, headers included. Data
//! stored uncompressed has a status of 65536 plus a little for its header. If only a part of a
//! frame is still mapped, the range counts that part of its bytes.
//!
//! A thin drive that is full also refuses writes where `base:allocation` reports mapped blocks,
//! because a log cannot overwrite in place.
//!
//! This module has names and bits only; `block_status` queries the map.

#![expect(clippy::indexing_slicing, reason = "contexts are numbered from 0 in the arrays' order")]

use serde::{Deserialize, Serialize};

use super::wire::Fields;

/// Bits of `base:allocation`.
pub(super) const STATE_HOLE: u64 = 1 << 0;
pub(super) const STATE_ZERO: u64 = 1 << 1;
/// `x-pumice:stored` of an extent whose stored length equals its length.
pub(super) const STORED_WHOLE: u64 = 1 << 16;

/// Bit of a context of changes.
pub(super) const STATE_CHANGED: u64 = 1 << 0;

/// Maximum number of contexts of changes that a client may select: each keeps an earlier state
/// open.
pub(super) const CHANGES_MAX: usize = 16;

/// The prefixes of the names of contexts of changes.
const QEMU: &str = "qemu:dirty-bitmap:";
const OWN: &str = "x-pumice:changed:";

/// The contexts of every export, by position. An identifier is the position plus one, because some
/// clients use 0 for "no context".
const NAMES: [&str; 2] = ["base:allocation", "x-pumice:stored"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Context {
    Allocation,
    Stored,
}

impl Context {
    const ALL: [Self; 2] = [Self::Allocation, Self::Stored];

    pub(super) fn name(self) -> &'static str {
        NAMES[self as usize]
    }

    /// Returns the identifier used in replies.
    pub(super) fn id(self) -> u32 {
        self as u32 + 1
    }
}

/// A set of contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Contexts([bool; 2]);

impl Contexts {
    pub(super) const NONE: Self = Self([false; 2]);
    #[cfg(test)]
    pub(super) const ALL: Self = Self([true; 2]);

    pub(super) fn iter(self) -> impl Iterator<Item = Context> {
        Context::ALL.into_iter().filter(move |&context| self.0[context as usize])
    }

    pub(super) fn is_empty(self) -> bool {
        self == Self::NONE
    }
}

/// A context of the changes since an earlier state of the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Changes {
    /// The name of the state.
    pub(super) state: String,
    /// Whether the client selected it under the name of a QEMU bitmap.
    is_qemu: bool,
}

impl Changes {
    pub(super) fn name(&self) -> String {
        format!("{}{}", if self.is_qemu { QEMU } else { OWN }, self.state)
    }

    /// Returns the identifier of the context at a position among the selected ones.
    pub(super) fn id(position: usize) -> u32 {
        let id = Context::ALL.len() + 1 + position;
        u32::try_from(id).expect("at most CHANGES_MAX are selected")
    }
}

/// The contexts selected by a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) contexts: Contexts,
    pub(super) changes: Vec<Changes>,
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContextRequest<'a> {
    /// Name of the export; empty for the default export.
    pub(super) name: &'a [u8],
    queries: Vec<&'a [u8]>,
}

impl<'a> ContextRequest<'a> {
    /// Decodes the data of an option; `None` if the lengths in it do not add up. Allocates one
    /// entry per query, fewer than the data has bytes.
    pub(super) fn decode(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u32()?;
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(fields.string()?);
        }
        fields.is_empty().then_some(Self { name, queries })
    }

    /// Returns the contexts to list for an export with these earlier states: all if there is no
    /// query, otherwise each context whose name, or its prefix up to a colon, is queried.
    pub(super) fn listed(&self, states: &[&str]) -> Selection {
        self.matching(states, |query, name| {
            let is_beginning = query.ends_with(b":") && name.as_bytes().starts_with(query);
            self.queries.is_empty() || is_beginning || query == name.as_bytes()
        })
    }

    /// Returns the contexts to select: each context whose name is queried.
    pub(super) fn selected(&self, states: &[&str]) -> Selection {
        self.matching(states, |query, name| query == name.as_bytes())
    }

    fn matching(&self, states: &[&str], matches: impl Fn(&[u8], &str) -> bool) -> Selection {
        // No query counts as one query for everything.
        let queries: &[&[u8]] = if self.queries.is_empty() { &[b""] } else { &self.queries };
        let is_asked = |name: &str| queries.iter().any(|query| matches(query, name));
        let contexts = Contexts(NAMES.map(is_asked));
        let changes = [true, false].into_iter().flat_map(|is_qemu| {
            let named = states.iter().map(move |&state| Changes { state: state.into(), is_qemu });
            named.filter(|changes| is_asked(&changes.name()))
        });
        Selection { contexts, changes: changes.collect() }
    }
}

#[cfg(test)]
mod tests {
    //! Goal: names select their contexts, name spaces list but do not select contexts, and
    //! truncated data is refused.
    use super::*;

    fn data(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
        let mut data = Vec::new();
        let mut string = |bytes: &[u8]| {
            data.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
            data.extend_from_slice(bytes);
        };
        string(name);
        let mut all = Vec::new();
        for query in queries {
            all.extend_from_slice(&(query.len() as u32).to_be_bytes());
            all.extend_from_slice(query);
        }
        [data, (queries.len() as u32).to_be_bytes().to_vec(), all].concat()
    }

    fn names(selection: &Selection) -> Vec<String> {
        let fixed = selection.contexts.iter().map(|context| context.name().to_owned());
        fixed.chain(selection.changes.iter().map(Changes::name)).collect()
    }

    #[test]
    fn queries_list_and_select() {
        const ALL: [&str; 6] = [
            "base:allocation",
            "x-pumice:stored",
            "qemu:dirty-bitmap:a",
            "qemu:dirty-bitmap:b:c",
            "x-pumice:changed:a",
            "x-pumice:changed:b:c",
        ];
        let own = [ALL[1], ALL[4], ALL[5]];
        for (queries, listed, selected) in [
            (&[][..], &ALL[..], &[][..]),
            (&[&b"base:"[..]], &ALL[..1], &[]),
            (&[b"x-pumice:"], &own[..], &[]),
            (&[b"x-pumice:changed:"], &ALL[4..], &[]),
            (&[b"qemu:"], &ALL[2..4], &[]),
            (&[b"qemu:dirty-bitmap:"], &ALL[2..4], &[]),
            (&[b"qemu:dirty-bitmap:a"], &ALL[2..3], &ALL[2..3]),
            (&[b"qemu:dirty-bitmap:b:c"], &ALL[3..4], &ALL[3..4]),
            (&[b"base:allocation"], &ALL[..1], &ALL[..1]),
            (&[b"x-pumice:stored", b"base:allocation"], &ALL[..2], &ALL[..2]),
            (&[b"base:allocation2", b"base", b"", b":", b"qemu:dirty-bitmap", b"qem:"], &[], &[]),
            (&[b"qemu:allocation-depth", b"qemu:dirty-bitmap:d", b"x-pumice:changed"], &[], &[]),
        ] {
            let bytes = data(b"disk", queries);
            let request = ContextRequest::decode(&bytes).unwrap();
            assert_eq!(request.name, b"disk");
            let states = ["a", "b:c"];
            assert_eq!(names(&request.listed(&states)), listed, "{queries:?}");
            assert_eq!(names(&request.selected(&states)), selected, "{queries:?}");
        }
    }

    #[test]
    fn requests_are_read_whole_or_not_at_all() {
        let bytes = data(b"disk", &[b"base:allocation", b""]);
        for length in 0..bytes.len() {
            assert_eq!(ContextRequest::decode(&bytes[..length]), None, "{length} bytes");
        }
        assert_eq!(ContextRequest::decode(&[&bytes[..], &[0]].concat()), None);
        // A count without data.
        assert_eq!(ContextRequest::decode(b"\0\0\0\0\xff\xff\xff\xff"), None);
    }
}
