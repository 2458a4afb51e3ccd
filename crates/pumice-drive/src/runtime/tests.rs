//! Goal: tasks, timers and I/O behave alike on both real backends, and virtual time is
//! deterministic.
//!
//! Method: each body runs on every runtime of `real_runtimes`; io_uring is omitted where the kernel
//! refuses it. Forbidden outcomes (a dropped receive that takes a message) are provoked by the
//! order of calls, never by sleeping.

#![allow(clippy::disallowed_methods, reason = "timeouts are measured in real time")]

use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rand_xoshiro::rand_core::Rng;

use super::*;
use crate::base::seed;

/// Longer than any test may take. No wait may end because of a timer of this length.
const FOREVER_NS: u64 = 3_600_000_000_000;

/// Returns a runtime for each backend, and for each way of setting up the ring, with and without
/// polling.
fn real_runtimes() -> Vec<Runtime> {
    let mut runtimes = vec![Runtime::new(Backend::Threads).unwrap()];
    for (skipped, poll_ns) in (0..uring::SETUPS.len()).flat_map(|at| [(at, 0), (at, 50_000)]) {
        runtimes.extend(Uring::with_setup(skipped).ok().map(|uring| {
            let driver = Driver::Uring(Box::new(uring));
            let executor = Executor::new(true).unwrap();
            let runtime = Runtime(Rc::new(Inner::new(driver, executor, Timers::real())));
            runtime.set_busy_poll(poll_ns);
            runtime
        }));
    }
    runtimes
}

fn pair() -> (Arc<OwnedFd>, Arc<OwnedFd>) {
    let (left, right) = UnixStream::pair().unwrap();
    (Arc::new(left.into()), Arc::new(right.into()))
}

async fn send_all(runtime: &Runtime, socket: &Arc<OwnedFd>, bytes: &[u8]) {
    let mut buffer = bytes.to_vec();
    let mut sent = 0;
    while sent < bytes.len() {
        let (back, result) = runtime.send(socket, buffer, sent..bytes.len()).await;
        buffer = back;
        sent += result.unwrap();
    }
}

async fn receive_exactly(runtime: &Runtime, socket: &Arc<OwnedFd>, len: usize) -> Vec<u8> {
    let mut buffer = vec![0; len];
    let mut received = 0;
    while received < len {
        let (back, result) = runtime.receive(socket, buffer, received..len).await;
        buffer = back;
        match result.unwrap() {
            0 => panic!("the other side closed"),
            more => received += more,
        }
    }
    buffer
}

/// Polls a future once.
async fn poll_once<T>(future: &mut std::pin::Pin<&mut impl Future<Output = T>>) -> Option<T> {
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

#[test]
fn auto_takes_io_uring_where_it_is_allowed() {
    let auto = Runtime::new(Backend::Auto).unwrap().backend_name();
    let expected = if Runtime::new(Backend::Uring).is_ok() { "io_uring" } else { "threads" };
    assert_eq!(auto, expected);
}

#[test]
fn files_are_written_read_synced_and_punched() {
    for runtime in real_runtimes() {
        let file = tempfile::tempfile().unwrap();
        let file = Arc::new(OwnedFd::from(file));
        runtime.block_on(async {
            let mut buffer = AlignedBuffer::zeroed(8192);
            for (index, byte) in buffer.iter_mut().enumerate() {
                *byte = index as u8 | 1;
            }
            let written = buffer.to_vec();
            let buffer = Arc::new(buffer);
            let result = runtime.write_at(&file, 4096, buffer.clone()).await;
            assert_eq!(result.unwrap(), 8192);
            assert_eq!(Arc::strong_count(&buffer), 1, "the buffer is given back");
            runtime.sync_data(&file).await.unwrap();
            runtime.punch_hole(&file, 4096, 4096).await.unwrap();
            let (buffer, result) = runtime.read_at(&file, 0, AlignedBuffer::zeroed(16384)).await;
            assert_eq!(result.unwrap(), 12288, "short at the end of the file");
            assert!(buffer[..8192].iter().all(|&byte| byte == 0));
            assert_eq!(buffer[8192..12288], written[4096..]);
        });
    }
}

#[test]
fn errors_come_back_with_the_buffer() {
    for runtime in real_runtimes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read_only = Arc::new(OwnedFd::from(std::fs::File::open(file.path()).unwrap()));
        let (left, right) = pair();
        drop(right);
        runtime.block_on(async {
            let buffer = Arc::new(AlignedBuffer::zeroed(4096));
            let result = runtime.write_at(&read_only, 0, buffer).await;
            assert_eq!(result.unwrap_err().raw_os_error(), Some(9), "EBADF");
            let (buffer, result) = runtime.send(&left, vec![1; 10], 0..10).await;
            assert_eq!(buffer.len(), 10);
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
            assert_eq!(runtime.receive(&left, vec![0; 10], 0..10).await.1.unwrap(), 0);
        });
    }
}

