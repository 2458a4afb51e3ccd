//! Keeps a drive in a file: creates it, writes, flushes, closes, reopens and reads.
//!
//! ```sh
//! cargo run --package pumice-drive --example embed -- /tmp/embed.pumice
//! ```

use std::path::{Path, PathBuf};
use std::rc::Rc;

use pumice_drive::{
    Backend, Codec, Drive, FileMedium, FileOptions, OpenOptions, Result, Runtime, Spec, Uuid,
    create,
};

/// Size of the disk. The file is sparse and grows with the data.
const SIZE_BYTES: u64 = 256 << 20;

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).map(PathBuf::from);
    run(&path.unwrap_or_else(|| std::env::temp_dir().join("embed.pumice")))
}

fn run(path: &Path) -> Result<()> {
    let runtime = Runtime::new(Backend::Auto)?;

    // Create the file and the drive in it. The identity must be unique: use `Uuid::new_v4()`.
    let mut spec = Spec::new(Uuid::from_u128(0x0065_6d62_6564), SIZE_BYTES);
    spec.codec = Codec::Zstd { level: 1 };
    FileMedium::create(path, spec.geometry()?.medium_bytes(), true)?;
    let medium = FileMedium::open(runtime.clone(), path, FileOptions::default())?;
    runtime.block_on(create(&medium, &spec))?;
    // The file is locked while it is open.
    drop(medium);

    let line = b"The same line, many times over, compresses well.\n";
    let text = line.repeat(20_000);
    let drive = open(&runtime, path)?;
    runtime.block_on(async {
        // Offsets and lengths are bytes and need no alignment.
        drive.write(1000, &text).await?;
        drive.flush().await
    })?;
    let info = drive.info();
    println!("{} bytes written, {} stored in frames", info.host_bytes, info.frame_bytes);
    runtime.block_on(drive.close())?;
    drop(drive);

    let drive = open(&runtime, path)?;
    let mut read = vec![0; text.len()];
    runtime.block_on(drive.read(1000, &mut read))?;
    runtime.block_on(drive.close())?;
    assert_eq!(read, text);
    println!("{} bytes read back from {}", read.len(), path.display());
    Ok(())
}

fn open(runtime: &Runtime, path: &Path) -> Result<Rc<Drive>> {
    let medium = FileMedium::open(runtime.clone(), path, FileOptions::default().with_direct(true))?;
    runtime.block_on(Drive::open(Rc::new(medium), runtime.clock(), OpenOptions::default()))
}

#[test]
fn it_runs() {
    let directory = tempfile::tempdir().unwrap();
    run(&directory.path().join("embed.pumice")).unwrap();
}
