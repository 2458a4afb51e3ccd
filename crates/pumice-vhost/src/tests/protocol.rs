//! Goal: front ends connect, disconnect and reconnect; their messages are executed or refused; none
//! of them stops the device.

use std::io::{IoSlice, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::{identity, serve, serve_with};
use crate::driver::{Driver, Setup, kind};
use pumice_drive::base::Clock;
use pumice_nbd::memory_disk::{MemoryDisk, SIZE};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;

/// VIRTIO_BLK_F_CONFIG_WCE.
const CONFIG_WRITE_CACHE: u64 = 1 << 11;

#[test]
fn the_configuration_has_limits_and_topology() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect();
    let config = driver.config().unwrap();
    let word = |at: usize| u32::from_le_bytes(config[at..at + 4].try_into().unwrap());
    assert_eq!(config[..8], (SIZE / 512).to_le_bytes());
    assert_eq!((word(12), word(20)), (126, 512), "segments, bytes of a block");
    assert_eq!(config[24..28], [3, 0, 8, 0], "eight blocks in a physical one");
    assert_eq!(config[34..36], [64, 0], "queues");
    assert_eq!((word(36), word(40), word(44)), (u32::MAX - 7, 16, 8), "discard");
    assert_eq!((word(48), word(52), config[56]), (u32::MAX - 7, 16, 1), "write-zeroes");
    assert_eq!(config[60..], [0; 36]);
    // A front end may rely on an older value of a setting that the driver may switch.
    assert_eq!(driver.features() & CONFIG_WRITE_CACHE, 0);
    assert_eq!(driver.front().get_queue_num().unwrap(), 64);
    drop(driver);
    device.end();
}

#[test]
fn a_ring_that_is_stopped_ends_its_requests_and_continues_where_it_was() {
    let device = serve(|| MemoryDisk { is_ready: |_| false, ..MemoryDisk::default() });
    let mut driver = device.connect();
    for round in 0_u16..3 {
        for _ in 0..10 {
            let slot = driver.take(0);
            driver.submit(0, slot, kind::WRITE, u64::from(slot) * 8, 4096);
        }
        // Some requests may not have been taken yet; these are unchanged.
        let base = driver.stop(0).unwrap();
        let mut ended = 0;
        while driver.completed(0).is_some() {
            ended += 1;
        }
        assert_eq!(base, (round * 10) + ended, "taken and not ended");
        let next = driver.next(0);
        driver.restart(0, base).unwrap();
        driver.offer_up_to(0, next);
        driver.kick(0);
        for _ in ended..10 {
            assert_eq!(driver.wait(0).unwrap().status, 0);
        }
        let base = driver.stop(0).unwrap();
        assert_eq!(base, (round + 1) * 10);
        driver.restart(0, base).unwrap();
    }
    drop(driver);
    device.end();
}

#[test]
fn a_front_end_that_vanishes_makes_room_for_the_next() {
    let device = serve(MemoryDisk::default);
    for round in 0..50_u8 {
        let mut driver = device.connect();
        assert_eq!(driver.call(kind::WRITE, 0, &[round; 4096]).unwrap(), 0);
        for _ in 0..20 {
            let slot = driver.take(0);
            driver.submit(0, slot, kind::WRITE, 8 + u64::from(slot) * 8, 4096);
        }
        // The front end vanishes without a message, and with requests in flight.
        drop(driver);
        let mut driver = device.connect();
        let mut read = [9; 4096];
        driver.read(0, &mut read).unwrap();
        assert_eq!(read, [round; 4096]);
    }
    device.end();
}

#[test]
fn messages_that_make_no_sense_do_not_stop_the_device() {
    let device = serve(MemoryDisk::default);
    let head = |code: u32, flags: u32, bytes: u32| {
        [code.to_ne_bytes(), flags.to_ne_bytes(), bytes.to_ne_bytes()].concat()
    };
    let incomplete = [
        head(1, 1, 0)[..5].to_vec(),
        // A body that never arrives.
        head(2, 1, 8),
    ];
    let complete = [
        head(1, 2, 0),
        head(1, 1, u32::MAX),
        head(99, 1, 0),
        // The log of dirty pages, which was not offered.
        [head(6, 1, 16), vec![0; 16]].concat(),
        // A table of memory without descriptors.
        [head(5, 1, 40), vec![1, 0, 0, 0], vec![0; 36]].concat(),
    ];
    for message in incomplete.iter().chain(&complete) {
        let mut stream = UnixStream::connect(device.socket()).unwrap();
        stream.write_all(message).unwrap();
        if incomplete.contains(message) {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = Vec::new();
        // The device hangs up.
        stream.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty(), "{message:?}: {answer:?}");
    }
    let mut driver = device.connect();
    let front = driver.front();
    front.set_features(1 << 40).unwrap_err();
    front.set_vring_num(0, 3).unwrap_err();
    front.set_vring_num(0, 2048).unwrap_err();
    front.set_vring_num(64, 128).unwrap_err();
    front.set_vring_base(0, 3).unwrap_err();
    // The field by which drivers switch the write cache, whose feature is not offered.
    let writable = vhost::vhost_user::message::VhostUserConfigFlags::WRITABLE;
    front.set_config(32, writable, &[0]).unwrap_err();
    assert_eq!(driver.call(kind::WRITE, 0, &[1; 512]).unwrap(), 0);
    drop(driver);
    device.end();
}