#[test]
fn sockets_carry_thousands_of_messages_at_once() {
    const PAIRS: usize = 8;
    const MESSAGES: u64 = 500;
    for runtime in real_runtimes() {
        let ended = Rc::new(Cell::new(0));
        for number in 0..PAIRS {
            let (client, server) = pair();
            let (echo, ended) = (runtime.clone(), ended.clone());
            runtime.spawn(async move {
                for _ in 0..MESSAGES {
                    let message = receive_exactly(&echo, &server, 300).await;
                    send_all(&echo, &server, &message).await;
                }
            });
            let runtime_ = runtime.clone();
            runtime.spawn(async move {
                let mut random = seed::random(number as u64);
                let mut message = [0; 300];
                for _ in 0..MESSAGES {
                    random.fill_bytes(&mut message);
                    send_all(&runtime_, &client, &message).await;
                    assert_eq!(receive_exactly(&runtime_, &client, 300).await, message);
                }
                ended.set(ended.get() + 1);
            });
        }
        runtime.block_on(async {
            while ended.get() < PAIRS {
                runtime.yield_now().await;
            }
        });
    }
}

#[test]
fn one_large_send_meets_many_small_receives() {
    const BYTES: usize = 4 << 20;
    for runtime in real_runtimes() {
        let (client, server) = pair();
        let mut data = vec![0; BYTES];
        seed::random(1).fill_bytes(&mut data);
        let (sender, sent) = (runtime.clone(), data.clone());
        runtime.spawn(async move { send_all(&sender, &client, &sent).await });
        let received = runtime.block_on(receive_exactly(&runtime, &server, BYTES));
        assert!(received == data);
    }
}

#[test]
fn aligned_buffers_travel_by_ranges() {
    // More bytes than a socket buffer holds, so that both ends also have to wait. No byte outside
    // the range may be transferred.
    const BYTES: usize = 4 << 20;
    const RANGE: Range<usize> = 1000..BYTES - 1000;
    for runtime in real_runtimes() {
        let (client, server) = pair();
        let mut data = AlignedBuffer::zeroed(BYTES);
        seed::random(2).fill_bytes(&mut data);
        let data = Arc::new(data);
        let (sender, sent) = (runtime.clone(), data.clone());
        runtime.spawn(async move {
            let mut start = RANGE.start;
            while start < RANGE.end {
                start += sender.send_shared(&client, &sent, start..RANGE.end).await.unwrap();
            }
        });
        let received = runtime.block_on(async {
            let mut buffer = AlignedBuffer::zeroed(BYTES);
            let mut start = RANGE.start;
            while start < RANGE.end {
                let range = start..RANGE.end;
                let (back, result) = runtime.receive_aligned(&server, buffer, range).await;
                buffer = back;
                start += result.unwrap();
            }
            let (buffer, end) = runtime.receive_aligned(&server, buffer, 0..1).await;
            assert_eq!(end.unwrap(), 0, "the other side closed");
            buffer
        });
        assert!(received[RANGE] == data[RANGE]);
        let outside = received[..RANGE.start].iter().chain(&received[RANGE.end..]);
        assert!(outside.into_iter().all(|&byte| byte == 0));
        assert_eq!(Arc::strong_count(&data), 1, "the buffer is given back");
    }
}

