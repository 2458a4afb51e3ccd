//! Serves a drive in memory over NBD on a Unix socket, from within another program, for a limited
//! time.
//!
//! ```sh
//! cargo run --package pumice-nbd --example nbd_export -- /tmp/nbd.sock 60
//! nbdinfo 'nbd+unix:///?socket=/tmp/nbd.sock'
//! ```

use std::path::{Path, PathBuf};
use std::rc::Rc;

use pumice_drive::{
    Backend, Clock, Drive, MemMedium, OpenOptions, Result, Runtime, Spec, Uuid, create,
};
use pumice_nbd::{Access, Export, Listen, Listener, Options, Server};

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let socket = arguments.next().map_or_else(|| PathBuf::from("nbd.sock"), PathBuf::from);
    let seconds = arguments.next().and_then(|text| text.to_str()?.parse().ok()).unwrap_or(60);
    let runtime = Runtime::new(Backend::Auto)?;
    println!("serving {} for {seconds} s", socket.display());
    runtime.block_on(serve(&runtime, &socket, runtime.sleep_ns(seconds * 1_000_000_000)))
}

/// Creates a drive in memory and serves it on `socket` until `end` completes.
async fn serve(runtime: &Runtime, socket: &Path, end: impl Future<Output = ()>) -> Result<()> {
    let spec = Spec::new(Uuid::from_u128(1), 64 << 20);
    let medium = MemMedium::new(spec.geometry()?.medium_bytes());
    create(&medium, &spec).await?;
    let drive = open(runtime, medium).await?;

    // The first export is also the default one, for clients that request no name.
    let export = Export::new("memory", "a drive in memory", drive.clone());
    let server = Server::new(runtime.clone(), vec![Rc::new(export)], Options::default());
    let listener = Listener::bind(&Listen::Unix(socket.to_owned()), Access::default())?;
    runtime.spawn(server.clone().serve(listener));
    end.await;
    // Lets requests in progress complete and flushes the drive.
    server.shutdown().await?;
    drive.close().await
}

async fn open(runtime: &Runtime, medium: MemMedium) -> Result<Rc<Drive>> {
    Drive::open(Rc::new(medium), runtime.clock(), OpenOptions::default()).await
}

#[test]
fn a_client_reads_its_writes() {
    use pumice_drive::AlignedBuffer;
    use pumice_nbd::Durability;
    use pumice_nbd::client::{Client, Uri};

    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd.sock");
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let client = async {
        let client = Client::connect(&runtime, &Uri::unix(&socket, "memory")).await.unwrap();
        assert_eq!(client.size_bytes(), 64 << 20);
        client.write(4096, &[7; 8192], Durability::Durable).await.unwrap();
        let (buffer, result) = client.read(4096, AlignedBuffer::zeroed(8192)).await;
        result.unwrap();
        assert!(buffer.iter().all(|&byte| byte == 7));
        client.disconnect().await.unwrap();
    };
    let serving = serve(&runtime, &socket, client);
    runtime
        .block_on(runtime.timeout(60_000_000_000, serving))
        .expect("a minute is enough")
        .unwrap();
}