/// Front ends confirm the features that they support, offered or not.
#[test]
fn features_without_a_meaning_here_are_tolerated() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect();
    // Notify on empty, and any layout.
    let features = driver.features() | 1 << 24 | 1 << 27;
    driver.front().set_features(features).unwrap();
    assert_eq!(driver.call(kind::WRITE, 0, &[1; 512]).unwrap(), 0);
    device.end();
}

#[test]
fn a_flood_of_messages_starves_nothing() {
    let mut device = serve(MemoryDisk::default);
    let stream = UnixStream::connect(device.socket()).unwrap();
    let (begins, has_begun) = std::sync::mpsc::channel();
    let flood = std::thread::spawn(move || {
        let own = [3_u32.to_ne_bytes(), 1_u32.to_ne_bytes(), [0; 4]].concat().repeat(4096);
        // More than a device receives within a few seconds.
        for _ in 0..2000 {
            if (&stream).write_all(&own).is_err() {
                return true;
            }
            let _ = begins.send(());
        }
        false
    });
    has_begun.recv().unwrap();
    device.begin_end();
    assert!(flood.join().unwrap(), "the device does not end while messages come");
    device.end();
}

/// Replies are read on the device's thread. If each message lets other tasks run, there are few at
/// a time.
#[test]
fn other_tasks_run_between_messages_that_are_there() {
    const MESSAGES: usize = 100;
    const REPLY_BYTES: usize = 20;
    let (give, given) = std::sync::mpsc::channel::<UnixStream>();
    let (ends, end) = std::sync::mpsc::channel();
    let device = serve_with(
        identity(),
        |runtime| {
            let reader = runtime.clone();
            runtime.spawn(async move {
                let mut stream = loop {
                    match given.try_recv() {
                        Ok(stream) => break stream,
                        Err(_) => reader.sleep_ns(1_000_000).await,
                    }
                };
                ends.send(0).unwrap();
                let (mut read, mut most) = (0, 0);
                while read < MESSAGES * REPLY_BYTES {
                    let count = stream.read(&mut [0; MESSAGES * REPLY_BYTES]).unwrap_or(0);
                    (read, most) = (read + count, most.max(count));
                    reader.yield_now().await;
                }
                ends.send(most / REPLY_BYTES).unwrap();
            });
            Rc::new(MemoryDisk::default())
        },
        |_, _| (),
    );
    // The second front end waits in the backlog, with all of its messages.
    let first = device.connect();
    let mut stream = UnixStream::connect(device.socket()).unwrap();
    let features = [1_u32.to_ne_bytes(), 1_u32.to_ne_bytes(), [0; 4]].concat();
    stream.write_all(&features.repeat(MESSAGES)).unwrap();
    stream.set_nonblocking(true).unwrap();
    give.send(stream).unwrap();
    assert_eq!(end.recv(), Ok(0), "it has begun to read");
    drop(first);
    let most = end.recv().unwrap();
    assert!(most <= 3, "{most} messages are carried out together");
    device.end();
}

#[test]
fn a_front_end_that_sends_half_a_message_makes_room_for_the_next() {
    let device = serve(MemoryDisk::default);
    let half = UnixStream::connect(device.socket()).unwrap();
    (&half).write_all(&[2, 0, 0, 0, 1]).unwrap();
    let mut driver = device.connect();
    assert_eq!(driver.call(kind::WRITE, 0, &[1; 512]).unwrap(), 0);
    drop(half);
    device.end();
}

/// A front end masks a guest's interrupts by setting another descriptor, or none.
#[test]
fn a_new_descriptor_for_notifications_is_signalled() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect();
    let slot = driver.take(0);
    driver.submit(0, slot, kind::WRITE, 0, 4096);
    assert_eq!(driver.wait(0).unwrap().status, 0);
    assert!(driver.replace_call(0, Duration::from_secs(20)).unwrap());
    device.end();
}

