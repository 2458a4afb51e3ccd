//! Goal: remains of failed commits, earlier journals, probes and claims are harmless and delay
//! nothing, and messages name damaged objects in the bucket. Method: such remains, created directly
//! in the simulated store or on the local medium.

use super::*;

/// Puts an unreferenced object into the bucket.
fn leave(world: &World, name: String) {
    world.sim.objects.borrow_mut().insert(name, Arc::from(&[0][..]));
}

#[test]
fn commits_do_not_wait_for_sweeps() {
    let world = World::new(12);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let orphan = |number| format!("s/{number:08x}/0000000000000001/00000000-00001000-00000001");
        let count = |prefix: &str| world.sim.names(prefix).len();
        (0..4000).for_each(|number| leave(&world, orphan(number + 1000)));
        let tier = open_tier(&world, world.local(&journal)).await;
        let begun_ns = world.runtime.now_ns();
        tier.append(SegmentId(30), 0, page(1)).await.unwrap();
        tier.finish().await.unwrap();
        let took_ns = world.runtime.now_ns() - begun_ns;
        assert!(took_ns < 2_000_000_000, "a commit took {took_ns} ns");
        assert!(count("s/") > 1000, "the rest is swept meanwhile");
        // A closed drive deletes nothing.
        drop(tier);
        world.runtime.sleep_ns(1_000_000_000).await;
        let left = count("s/");
        assert!(left > 1000, "{left}");
        world.runtime.sleep_ns(60_000_000_000).await;
        assert_eq!(count("s/"), left);
        let tier = open_tier(&world, world.local(&journal)).await;
        world.runtime.sleep_ns(60_000_000_000).await;
        assert_eq!(count("s/"), 1, "what is named stays");
        drop(tier);
    });
}

#[test]
fn probes_of_a_creation_that_was_cut_off_are_swept() {
    let world = World::new(13);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        leave(&world, format!("probe/{}-0", Uuid::from_u128(77).simple()));
        leave(&world, "probe/another-name".into());
        let tier = open_tier(&world, world.local(&journal)).await;
        world.runtime.sleep_ns(60_000_000_000).await;
        assert_eq!(world.sim.names("probe/"), ["probe/another-name"]);
        drop(tier);
    });
}

#[test]
fn slots_of_an_earlier_journal_are_not_mistaken_for_new_ones() {
    let world = World::new(14);
    let journal = world.journal();
    let segment = SegmentId(30);
    world.run(async {
        world.create(&journal).await.unwrap();
        let tier = open_tier(&world, world.local(&journal)).await;
        world.sim.is_down.set(true);
        tier.append(segment, 0, page(9)).await.unwrap();
        tier.sync().await.unwrap();
    });
    world.runtime.drop_tasks();
    world.sim.is_down.set(false);
    world.run(async {
        // Only the superblocks are erased, as by `wipefs`; the rest of the device is unchanged.
        for slot in 0..2 {
            let zeroes = AlignedBuffer::zeroed(crate::media::SUPERBLOCK_BYTES);
            journal.write_superblock(slot, zeroes).await.unwrap();
        }
        let (client, _) = world.sim.client();
        let (clock, options) = (world.runtime.clone(), world.options.clone());
        let (local, nonce) = (world.local(&journal), world.nonce());
        let tier = Tier::take_over(local, client, clock, SLOTS, nonce, options).await.unwrap();
        tier.finish().await.unwrap();
    });
    world.runtime.drop_tasks();
    world.run(async {
        let tier = open_tier(&world, world.local(&journal)).await;
        let (bytes, read) = tier.read(segment, 0, AlignedBuffer::zeroed(BLOCK)).await;
        read.unwrap();
        assert_eq!(bytes[0], 0, "what another journal had is not part of the drive");
        tier.finish().await.unwrap();
        assert!(tier.state.index.borrow().get(&segment.0).is_none(), "nor of the bucket");
    });
}

