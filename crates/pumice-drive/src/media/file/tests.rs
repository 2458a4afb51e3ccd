//! Goal: the written data can be read however the file is opened; data that is in use, foreign or
//! out of bounds is not changed.
//!
//! Method: files in a temporary directory, every backend, direct and buffered. The tests pass
//! whether or not the file system there supports direct I/O.

use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::Arc;

use super::*;
use crate::runtime::Backend;

const GEOMETRY: Geometry =
    Geometry { segment_bytes: 1 << 20, segment_count: 4, data_offset: 2 << 20 };

fn runtimes() -> Vec<Runtime> {
    let backends = [Backend::Threads, Backend::Uring];
    backends.into_iter().filter_map(|backend| Runtime::new(backend).ok()).collect()
}

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("drive");
    (directory, path)
}

fn open(runtime: &Runtime, path: &Path) -> Result<FileMedium> {
    FileMedium::open(runtime.clone(), path, FileOptions::default())
}

/// Returns a created and opened medium of [`GEOMETRY`].
fn medium(runtime: &Runtime, direct: bool) -> (tempfile::TempDir, FileMedium) {
    let (directory, path) = directory();
    FileMedium::create(&path, GEOMETRY.medium_bytes(), false).unwrap();
    let options = FileOptions { direct, ..FileOptions::default() };
    let medium = FileMedium::open(runtime.clone(), &path, options).unwrap();
    medium.set_geometry(GEOMETRY).unwrap();
    (directory, medium)
}

fn filled(len: usize, byte: u8) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(len);
    buffer.fill(byte);
    buffer
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("an error was expected"),
        Err(error) => error.kind(),
    }
}

#[test]
fn segments_and_superblocks_come_back() {
    for runtime in runtimes() {
        for direct in [false, true] {
            let (_directory, medium) = medium(&runtime, direct);
            let unit = medium.capabilities().read_unit;
            assert!(unit.is_power_of_two() && unit <= 4096);
            assert!(direct || !medium.is_direct());
            runtime.block_on(async {
                medium.write_superblock(0, filled(4096, 0xa0)).await.unwrap();
                medium.write_superblock(1, filled(4096, 0xa1)).await.unwrap();
                for segment in 0..4 {
                    let data = filled(8192, segment as u8 + 1);
                    let result = medium.append(SegmentId(segment), 4096, Arc::new(data)).await;
                    result.unwrap();
                }
                medium.sync().await.unwrap();
                for segment in 0..4 {
                    let buffer = filled(16384, 0xff);
                    let (buffer, result) = medium.read(SegmentId(segment), 0, buffer).await;
                    result.unwrap();
                    assert!(buffer[4096..12288].iter().all(|&byte| byte == segment as u8 + 1));
                    assert!(buffer[..4096].iter().chain(&buffer[12288..]).all(|&byte| byte == 0));
                }
                assert!(medium.read_superblock(1).await.unwrap().iter().all(|&b| b == 0xa1));
            });
            // The location of the bytes is part of the format.
            let file = File::open(medium.path()).unwrap();
            let mut byte = [0];
            let slots = [(0, 0xa0), (1 << 20, 0xa1)];
            let segments = [((2 << 20) + 4096, 1), ((5 << 20) + 12287, 4)];
            for (offset, expected) in slots.into_iter().chain(segments) {
                file.read_exact_at(&mut byte, offset).unwrap();
                assert_eq!(byte, [expected], "at {offset}");
            }
        }
    }
}

#[test]
fn a_discarded_segment_gives_its_space_back_and_no_other() {
    for runtime in runtimes() {
        let (_directory, medium) = medium(&runtime, false);
        runtime.block_on(async {
            for segment in 0..3 {
                let data = filled(1 << 20, 7);
                medium.append(SegmentId(segment), 0, Arc::new(data)).await.unwrap();
            }
            medium.sync().await.unwrap();
            let before = fs::metadata(medium.path()).unwrap();
            medium.discard(SegmentId(1)).await.unwrap();
            medium.sync().await.unwrap();
            let after = fs::metadata(medium.path()).unwrap();
            assert_eq!(after.len(), before.len());
            if medium.capabilities().discard {
                assert!(after.blocks() + 2048 <= before.blocks());
            }
            for segment in [0, 2] {
                let buffer = AlignedBuffer::zeroed(1 << 20);
                let (buffer, result) = medium.read(SegmentId(segment), 0, buffer).await;
                result.unwrap();
                assert!(buffer.iter().all(|&byte| byte == 7));
            }
        });
    }
}

