//! Goal: our NBD client works with servers of other projects as it does with our own.
//!
//! Method: nbdkit and qemu-nbd as installed, each in its own directory; concurrent writes of many
//! tasks are compared with a plain array, and errors with those that the server was told to return.

use std::fs::{self, File};
use std::future::poll_fn;
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::process::Command;
use std::sync::Arc;
use std::task::Poll;

use pumice_drive::base::seed::random;
use pumice_drive::base::{AlignedBuffer, ErrorKind, Result};
use pumice_drive::runtime::{Backend, Runtime};
use pumice_nbd::Allocation::{Keep, Release};
use pumice_nbd::Durability::{Durable, Volatile};
use pumice_nbd::client::{Client, Uri};
use rand::RngExt;
use tempfile::TempDir;

use crate::harness::{COMMAND_LIMIT, Drive, Server, tool};

/// Size of the exports that are written to.
const BYTES: usize = 16 << 20;

/// Number of tasks that share one connection.
const TASKS: usize = 16;

fn directory() -> TempDir {
    tempfile::Builder::new().prefix("pumice-").tempdir().expect("temp dir")
}

/// Starts nbdkit with these arguments on the socket.
fn nbdkit(directory: &TempDir, args: &[&str]) -> Option<Server> {
    let socket = directory.path().join("nbdkit");
    let mut command = Command::new(tool("nbdkit")?);
    command.args(["--foreground", "--unix"]).arg(&socket).args(args);
    Some(Server::start(&mut command, socket))
}

/// Starts qemu-nbd with the export `disk`: a file of [`BYTES`], which is also returned.
fn qemu_nbd(directory: &TempDir, args: &[&str]) -> Option<(Server, PathBuf)> {
    let [socket, file] = ["qemu", "file"].map(|name| directory.path().join(name));
    let created = File::create(&file).and_then(|file| file.set_len(BYTES as u64));
    created.expect("the export's file");
    let mut command = Command::new(tool("qemu-nbd")?);
    command.args(["--persistent", "--shared=0", "--format=raw", "--discard=unmap"]);
    command.args(["--export-name=disk"]).args(args).arg("--socket").arg(&socket).arg(&file);
    Some((Server::start(&mut command, socket), file))
}

/// Runs `body` with a client of the export, within [`COMMAND_LIMIT`].
fn with_client<T>(uri: &str, body: impl AsyncFnOnce(&Client) -> T) -> T {
    let limit_ns = COMMAND_LIMIT.as_nanos() as u64;
    let runtime = Runtime::new(Backend::Auto).expect("a runtime");
    let value = runtime.block_on(runtime.timeout(limit_ns, async {
        let client = Client::connect(&runtime, &Uri::parse(uri).expect("a URI")).await;
        body(&client.expect("a connection")).await
    }));
    let value = value.unwrap_or_else(|| panic!("the client of {uri} hangs"));
    runtime.drop_tasks();
    value
}

fn connect_error(uri: &str) -> ErrorKind {
    let runtime = Runtime::new(Backend::Auto).expect("a runtime");
    let uri = Uri::parse(uri).expect("a URI");
    runtime.block_on(Client::connect(&runtime, &uri)).expect_err("no such export").kind()
}

async fn read(client: &Client, offset: usize, len: usize) -> Result<Vec<u8>> {
    let (buffer, result) = client.read(offset as u64, AlignedBuffer::zeroed(len)).await;
    result.map(|()| buffer.to_vec())
}