#[test]
fn more_operations_than_the_ring_has_entries() {
    const OPERATIONS: u8 = 250;
    const ROUNDS: usize = 6;
    for runtime in real_runtimes() {
        let file = Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        let ended = Rc::new(Cell::new(0));
        for index in 0..OPERATIONS as usize * ROUNDS {
            let (runtime_, file, ended) = (runtime.clone(), file.clone(), ended.clone());
            runtime.spawn(async move {
                let mut buffer = AlignedBuffer::zeroed(4096);
                buffer.fill(index as u8);
                let offset = index as u64 * 4096;
                let result = runtime_.write_at(&file, offset, Arc::new(buffer)).await;
                assert_eq!(result.unwrap(), 4096);
                let buffer = AlignedBuffer::zeroed(4096);
                let (buffer, result) = runtime_.read_at(&file, offset, buffer).await;
                assert_eq!(result.unwrap(), 4096);
                assert!(buffer.iter().all(|&byte| byte == index as u8));
                ended.set(ended.get() + 1);
            });
        }
        runtime.block_on(async {
            while ended.get() < OPERATIONS as usize * ROUNDS {
                runtime.yield_now().await;
            }
        });
    }
}

#[test]
fn a_dropped_receive_takes_nothing_and_frees_its_buffers() {
    for runtime in real_runtimes() {
        let (client, server) = pair();
        runtime.block_on(async {
            for round in 0..1000u32 {
                {
                    let mut receive = pin!(runtime.receive(&server, vec![0; 64], 0..64));
                    assert!(poll_once(&mut receive).await.is_none());
                    if round % 2 == 0 {
                        // Half of them are in progress in the kernel when they are dropped.
                        runtime.yield_now().await;
                    }
                }
                if round % 3 == 0 {
                    runtime.yield_now().await;
                }
                send_all(&runtime, &client, &round.to_le_bytes()).await;
                assert_eq!(receive_exactly(&runtime, &server, 4).await, round.to_le_bytes());
            }
        });
        if let Driver::Uring(uring) = &runtime.0.driver {
            assert!(uring.slots() <= 8, "slots of dropped operations are used again");
        }
        runtime.block_on(async { runtime.yield_now().await });
        assert_eq!(Arc::strong_count(&server), 1, "the runtime let the socket go");
    }
}

#[test]
fn a_file_is_readable_when_there_is_something_or_the_end() {
    for runtime in real_runtimes() {
        let (near, far) = pair();
        runtime.block_on(async {
            drop(poll_once(&mut pin!(runtime.readable(&near))).await);
            let mut readable = pin!(runtime.readable(&near));
            assert!(poll_once(&mut readable).await.is_none());
            runtime.yield_now().await;
            assert!(poll_once(&mut readable).await.is_none(), "there is nothing to read");
            send_all(&runtime, &far, b"ab").await;
            let waited = runtime.timeout(FOREVER_NS, readable).await;
            waited.expect("something is there").unwrap();
            // The wait consumed nothing, and the second byte can still be received.
            assert_eq!(receive_exactly(&runtime, &near, 1).await, b"a");
            runtime.readable(&near).await.unwrap();
            assert_eq!(receive_exactly(&runtime, &near, 1).await, b"b");
            let mut readable = pin!(runtime.readable(&near));
            assert!(poll_once(&mut readable).await.is_none());
            shutdown_socket(&far);
            readable.await.unwrap();
            let mut readable = pin!(runtime.readable(&near));
            while poll_once(&mut readable).await.is_none() {
                runtime.yield_now().await;
            }
        });
        runtime.block_on(async { runtime.yield_now().await });
        assert_eq!(Arc::strong_count(&near), 1, "the runtime let the socket go");
    }
}

