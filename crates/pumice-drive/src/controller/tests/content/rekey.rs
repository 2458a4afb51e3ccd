//! Goal: a new master key replaces the present one while the drive is in use; afterwards, the
//! earlier key opens nothing; a power loss at any moment leaves a drive with all its data, on which
//! the replacement can be resumed. Method: the scene of `shrinking_kept`, encrypted. After each
//! crash, the drive is unlocked again, as by another process, and disks are compared byte by byte.

use super::encryption::secret;
use super::*;
use crate::controller::keys::Hex;
use crate::controller::tests::retention::shrinking_kept::Scene;
use crate::crypt::{RecoveryCode, Secret};
use crate::format::BatchHeader;

fn unlocked(world: &World, secret: &Secret) -> Result<World> {
    let locked = world.run(Locked::on(&world.memory))?.expect("it is encrypted");
    Ok(world.with_cipher(locked.unlock(secret, Randomness::seeded(world.seed + 9))?))
}

/// Returns a copy of a world as another process sees it.
fn copy(world: &World, secret: &Secret) -> World {
    let seed = world.seed;
    World { seed, ..unlocked(&world.copy(), secret).unwrap() }
}

fn code() -> RecoveryCode {
    RecoveryCode::draw(&Randomness::seeded(77))
}

/// Returns new keys: the same key file, another recovery code.
fn new_keys_for(world: &World, seed: u64) -> NewKeys {
    let secrets = [secret(1), code().secret()];
    let cipher = world.memory.cipher();
    // A seed other than that of the first key.
    let randomness = Randomness::seeded(1000 + seed);
    NewKeys::draw(world.spec.uuid, cipher, &secrets, 5, randomness).unwrap()
}

/// Returns the number of batches in present uses of segments whose header a cipher accepts as
/// authentic.
fn batches_under(world: &World, drive: &Drive, cipher: &Cipher) -> usize {
    let used: Vec<_> = drive.core().space().used().collect();
    let in_segment = |(segment, generation): (SegmentId, u64)| {
        let bytes = world.peek(segment.0, 0, SEGMENT_BYTES as usize);
        let headers = bytes.chunks(4096).filter_map(|page| {
            BatchHeader::decode_with(page, cipher).ok().map(|(header, _)| header.generation)
        });
        headers.filter(|&of| of == generation).count()
    };
    used.iter().map(|used| in_segment((used.segment, used.generation))).sum()
}

fn keys(world: &World) -> [KeyArea; 2] {
    [0, 1].map(|slot| {
        let bytes = world.run(world.memory.read_superblock(slot)).unwrap();
        Superblock::decode(&bytes).unwrap().keys.unwrap()
    })
}

#[test]
fn everything_moves_to_the_new_key() {
    let mut scene = Scene::encrypted(90);
    let old = copy(&scene.disk.world, &secret(1)).memory.cipher().clone();
    for round in 0..3 {
        let world = copy(&scene.disk.world, &secret(1));
        let before = copy(&world, &secret(1)).memory.cipher().clone();
        let drive = world.open();
        let rekeyed = world.run(drive.rekey(Some(&new_keys_for(&world, round)))).unwrap();
        assert!(!rekeyed.was_begun && rekeyed.segments > 8, "{rekeyed:?}");
        scene.compare(&world, &drive);
        world.run(drive.audit()).unwrap();
        for gone in [&before, &old] {
            assert_eq!(batches_under(&world, &drive, gone), 0);
        }
        assert!(batches_under(&world, &drive, world.memory.cipher()) > 10);
        world.kill(drive);
        for area in keys(&world) {
            assert!(area.earlier.is_none() && area.since > 0);
        }
        // The earlier key, if it was retained, opens nothing.
        let error = world.with_cipher(before).refusal();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let world = copy(&world, &secret(1));
        assert_eq!(world.check().problems, []);
        let drive = world.open();
        scene.compare(&world, &drive);
        scene.disk.world = world;
        scene.disk.write_around(&drive);
        scene.compare(&scene.disk.world, &drive);
        scene.disk.world.close(drive);
    }
    let locked = scene.disk.world.run(Locked::on(&scene.disk.world.memory)).unwrap().unwrap();
    assert!(locked.unlock(&code().secret(), Randomness::seeded(1)).is_ok());
    let first_code = RecoveryCode::draw(&Randomness::seeded(7)).secret();
    assert!(locked.unlock(&first_code, Randomness::seeded(1)).is_err());
}

