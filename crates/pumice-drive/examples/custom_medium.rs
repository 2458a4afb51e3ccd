//! A custom medium: memory whose syncs take 5 ms and are counted.
//!
//! A wrapper implements [`Layer`] and overrides the operations that it changes. Storage that wraps
//! no other medium implements `Medium`, whose documentation is the contract. The drive runs in
//! virtual time, so the program ends immediately, whatever the delays.
//!
//! ```sh
//! cargo run --package pumice-drive --example custom_medium
//! ```

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use pumice_drive::{
    AlignedBuffer, Clock, Drive, Layer, Medium, MemMedium, OpenOptions, Result, Runtime, SegmentId,
    Spec, Uuid, create,
};

/// Duration of a sync.
const SYNC_NS: u64 = 5_000_000;

/// A medium whose syncs are slow.
struct SlowSync {
    inner: MemMedium,
    clock: Runtime,
    syncs: Cell<u64>,
}

impl Layer for SlowSync {
    type Inner = MemMedium;

    fn inner(&self) -> &MemMedium {
        &self.inner
    }

    async fn on_sync(&self) -> Result<()> {
        self.syncs.set(self.syncs.get() + 1);
        self.clock.sleep_ns(SYNC_NS).await;
        self.inner.sync().await
    }

    /// A durable append takes as long as an append and a sync.
    async fn on_append_durably(
        &self,
        segment: SegmentId,
        offset: u32,
        buffer: Arc<AlignedBuffer>,
    ) -> Result<()> {
        self.inner.append(segment, offset, buffer).await?;
        self.on_sync().await
    }
}

fn main() -> Result<()> {
    let runtime = Runtime::simulated();
    let spec = Spec::new(Uuid::from_u128(1), 64 << 20);
    let inner = MemMedium::new(spec.geometry()?.medium_bytes());
    let medium = Rc::new(SlowSync { inner, clock: runtime.clone(), syncs: Cell::new(0) });
    runtime.block_on(async {
        create(&medium, &spec).await?;
        let drive = open(&runtime, medium.clone()).await?;
        let (start_ns, syncs) = (runtime.now_ns(), medium.syncs.get());
        for offset in (0..100).map(|block| block * 4096) {
            drive.write(offset, &[7; 4096]).await?;
        }
        drive.flush().await?;
        let (ns, syncs) = (runtime.now_ns() - start_ns, medium.syncs.get() - syncs);
        println!("100 writes and a flush: {syncs} sync, {} ms of virtual time", ns / 1_000_000);
        assert!(syncs == 1 && ns >= SYNC_NS);
        drive.close().await
    })
}

async fn open(runtime: &Runtime, medium: Rc<SlowSync>) -> Result<Rc<Drive>> {
    Drive::open(medium, runtime.clock(), OpenOptions::default()).await
}

#[test]
fn it_runs() {
    main().unwrap();
}
