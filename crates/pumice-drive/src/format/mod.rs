//! Every byte that lands on a medium: encode and decode. `docs/format.md` is the document.
//!
//! ```text
//! medium:  | superblock slot 0 | superblock slot 1 | segment 0 | segment 1 | ...
//! segment: | segment header | batch | batch | ...                    | unused |
//! batch:   | batch header | record | record | ... | padding |
//! record:  | record header | payload |
//! ```
//!
//! Decoders take untrusted bytes: they never panic, allocate nothing, and refuse what a newer
//! format might mean. Deliberately absent: I/O, order of steps, meaning of a map.

mod batch;
mod checkpoint;
mod layout;
mod map;
mod record;
mod segment;
mod superblock;

pub use batch::{
    BATCH_ALIGNMENT, BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BatchHeader, chain_record, chain_start,
};
pub use checkpoint::{
    DroppedRange, META_PREFIX_BYTES, META_RAW_BYTES_MAX, Root, StreamTail, TableEntry, meta_payload,
};
pub use layout::Field;
pub use map::{
    DIRECTORY_PAGE_BYTES, DIRECTORY_PAGE_LEAVES, DirectoryEntry, LEAF_BLOCKS, LEAF_RUN_BYTES,
    META_RECORD_BYTES_MAX, META_SEGMENTS_MAX, MapLimits, MetaPlace, RunContent, decode_leaf,
    decode_page, encode_page, encode_run,
};
pub use record::{
    META_ALIGNMENT, MetaKind, RECORD_HEADER_BYTES, Record, RecordPlace, SOURCE_BYTES, Source,
    check_payload,
};
pub use segment::{DriveShape, SEGMENT_HEADER_BYTES, SegmentHeader, Stream, generation};
pub use superblock::{
    CheckpointPlace, FORMAT_VERSION, FRAME_BLOCKS_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN,
    SIZE_BYTES_MAX, SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC, Superblock,
};

/// Every structure's fields as the code lays them out: heading in `docs/format.md`, fields.
pub fn tables() -> Vec<(&'static str, Vec<Field>)> {
    vec![
        ("Superblock", superblock::FIELDS.to_vec()),
        ("Segment header", segment::FIELDS.to_vec()),
        ("Batch header", batch::FIELDS.to_vec()),
        ("Record header", record::FIELDS.to_vec()),
        ("Source", record::SOURCE_FIELDS.to_vec()),
        ("Map", map::FIELDS.to_vec()),
        ("Checkpoint root", checkpoint::ROOT_FIELDS.to_vec()),
        ("Stream tail", checkpoint::TAIL_FIELDS.to_vec()),
        ("Segment table entry", checkpoint::TABLE_FIELDS.to_vec()),
        ("Dropped range", checkpoint::DROPPED_FIELDS.to_vec()),
    ]
}
