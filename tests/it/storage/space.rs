//! Goal: data without information takes no space: holes, zeroes and trimmed areas cost no media
//! bytes, and the counters name their layer.
//!
//! Method: images with known content are written through nbdcopy; `pumice info --json` must then be
//! within bounds that follow from the content.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use rand::Rng;

use crate::harness::{Drive, counter, run_ok, stand_in, tool};

const MIB: u64 = 1 << 20;

/// Bytes of noise in an image: they cannot be compressed, so that media bytes have a lower bound.
const NOISE_BYTES: u64 = 4 * MIB;

/// The maximum that the log adds to incompressible frames in these tests: headers, padding at each
/// flush, and the writes of a clean shutdown.
const OVERHEAD_BYTES: u64 = 2 * MIB;

#[test]
fn holes_take_no_media_bytes() {
    // nbdcopy sends the holes of a sparse file as trims or write-zeroes.
    copied_image_takes_only_its_noise(&[]);
}

#[test]
fn zeroes_written_as_data_take_no_media_bytes() {
    let Some(drive) = copied_image_takes_only_its_noise(&["--allocated", "--sparse=0"]) else {
        return;
    };
    let host_bytes = counter(&drive.info(), "host_bytes");
    assert!(host_bytes >= NOISE_BYTES, "host_bytes = {host_bytes}");
}

#[test]
fn an_ext4_file_system_takes_little_more_than_its_metadata() {
    let (Some(mkfs), Some(nbdcopy)) = (tool("mkfs.ext4"), tool("nbdcopy")) else { return };
    let (Some(fsck), None) = (tool("e2fsck"), stand_in()) else { return };
    let drive = Drive::create("256M", &[]);
    let (image, copy) = (drive.beside("image"), drive.beside("copy"));
    run_ok(Command::new(mkfs).args(["-q", "-F", "-E", "discard"]).arg(&image).arg("256M"));
    let server = drive.serve();
    run_ok(Command::new(&nbdcopy).arg("--flush").arg(&image).arg(server.uri()));
    run_ok(Command::new(&nbdcopy).arg(server.uri()).arg(&copy));
    server.stop();
    run_ok(Command::new(fsck).arg("-fn").arg(&copy));
    let media_bytes = counter(&drive.info(), "media_bytes");
    // An empty journal is 8 MiB of zeroes, inode tables are zeroes: next to nothing remains.
    assert!(media_bytes < OVERHEAD_BYTES, "an empty file system took {media_bytes} media bytes");
}

fn copied_image_takes_only_its_noise(nbdcopy_args: &[&str]) -> Option<Drive> {
    let nbdcopy = tool("nbdcopy")?;
    if stand_in().is_some() {
        return None;
    }
    let drive = Drive::create("128M", &[]);
    let image = drive.beside("image");
    write_sparse_image(&image, 128 * MIB);
    let server = drive.serve();
    let mut command = Command::new(nbdcopy);
    run_ok(command.arg("--flush").args(nbdcopy_args).arg(&image).arg(server.uri()));
    server.stop();

    let info = drive.info();
    let (frame_bytes, media_bytes) = (counter(&info, "frame_bytes"), counter(&info, "media_bytes"));
    let bounds = NOISE_BYTES..NOISE_BYTES + OVERHEAD_BYTES;
    assert!(bounds.contains(&frame_bytes), "frame_bytes = {frame_bytes}, expected {bounds:?}");
    assert!(bounds.contains(&media_bytes), "media_bytes = {media_bytes}, expected {bounds:?}");
    assert!(media_bytes >= frame_bytes, "media bytes hold the frames: {info:#}");
    // Zeroes do not count as saved data.
    assert_eq!(counter(&info, "mapped_bytes"), NOISE_BYTES, "{info:#}");
    drive.assert_checks();
    Some(drive)
}

/// Writes noise in four pieces with holes between them.
fn write_sparse_image(path: &Path, size_bytes: u64) {
    let file = File::create(path).expect("create the image");
    file.set_len(size_bytes).expect("size the image");
    let mut random = pumice_drive::base::seed::random(41);
    let mut piece = vec![0; (NOISE_BYTES / 4) as usize];
    for index in 0..4 {
        random.fill_bytes(&mut piece);
        file.write_all_at(&piece, index * size_bytes / 4 + 64 * 1024).expect("write noise");
    }
}
