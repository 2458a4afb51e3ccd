//! Goal: the stored settings of a drive can be changed in use. A new codec applies to the next
//! writes, and a power loss at any moment leaves the old settings or the new ones, with all data.
//! Method: text that zstd stores in fewer bytes than LZ4, written during the change; a power loss
//! at a random moment of the change.

use rand::RngExt;

use super::*;
use crate::base::seed::random;
use crate::media::layer::Trigger;

const ZSTD: Codec = Codec::Zstd { level: 3 };
const MIB: usize = 1 << 20;

fn codec(codec: Codec) -> SettingsChange {
    SettingsChange { codec: Some(codec), ..SettingsChange::default() }
}

/// Returns words in random order, which LZ4 compresses to half their size, and zstd to less.
fn text(seed: u64) -> Vec<u8> {
    let mut random = random(seed);
    let words = ["segment ", "batch ", "frame ", "log ", "leaf ", "host ", "medium ", "flush "];
    let mut text = Vec::new();
    while text.len() < MIB {
        text.extend_from_slice(words[random.random_range(0..words.len())].as_bytes());
    }
    text.truncate(MIB);
    text
}

/// Returns the frame bytes of a write of a mebibyte.
fn stored(world: &World, drive: &Drive, offset: usize, data: &[u8]) -> u64 {
    let before = drive.info().frame_bytes;
    world.write(drive, offset as u64, data).unwrap();
    world.run(drive.flush()).unwrap();
    drive.info().frame_bytes - before
}

#[test]
fn a_new_codec_compresses_the_next_writes() {
    let world = World::new(small(16 << 20, 8));
    let (mut drive, text) = (world.open(), text(1));
    let dense = stored(&world, &drive, 0, &text);
    let changed = world.run(drive.change_settings(codec(ZSTD))).unwrap();
    assert_eq!((changed.before.codec, changed.after.codec), (Codec::Lz4, ZSTD));
    assert_eq!(changed.before.warn_percent, changed.after.warn_percent);
    let denser = stored(&world, &drive, MIB, &text);
    assert!(denser < dense * 9 / 10, "{denser} bytes with zstd, {dense} with LZ4");
    drive = world.reopen(drive);
    assert_eq!(drive.info().codec, "zstd:3");
    assert_eq!(stored(&world, &drive, 2 * MIB, &text), denser);
    world.run(drive.change_settings(codec(Codec::None))).unwrap();
    assert!(stored(&world, &drive, 3 * MIB, &text) > MIB as u64);
    for copy in 0..4 {
        assert!(world.read(&drive, (copy * MIB) as u64, MIB).unwrap() == text, "copy {copy}");
    }
    world.close(drive);
    assert_eq!(world.check().problems, []);
}

#[test]
fn thresholds_of_open_override_the_stored_ones() {
    let world = World::new(small(16 << 20, 8));
    let change = SettingsChange { codec: None, warn_percent: Some([70, 0, 50, 0]) };
    let drive = world.open();
    assert_eq!(drive.info().warn_percent, [80, 90, 95]);
    let changed = world.run(drive.change_settings(change)).unwrap();
    assert!(!changed.is_warn_overridden);
    assert_eq!(drive.info().warn_percent, [50, 70]);
    world.close(drive);
    let warn_percent = Some([5, 0, 0, 0]);
    let drive = world.try_open(OpenOptions { warn_percent, ..OpenOptions::default() }).unwrap();
    assert_eq!(drive.info().warn_percent, [5]);
    assert!(world.run(drive.change_settings(change)).unwrap().is_warn_overridden);
    assert_eq!(drive.settings().warn_percent, [70, 0, 50, 0]);
    world.close(drive);
}

#[test]
fn impossible_settings_are_refused_and_equal_ones_not_written() {
    let world = World::new(small(16 << 20, 8));
    let drive = world.open();
    let revision = drive.core().superblock().revision;
    world.run(drive.change_settings(codec(Codec::Lz4))).unwrap();
    assert_eq!(drive.core().superblock().revision, revision);
    world.close(drive);
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let drive = world.try_open(options).unwrap();
    let refused = world.run(drive.change_settings(codec(ZSTD)));
    assert_eq!(kind(refused), Some(ErrorKind::ReadOnly));
    world.close(drive);
    // The medium fails, so it is unknown which superblock counts.
    let drive = world.open();
    let sync_errors = Trigger::Nth(1);
    drive.layers().set_plan(FaultPlan { sync_errors, ..FaultPlan::default() });
    assert!(world.run(drive.change_settings(codec(ZSTD))).is_err());
    assert_eq!(kind(world.write(&drive, 0, &[1; 4096])), Some(ErrorKind::Poisoned));
    assert_eq!(drive.settings().codec, Codec::Lz4);
    world.kill(drive);
}

#[test]
fn power_loss_leaves_the_old_settings_or_the_new_ones() {
    let text = text(2);
    let (mut old, mut new) = (0, 0);
    for seed in 0..24 {
        let mut random = random(seed);
        let mut moment_ns = u64::MAX / 2;
        // The first life of a seed measures the time of the change; the second loses power in it.
        for life in 0..2 {
            let mut world = World::new(small(16 << 20, 8));
            world.plan = FaultPlan { latency_ns: 0..=400_000, ..FaultPlan::default() };
            world.seed = seed;
            let drive = world.open();
            world.run(drive.write_durable(0, &text)).unwrap();
            let begun_ns = world.runtime.now_ns();
            world.run(async {
                let change = drive.change_settings(codec(ZSTD));
                let changed = world.runtime.timeout(moment_ns, change).await;
                assert!(life > 0 || changed.is_some_and(|changed| changed.is_ok()));
                drive.layers().crash().await.unwrap();
            });
            let is_whole = world.runtime.now_ns() - begun_ns;
            moment_ns = random.random_range(0..is_whole * 14 / 10);
            world.kill(drive);
            world.plan = FaultPlan::default();
            let drive = world.open();
            assert!(world.read(&drive, 0, MIB).unwrap() == text, "seed {seed}");
            match drive.settings().codec {
                Codec::Lz4 if life == 1 => old += 1,
                ZSTD => new += life,
                other => panic!("seed {seed}, life {life}: {other}"),
            }
            world.close(drive);
            assert_eq!(world.check().problems, [], "seed {seed}");
        }
    }
    assert!(old > 3 && new > 3, "too tame: {old} old, {new} new");
}
