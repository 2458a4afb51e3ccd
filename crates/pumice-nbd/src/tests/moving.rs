//! Goal: each request to a disk that changes by itself represents one moment, in all parts of its
//! reply, and moves on when that moment can no longer be read. Method: a disk that changes after
//! each read, and so little memory that replies have parts.

use std::cell::Cell;

use super::*;
use crate::{Allocation, Disk, Durability};
use pumice_drive::base::{Error, Result};

/// A disk on which every byte is the number of the moment.
struct Moving {
    moment: Rc<Cell<u8>>,
    /// The moment of this disk, if it is pinned.
    pinned: Option<u8>,
    /// Moments up to this one cannot be read.
    gone: u8,
}

impl Disk for Moving {
    fn size_bytes(&self) -> u64 {
        SIZE
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn pinned(&self) -> Option<Self> {
        let (moment, gone) = (self.moment.clone(), self.gone);
        Some(Self { moment, pinned: Some(self.moment.get()), gone })
    }

    async fn moves_on(&self) -> bool {
        self.pinned.is_some_and(|at| at <= self.gone)
    }

    async fn read(&self, _: u64, out: &mut [u8]) -> Result<()> {
        let at = self.pinned.unwrap_or(self.moment.get());
        self.moment.set(self.moment.get() + 1);
        if at <= self.gone {
            return Err(Error::new(ErrorKind::Medium, "it is gone"));
        }
        out.fill(at);
        Ok(())
    }

    fn try_write(&self, _: u64, _: &[u8]) -> Option<Result<()>> {
        None
    }

    async fn write(&self, _: u64, _: &[u8], _: Durability) -> Result<()> {
        unreachable!("it is read-only")
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn trim(&self, _: u64, _: u64, _: Durability) -> Result<()> {
        unreachable!("it is read-only")
    }

    async fn write_zeroes(&self, _: u64, _: u64, _: Allocation, _: Durability) -> Result<()> {
        unreachable!("it is read-only")
    }

    async fn prefetch(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_request_sees_one_state_of_a_changing_disk() {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let disk = Moving { moment: Rc::new(Cell::new(1)), pinned: None, gone: 3 };
    let export = Rc::new(Export::new("disk", "a test disk", Rc::new(disk)));
    let options = Options { payload_bytes: 4 << 20, ..Options::default() };
    let server = Server::new(runtime.clone(), vec![export], options);
    let client = |door: Door| {
        let mut client = door.enter();
        let mut before = 0;
        for _ in 0..3 {
            // The data is read in pieces of a megabyte or two.
            let bytes = client.read(0, 8 << 20).unwrap();
            assert!(bytes.iter().all(|&byte| byte == bytes[0]), "parts of several moments");
            assert!(bytes[0] > before, "moment {} after {before}", bytes[0]);
            before = bytes[0];
        }
    };
    visit(client, |listener, near| {
        runtime.spawn(server.clone().serve(listener));
        runtime.block_on(async {
            let (_, received) = runtime.receive(&near, vec![0; 1], 0..1).await;
            assert_eq!(received.unwrap(), 0, "the client is done");
            server.shutdown().await.unwrap();
        });
    });
}
