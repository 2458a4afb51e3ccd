//! Goal: snapshots of attached drives are whole, and can be read while the drive is in use.
//! Method: real file systems, mounted, with unsynced data; devices side by side.

use super::*;

/// Guards against a snapshot that shows the current state of the drive, or accepts writes.
#[test]
fn a_snapshot_is_mounted_read_only() {
    let Some(attachable) = Attachable::new("128M") else { return };
    let file = attachable.mountpoint().join("file");
    let write = |args: &[&str], text: &str| {
        let device = attachable.mount(args);
        fs::write(&file, text).unwrap();
        attachable.detach_well(&device);
    };
    write(&["--mkfs", "ext4"], "before");
    let snapshot = format!("{}@s", attachable.drive.path().display());
    run_ok(attachable.command("snapshot").args(["create", &snapshot]));
    write(&[], "after");
    let attach = |place: &str, args: &[&str]| {
        let mut command = attachable.command("attach");
        run(command.arg(place).arg(attachable.mountpoint()).args(args), COMMAND_LIMIT)
    };
    refused(&attach(&snapshot, &[]), "a snapshot can only be read: use --read-only");
    let missing = format!("{}@other", attachable.drive.path().display());
    refused(&attach(&missing, &["--read-only"]), "no snapshot named other");
    attachable.assert_nothing_left();
    let attached = attach(&snapshot, &["--read-only"]);
    assert_eq!(attached.code, Some(0), "{attached:#?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    assert!(fs::write(&file, "changed").is_err(), "a snapshot takes writes");
    attachable.detach_well(&attachable.mountpoint());
    let device = attachable.mount(&["--read-only"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "after");
    attachable.detach_well(&device);
}

/// Unsynced writes are in a snapshot of a mounted file system, and the snapshot is mounted next to
/// it. Without freezing the file system, its journal is not replayed.
#[test]
fn a_snapshot_of_a_mounted_drive_is_mounted_beside_it() {
    for kind in ["ext4", "xfs"] {
        let Some(attachable) = Attachable::new("512M") else { return };
        let mountpoint = attachable.mountpoint();
        let device = attachable.mount(&["--mkfs", kind]);
        let file = mountpoint.join("file");
        let take = |name: &str, more: &[&str]| {
            let mut command = attachable.command("snapshot");
            let said = run_ok(command.args(["create", &attachable.drive.named(name)]).args(more));
            assert!(!said.stderr.contains("not frozen"), "{said:?}");
        };
        fs::write(&file, "first").unwrap();
        take("still", &[]);
        fs::write(&file, "second").unwrap();
        File::open(&file).unwrap().sync_all().unwrap();
        fs::write(mountpoint.join("other"), "lost").unwrap();
        take("moving", &["--no-freeze"]);
        fs::write(&file, "third").unwrap();
        let beside = attachable.drive.beside("beside");
        fs::create_dir(&beside).unwrap();
        let attach = |name: &str| {
            let mut command = attachable.command("attach");
            command.arg(attachable.drive.named(name)).arg(&beside).arg("--read-only");
            run(&mut command, COMMAND_LIMIT)
        };
        let attached = attach("still");
        assert_eq!(attached.code, Some(0), "{attached:?}");
        assert_eq!(fs::read_to_string(beside.join("file")).unwrap(), "first", "{kind}");
        // The drive continues, and is not detached before the snapshot that is read through it.
        fs::write(&file, "fourth").unwrap();
        let what = "drive@still is attached and reads through this drive: detach it first";
        refused(&attachable.detach(&device), what);
        let mut delete = attachable.command("snapshot");
        delete.args(["delete", &attachable.drive.named("still")]);
        refused(&run(&mut delete, COMMAND_LIMIT), "is being read");
        let place = attachable.drive.named("still");
        assert_eq!(attachable.detach(Path::new(&place)).code, Some(0));
        assert_eq!(attachable.devices(), std::slice::from_ref(&device));
        let attached = attach("moving");
        assert_eq!(attached.code, Some(0), "{attached:?}");
        assert!(attached.stderr.contains("journal"), "{attached:?}");
        assert_eq!(attachable.detach(&beside).code, Some(0));
        assert_eq!(fs::read_to_string(&file).unwrap(), "fourth");
        attachable.detach_well(&device);
        attachable.drive.assert_checks();
    }
}

/// A killed reader blocks its drive only until it is cleaned up.
#[test]
fn remains_of_a_killed_reader_of_a_snapshot_are_removed() {
    let Some(attachable) = Attachable::new("64M") else { return };
    let device = attachable.attach(&[]);
    run_ok(attachable.command("snapshot").args(["create", &attachable.drive.named("s")]));
    let mut command = attachable.command("attach");
    command.arg(attachable.drive.named("s")).args(["--read-only", "--foreground"]);
    let mut reader = crate::harness::Talker::start(&mut command);
    let lent = PathBuf::from(reader.next_line());
    kill_process(Pid::from_raw(reader.id().cast_signed()).unwrap(), Signal::KILL).unwrap();
    reader.end();
    assert!(attachable.devices().contains(&lent));
    let cleaned = attachable.detach(&lent);
    assert_eq!(cleaned.code, Some(1), "{cleaned:?}");
    assert_eq!(attachable.devices(), std::slice::from_ref(&device));
    let delete = || {
        let mut delete = attachable.command("snapshot");
        delete.args(["delete", &attachable.drive.named("s")]);
        run(&mut delete, COMMAND_LIMIT).code == Some(0)
    };
    wait_until("the snapshot is given back", delete);
    attachable.detach_well(&device);
}

/// A server lends a snapshot as an attached drive does, until it ends or restarts: then the device
/// fails instead of showing other data, and is removed when it is detached.
#[test]
fn a_snapshot_of_a_served_drive_is_attached_beside_it() {
    let Some(attachable) = Attachable::new("64M") else { return };
    let Some(qemu_io) = tool("qemu-io") else { return };
    let server = attachable.drive.serve_with_control(&[]);
    let write = |pattern: u8| {
        let mut command = Command::new(&qemu_io);
        let what = format!("write -P {pattern} 0 1M");
        run_ok(command.args(["-f", "raw", "-c", &what, "-c", "flush", &server.uri()]));
    };
    let place = attachable.drive.named("s");
    write(1);
    run_ok(attachable.command("snapshot").args(["create", &place]));
    write(2);
    let device = || {
        let attached =
            run(attachable.command("attach").arg(&place).arg("--read-only"), COMMAND_LIMIT);
        assert_eq!(attached.code, Some(0), "{attached:?}");
        PathBuf::from(attached.stdout.trim_end())
    };
    let read = |device: &Path| {
        let mut block = vec![0; 4096];
        // A newly opened file reads data that the page cache has dropped.
        run_ok(Command::new("blockdev").arg("--flushbufs").arg(device));
        File::open(device).unwrap().read_exact_at(&mut block, 0).map(|()| block)
    };
    let attached = device();
    write(3);
    assert_eq!(read(&attached).unwrap(), [1; 4096]);
    server.restart();
    assert!(read(&attached).is_err(), "what is read, when nothing is lent?");
    attachable.detach_well(&attached);
    let attached = device();
    assert_eq!(read(&attached).unwrap(), [1; 4096]);
    attachable.detach_well(&attached);
    server.stop();
    attachable.drive.assert_checks();
}
