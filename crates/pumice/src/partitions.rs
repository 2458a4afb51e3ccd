//! Finds the sector size for which the partition table of a disk was made. A kernel or guest that
//! sees another size finds no partition.
//!
//! Examines only fields that depend on the sector size; does not check a table, and does not read
//! the partitions.

use pumice_drive::base::units::Lba;
use pumice_drive::controller::Drive;

/// Number of bytes at the start of a disk that are examined.
pub(crate) const START_BYTES: usize = 8192;

/// Returns the size of sectors, in bytes, for which the partition table at the start of a disk was
/// made; `None` if there is no table, or it fits either size.
///
/// Source: UEFI Specification 2.10, 5.2.3 (MBR partition records) and 5.3.2 (the GPT's header is in
/// the second sector).
pub(crate) fn sector_bytes(start: &[u8; START_BYTES], disk_bytes: u64) -> Option<u32> {
    let has_header = |sector: usize| start[sector..].starts_with(b"EFI PART");
    match (has_header(512), has_header(4096)) {
        (true, false) => return Some(512),
        (false, true) => return Some(4096),
        (true, true) => return None,
        (false, false) => {}
    }
    let records = || start[446..510].chunks_exact(16).filter(|record| record[4] != 0);
    let field = |bytes: &[u8]| u64::from(u32::from_le_bytes(bytes.try_into().expect("4 bytes")));
    let first = |record: &[u8]| field(&record[8..12]);
    let end = |record: &[u8]| first(record) + field(&record[12..16]);
    let is_table = start[510..512] == [0x55, 0xAA]
        && records().all(|record| record[0] & 0x7F == 0 && end(record) * 512 <= disk_bytes);
    if !is_table {
        return None;
    }
    // A table without a GPT reveals its sector size only if its partitions would not fit in sectors
    // of the other size, or begin at a MiB, where all programs have long placed them, in sectors of
    // one size only.
    let begin_at_mib = |sector_bytes: u64| {
        records().all(|record| (first(record) * sector_bytes).is_multiple_of(1 << 20))
    };
    if records().any(|record| end(record) * 4096 > disk_bytes) {
        Some(512)
    } else {
        (begin_at_mib(4096) && !begin_at_mib(512)).then_some(4096)
    }
}

/// Like [`sector_bytes`], for the disk of a drive; `None` also if it cannot be read.
pub(crate) async fn sector_bytes_on(drive: &Drive) -> Option<u32> {
    let disk_bytes = drive.size_bytes();
    let mut start = [0; START_BYTES];
    drive.read_blocks(Lba(0), &mut start).await.ok()?;
    sector_bytes(&start, disk_bytes)
}

/// Returns advice about a table for sectors of this size.
pub(crate) fn advice(sector_bytes: u32) -> &'static str {
    match sector_bytes {
        512 => "attach it with --sector-size 512",
        _ => "a virtual machine needs logical_block_size=4096",
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a table is recognized by the data that real programs write, and other data is not.
    use super::*;

    fn disk(parts: &[(usize, &[u8])]) -> [u8; START_BYTES] {
        let mut start = [0; START_BYTES];
        for (at, bytes) in parts {
            start[*at..*at + bytes.len()].copy_from_slice(bytes);
        }
        start
    }

    #[test]
    fn the_table_gives_the_size_of_sectors() {
        const DISK: u64 = 128 << 20;
        let protective = (446, &[0, 0, 2, 0, 0xEE, 255, 255, 255, 1, 0, 0, 0, 255, 255, 3, 0][..]);
        let signature = (510, &[0x55, 0xAA][..]);
        let of = |parts: &[(usize, &[u8])]| sector_bytes(&disk(parts), DISK);
        assert_eq!(of(&[protective, signature, (512, b"EFI PART")]), Some(512));
        assert_eq!(of(&[protective, signature, (4096, b"EFI PART")]), Some(4096));
        assert_eq!(of(&[(512, b"EFI PART"), (4096, b"EFI PART")]), None);
        // 100 MiB from 1 MiB on, and 1 MiB there, which fits either size.
        let record = |first: u32, sectors: u32| {
            let mut record = [0, 32, 33, 0, 0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            record[8..12].copy_from_slice(&first.to_le_bytes());
            record[12..].copy_from_slice(&sectors.to_le_bytes());
            record
        };
        assert_eq!(of(&[(446, &record(2048, 204_800)), signature]), Some(512));
        assert_eq!(of(&[(446, &record(2048, 2048)), signature]), None);
        assert_eq!(of(&[(446, &record(2048, 300_000)), signature]), None, "beyond the disk");
        // The table that sfdisk writes on a device with sectors of 4096 bytes: 60 MiB, and the
        // rest.
        let second = record(15_616, 17_152);
        let both = [(446, &record(256, 15_360)[..]), (462, &second[..]), signature];
        assert_eq!(of(&both), Some(4096));
        // Tables of disks whose partitions began at a track.
        assert_eq!(of(&[(446, &record(63, 2048)), signature]), None);
        // A boot sector, whose program is in the position of a table.
        assert_eq!(of(&[(446, &[0xFA; 64]), signature]), None);
        assert_eq!(of(&[]), None);
    }
}