/// Polls all tasks in each turn until all have ended.
async fn together(mut tasks: Vec<Pin<Box<impl Future<Output = ()>>>>) {
    poll_fn(|context| {
        tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
        if tasks.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Writes, zeroes, reads and flushes from many tasks, each in an area of its own. Returns the
/// expected content of the disk.
async fn exercise(client: &Client) -> Vec<u8> {
    let mut model = vec![0; BYTES];
    let areas = model.chunks_mut(BYTES / TASKS).enumerate();
    let tasks = areas.map(|(task, area)| {
        Box::pin(async move {
            let (random, start) = (&mut random(task as u64), task * area.len());
            for round in 0..30 {
                let sectors = [8, random.random_range(1..20), random.random_range(1..1500)];
                let length = 512 * sectors[round % 3];
                let at = random.random_range(0..=(area.len() - length) / 512) * 512;
                let offset = (start + at) as u64;
                let range = at..at + length;
                if round % 7 == 6 {
                    area[range.clone()].fill(0);
                    let allocation = if round % 2 == 0 { Keep } else { Release };
                    client.write_zeroes(offset, length as u64, allocation, Volatile).await.unwrap();
                } else {
                    let mut data = AlignedBuffer::zeroed(length);
                    data.fill_with(|| random.random());
                    area[range.clone()].copy_from_slice(&data);
                    if round % 2 == 0 {
                        let durability = if round % 5 == 0 { Durable } else { Volatile };
                        client.write(offset, &data, durability).await.unwrap();
                    } else {
                        client.write_shared(offset, &Arc::new(data), Volatile).await.unwrap();
                    }
                }
                let back = read(client, start + at, length).await.unwrap();
                assert!(back == area[range], "task {task}, round {round}: {length} bytes");
                if round % 10 == 9 {
                    client.flush().await.unwrap();
                }
            }
        })
    });
    together(tasks.collect()).await;
    model
}

/// Asserts the behaviour of every writable server.
fn assert_serves(uri: &str) -> Vec<u8> {
    with_client(uri, async |client| {
        assert_eq!((client.size_bytes(), client.is_read_only()), (BYTES as u64, false));
        let capabilities = client.capabilities();
        assert!(capabilities.has_flush && capabilities.has_fua, "{capabilities:?}");
        assert!(capabilities.has_trim && capabilities.has_write_zeroes, "{capabilities:?}");
        let model = exercise(client).await;
        // The whole disk in one read, which is longer than a socket buffer.
        assert!(read(client, 0, BYTES).await.unwrap() == model);
        let past = read(client, BYTES - 512, 1024).await.unwrap_err();
        assert_eq!(past.kind(), ErrorKind::InvalidInput);
        client.trim(0, 1 << 20, Durable).await.unwrap();
        assert!(read(client, 1 << 20, BYTES - (1 << 20)).await.unwrap() == model[1 << 20..]);
        client.flush().await.unwrap();
        client.disconnect().await.unwrap();
        model
    })
}

#[test]
fn nbdkit_takes_and_gives_back() {
    let directory = directory();
    let Some(server) = nbdkit(&directory, &["memory", "16M"]) else { return };
    let model = assert_serves(&server.uri());
    with_client(&server.uri(), async |client| {
        let rest = read(client, 1 << 20, BYTES - (1 << 20)).await.unwrap();
        assert!(rest == model[1 << 20..], "another connection sees the same");
    });
    server.stop();
}

#[test]
fn qemu_nbd_takes_and_gives_back() {
    let directory = directory();
    let Some((server, file)) = qemu_nbd(&directory, &[]) else { return };
    let model = assert_serves(&server.uri_of("disk"));
    server.stop();
    let bytes = fs::read(file).expect("the export's file");
    assert!(bytes[1 << 20..] == model[1 << 20..], "the file below it holds something else");
}

#[test]
fn pumice_takes_and_gives_back() {
    let drive = Drive::create("16M", &[]);
    let server = drive.serve();
    assert_serves(&server.uri());
    server.stop();
    drive.assert_checks();
}

#[test]
fn a_server_without_fixed_newstyle_or_go_is_understood() {
    // The flags that the server still offers: none, fixed newstyle alone, no-zeroes alone.
    for mask in ["0", "1", "2"] {
        let directory = directory();
        let args = [&format!("--mask-handshake={mask}"), "memory", "16M"];
        let Some(server) = nbdkit(&directory, &args) else { return };
        assert_serves(&server.uri());
        server.stop();
    }
}

#[test]
fn read_only_exports_are_read_only() {
    let directory = directory();
    let Some(kit) = nbdkit(&directory, &["--readonly", "memory", "16M"]) else { return };
    let Some((qemu, _)) = qemu_nbd(&directory, &["--read-only"]) else { return };
    for uri in [kit.uri(), qemu.uri_of("disk")] {
        with_client(&uri, async |client| {
            assert!(client.is_read_only(), "{uri}");
            let refused = client.write(0, &[1; 512], Volatile).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ReadOnly);
            assert!(read(client, 0, 4096).await.unwrap() == [0; 4096]);
            client.disconnect().await.unwrap();
        });
    }
}

#[test]
fn exports_are_told_apart_by_name() {
    let directory = directory();
    // The content of each export is its name.
    let Some(kit) = nbdkit(&directory, &["info", "exportname"]) else { return };
    for (encoded, name) in [("one", "one"), ("two/%C3%A4%20b", "two/ä b"), ("/x", "/x")] {
        with_client(&kit.uri_of(encoded), async |client| {
            assert_eq!(client.size_bytes(), name.len() as u64, "{name}");
            assert_eq!(read(client, 0, name.len()).await.unwrap(), name.as_bytes());
        });
    }
    let Some((qemu, _)) = qemu_nbd(&directory, &[]) else { return };
    with_client(&qemu.uri_of("disk"), async |client| assert_eq!(client.size_bytes(), BYTES as u64));
    assert_eq!(connect_error(&qemu.uri_of("disc")), ErrorKind::NotFound);
    let drive = Drive::create("16M", &[]);
    assert_eq!(connect_error(&drive.serve().uri_of("disc")), ErrorKind::NotFound);
}

#[test]
fn a_server_that_insists_on_its_sizes_gets_them() {
    let directory = directory();
    let sizes = ["blocksize-minimum=4k", "blocksize-preferred=64k", "blocksize-maximum=256k"];
    let mut args = vec!["--filter=blocksize-policy", "memory", "16M"];
    args.extend(sizes);
    args.push("blocksize-error-policy=error");
    let Some(server) = nbdkit(&directory, &args) else { return };
    with_client(&server.uri(), async |client| {
        let it = client.capabilities();
        let sizes = (it.block_bytes_min, it.block_bytes_preferred, it.payload_bytes_max);
        assert_eq!(sizes, (4096, 64 << 10, 256 << 10));
        let mut data = AlignedBuffer::zeroed(2 << 20);
        data.fill_with({
            let mut random = random(5);
            move || random.random()
        });
        let data = Arc::new(data);
        client.write(0, &data, Volatile).await.unwrap();
        client.write_shared(4 << 20, &data, Volatile).await.unwrap();
        for offset in [0, 4 << 20] {
            assert!(read(client, offset, 2 << 20).await.unwrap() == data[..]);
        }
        let refused = read(client, 512, 4096).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    });
    server.stop();
}

#[test]
fn errors_of_a_server_arrive_as_they_are() {
    for (name, number, kind) in [
        ("ENOSPC", 28, ErrorKind::NoSpace),
        ("EIO", 5, ErrorKind::Io),
        ("EPERM", 1, ErrorKind::ReadOnly),
        ("EINVAL", 22, ErrorKind::InvalidInput),
    ] {
        let directory = directory();
        let error = format!("error={name}");
        let args = ["--filter=error", "memory", "16M", &error, "error-pwrite-rate=100%"];
        let Some(server) = nbdkit(&directory, &args) else { return };
        with_client(&server.uri(), async |client| {
            let error = client.write(8192, &[1; 4096], Volatile).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{name}: {error:?}");
            let text = error.chain();
            assert!(text.contains("offset 8192"), "{text}");
            assert!(text.contains(&format!("os error {number}")), "{text}");
            assert!(read(client, 8192, 4096).await.unwrap() == [0; 4096], "it goes on");
        });
        server.stop();
    }
}

#[test]
fn a_killed_server_fails_waiting_requests() {
    let directory = directory();
    let args = ["--filter=delay", "memory", "16M", "rdelay=3600"];
    let Some(server) = nbdkit(&directory, &args) else { return };
    let uri = server.uri();
    with_client(&uri, async |client| {
        let mut waiting = pin!(read(client, 0, 4096));
        poll_fn(|context| match waiting.as_mut().poll(context) {
            Poll::Ready(early) => panic!("not delayed: {early:?}"),
            Poll::Pending => Poll::Ready(()),
        })
        .await;
        // The read has also been sent: requests leave in order.
        client.write(0, &[1; 512], Volatile).await.unwrap();
        server.kill();
        let error = waiting.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error:?}");
        assert!(error.to_string().contains("no connection to"), "{error}");
    });
}
