//! Goal: a follower shows only the content of the newest counted commit: no commit of a fenced
//! writer, no mixture of two images, no older data where an object is missing; and it writes
//! nothing. Method: as in the other tests here. The data read is compared with the writes on the
//! disk.

use super::super::object::{Chunk, Claim, claim_name};
use super::super::reading::Reading;
use super::super::store::Patient;
use super::*;
use crate::base::checksum::crc64;

type View = BucketView<Client, Runtime>;

impl World {
    /// Opens the drive in the bucket for reading, with the view that finds the next image.
    async fn follow(&self) -> (Rc<View>, Rc<Drive>) {
        let (client, _) = self.sim.client();
        self.show(BucketView::open(client, self.runtime.clone()).await.unwrap()).await
    }

    async fn show(&self, view: View) -> (Rc<View>, Rc<Drive>) {
        let view = Rc::new(view);
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let drive = Drive::open(view.clone(), self.runtime.clock(), options).await.unwrap();
        (view, drive)
    }

    async fn commit(&self, machine: &Machine) {
        machine.drive.flush().await.unwrap();
        machine.tier.finish().await.unwrap();
    }
}

#[test]
fn a_follower_shows_the_last_commit_and_writes_nothing() {
    let world = World::new(21);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let machine = world.open(&journal).await.unwrap();
        write(&machine.drive, 1).await.unwrap();
        world.commit(&machine).await;
        let (mut view, mut drive) = world.follow().await;
        assert_eq!(prefix(&drive).await, 1);
        let mut written = 1;
        // The commits that follow the first of 600 are deleted.
        for commits in [1, 3, 600] {
            for _ in 0..commits {
                written += 1;
                write(&machine.drive, written).await.unwrap();
                world.commit(&machine).await;
            }
            assert_eq!(prefix(&drive).await, written - commits, "it moves on when it is asked to");
            let newer = view.newer().await.unwrap().expect("a newer image");
            (view, drive) = world.show(newer).await;
            assert_eq!(prefix(&drive).await, written);
            let before = world.sim.operations.get();
            assert!(view.newer().await.unwrap().is_none());
            assert_eq!(world.sim.operations.get() - before, 3, "what a look costs");
        }
        let requests = view.status().requests;
        assert_eq!((requests.puts, requests.deletes, requests.lists), (0, 0, 0));
        assert!(requests.gets > 0);
    });
}

/// Dropping an abandoned image must not close the store, which the next image uses.
#[test]
fn an_image_that_is_left_takes_no_patience_from_the_next() {
    let world = World::new(24);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let machine = world.open(&journal).await.unwrap();
        write(&machine.drive, 1).await.unwrap();
        world.commit(&machine).await;
        let (view, drive) = world.follow().await;
        write(&machine.drive, 2).await.unwrap();
        world.commit(&machine).await;
        let newer = view.newer().await.unwrap().expect("a newer image");
        drive.close().await.unwrap();
        drop((view, drive));
        // A drive that is being closed would not wait this long for a silent store.
        world.runtime.sleep_ns(70_000_000_000).await;
        let (view, drive) = world.show(newer).await;
        assert_eq!(prefix(&drive).await, 2);
        view.newer().await.unwrap();
    });
}

#[test]
fn a_commit_that_does_not_count_is_not_shown() {
    let world = World::new(22);
    let (journal, other) = (world.journal(), world.journal());
    world.run(async {
        world.create(&journal).await.unwrap();
        let first = world.open(&journal).await.unwrap();
        write(&first.drive, 1).await.unwrap();
        world.commit(&first).await;
        let (view, drive) = world.follow().await;
        // Another machine has claimed the drive, and is slow.
        let epoch = first.tier.status().epoch + 1;
        let uuid = world.shape().uuid;
        let claim = Claim { uuid, epoch, nonce: Uuid::from_u128(99), host: "slow".into() };
        let bytes: Arc<[u8]> = claim.encode()[..].into();
        world.sim.objects.borrow_mut().insert(claim_name(epoch), bytes);
        write(&first.drive, 2).await.unwrap();
        first.drive.flush().await.unwrap();
        assert!(first.tier.finish().await.is_err(), "it is shut out");
        assert!(view.newer().await.unwrap().is_none(), "its last commit is there, and not shown");
        assert_eq!(prefix(&drive).await, 1);
        let second = world.take_over(&other).await.unwrap();
        let found = prefix(&second.drive).await;
        let newer = view.newer().await.unwrap().expect("the commit of the other machine");
        let (_, drive) = world.show(newer).await;
        assert_eq!(prefix(&drive).await, found);
    });
}

#[test]
fn an_object_deleted_below_a_follower_is_an_error_and_never_other_data() {
    let world = World::new(23);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let machine = world.open(&journal).await.unwrap();
        for number in 1..=3000 {
            write(&machine.drive, number).await.unwrap();
        }
        world.commit(&machine).await;
        let (view, drive) = world.follow().await;
        let mut expected = vec![0; BLOCKS as usize];
        (1..=3000).for_each(|number| expected[block_of(number) as usize] = number);
        // These writes move all data.
        for number in 3001..=40_000 {
            write(&machine.drive, number).await.unwrap();
        }
        world.commit(&machine).await;
        let mut failed = 0;
        for (block, &number) in expected.iter().enumerate() {
            let mut found = vec![0; BLOCK];
            match drive.read(block as u64 * BLOCK as u64, &mut found).await {
                Ok(()) if number == 0 => assert!(found.iter().all(|&byte| byte == 0), "{block}"),
                Ok(()) => assert!(found == content(number), "block {block} is another one"),
                Err(_) => failed += 1,
            }
        }
        assert_eq!(failed > 0, view.is_stale(), "{failed} reads failed");
        let newer = view.newer().await.unwrap().expect("the commit that has unlinked them");
        assert!(!newer.is_stale());
        let (view, drive) = world.show(newer).await;
        assert_eq!(prefix(&drive).await, 40_000);
        assert!(!view.is_stale());
    });
}

#[test]
fn images_share_lines_of_one_writer_only() {
    let world = World::new(24);
    world.run(async {
        let (client, _) = world.sim.client();
        let store = Patient::new(client, world.runtime.clone());
        // Two machines have continued one use from the same offset; one of them was fenced.
        let content = |epoch: u32| vec![epoch as u8; BLOCK];
        let chunk = |epoch| {
            let checksum = crc64(&content(epoch));
            Chunk { offset: 0, bytes: BLOCK as u32, epoch, checksum }
        };
        for epoch in [1, 2] {
            let bytes: Arc<[u8]> = content(epoch).into();
            world.sim.objects.borrow_mut().insert(chunk(epoch).name(5, 9), bytes);
        }
        let mut reading = Reading::new();
        for epoch in [1, 2, 1, 2] {
            let mut buffer = AlignedBuffer::zeroed(BLOCK);
            reading.read(&store, (5, 9), &[chunk(epoch)], 0, &mut buffer).await.unwrap();
            assert_eq!(buffer[0], epoch as u8);
            reading = reading.for_another();
        }
        assert_eq!(store.requests().gets, 2, "lines are shared");
    });
}