#[test]
fn a_runtime_can_be_dropped_with_operations_under_way() {
    for runtime in real_runtimes() {
        let file = Arc::new(OwnedFd::from(tempfile::tempfile().unwrap()));
        let listener = Arc::new(OwnedFd::from(bound_listener().0));
        let (_client, server) = pair();
        let tasks = runtime.clone();
        let (file_, server_, listener_) = (file.clone(), server.clone(), listener.clone());
        runtime.spawn(async move {
            let mut write =
                pin!(tasks.write_at(&file_, 0, Arc::new(AlignedBuffer::zeroed(1 << 20))));
            let mut receive = pin!(tasks.receive(&server_, vec![0; 4096], 0..4096));
            let mut accept = pin!(tasks.accept(&listener_));
            poll_once(&mut write).await;
            poll_once(&mut receive).await;
            poll_once(&mut accept).await;
            pending().await
        });
        runtime.block_on(runtime.yield_now());
        runtime.drop_tasks();
        let is_uring = runtime.backend_name() == "io_uring";
        drop(runtime);
        assert_eq!(Arc::strong_count(&server), 1);
        assert_eq!(Arc::strong_count(&listener), 1);
        if is_uring {
            assert_eq!(Arc::strong_count(&file), 1, "the write has ended");
        }
    }
}

#[test]
fn dropping_a_ring_ends_queued_and_leaked_operations() {
    let Ok(runtime) = Runtime::new(Backend::Uring) else { return };
    let file = tempfile::tempfile().unwrap();
    let descriptor = Arc::new(OwnedFd::from(file.try_clone().unwrap()));
    let (_client, server) = pair();
    runtime.block_on(async {
        let mut receive = Box::pin(runtime.receive(&server, vec![0; 4096], 0..4096));
        assert!(poll_once(&mut receive.as_mut()).await.is_none());
        // Safe code may leak a future; its buffer must then stay with the kernel.
        std::mem::forget(receive);
        runtime.yield_now().await;
        let mut write =
            pin!(runtime.write_at(&descriptor, 0, Arc::new(AlignedBuffer::zeroed(64 << 10))));
        assert!(poll_once(&mut write).await.is_none());
    });
    assert_eq!(file.metadata().unwrap().len(), 0, "the write is queued, not submitted");
    drop(runtime);
    assert_eq!(file.metadata().unwrap().len(), 64 << 10);
    assert_eq!(Arc::strong_count(&descriptor), 1);
    assert_eq!(Arc::strong_count(&server), 1);
}

/// A long write continues while its thread is busy.
#[test]
fn long_operations_are_submitted_at_once() {
    let Ok(runtime) = Runtime::new(Backend::Uring) else { return };
    let file = tempfile::tempfile().unwrap();
    let descriptor = Arc::new(OwnedFd::from(file.try_clone().unwrap()));
    runtime.block_on(async {
        let bytes = Arc::new(AlignedBuffer::zeroed(1 << 20));
        let mut write = pin!(runtime.write_at(&descriptor, 0, bytes));
        assert!(poll_once(&mut write).await.is_none());
        let begun = Instant::now();
        while file.metadata().unwrap().len() < 1 << 20 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the write waits for a turn");
        }
        assert_eq!(write.await.unwrap(), 1 << 20);
    });
}

fn bound_listener() -> (UnixListener, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
    (listener, directory)
}