#[test]
fn requests_outside_the_geometry_are_refused() {
    for runtime in runtimes() {
        let (_directory, medium) = medium(&runtime, false);
        runtime.block_on(async {
            let last = GEOMETRY.segment_bytes - 4096;
            for (segment, offset, len) in [
                (4, 0, 4096),
                (u32::MAX, 0, 4096),
                (3, last, 8192),
                (0, u32::MAX - 4095, 4096),
                (0, 512, 4096),
                (0, 0, 4000),
            ] {
                let buffer = AlignedBuffer::zeroed(len);
                let result =
                    medium.append(SegmentId(segment), offset, Arc::new(buffer.clone())).await;
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                assert_eq!(error.segment(), Some(SegmentId(segment)));
                let (_, result) = medium.read(SegmentId(segment), offset, buffer).await;
                assert_eq!(kind(result), ErrorKind::InvalidInput);
            }
            medium.append(SegmentId(3), last, Arc::new(filled(4096, 1))).await.unwrap();
            assert_eq!(kind(medium.discard(SegmentId(4)).await), ErrorKind::InvalidInput);
            assert_eq!(kind(medium.read_superblock(SLOTS).await), ErrorKind::InvalidInput);
            let short = AlignedBuffer::zeroed(512);
            assert_eq!(kind(medium.write_superblock(0, short).await), ErrorKind::InvalidInput);
        });
        let file_bytes = fs::metadata(medium.path()).unwrap().len();
        assert_eq!(file_bytes, GEOMETRY.medium_bytes(), "nothing was written beyond the end");
    }
}

#[test]
fn the_rest_of_a_truncated_file_is_read() {
    for runtime in runtimes() {
        for direct in [false, true] {
            let (_directory, medium) = medium(&runtime, direct);
            let path = medium.path().to_owned();
            let page = Arc::new(filled(4096, 7));
            runtime.block_on(medium.append(SegmentId(0), 0, page)).unwrap();
            drop(medium);
            let file = File::options().write(true).open(&path).unwrap();
            file.set_len(GEOMETRY.medium_bytes() - 1).unwrap();
            drop(file);
            let options = FileOptions::default().with_read_only(true).with_direct(direct);
            let refused = FileMedium::open(runtime.clone(), &path, options).unwrap();
            let error = refused.set_geometry(GEOMETRY).unwrap_err().to_string();
            assert!(error.contains("a rebuild"), "{error}");
            let options = options.with_truncated(true);
            let medium = FileMedium::open(runtime.clone(), &path, options).unwrap();
            medium.set_geometry(GEOMETRY).unwrap();
            let read = |segment: u32, offset: u32| {
                let buffer = AlignedBuffer::zeroed(4096);
                runtime.block_on(medium.read(SegmentId(segment), offset, buffer))
            };
            let (bytes, result) = read(0, 0);
            result.unwrap();
            assert!(bytes.iter().all(|&byte| byte == 7));
            let (last, end) = (GEOMETRY.segment_count - 1, GEOMETRY.segment_bytes);
            assert_eq!(kind(read(last, end - 4096).1), ErrorKind::Medium);
            read(last, end - 8192).1.unwrap();
            // Little is left of the drive that the geometry describes.
            let huge = Geometry { segment_count: 1 << 20, ..GEOMETRY };
            let medium = FileMedium::open(runtime.clone(), &path, options).unwrap();
            assert_eq!(kind(medium.set_geometry(huge)), ErrorKind::InvalidInput);
        }
    }
}

