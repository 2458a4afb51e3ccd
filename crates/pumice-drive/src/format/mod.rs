//! The on-media format: encoders and decoders for every structure. The reference is
//! `docs/format.md`.
//!
//! ```text
//! medium:  | superblock slot 0 | superblock slot 1 | segment 0 | segment 1 | ...
//! segment: | segment header | batch | batch | ...                    | unused |
//! batch:   | batch header | record | record | ... | padding |
//! record:  | record header | payload |
//! ```
//!
//! Decoders accept untrusted bytes: they never panic, never allocate more than the input justifies,
//! and reject values that only a newer format could define. Encoders assert conditions that only a
//! bug of this crate can violate.
//!
//! This module does no I/O, and defines neither the order of writes nor the meaning of a map. It
//! serves the other crates of the workspace; an embedder does not need it.

#![warn(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::indexing_slicing
)]

mod array;
mod batch;
mod checkpoint;
mod forward;
mod keys;
mod layout;
mod limits;
mod map;
mod record;
mod segment;
mod snapshot;
mod superblock;
mod transfer;

pub use array::{
    ARRAY_HEADER_BYTES, ARRAY_MEMBERS_MAX, ArrayHeader, ArrayLayout, ArrayMember, MEMBER_PATH_MAX,
    MemberState,
};
pub use batch::{
    BATCH_ALIGNMENT, BATCH_HEADER_BYTES, BatchHeader, PARITY_PAGES_MAX, chain_record, chain_start,
};
pub(crate) use checkpoint::META_RAW_BYTES_MAX;
pub use checkpoint::{
    DroppedRange, OpenedSegment, Root, SEGMENTS_MAX, StreamTail, TableEntry, meta_payload,
};
pub(crate) use forward::{FORWARD_PIECES_MAX, FORWARDS_IN_A_PIECE};
pub use forward::{Forward, ForwardPiece};
pub(crate) use keys::EARLIER_KEY_BYTES;
pub use keys::{KEY_SLOT_BYTES, KEY_SLOTS, KeyArea, KeySlot, SlotKind};
pub use layout::Field;
pub use limits::{
    BATCH_BYTES_MAX, CHUNKED_BLOCKS_MAX, FORMAT_VERSION, FRAME_BLOCKS_MAX, META_SEGMENTS_MAX,
    SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SIZE_BYTES_MAX,
};
pub(crate) use map::LEAF_RUN_BYTES;
pub use map::{
    DIRECTORY_PAGE_BYTES, DIRECTORY_PAGE_LEAVES, DirectoryEntry, LEAF_BLOCKS, LEAF_TABLE_BYTES,
    LEAF_TABLES_MAX, LeafTable, META_RECORD_BYTES_MAX, MapLimits, MetadataAddress, RunContent,
    TABLE_BLOCKS_MIN, decode_leaf, decode_page, encode_page, encode_run, leaf_bytes_max,
};
pub(crate) use record::SEALED;
pub use record::{
    META_ALIGNMENT, META_PREFIX_BYTES, MetaKind, RECORD_HEADER_BYTES, Record, RecordAddress,
    SOURCE_BYTES, Source, check_payload,
};
pub(crate) use segment::epoch_of;
pub use segment::{DriveShape, SEGMENT_HEADER_BYTES, SegmentHeader, Stream, generation};
pub use snapshot::{
    CLONE_PATH_MAX, Listed, RegisteredClone, SNAPSHOT_NAME_MAX, SNAPSHOTS_IN_A_PIECE,
    SNAPSHOTS_MAX, Snapshot, check_clone_path, check_snapshot_name, check_snapshots,
};
pub(crate) use snapshot::{CLONES_MAX, decode_snapshots};
pub use superblock::{
    BAD_SEGMENTS_MAX, CheckpointAddress, DETOURS_MAX, Detour, ORIGIN_PATH_MAX, Origin, Receiving,
    SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC, Superblock,
};
pub use transfer::{TRANSFER_HEAD_BYTES, TransferBase, TransferHead};

/// Returns the fields of every structure in the layout that the code uses, with the structure's
/// heading in `docs/format.md`.
pub fn tables() -> Vec<(&'static str, Vec<Field>)> {
    vec![
        ("Superblock", superblock::FIELDS.to_vec()),
        ("Key slot", keys::FIELDS.to_vec()),
        ("Segment header", segment::FIELDS.to_vec()),
        ("Batch header", batch::FIELDS.to_vec()),
        ("Record header", record::FIELDS.to_vec()),
        ("Source", record::SOURCE_FIELDS.to_vec()),
        ("Map", map::FIELDS.to_vec()),
        ("Checkpoint root", checkpoint::ROOT_FIELDS.to_vec()),
        ("Stream tail", checkpoint::TAIL_FIELDS.to_vec()),
        ("Segment table entry", checkpoint::TABLE_FIELDS.to_vec()),
        ("Dropped range", checkpoint::DROPPED_FIELDS.to_vec()),
        ("Snapshot", snapshot::FIELDS.to_vec()),
        ("Forwarding table", forward::PIECE_FIELDS.to_vec()),
        ("Forwarded frame", forward::ENTRY_FIELDS.to_vec()),
        ("Transfer", transfer::FIELDS.to_vec()),
        ("Array header", array::FIELDS.to_vec()),
        ("Array member", array::MEMBER_FIELDS.to_vec()),
    ]
}