/// The store verifies that no name has two contents.
#[test]
fn no_name_has_two_contents_after_a_failed_commit() {
    let world = World::new(15);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let local = world.local(&journal);
        let tier = open_tier(&world, local.clone()).await;
        let segment = SegmentId(30);
        tier.append(segment, 0, page(1)).await.unwrap();
        tier.append(segment, BLOCK as u32, page(2)).await.unwrap();
        // The chunk arrives, and the journal cannot record the commit.
        let superblock_no_space_errors = Trigger::Probability(1.0);
        local.set_plan(FaultPlan { superblock_no_space_errors, ..FaultPlan::default() });
        tier.finish().await.unwrap_err();
        assert_eq!(world.sim.names(&format!("s/{:08x}/", segment.0)).len(), 1);
        local.set_plan(FaultPlan::default());
        // Bytes that were never durable may be overwritten.
        tier.append(segment, BLOCK as u32, page(3)).await.unwrap();
        tier.finish().await.unwrap();
        evict_all(&world, &tier).await;
        let (bytes, read) = tier.read(segment, 0, AlignedBuffer::zeroed(2 * BLOCK)).await;
        read.unwrap();
        assert_eq!((bytes[0], bytes[BLOCK]), (1, 3));
    });
}

#[test]
fn claims_without_end_are_refused_in_time() {
    let world = World::new(16);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let claim = super::super::object::Claim {
            uuid: Uuid::from_u128(7),
            epoch: 1 << 16,
            nonce: Uuid::from_u128(99),
            host: String::new(),
        };
        let bytes: Arc<[u8]> = Arc::from(&claim.encode()[..]);
        for epoch in 1..=1_u32 << 16 {
            let name = super::super::object::claim_name(epoch);
            world.sim.objects.borrow_mut().insert(name, bytes.clone());
        }
        let (client, _) = world.sim.client();
        let before = world.sim.operations.get();
        let error = BucketView::open(client, world.runtime.clone()).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", error.chain());
        assert!(error.chain().contains("claims"), "{}", error.chain());
        let asked = world.sim.operations.get() - before;
        // The search runs four times, since a writer could have deleted commits meanwhile.
        assert!(asked < 5 << 14, "{asked} questions");
    });
}

#[test]
fn a_journal_of_a_newer_version_is_named() {
    let world = World::new(17);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        for slot in 0..2 {
            let found = journal.read_superblock(slot).await.unwrap();
            let mut bytes = AlignedBuffer::zeroed(found.len());
            bytes.copy_from_slice(&found);
            bytes[8] = 2;
            bytes[16..24].fill(0);
            let checksum = crate::base::checksum::crc64(&bytes).to_le_bytes();
            bytes[16..24].copy_from_slice(&checksum);
            journal.write_superblock(slot, bytes).await.unwrap();
            let error = super::super::place_of(&journal).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "slot {slot}");
            assert!(error.chain().contains("newer"), "{}", error.chain());
            let error = world.open(&journal).await.err().expect("it is newer");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "slot {slot}");
        }
    });
}

#[test]
fn a_damaged_object_is_reported_and_costs_only_its_own_data() {
    let world = World::new(18);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let tier = open_tier(&world, world.local(&journal)).await;
        let (plain, damaged, copied) = (SegmentId(30), SegmentId(31), SegmentId(32));
        for segment in [plain, damaged, copied] {
            tier.append(segment, 0, page(1)).await.unwrap();
            tier.append(segment, BLOCK as u32, page(2)).await.unwrap();
        }
        tier.finish().await.unwrap();
        evict_all(&world, &tier).await;
        let name = |segment: SegmentId| world.sim.names(&format!("s/{:08x}/", segment.0)).remove(0);
        let read = async |segment| {
            let (bytes, read) = tier.read(segment, 0, AlignedBuffer::zeroed(2 * BLOCK)).await;
            read.unwrap();
            (bytes[0], bytes[BLOCK])
        };
        assert_eq!(read(plain).await, (1, 2));
        assert_eq!(tier.status().damaged_object, None);
        let damage = |name: &str| {
            let mut objects = world.sim.objects.borrow_mut();
            let mut bytes = objects[name].to_vec();
            bytes[BLOCK] = 7;
            objects.insert(name.to_owned(), bytes.into());
        };
        damage(&name(damaged));
        assert_eq!(read(damaged).await, (1, 7), "checksums of the drive say which bytes");
        assert_eq!(tier.status().damaged_object, Some(name(damaged)));
        let (is_serious, text) = tier.status().alert().unwrap();
        assert!(!is_serious && text.contains(&name(damaged)), "{text}");
        // A use is copied to the journal before it is continued.
        damage(&name(copied));
        tier.append(copied, 2 * BLOCK as u32, page(3)).await.unwrap();
        assert_eq!(tier.status().damaged_object, Some(name(copied)));
    });
}