#[test]
fn geometries_that_do_not_fit_are_refused() {
    let runtime = &runtimes()[0];
    let (_directory, path) = directory();
    FileMedium::create(&path, GEOMETRY.medium_bytes() - 1, false).unwrap();
    let medium = open(runtime, &path).unwrap();
    assert_eq!(medium.bytes(), GEOMETRY.medium_bytes() - 1);
    let error = medium.set_geometry(GEOMETRY).unwrap_err();
    assert!(error.to_string().contains("too small"), "{error}");
    for geometry in [
        Geometry { segment_bytes: 0, ..GEOMETRY },
        Geometry { segment_bytes: 4097, segment_count: 1, ..GEOMETRY },
        Geometry { segment_count: 1, data_offset: 1 << 20, ..GEOMETRY },
        Geometry { data_offset: u64::MAX - 4095, ..GEOMETRY },
        Geometry { segment_count: u32::MAX, ..GEOMETRY },
    ] {
        assert_eq!(kind(medium.set_geometry(geometry)), ErrorKind::InvalidInput, "{geometry:?}");
    }
    medium.set_geometry(Geometry { segment_count: 3, ..GEOMETRY }).unwrap();
}

#[test]
fn bytes_beyond_the_end_read_as_zeroes() {
    for runtime in runtimes() {
        for direct in [false, true] {
            let (_directory, path) = directory();
            fs::write(&path, [9; 5000]).unwrap();
            let options = FileOptions { read_only: true, direct, ..FileOptions::default() };
            let medium = FileMedium::open(runtime.clone(), &path, options).unwrap();
            runtime.block_on(async {
                let slot = medium.read_superblock(0).await.unwrap();
                assert!(slot.iter().all(|&byte| byte == 9));
                let slot = medium.read_superblock(1).await.unwrap();
                assert!(slot.iter().all(|&byte| byte == 0));
            });
        }
    }
}

#[test]
fn a_file_that_shrank_reads_as_zeroes_behind_its_end() {
    for runtime in runtimes() {
        for direct in [false, true] {
            let (_directory, medium) = medium(&runtime, direct);
            runtime.block_on(async {
                medium.append(SegmentId(0), 0, Arc::new(filled(16384, 5))).await.unwrap();
                medium.sync().await.unwrap();
                let file = File::options().write(true).open(medium.path()).unwrap();
                file.set_len(GEOMETRY.data_offset + 9000).unwrap();
                let buffer = filled(16384, 0xff);
                let (buffer, result) = medium.read(SegmentId(0), 0, buffer).await;
                result.unwrap();
                assert!(buffer[..9000].iter().all(|&byte| byte == 5));
                assert!(buffer[9000..].iter().all(|&byte| byte == 0));
            });
        }
    }
}

#[test]
fn the_rest_of_a_short_operation_follows() {
    for runtime in runtimes() {
        let (_directory, medium) = medium(&runtime, false);
        let at = GEOMETRY.data_offset;
        runtime.block_on(async {
            let data = filled(12288, 3);
            let mut start = filled(5000, 3);
            start.set_len(5000);
            runtime.write_at(&medium.file, at, Arc::new(start)).await.unwrap();
            medium.write_rest(at, &data, Ok(5000)).await.unwrap();
            let interrupted = || Err(io::Error::from(io::ErrorKind::Interrupted));
            medium.write_rest(at + 12288, &data, interrupted()).await.unwrap();

            let mut buffer = filled(24576, 0xff);
            buffer[..5000].fill(3);
            medium.fill_rest(at, &mut buffer, Ok(5000)).await.unwrap();
            assert!(buffer.iter().all(|&byte| byte == 3));
            let mut buffer = filled(24576, 0xff);
            medium.fill_rest(at, &mut buffer, interrupted()).await.unwrap();
            assert!(buffer.iter().all(|&byte| byte == 3));

            let stuck = medium.write_rest(at, &data, Ok(0)).await.unwrap_err();
            assert_eq!(stuck.kind(), io::ErrorKind::WriteZero);
            let stuck = medium.fill_rest(at, &mut buffer, Ok(0)).await.unwrap_err();
            assert_eq!(stuck.kind(), io::ErrorKind::UnexpectedEof);
        });
    }
}