#[test]
fn connections_are_accepted_until_the_listener_is_shut_down() {
    for runtime in real_runtimes() {
        let (listener, directory) = bound_listener();
        let listener = Arc::new(OwnedFd::from(listener));
        runtime.block_on(async {
            {
                let mut dropped = pin!(runtime.accept(&listener));
                assert!(poll_once(&mut dropped).await.is_none());
                runtime.yield_now().await;
            }
            // The remains of a cancelled accept must not swallow the next connection.
            runtime.yield_now().await;
            let mut client = UnixStream::connect(directory.path().join("socket")).unwrap();
            let server = Arc::new(runtime.accept(&listener).await.unwrap());
            let flags = rustix::io::fcntl_getfd(&server).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
            client.write_all(b"hello").unwrap();
            assert_eq!(receive_exactly(&runtime, &server, 5).await, b"hello");

            let mut accept = pin!(runtime.accept(&listener));
            let mut receive = pin!(runtime.receive(&server, vec![0; 8], 0..8));
            assert!(poll_once(&mut accept).await.is_none());
            assert!(poll_once(&mut receive).await.is_none());
            shutdown_socket(&listener);
            shutdown_socket(&server);
            assert_eq!(accept.await.unwrap_err().kind(), io::ErrorKind::InvalidInput);
            assert_eq!(receive.await.1.unwrap(), 0);
            assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
        });
    }
}

#[test]
fn a_wake_from_another_thread_ends_the_wait() {
    for runtime in real_runtimes() {
        for _ in 0..200 {
            let (hand_over, wakers) = mpsc::channel::<std::task::Waker>();
            let flag = Arc::new(AtomicBool::new(false));
            let set = flag.clone();
            let thread = std::thread::spawn(move || {
                let waker = wakers.recv().unwrap();
                set.store(true, Ordering::Release);
                waker.wake();
            });
            let wait = poll_fn(|context| {
                if flag.load(Ordering::Acquire) {
                    return Poll::Ready(());
                }
                let _ = hand_over.send(context.waker().clone());
                Poll::Pending
            });
            assert!(runtime.block_on(runtime.timeout(FOREVER_NS, wait)).is_some());
            thread.join().unwrap();
        }
    }
}

/// The kernel thread that completes a write may have to wait for this processor.
#[test]
fn no_wait_is_polled_while_a_file_is_changed() {
    for skipped in 0..uring::SETUPS.len() {
        let Ok(uring) = Uring::with_setup(skipped) else { continue };
        let driver = Driver::Uring(Box::new(uring));
        let executor = Executor::new(true).unwrap();
        let runtime = Runtime(Rc::new(Inner::new(driver, executor, Timers::real())));
        let Driver::Uring(uring) = &runtime.0.driver else { unreachable!("it is made above") };
        runtime.set_busy_poll(1_000_000);
        let (mut reader, writer) = io::pipe().unwrap();
        let writer = Arc::new(OwnedFd::from(writer));
        let buffer = Arc::new(AlignedBuffer::zeroed(4096));
        runtime.block_on(async {
            // This is the capacity of a pipe. The next write lasts until some bytes are read.
            let full = Arc::new(AlignedBuffer::zeroed(64 << 10));
            assert_eq!(runtime.write_at(&writer, 0, full).await.unwrap(), 64 << 10);
            {
                let mut write = pin!(runtime.write_at(&writer, 0, buffer));
                assert!(poll_once(&mut write).await.is_none());
                runtime.0.timers.sleep(5_000_000).await;
                assert_eq!(uring.polled(), 0, "setup {skipped}");
                reader.read_exact(&mut vec![0; 64 << 10]).unwrap();
                assert_eq!(write.await.unwrap(), 4096);
            }
            runtime.0.timers.sleep(5_000_000).await;
            assert_eq!(uring.polled(), 1, "setup {skipped}");
        });
    }
}

#[test]
fn a_timeout_ends_endless_work() {
    for runtime in real_runtimes() {
        let (_client, server) = pair();
        runtime.block_on(async {
            let start = Instant::now();
            let receive = runtime.receive(&server, vec![0; 8], 0..8);
            assert!(runtime.timeout(20_000_000, receive).await.is_none());
            assert!(start.elapsed() >= Duration::from_millis(20));
            assert_eq!(runtime.timeout(FOREVER_NS, async { 7 }).await, Some(7));
            assert_eq!(runtime.timeout(0, pending::<()>()).await, None);
            assert_eq!(runtime.timeout(u64::MAX, runtime.yield_now()).await, Some(()));
            assert_eq!(runtime.0.timers.next_ns(), None, "no timer is left");
        });
    }
}

