//! Goal: if a host flushes often, its durable appends go to bytes of the journal that were written
//! before. Method: a layer below the tier that records the writes to each slot, and a host that
//! flushes after each write.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::super::ranges::Ranges;
use super::*;
use crate::media::layer::Layer;

/// A layer that records the writes.
struct Noting {
    inner: Local,
    written: RefCell<BTreeMap<u32, Ranges>>,
    /// For each durable append, whether its entire range was written before.
    durable: RefCell<Vec<bool>>,
}

impl Noting {
    fn note(&self, segment: SegmentId, offset: u32, len: usize) -> bool {
        let mut written = self.written.borrow_mut();
        let ranges = written.entry(segment.0).or_default();
        let end = offset + len as u32;
        let mut missing = Ranges::one(offset, end);
        ranges.iter().for_each(|(start, end)| missing.remove(start, end));
        ranges.insert(offset, end);
        missing.is_empty()
    }
}

impl Layer for Noting {
    type Inner = Local;

    fn inner(&self) -> &Local {
        &self.inner
    }

    async fn on_append(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.note(segment, offset, buffer.len());
        self.inner.append(segment, offset, buffer).await
    }

    async fn on_append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        let is_written = self.note(segment, offset, buffer.len());
        self.durable.borrow_mut().push(is_written);
        self.inner.append_durably(segment, offset, buffer).await
    }
}

#[test]
fn flushes_go_to_bytes_that_were_written_before() {
    let world = World::new(20);
    let journal = world.journal();
    world.run(async {
        world.create(&journal).await.unwrap();
        let (inner, (client, _)) = (world.local(&journal), world.sim.client());
        let (written, durable) = (RefCell::default(), RefCell::default());
        let local = Rc::new(Noting { inner, written, durable });
        let (clock, nonce) = (world.runtime.clone(), world.nonce());
        let tier = Tier::open(local.clone(), client, clock.clone(), nonce, "first").await.unwrap();
        let options = OpenOptions::default();
        let drive = Drive::open(Rc::new(tier), clock.clock(), options).await.unwrap();
        for number in 1..=6000 {
            let block = block_of(number) * BLOCK as u64;
            drive.write(block, &content(number)).await.unwrap();
            drive.flush().await.unwrap();
        }
        let durable = local.durable.take();
        assert!(durable.len() > 5000, "{} flushes were durable appends", durable.len());
        let late = &durable[durable.len() - 2000..];
        let prepared = late.iter().filter(|&&is_written| is_written).count();
        assert!(prepared > 1900, "{prepared} of the last 2000");
        assert_eq!(prefix(&drive).await, 6000);
        drive.close().await.unwrap();
    });
}