#[test]
fn a_lock_keeps_writers_apart_and_lets_readers_share() {
    for runtime in runtimes() {
        let (_directory, path) = directory();
        FileMedium::create(&path, 1 << 20, false).unwrap();
        let read_only = FileOptions::default().with_read_only(true);
        let writer = open(&runtime, &path).unwrap();
        let error = open(&runtime, &path).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert!(error.to_string().contains("in use"), "{error}");
        let reader = FileMedium::open(runtime.clone(), &path, read_only);
        assert_eq!(kind(reader), ErrorKind::Busy);
        assert_eq!(kind(FileMedium::create(&path, 1 << 20, true)), ErrorKind::Busy);
        drop(writer);
        let first = FileMedium::open(runtime.clone(), &path, read_only).unwrap();
        let second = FileMedium::open(runtime.clone(), &path, read_only).unwrap();
        assert_eq!(kind(open(&runtime, &path)), ErrorKind::Busy);
        drop((first, second));
        open(&runtime, &path).unwrap();
    }
}

#[test]
fn a_read_only_medium_refuses_every_change() {
    for runtime in runtimes() {
        let (_directory, path) = directory();
        FileMedium::create(&path, GEOMETRY.medium_bytes(), false).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        let options = FileOptions::default().with_read_only(true);
        let medium = FileMedium::open(runtime.clone(), &path, options).unwrap();
        medium.set_geometry(GEOMETRY).unwrap();
        assert!(!medium.capabilities().discard);
        runtime.block_on(async {
            let result = medium.append(SegmentId(0), 0, Arc::new(filled(4096, 1))).await;
            assert_eq!(kind(result), ErrorKind::ReadOnly);
            assert_eq!(
                kind(medium.write_superblock(0, AlignedBuffer::zeroed(4096)).await),
                ErrorKind::ReadOnly
            );
            assert_eq!(kind(medium.discard(SegmentId(0)).await), ErrorKind::ReadOnly);
            assert_eq!(kind(medium.sync().await), ErrorKind::ReadOnly);
            medium.read(SegmentId(0), 0, filled(4096, 1)).await.1.unwrap();
        });
    }
}

#[test]
fn after_a_failed_sync_nothing_is_written() {
    for runtime in runtimes() {
        let (_directory, mut medium) = medium(&runtime, false);
        // A pipe cannot be synced: EINVAL stands for a failing disk.
        let file = std::mem::replace(&mut medium.file, Arc::new(io::pipe().unwrap().1.into()));
        assert_eq!(kind(runtime.block_on(medium.sync())), ErrorKind::Medium);
        medium.file = file;
        runtime.block_on(async {
            assert_eq!(kind(medium.sync().await), ErrorKind::Poisoned);
            let result = medium.append(SegmentId(0), 0, Arc::new(filled(4096, 1))).await;
            assert_eq!(kind(result), ErrorKind::Poisoned);
            assert_eq!(kind(medium.discard(SegmentId(0)).await), ErrorKind::Poisoned);
            medium.read(SegmentId(0), 0, filled(4096, 1)).await.1.unwrap();
        });
    }
}

#[test]
fn errors_of_the_system_name_file_segment_and_offset() {
    for runtime in runtimes() {
        let (_directory, mut medium) = medium(&runtime, false);
        medium.file = Arc::new(File::open(medium.path()).unwrap().into());
        let write = medium.append(SegmentId(2), 8192, Arc::new(filled(4096, 1)));
        let error = runtime.block_on(write).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Medium);
        let line = error.chain();
        assert!(line.contains("drive (segment 2, offset 8192): Bad file descriptor"), "{line}");
    }
}

/// A caller must be able to distinguish a full medium, a broken one, and a drive that is absent or
/// in use.
#[test]
fn failures_while_open_mean_a_full_or_broken_medium() {
    for runtime in runtimes() {
        let (directory, mut medium) = medium(&runtime, false);
        let full = File::options().read(true).write(true).open("/dev/full").unwrap();
        medium.file = Arc::new(full.into());
        runtime.block_on(async {
            let append = medium.append(SegmentId(0), 0, Arc::new(filled(4096, 1)));
            assert_eq!(kind(append.await), ErrorKind::NoSpace);
            let write = medium.write_superblock(0, AlignedBuffer::zeroed(4096));
            assert_eq!(kind(write.await), ErrorKind::NoSpace);
        });
        medium.file = Arc::new(File::open(directory.path()).unwrap().into());
        let read = runtime.block_on(medium.read(SegmentId(0), 0, filled(4096, 1))).1;
        assert_eq!(kind(read), ErrorKind::Medium, "a directory cannot be read");
        let place = Location::Segment(SegmentId(0), 0);
        for doing in ["read", "write", "discard in"] {
            for cause in [
                io::ErrorKind::NotFound,
                io::ErrorKind::PermissionDenied,
                io::ErrorKind::AlreadyExists,
                io::ErrorKind::WouldBlock,
                io::ErrorKind::ResourceBusy,
                io::ErrorKind::InvalidInput,
            ] {
                let error = medium.failed(doing, place, cause.into());
                assert_eq!(error.kind(), ErrorKind::Medium, "{doing}, {cause:?}");
            }
        }
        let full = medium.failed("read", place, io::ErrorKind::StorageFull.into());
        assert_eq!(full.kind(), ErrorKind::Medium);
    }
}