/// Lets tasks sleep for these numbers of milliseconds. Returns the order in which they continued,
/// and the nanoseconds from the start of the first task to the start of the last one.
fn order_of_sleepers(runtime: &Runtime, delays_ms: &[u64]) -> (Vec<u64>, u64) {
    let fired = Rc::new(RefCell::new(Vec::new()));
    let started = Rc::new(RefCell::new(Vec::new()));
    for &delay in delays_ms {
        let (runtime_, fired, started) = (runtime.clone(), fired.clone(), started.clone());
        runtime.spawn(async move {
            let start = runtime_.now_ns();
            started.borrow_mut().push(start);
            runtime_.sleep_ns(delay * 1_000_000).await;
            assert!(runtime_.now_ns() - start >= delay * 1_000_000);
            fired.borrow_mut().push(delay);
        });
    }
    runtime.block_on(async {
        while fired.borrow().len() < delays_ms.len() {
            runtime.sleep_ns(1_000_000).await;
        }
    });
    let started = started.take();
    (fired.take(), started[started.len() - 1] - started[0])
}

#[test]
fn timers_fire_in_the_order_of_their_deadlines() {
    let mut runtimes = real_runtimes();
    runtimes.push(Runtime::simulated());
    for runtime in runtimes {
        // On a busy machine, the tasks may start so far apart that another order is correct.
        let order = (0..1000)
            .map(|_| order_of_sleepers(&runtime, &[9, 3, 7, 1, 5, 3]))
            .find(|(_, spread_ns)| *spread_ns < 1_000_000);
        assert_eq!(order.unwrap().0, [1, 3, 3, 5, 7, 9]);
    }
}

#[test]
fn timers_of_one_deadline_fire_in_the_order_they_were_set() {
    let runtime = Runtime::simulated();
    let fired = Rc::new(RefCell::new(Vec::new()));
    for task in 0..100u64 {
        let (runtime_, fired) = (runtime.clone(), fired.clone());
        runtime.spawn(async move {
            runtime_.sleep_ns(task % 2).await;
            runtime_.sleep_ns(10 - task % 2).await;
            fired.borrow_mut().push((task + 1) % 2 * 100 + task);
        });
    }
    runtime.block_on(runtime.sleep_ns(11));
    // The even tasks started their second sleep first.
    let mut expected: Vec<_> = (0..100).step_by(2).map(|task| 100 + task).collect();
    expected.extend((1..100).step_by(2));
    assert_eq!(*fired.borrow(), expected);
}

#[test]
fn timers_and_completions_are_seen_while_tasks_stay_ready() {
    for runtime in real_runtimes() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let server = Arc::new(OwnedFd::from(server));
        let stop = Rc::new(Cell::new(false));
        let busy = stop.clone();
        // The task wakes itself, so some task is ready at every moment.
        runtime.spawn(poll_fn(move |context| {
            context.waker().wake_by_ref();
            if busy.get() { Poll::Ready(()) } else { Poll::Pending }
        }));
        runtime.block_on(async {
            runtime.sleep_ns(1_000_000).await;
            client.write_all(b"x").unwrap();
            receive_exactly(&runtime, &server, 1).await;
            stop.set(true);
            runtime.yield_now().await;
        });
    }
}

#[test]
fn a_socket_that_never_blocks_lets_other_tasks_run() {
    for runtime in real_runtimes() {
        let (client, server) = pair();
        let stop = Rc::new(Cell::new(false));
        let (echo, stopped) = (runtime.clone(), stop.clone());
        runtime.spawn(async move {
            // Every send finds free buffer space, and every receive a byte.
            while !stopped.get() {
                send_all(&echo, &client, b"x").await;
                receive_exactly(&echo, &server, 1).await;
            }
        });
        runtime.block_on(async {
            runtime.yield_now().await;
            runtime.sleep_ns(1_000_000).await;
            stop.set(true);
            runtime.yield_now().await;
        });
    }
}