#[test]
fn a_kick_that_ends_breaks_its_ring() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect();
    driver.stop(0).unwrap();
    let (kick, _) = UnixStream::pair().unwrap();
    let message = [12_u32.to_ne_bytes(), 1_u32.to_ne_bytes(), 8_u32.to_ne_bytes()].concat();
    let message = [message, vec![0; 8]].concat();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let kick = [kick.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&kick)));
    let bytes = [IoSlice::new(&message)];
    sendmsg(driver.stream(), &bytes, &mut control, SendFlags::empty()).unwrap();
    let is_broken = (0..2000).any(|_| {
        let _ = driver.wait_for(0, Duration::from_millis(5));
        driver.is_broken(0)
    });
    assert!(is_broken, "the device reads the end of a file again and again");
    device.end();
}

#[test]
fn a_new_size_is_reported_to_a_front_end_that_was_away() {
    let (resize, resized) = UnixStream::pair().unwrap();
    let device = serve_with(
        identity(),
        |runtime| {
            let disk = Rc::new(MemoryDisk::default());
            let (of_task, receiver) = (disk.clone(), runtime.clone());
            let resized: Arc<OwnedFd> = Arc::new(resized.into());
            runtime.spawn(async move {
                let (_, result) = receiver.receive(&resized, vec![0], 0..1).await;
                result.unwrap();
                of_task.bytes.borrow_mut().resize(2 * SIZE as usize, 0);
                receiver.send(&resized, vec![0], 0..1).await.1.unwrap();
            });
            disk
        },
        |_, _| (),
    );
    let mut driver = device.connect();
    assert_eq!(driver.config().unwrap()[..8], (SIZE / 512).to_le_bytes());
    driver.disconnect();
    (&resize).write_all(&[1]).unwrap();
    (&resize).read_exact(&mut [0]).unwrap();
    driver.reconnect(&device.socket()).unwrap();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    driver.set_back_channel(&theirs).unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // A front end may ignore it while it sets up its device.
    ours.read_exact(&mut [0; 24]).unwrap();
    assert_eq!(driver.config().unwrap()[..8], (2 * SIZE / 512).to_le_bytes());
    ours.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
    let mut again = Vec::new();
    ours.read_to_end(&mut again).unwrap_err();
    assert!(again.len() <= 12, "reported although it is known");
    device.end();
}

#[test]
fn a_second_front_end_waits_for_the_first() {
    let device = serve(MemoryDisk::default);
    let mut first = device.connect();
    let socket = device.socket();
    let second = std::thread::spawn(move || {
        let mut second = Driver::connect(&socket, Setup::default()).unwrap();
        let mut read = [0; 512];
        second.read(0, &mut read).unwrap();
        read
    });
    for _ in 0..100 {
        assert_eq!(first.call(kind::WRITE, 0, &[5; 512]).unwrap(), 0);
        assert!(!second.is_finished());
    }
    drop(first);
    assert_eq!(second.join().unwrap(), [5; 512]);
    device.end();
}

#[test]
fn a_new_size_is_reported() {
    let device = serve_with(
        identity(),
        |runtime| {
            let disk = Rc::new(MemoryDisk::default());
            let (of_task, clock) = (disk.clone(), runtime.clone());
            runtime.spawn(async move {
                clock.sleep_ns(300_000_000).await;
                of_task.bytes.borrow_mut().resize(2 * SIZE as usize, 0);
            });
            disk
        },
        |_, _| (),
    );
    let mut driver = device.connect();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    driver.set_back_channel(&theirs).unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut message = [0; 12];
    ours.read_exact(&mut message).unwrap();
    // CONFIG_CHANGE_MSG, version 1, no body, no reply wanted.
    assert_eq!(message, [2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(driver.config().unwrap()[..8], (2 * SIZE / 512).to_le_bytes());
    assert_eq!(driver.call(kind::WRITE, SIZE / 512, &[1; 512]).unwrap(), 0);
    drop(driver);
    device.end();
}

#[test]
fn memory_comes_and_goes_while_a_ring_runs() {
    let device = serve(MemoryDisk::default);
    let mut driver = device.connect();
    driver.share_memory().unwrap();
    assert_eq!(driver.call(kind::WRITE, 0, &[4; 512]).unwrap(), 0);
    driver.remove_data_memory().unwrap();
    assert_eq!(driver.call(kind::WRITE, 0, &[5; 512]).unwrap(), 1, "no memory to read from");
    driver.remove_data_memory().unwrap_err();
    driver.add_data_memory().unwrap();
    driver.add_data_memory().unwrap_err();
    assert_eq!(driver.call(kind::WRITE, 8, &[6; 512]).unwrap(), 0);
    drop(driver);
    let bytes = device.end().bytes;
    assert_eq!((bytes[0], bytes[8 * 512]), (4, 6));
}