/// Returns whether the page cache holds the first byte of a file, or `None` if the file system does
/// not report it.
fn is_cached(file: &File) -> Option<bool> {
    let mut byte = [0];
    let mut buffers = [io::IoSliceMut::new(&mut byte)];
    match rustix::io::preadv2(file, &mut buffers, 0, rustix::io::ReadWriteFlags::NOWAIT) {
        Ok(_) => Some(true),
        Err(Errno::AGAIN) => Some(false),
        Err(_) => None,
    }
}

/// Without this, an opening after a failed sync would read pages that the page cache holds as clean
/// but that never reached the medium.
#[test]
fn a_buffered_opening_begins_with_an_empty_page_cache() {
    let runtime = &runtimes()[0];
    let (_directory, path) = directory();
    fs::write(&path, vec![9; 1 << 20]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    let drop_pages = || rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    drop_pages();
    if is_cached(&file) != Some(false) {
        // A file system that retains its pages (tmpfs) or does not report them proves nothing.
        return;
    }
    // The check itself reads the page, and the disk may be faster than the check, hence several
    // attempts.
    let is_dropped = || {
        file.read_exact_at(&mut [0], 0).unwrap();
        assert_eq!(is_cached(&file), Some(true), "a page that was just read");
        let _medium = open(runtime, &path).unwrap();
        is_cached(&file) == Some(false)
    };
    assert!((0..5).any(|_| is_dropped()), "the pages of before are still there");
}

#[test]
fn unsuitable_files_are_named() {
    let runtime = &runtimes()[0];
    let (directory, path) = directory();
    assert_eq!(kind(open(runtime, &path)), ErrorKind::NotFound);
    for error in [
        open(runtime, directory.path()).err().unwrap(),
        FileMedium::create(directory.path(), 1 << 20, true).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().ends_with("is a directory"), "{error}");
    }
    let device = Path::new("/dev/null");
    assert_eq!(kind(open(runtime, device)), ErrorKind::InvalidInput);
    assert_eq!(kind(FileMedium::create(device, 1, true)), ErrorKind::InvalidInput);
    let missing = path.join("below").join("drive");
    assert_eq!(kind(FileMedium::create(&missing, 1 << 20, false)), ErrorKind::NotFound);
}

#[test]
fn create_makes_a_sparse_file_and_overwrites_nothing() {
    let (_directory, path) = directory();
    FileMedium::create(&path, 1 << 40, false).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.len(), metadata.blocks()), (1 << 40, 0));
    assert_eq!(metadata.permissions().mode() & 0o7177, 0, "more than 0600");

    let error = FileMedium::create(&path, 1 << 20, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(error.remedy(), Some(crate::base::Remedy::Overwrite), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 40);

    File::options().write(true).open(&path).unwrap().write_all(b"old").unwrap();
    assert!(FileMedium::create(&path, u64::MAX, true).is_err());
    assert!(FileMedium::create(&path, i64::MAX as u64, true).is_err());
    let mut start = [0; 3];
    File::open(&path).unwrap().read_exact_at(&mut start, 0).unwrap();
    assert_eq!(&start, b"old", "a failed create changes nothing");
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 40);

    FileMedium::create(&path, 1 << 20, true).unwrap();
    assert_eq!(fs::read(&path).unwrap(), vec![0; 1 << 20]);

    fs::write(&path, b"").unwrap();
    FileMedium::create(&path, 1 << 20, false).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20, "an empty file may be used");
}

#[test]
fn a_failed_create_leaves_no_file() {
    let (_directory, path) = directory();
    assert!(FileMedium::create(&path, i64::MAX as u64, false).is_err());
    assert!(!path.exists());
}

