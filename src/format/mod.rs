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
mod layout;
mod record;
mod segment;
mod superblock;

pub use batch::{
    BATCH_ALIGNMENT, BATCH_BYTES_MAX, BATCH_HEADER_BYTES, BatchHeader, chain_record, chain_start,
};
pub use layout::Field;
pub use record::{RECORD_HEADER_BYTES, Record, RecordPlace, check_payload};
pub use segment::{SEGMENT_HEADER_BYTES, SegmentHeader, generation};
pub use superblock::{
    FORMAT_VERSION, FRAME_BLOCKS_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SIZE_BYTES_MAX,
    SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC, Superblock,
};

/// Every structure's fields as the code lays them out: heading in `docs/format.md`, fields.
pub fn tables() -> Vec<(&'static str, Vec<Field>)> {
    vec![
        ("Superblock", superblock::FIELDS.to_vec()),
        ("Segment header", segment::FIELDS.to_vec()),
        ("Batch header", batch::FIELDS.to_vec()),
        ("Record header", record::FIELDS.to_vec()),
    ]
}