/// Writes, trims and a snapshot happen during the replacement.
#[test]
fn hosts_go_on_while_the_key_is_replaced() {
    let mut scene = Scene::encrypted(91);
    let world = copy(&scene.disk.world, &secret(1));
    scene.disk.world = world;
    let drive = scene.disk.world.open();
    let latency_ns = 200_000..=1_500_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    let has_ended = Rc::new(Cell::new(false));
    {
        let (drive, has_ended) = (drive.clone(), has_ended.clone());
        let new = new_keys_for(&scene.disk.world, 1);
        scene.disk.world.runtime.spawn(async move {
            drive.rekey(Some(&new)).await.unwrap();
            has_ended.set(true);
        });
    }
    let mut rounds = 0;
    while !has_ended.get() {
        scene.disk.write_some(&drive, 3);
        let at = 4096 * (rounds % 64);
        scene.disk.world.run(drive.trim(at, 4096)).unwrap();
        scene.disk.plain[at as usize..][..4096].fill(0);
        if rounds == 4 {
            scene.take(&drive, "taken meanwhile");
        }
        if rounds == 8 {
            let error = scene.disk.world.run(drive.rekey(None)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Busy);
            let clone = clones::registered(1);
            let cloned = scene.disk.world.run(drive.register_clone("a", clone));
            assert_eq!(cloned.unwrap_err().kind(), ErrorKind::Busy);
        }
        rounds += 1;
    }
    assert!(rounds > 8, "too tame: {rounds}");
    scene.compare(&scene.disk.world, &drive);
    let world = &scene.disk.world;
    world.run(drive.audit()).unwrap();
    world.close(drive);
    let world = copy(world, &secret(1));
    assert!(keys(&world).iter().all(|area| area.earlier.is_none()));
    assert_eq!(world.check().problems, []);
    let drive = world.open();
    scene.compare(&world, &drive);
    world.kill(drive);
}

/// Power fails at each of many moments, and again while the replacement is resumed.
#[test]
fn power_loss_while_a_key_is_replaced_loses_nothing() {
    let scene = Scene::encrypted(92);
    let mut ends = [0; 3];
    for step in 0_u64.. {
        let world = copy(&World { seed: step, ..scene.disk.world.copy() }, &secret(1));
        let drive = world.open();
        let latency_ns = 1_000_000..=1_000_000;
        drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
        let keys = new_keys_for(&world, step);
        let wait_ns = if step < 8 { step * 900_000 } else { (step - 7) * 17_300_000 };
        let rekeying = drive.rekey(Some(&keys));
        let ended = world.run(world.runtime.timeout(wait_ns, rekeying)).is_some();
        world.run(drive.layers().crash()).unwrap();
        world.kill(drive);
        let world = unlocked(&world, &secret(1)).unwrap();
        let drive = world.open();
        let area = drive.core().superblock().keys.clone().unwrap();
        let end =
            usize::from(area.since > 0) + usize::from(area.since > 0 && area.earlier.is_none());
        ends[end] += 1;
        assert!(!ended || end == 2, "it is durable when the call returns");
        scene.compare(&world, &drive);
        world.run(drive.audit()).unwrap();
        // A second crash, while the replacement is resumed.
        drive
            .layers()
            .set_plan(FaultPlan { latency_ns: 1_000_000..=1_000_000, ..FaultPlan::default() });
        let going_on = drive.rekey(None);
        let outcome = world.run(world.runtime.timeout(step * 7_000_000, going_on));
        assert_eq!(outcome.is_some_and(|outcome| outcome.is_err()), end != 1);
        world.run(drive.layers().crash()).unwrap();
        world.kill(drive);
        let world = unlocked(&world, &secret(1)).unwrap();
        let drive = world.open();
        scene.compare(&world, &drive);
        if drive.core().superblock().keys.as_ref().unwrap().earlier.is_some() {
            assert!(world.run(drive.rekey(None)).unwrap().was_begun);
        }
        scene.compare(&world, &drive);
        world.close(drive);
        let world = unlocked(&world, &secret(1)).unwrap();
        assert_eq!(world.check().problems, [], "step {step}");
        let drive = world.open();
        scene.compare(&world, &drive);
        world.kill(drive);
        if ended {
            break;
        }
    }
    assert!(ends[0] > 0 && ends[1] > 8 && ends[2] > 0, "{ends:?}");
}