#[test]
fn memory_file_systems_work_with_or_without_direct_input_and_output() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { return };
    for runtime in runtimes() {
        let path = directory.path().join(runtime.backend_name());
        FileMedium::create(&path, GEOMETRY.medium_bytes(), false).unwrap();
        let options = FileOptions::default().with_direct(true);
        let medium = FileMedium::open(runtime.clone(), &path, options).unwrap();
        medium.set_geometry(GEOMETRY).unwrap();
        runtime.block_on(async {
            medium.append(SegmentId(1), 0, Arc::new(filled(4096, 1))).await.unwrap();
            medium.sync().await.unwrap();
            let (buffer, result) = medium.read(SegmentId(1), 0, filled(4096, 0)).await;
            result.unwrap();
            assert!(buffer.iter().all(|&byte| byte == 1));
        });
    }
}

/// Returns a medium that performs durable appends as a write and a sync, if that `is_faster`.
fn medium_where_a_sync(
    is_faster: bool,
    runtime: &Runtime,
    direct: bool,
) -> (tempfile::TempDir, FileMedium) {
    let (directory, mut medium) = medium(runtime, direct);
    medium.capabilities.durable_appends = true;
    for (way, ns) in
        [(SyncMethod::Flag, 2000), (SyncMethod::Sync, if is_faster { 1000 } else { 3000 })]
    {
        medium.pace.took(way, 4096, ns);
    }
    assert_eq!(medium.pace.next_way(), if is_faster { SyncMethod::Sync } else { SyncMethod::Flag });
    (directory, medium)
}

/// On every backend, with or without the kernel's flag, whether or not the file system honors it.
#[test]
fn durable_appends_come_back() {
    for runtime in runtimes() {
        for (direct, is_sync_faster) in [(false, false), (true, false), (true, true), (false, true)]
        {
            let (_directory, medium) = medium_where_a_sync(is_sync_faster, &runtime, direct);
            runtime.block_on(async {
                for segment in 0..4 {
                    let data = Arc::new(filled(8192, segment as u8 + 1));
                    medium.append_durably(SegmentId(segment), 4096, data).await.unwrap();
                }
                for segment in 0..4 {
                    let buffer = filled(16384, 0xff);
                    let (buffer, result) = medium.read(SegmentId(segment), 0, buffer).await;
                    result.unwrap();
                    assert!(buffer[..4096].iter().all(|&byte| byte == 0));
                    assert!(buffer[4096..12288].iter().all(|&byte| byte == segment as u8 + 1));
                }
            });
        }
    }
}

#[test]
fn durable_appends_need_io_uring_and_direct_io() {
    for runtime in runtimes() {
        let (_directory, buffered) = medium(&runtime, false);
        assert!(!buffered.capabilities().durable_appends);
        let (directory, direct) = medium(&runtime, true);
        let has_them = direct.capabilities().durable_appends;
        assert!(!has_them || (direct.is_direct() && runtime.backend_name() == "io_uring"));
        drop(direct);
        let options = FileOptions { read_only: true, direct: true, ..FileOptions::default() };
        let path = directory.path().join("drive");
        let medium = FileMedium::open(runtime.clone(), &path, options).unwrap();
        assert!(!medium.capabilities().durable_appends);
    }
}

/// A location that cannot be written, or a full file system, proves nothing about synced data.
#[test]
fn a_durable_append_that_was_not_written_does_not_poison() {
    let each_way = |runtime: &Runtime| [false, true].map(|is_faster| (is_faster, runtime.clone()));
    for (is_sync_faster, runtime) in runtimes().iter().flat_map(each_way) {
        let (_directory, mut medium) = medium_where_a_sync(is_sync_faster, &runtime, false);
        let append = |medium: &FileMedium| {
            let data = Arc::new(filled(4096, 1));
            runtime.block_on(medium.append_durably(SegmentId(0), 0, data))
        };
        let file = medium.file.clone();
        medium.file = Arc::new(File::open(medium.path()).unwrap().into());
        assert_eq!(kind(append(&medium)), ErrorKind::Medium);
        let full = File::options().read(true).write(true).open("/dev/full").unwrap();
        medium.file = Arc::new(full.into());
        assert_eq!(kind(append(&medium)), ErrorKind::NoSpace);
        medium.file = file;
        append(&medium).unwrap();
    }
}

