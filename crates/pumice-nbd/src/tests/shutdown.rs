//! Goal: a shutdown answers running requests, refuses new ones, and waits for the flush but for no
//! host. Method: reads and a flush that wait at a gate that opens before the shutdown, during it or
//! never.

use super::super::wire::{option, reply};
use super::*;
use pumice_drive::base::Clock;

fn gated() -> MemoryDisk {
    MemoryDisk { gated_offset: Some(0), ..MemoryDisk::default() }
}

#[test]
fn running_requests_end_and_new_ones_are_refused() {
    let left = serve(gated(), Options::default(), |mut door| {
        let mut client = door.enter();
        let mut haggler = door.connect();
        haggler.greet(3);
        haggler.option(option::LIST, b"");
        assert_eq!(haggler.option_reply(option::LIST).0, reply::SERVER);
        haggler.option_reply(option::LIST);
        let mut old = door.connect();
        old.greet(0);
        client.request(command::READ, 0, 1, 0, 16);
        client.expect_alive();
        door.signal(SHUT_DOWN);
        assert_eq!(client.write(0, 4096, &[1; 4096]), 108);
        assert_eq!(client.call(command::FLUSH, 0, 0, 0), 108);
        haggler.option(option::GO, b"\0\0\0\0\0\0");
        assert_eq!(haggler.option_reply(option::GO).0, reply::ERR_SHUTDOWN);
        // Its answer would be mistaken for the size of an export.
        old.option(option::EXPORT_NAME, b"disk");
        old.expect_end();
        door.signal(OPEN_GATE);
        assert_eq!(client.reply(), (1, 0));
        client.receive(16);
        drop(door);
        client.expect_end();
        haggler.expect_end();
    });
    assert_eq!(left.calls(), ["write 8192 10 Volatile", "flush"]);
    assert_eq!((left.refused, left.connections), (2, 0));
}

#[test]
fn a_disk_that_does_not_answer_is_not_waited_for() {
    let options = Options { grace_ns: 50_000_000, ..Options::default() };
    let left = serve(gated(), options, |mut door| {
        let mut client = door.enter();
        client.request(command::READ, 0, 1, 0, 16);
        client.expect_alive();
        door.signal(SHUT_DOWN);
        drop(door);
        client.expect_end();
    });
    assert_eq!(left.calls().last().unwrap(), "flush");
    assert_eq!(left.connections, 1, "its request still runs");
}

#[test]
fn a_client_that_does_not_read_is_not_waited_for() {
    let options = Options { grace_ns: 50_000_000, ..Options::default() };
    let left = serve(MemoryDisk::default(), options, |mut door| {
        let mut client = door.enter();
        client.request(command::READ, 0, 1, 0, 32 << 20);
        assert_eq!(client.reply(), (1, 0));
        door.signal(SHUT_DOWN);
        drop(door);
        client.drain();
    });
    assert_eq!(left.connections, 0);
}

/// Abandoning a slow flush would lose the data that it was about to make durable.
#[test]
fn a_slow_flush_is_waited_for() {
    let runtime = Runtime::simulated();
    let disk = Rc::new(MemoryDisk { gates_flush: true, ..MemoryDisk::default() });
    let server = Server::new(
        runtime.clone(),
        vec![Rc::new(Export::new("disk", "", disk.clone()))],
        Options::default(),
    );
    let (clock, gate) = (runtime.clone(), disk.clone());
    runtime.spawn(async move {
        clock.sleep_ns(600_000_000_000).await;
        gate.open_gate();
    });
    runtime.block_on(server.shutdown()).unwrap();
    assert!(disk.is_open.get(), "the shutdown gave the flush up");
}