#[test]
fn tasks_spawn_tasks_and_outlive_a_run() {
    let mut runtimes = real_runtimes();
    runtimes.push(Runtime::simulated());
    for runtime in runtimes {
        let log = Rc::new(RefCell::new(Vec::new()));
        let (outer, log_) = (runtime.clone(), log.clone());
        runtime.spawn(async move {
            log_.borrow_mut().push("outer");
            let inner_log = log_.clone();
            let inner = outer.clone();
            outer.spawn(async move {
                inner_log.borrow_mut().push("inner");
                inner.yield_now().await;
                inner.yield_now().await;
                inner_log.borrow_mut().push("inner after its yields");
            });
            outer.yield_now().await;
            log_.borrow_mut().push("outer after its yield");
        });
        runtime.block_on(async {});
        assert_eq!(*log.borrow(), ["outer"]);
        runtime.block_on(runtime.sleep_ns(1_000_000));
        let expected = ["outer", "inner", "outer after its yield", "inner after its yields"];
        assert_eq!(*log.borrow(), expected);

        let held = Rc::new(());
        let (task, again) = (held.clone(), runtime.clone());
        runtime.spawn(async move {
            again.sleep_ns(FOREVER_NS).await;
            drop(task);
        });
        runtime.block_on(runtime.yield_now());
        assert_eq!(Rc::strong_count(&held), 2);
        runtime.drop_tasks();
        assert_eq!(Rc::strong_count(&held), 1);
        runtime.block_on(runtime.yield_now());
    }
}

#[test]
fn a_task_woken_twice_is_polled_once() {
    let runtime = Runtime::simulated();
    let polls = Rc::new(Cell::new(0));
    let waker = Rc::new(RefCell::new(None));
    let (polls_, waker_) = (polls.clone(), waker.clone());
    runtime.spawn(poll_fn(move |context| {
        polls_.set(polls_.get() + 1);
        *waker_.borrow_mut() = Some(context.waker().clone());
        if polls_.get() < 3 { Poll::Pending } else { Poll::Ready(()) }
    }));
    let wake = || {
        let waker: std::task::Waker = waker.borrow().clone().unwrap();
        waker.wake_by_ref();
        waker.wake();
    };
    runtime.block_on(async {
        for expected in [1, 2, 3, 3, 3] {
            runtime.yield_now().await;
            assert_eq!(polls.get(), expected);
            wake();
        }
        // A waker that outlived its task must not prevent the next task of its slot from running.
        let ran = Rc::new(Cell::new(false));
        let ran_ = ran.clone();
        runtime.spawn(async move { ran_.set(true) });
        runtime.yield_now().await;
        assert!(ran.get());
    });
}

#[test]
#[should_panic(expected = "block_on inside block_on")]
fn a_run_inside_a_run_is_a_bug() {
    let runtime = Runtime::simulated();
    runtime.block_on(async { runtime.block_on(async {}) });
}

#[test]
#[should_panic(expected = "deadlock in virtual time")]
fn waiting_for_nothing_in_virtual_time_is_a_bug() {
    Runtime::simulated().block_on(pending::<()>());
}

#[test]
fn virtual_time_costs_no_time_and_does_no_input_or_output() {
    let runtime = Runtime::simulated();
    let start = Instant::now();
    runtime.block_on(async {
        assert_eq!(runtime.now_ns(), 0);
        for hour in 1..=1000 {
            runtime.sleep_ns(FOREVER_NS).await;
            assert_eq!(runtime.now_ns(), hour * FOREVER_NS);
        }
        let (left, _right) = pair();
        let (buffer, result) = runtime.receive(&left, vec![0; 3], 0..3).await;
        assert_eq!(buffer.len(), 3);
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::Unsupported);
    });
    assert!(start.elapsed() < Duration::from_secs(60));
}