/// The replacement resumes in the same process, after the call was abandoned.
#[test]
fn a_replacement_that_was_given_up_goes_on() {
    let mut scene = Scene::encrypted(95);
    let world = copy(&scene.disk.world, &secret(1));
    scene.disk.world = world;
    let drive = scene.disk.world.open();
    let latency_ns = 1_000_000..=1_000_000;
    drive.layers().set_plan(FaultPlan { latency_ns, ..FaultPlan::default() });
    let keys = new_keys_for(&scene.disk.world, 1);
    let runtime = scene.disk.world.runtime.clone();
    let first = runtime.block_on(runtime.timeout(40_000_000, drive.rekey(Some(&keys))));
    assert!(first.is_none(), "too tame: {first:?}");
    for _ in 0..4 {
        scene.disk.write_around(&drive);
        let next = runtime.block_on(runtime.timeout(8_000_000, drive.rekey(None)));
        assert!(next.is_none(), "too tame: {next:?}");
    }
    let error = runtime.block_on(drive.rekey(Some(&keys))).unwrap_err();
    assert!(error.to_string().contains("finish its replacement"), "{error}");
    assert!(runtime.block_on(drive.rekey(None)).unwrap().was_begun);
    scene.compare(&scene.disk.world, &drive);
    scene.disk.world.close(drive);
    let world = copy(&scene.disk.world, &secret(1));
    assert_eq!(world.check().problems, []);
    let drive = world.open();
    scene.compare(&world, &drive);
    world.kill(drive);
}

#[test]
fn obstacles_to_a_new_key_are_named() {
    let scene = Scene::encrypted(93);
    let world = copy(&scene.disk.world, &secret(1));
    let drive = world.open();
    let keys = new_keys_for(&world, 1);
    let refused = |keys: Option<&NewKeys>, wanted: ErrorKind, mention: &str| {
        let error = world.run(drive.rekey(keys)).unwrap_err();
        assert_eq!(error.kind(), wanted, "{error}");
        assert!(error.to_string().contains(mention), "{error}");
        assert_eq!(drive.core().superblock().keys.as_ref().unwrap().since, 0);
    };
    refused(None, ErrorKind::InvalidInput, "nothing to finish");
    let clone = clones::registered(1);
    world.run(drive.register_clone("a", clone.clone())).unwrap();
    refused(Some(&keys), ErrorKind::InvalidInput, "clones read from snapshot a");
    world.run(drive.forget_clone(clone.drive)).unwrap();
    let (_, stranger) = super::encryption::with_keys(world.spec.clone(), Randomness::seeded(5));
    let secrets = [secret(1)];
    let draw = |cipher: &Cipher, uuid| {
        NewKeys::draw(uuid, cipher, &secrets, 5, Randomness::seeded(1)).unwrap()
    };
    let foreign = draw(&stranger, world.spec.uuid);
    refused(Some(&foreign), ErrorKind::PermissionDenied, "not made with the key");
    // Bytes that arrived through a socket.
    for slots in [vec![], vec![vec![0; 127]], vec![vec![0; 128]], vec![vec![9; 128]; 9]] {
        let slots = slots.into_iter().map(Hex).collect();
        let malformed = NewKeys { slots, ..keys.clone() };
        refused(Some(&malformed), ErrorKind::InvalidInput, "malformed");
    }
    for wrapped in [vec![], vec![0; 59]] {
        let malformed = NewKeys { wrapped: Hex(wrapped), ..keys.clone() };
        refused(Some(&malformed), ErrorKind::InvalidInput, "malformed");
    }
    for text in ["0", "zz", "00 ", "+1"] {
        assert!(Hex::try_from(text.to_owned()).is_err(), "{text}");
    }
    let text = String::from(Hex(vec![0, 0x7f, 0xff]));
    assert_eq!(
        (text.as_str(), Hex::try_from(text.clone())),
        ("007fff", Ok(Hex(vec![0, 0x7f, 0xff])))
    );
    let forged = NewKeys { wrapped: Hex(vec![0; 60]), ..keys.clone() };
    refused(Some(&forged), ErrorKind::PermissionDenied, "not made with the key");
    scene.compare(&world, &drive);
    world.close(drive);
    let plain = World::new(small(4 << 20, 4));
    let drive = plain.open();
    let error = plain.run(drive.rekey(Some(&keys))).unwrap_err();
    assert!(error.to_string().contains("not encrypted"), "{error}");
    plain.close(drive);
}

/// For a drive without superblocks, a rebuild uses the newest recovery code.
#[test]
fn segments_are_found_by_the_new_recovery_code() {
    let scene = Scene::encrypted(94);
    let world = copy(&scene.disk.world, &secret(1));
    let drive = world.open();
    world.run(drive.rekey(Some(&new_keys_for(&world, 1)))).unwrap();
    world.close(drive);
    let mut finder = Finder::new(None);
    for segment in 0..world.spec.geometry().unwrap().segment_count {
        let page = world.peek(segment, 0, 4096);
        let at = DATA_OFFSET + u64::from(segment) * u64::from(SEGMENT_BYTES);
        finder.look(at, &page);
    }
    let locked = finder.result().unwrap().locked().expect("it has a recovery code");
    let cipher = locked.unlock(&code().secret(), Randomness::seeded(1)).unwrap();
    assert!(cipher.newest().0 == unlocked(&world, &secret(1)).unwrap().memory.cipher().newest().0);
}