/// `/dev/null` accepts every write, and cannot be synced.
#[test]
fn a_durable_append_that_was_written_and_not_synced_poisons() {
    for runtime in runtimes() {
        let (_directory, mut medium) = medium_where_a_sync(true, &runtime, false);
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        medium.file = Arc::new(null.into());
        let data = Arc::new(filled(4096, 1));
        let result = runtime.block_on(medium.append_durably(SegmentId(0), 0, data));
        assert!(result.is_err(), "a sync failed");
        assert_eq!(kind(runtime.block_on(medium.sync())), ErrorKind::Poisoned);
    }
}

/// An append that is dropped before its result is known may have failed in its sync.
#[test]
fn a_durable_append_that_is_dropped_poisons() {
    for runtime in runtimes() {
        let (_directory, mut medium) = medium(&runtime, false);
        medium.capabilities.durable_appends = true;
        runtime.block_on(async {
            let data = Arc::new(filled(4096, 1));
            let mut append = std::pin::pin!(medium.append_durably(SegmentId(0), 0, data.clone()));
            let first = std::future::poll_fn(|context| {
                std::task::Poll::Ready(append.as_mut().poll(context).is_pending())
            });
            assert!(first.await, "an append waits for the kernel");
        });
        let data = Arc::new(filled(4096, 1));
        let result = runtime.block_on(medium.append(SegmentId(0), 0, data));
        assert_eq!(kind(result), ErrorKind::Poisoned);
    }
}

/// Until the cause of a failed durable append is known, no operation that syncs ends; then either
/// all of them succeed, or none.
#[test]
fn syncs_wait_for_the_cause_of_a_failed_durable_append() {
    for runtime in runtimes() {
        for is_place in [true, false] {
            let (_directory, medium) = medium(&runtime, false);
            let data = || Arc::new(filled(4096, 1));
            let before = durable::Doubt::begin(&medium);
            let results = runtime.block_on(async {
                let mut all = std::pin::pin!(async {
                    let append = medium.append_durably(SegmentId(0), 0, data());
                    let plain = medium.append(SegmentId(1), 0, data());
                    futures_util::future::join3(append, plain, medium.sync()).await
                });
                for _ in 0..10 {
                    let first = std::future::poll_fn(|context| {
                        std::task::Poll::Ready(all.as_mut().poll(context).is_pending())
                    });
                    assert!(first.await, "believed too early");
                    runtime.yield_now().await;
                }
                if is_place {
                    before.end()
                } else {
                    drop(before)
                }
                all.await
            });
            for result in [results.0, results.1, results.2] {
                let kind = result.err().map(|error| error.kind());
                assert_eq!(kind, (!is_place).then_some(ErrorKind::Poisoned));
            }
        }
    }
}

/// Guards against the loss of a file that is deleted while its drive is served, once serving ends.
#[test]
fn a_file_that_is_moved_or_deleted_is_missed() {
    let runtime = Runtime::new(Backend::Auto).unwrap();
    let (directory, medium) = medium(&runtime, false);
    let (path, other) = (medium.path().to_owned(), directory.path().join("other"));
    let path_watch = medium.path_watch();
    let look = || path_watch.look().expect("an open medium");
    assert_eq!((look(), medium.misplaced()), (Look::AsBefore, None));
    fs::rename(&path, &other).unwrap();
    let Look::Lost(what) = look() else { panic!("it was not missed") };
    assert!(what.contains("moved or replaced"), "{what}");
    assert_eq!((look(), medium.misplaced()), (Look::AsBefore, Some(what.clone())));
    // Another file at the path does not count.
    fs::write(&path, "another").unwrap();
    assert_eq!((look(), medium.misplaced()), (Look::AsBefore, Some(what)));
    fs::rename(&other, &path).unwrap();
    assert_eq!((look(), medium.misplaced()), (Look::Back, None));
    std::os::unix::fs::symlink(&path, &other).unwrap();
    fs::remove_file(&path).unwrap();
    let Look::Lost(what) = look() else { panic!("it was not missed") };
    assert!(what.contains("was deleted"), "{what}");
    drop(medium);
    assert_eq!(path_watch.look(), None);
}