/// Runs tasks that sleep, yield, spawn and time out at random. Returns the time at which each task
/// continued.
fn random_run(seed: u64) -> Vec<(u64, u32)> {
    let runtime = Runtime::simulated();
    let log = Rc::new(RefCell::new(Vec::new()));
    for task in 0..50 {
        let (runtime_, log_) = (runtime.clone(), log.clone());
        runtime.spawn(async move {
            let mut random = seed::random(seed + u64::from(task));
            for _ in 0..100 {
                match random.next_u32() % 4 {
                    0 => runtime_.yield_now().await,
                    1 => {
                        let sleep = runtime_.sleep_ns(random.next_u64() % 50);
                        runtime_.timeout(random.next_u64() % 50, sleep).await;
                    }
                    _ => runtime_.sleep_ns(random.next_u64() % 20).await,
                }
                log_.borrow_mut().push((runtime_.now_ns(), task));
            }
        });
    }
    runtime.block_on(runtime.sleep_ns(1_000_000));
    log.take()
}

#[test]
fn the_same_program_runs_the_same_way() {
    let first = random_run(1);
    assert_eq!(first.len(), 5000);
    assert!(first.is_sorted_by_key(|event| event.0));
    assert!(first.windows(2).filter(|pair| pair[0].1 != pair[1].1).count() > 4000, "interleaved");
    assert!(first == random_run(1), "a second run differs");
    assert!(first != random_run(1000), "the log says something about the run");
}

/// A sleep counts from its creation, even if it is first polled after its deadline.
#[test]
fn a_sleep_that_is_looked_at_too_late_is_over() {
    let runtime = Runtime::simulated();
    let late = runtime.sleep_ns(100);
    runtime.block_on(runtime.sleep_ns(500));
    runtime.block_on(late);
    assert_eq!(runtime.now_ns(), 500);
}

#[test]
fn an_interrupted_wait_ends_and_takes_nothing() {
    for runtime in real_runtimes() {
        let (near, far) = pair();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = Arc::new(OwnedFd::from(UnixListener::bind(&path).unwrap()));
        runtime.block_on(async {
            let interrupted = |result: io::Result<usize>| {
                assert_eq!(result.unwrap_err().kind(), io::ErrorKind::Interrupted);
            };
            let mut receive = pin!(runtime.receive(&near, vec![7; 4], 1..4));
            assert!(poll_once(&mut receive).await.is_none());
            let mut accept = pin!(runtime.accept(&listener));
            assert!(poll_once(&mut accept).await.is_none());
            runtime.yield_now().await;
            runtime.interrupt(&near);
            let (buffer, result) = receive.await;
            assert_eq!(buffer, [7; 4]);
            interrupted(result);
            assert!(poll_once(&mut accept).await.is_none(), "another socket was interrupted");
            runtime.interrupt(&listener);
            interrupted(accept.await.map(|_| 0));

            // Bytes that were not received remain for the next receive, together with the earlier
            // ones.
            send_all(&runtime, &far, b"ab").await;
            runtime.interrupt(&near);
            assert_eq!(receive_exactly(&runtime, &near, 2).await, b"ab");
            let mut receive = pin!(runtime.receive(&near, vec![0; 4], 0..4));
            assert!(poll_once(&mut receive).await.is_none());
            send_all(&runtime, &far, b"cd").await;
            runtime.interrupt(&near);
            match receive.await {
                (buffer, Ok(length)) => assert_eq!(buffer[..length], *b"cd"),
                (_, Err(error)) => {
                    assert_eq!(error.kind(), io::ErrorKind::Interrupted);
                    assert_eq!(receive_exactly(&runtime, &near, 2).await, b"cd");
                }
            }
        });
    }
}
