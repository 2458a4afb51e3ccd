//! Goal: extents describe a range exactly to the byte, including its stored bytes; a prefetch saves
//! the reads that follow it.

use super::*;

fn extents(world: &World, drive: &Drive, offset: u64, len: u64) -> Vec<Extent> {
    let mut found = Vec::new();
    let told = drive.extents(offset, len, |extent| {
        found.push(extent);
        true
    });
    world.run(told).unwrap();
    found
}

fn noise(blocks: u64, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    (0..blocks * BLOCK).map(|_| next()).collect()
}

#[test]
fn extents_match_the_writes() {
    let world = World::new(small(64 << 20, 32));
    let drive = world.open();
    world.run(async {
        drive.write(0, &noise(8, 1)).await.unwrap();
        drive.write_zeroes(16 * BLOCK, 4 * BLOCK, Allocation::Keep).await.unwrap();
        drive.write(20 * BLOCK, &vec![7; BLOCK_BYTES]).await.unwrap();
        drive.trim(2 * BLOCK, BLOCK).await.unwrap();
    });
    let found = extents(&world, &drive, 0, 64 << 20);
    let kinds: Vec<_> = found.iter().map(|extent| (extent.bytes / BLOCK, extent.content)).collect();
    let expected = [
        (2, Content::Data),
        (1, Content::Hole),
        (5, Content::Data),
        (8, Content::Hole),
        (4, Content::Zeroes),
        (1, Content::Data),
    ];
    assert_eq!(kinds[..6], expected);
    assert!(kinds[6..].iter().all(|(_, content)| *content == Content::Hole));
    assert_eq!(found.iter().map(|extent| extent.bytes).sum::<u64>(), 64 << 20);
    // Noise is stored as it is, in one frame whose header is shared by its blocks.
    let stored: Vec<_> = found[..6].iter().map(|extent| extent.stored_bytes).collect();
    let frame = 8 * BLOCK..8 * BLOCK + 64;
    assert!(frame.contains(&(stored[0] * 4)) && frame.contains(&(stored[2] * 8 / 5)), "{stored:?}");
    assert_eq!([stored[1], stored[3], stored[4], stored[5]], [0; 4]);
}

#[test]
fn extents_end_where_they_are_asked_to() {
    let world = World::new(small(64 << 20, 32));
    let drive = world.open();
    world.run(drive.write(0, &noise(8, 1))).unwrap();
    let found = extents(&world, &drive, BLOCK + 100, 5 * BLOCK);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].bytes, 5 * BLOCK);
    assert!((5 * BLOCK..5 * BLOCK + 64).contains(&found[0].stored_bytes), "{found:?}");
    assert_eq!(extents(&world, &drive, 0, 0), []);
    let mut count = 0;
    let told = drive.extents(0, 64 << 20, |_| {
        count += 1;
        false
    });
    world.run(told).unwrap();
    assert_eq!(count, 1);
    let beyond = world.run(drive.extents(64 << 20, 1, |_| true));
    assert_eq!(beyond.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn prefetched_leaves_are_not_read_again() {
    let world = World::new(small(64 << 20, 32));
    let drive = world.open();
    let data = noise(64, 3);
    world.run(drive.write_durable(0, &data)).unwrap();
    world.run(drive.close()).unwrap();
    let drive = world.open();
    world.run(drive.prefetch(0, 64 * BLOCK)).unwrap();
    let before = drive.core().counters().media_read_bytes.get();
    assert!(before > 0);
    let mut block = [0; BLOCK_BYTES];
    for at in 0..64 {
        world.run(drive.read(at * BLOCK, &mut block)).unwrap();
        assert!(block == data[(at * BLOCK) as usize..][..BLOCK_BYTES]);
    }
    assert_eq!(drive.core().counters().media_read_bytes.get(), before, "read again");
    // A prefetch reads no more than the cache can hold, and nothing beyond the end.
    world.run(drive.prefetch(0, 64 << 20)).unwrap();
    let beyond = world.run(drive.prefetch(1, 64 << 20));
    assert_eq!(beyond.unwrap_err().kind(), ErrorKind::InvalidInput);
}
