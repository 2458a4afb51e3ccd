//! Goal: impossible requests are refused before anything is touched: one line on stderr that names
//! the object, exit code 2, and not a byte of any file changed.
//!
//! Method: a table of wrong arguments, and drives that are damaged, absent, busy or not drives.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions, Permissions};
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use pumice_drive::base::checksum::crc64;

use crate::harness::{COMMAND_LIMIT, Drive, Finished, PUMICE, pumice, run, stand_in};

/// Offsets and length of the superblock slots. Written out here, because a medium's layout is part
/// of the format.
const SLOT_OFFSETS: [u64; 2] = [0, 1 << 20];
const SLOT_BYTES: usize = 4096;

/// Subcommands that open a drive; `serve` never begins to serve in these tests.
const OPENERS: [&str; 3] = ["serve", "info", "check"];

#[test]
fn sizes_that_make_no_drive_are_refused() {
    for (size, mention) in [
        ("64Q", "suffix"),
        ("0", "size"),
        ("6K", "8192 is"),
        ("64", "did you mean 64G?"),
        ("-1", ""),
        ("lots", ""),
        ("99999P", ""),
        ("15E", "16 PiB"),
        ("18446744073709551615", "16 PiB"),
        ("16384P", "too large"),
    ] {
        let drive = Drive::absent();
        refused(&create(&drive, size), mention);
        assert!(!drive.path().exists(), "a refused size left a file");
    }
}

#[test]
fn capacities_that_make_no_drive_are_refused() {
    for capacity in ["1M", "15E", "18446744073709551615"] {
        let drive = Drive::absent();
        let flags = ["--size=64M".to_owned(), format!("--capacity={capacity}")];
        let args = ["create".as_ref(), drive.path(), flags[0].as_ref(), flags[1].as_ref()];
        refused(&pumice(&args), "drive");
        assert!(!drive.path().exists(), "a refused capacity left a file");
    }
}

#[test]
fn a_drive_without_a_size_is_refused() {
    for (flags, mention) in [
        (&[][..], "--size is missing"),
        (&["--thin=3x"], "--thin needs the --capacity"),
        (&["--thin=0.5x", "--capacity=1G"], "such as 3x"),
        (&["--capacity=1M"], "a capacity of 1 MiB is too small"),
    ] {
        let drive = Drive::absent();
        let path = drive.path().to_str().expect("a plain path");
        refused(&pumice(&[&["create", path][..], flags].concat()), mention);
        assert!(!drive.path().exists(), "refused flags left a file");
    }
}

#[test]
fn over_provisioning_that_makes_no_drive_is_refused() {
    for flags in [&["--over-provisioning=0"][..], &["--over-provisioning=7", "--capacity=1G"]] {
        let drive = Drive::absent();
        let path = drive.path().to_str().expect("a plain path");
        refused(&pumice(&[&["create", path, "--size=64M"][..], flags].concat()), "over-provision");
        assert!(!drive.path().exists(), "refused flags left a file");
    }
}

#[test]
fn an_address_without_a_port_is_refused_with_an_example() {
    let drive = Drive::create("64M", &[]);
    let path = drive.path().to_str().expect("a plain path");
    for flags in ["--listen=127.0.0.1", "--listen=10809"] {
        refused(&pumice(&["serve", path, "--check", flags]), "such as 127.0.0.1:10809");
    }
    let named = pumice(&["serve", path, "--check", "--listen=localhost:10809"]);
    assert_eq!(named.code, Some(0), "{named:?}");
}

#[test]
fn a_resize_without_a_change_is_refused() {
    let drive = Drive::create("64M", &[]);
    let refusal = pumice(&["resize", drive.path().to_str().expect("a plain path")]);
    refused(&refusal, "--size <SIZE>|--capacity <SIZE>");
}

/// With ever more files allowed, it fails at ever later steps.
#[test]
fn a_drive_that_could_not_be_finished_is_removed() {
    let mut failures = 0;
    for files in 4..40 {
        let drive = Drive::absent();
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n $0; exec \"$@\"", &files.to_string(), PUMICE, "create"]);
        let finished = run(command.arg(drive.path()).arg("--size=64M"), COMMAND_LIMIT);
        match finished.code {
            Some(0) => {
                drive.assert_checks();
                assert!(failures > 0);
                return;
            }
            Some(2) => assert!(!drive.path().exists(), "{files} files: {finished:#?}"),
            _ => panic!("{files} files: {finished:#?}"),
        }
        failures += 1;
    }
    panic!("{failures} failures and no success");
}

#[test]
fn a_missing_path_is_named_with_a_remedy() {
    let drive = Drive::absent();
    for verb in OPENERS {
        let finished = open(verb, &drive);
        refused(&finished, drive.path().to_str().expect("a plain path"));
        refused(&finished, "check the path, or create a drive with `pumice create`");
        assert!(!drive.path().exists(), "{verb} made a file");
    }
    let nowhere = drive.beside("no/such/directory");
    refused(&pumice(&[Path::new("create"), &nowhere, "--size=64M".as_ref()]), "no/such/directory");
}

#[test]
fn a_directory_is_not_a_drive() {
    let drive = Drive::absent();
    fs::create_dir(drive.path()).unwrap();
    for verb in OPENERS {
        refused(&open(verb, &drive), "drive");
    }
    refused(&create(&drive, "64M"), "drive");
    assert_eq!(fs::read_dir(drive.path()).unwrap().count(), 0);
}

#[test]
fn no_permission_is_said() {
    if rustix::process::geteuid().is_root() {
        println!("skipped: permissions do not bind root");
        return;
    }
    let drive = Drive::create("64M", &[]);
    fs::set_permissions(drive.path(), Permissions::from_mode(0o000)).unwrap();
    for verb in OPENERS {
        refused(&open(verb, &drive), "ermission");
    }
}

/// Creates a drive of 64 MiB over another one.
fn forced(drive: &Drive, more: &[&str]) -> Finished {
    let path = drive.path().to_str().expect("a path in UTF-8");
    pumice(&[&["create", path, "--size", "64M", "--force"], more].concat())
}

#[test]
fn an_existing_file_is_not_overwritten() {
    let drive = Drive::create("64M", &[]);
    unchanged(&drive, |drive| refused(&create(drive, "64M"), "--force"));
    unchanged(&drive, |drive| refused(&forced(drive, &[]), "--overwrite-drive"));
    assert_eq!(forced(&drive, &["--overwrite-drive"]).code, Some(0));
    fs::write(drive.path(), b"a precious thesis").unwrap();
    unchanged(&drive, |drive| refused(&create(drive, "64M"), "--force"));
}

#[test]
fn other_bytes_are_not_a_drive() {
    let drive = Drive::absent();
    for bytes in [vec![0; 2 << 20], b"not a drive\n".repeat(200_000), vec![b'x'; 100], Vec::new()] {
        fs::write(drive.path(), bytes).unwrap();
        for verb in OPENERS {
            unchanged(&drive, |drive| refused(&open(verb, drive), "drive"));
        }
    }
}

#[test]
fn a_wrong_magic_in_both_slots_is_not_a_drive() {
    let drive = Drive::create("64M", &[]);
    for offset in SLOT_OFFSETS {
        overwrite(&drive, offset, b"NOTADRIV");
    }
    for verb in OPENERS {
        unchanged(&drive, |drive| refused(&open(verb, drive), "drive"));
    }
}

#[test]
fn one_damaged_superblock_slot_does_not_matter() {
    for offset in SLOT_OFFSETS {
        let drive = Drive::create("64M", &[]);
        // A torn write of the slot: the first sector is present, the rest is other data.
        overwrite(&drive, offset + 512, &[0xA5; SLOT_BYTES - 512]);
        let finished = open("info", &drive);
        assert_eq!(finished.code, Some(0), "slot at {offset}: {}", finished.stderr);
        drive.serve().stop();
    }
}

#[test]
fn two_damaged_superblock_slots_are_refused() {
    let drive = Drive::create("64M", &[]);
    for offset in SLOT_OFFSETS {
        // After the magic, so that the file is still recognized as a drive.
        overwrite(&drive, offset + 16, &[0xA5; SLOT_BYTES - 16]);
    }
    for verb in OPENERS {
        unchanged(&drive, |drive| refused(&open(verb, drive), "superblock"));
    }
}

/// Offsets of superblock fields, written out for the same reason.
const VERSION: usize = 8;
const CHECKSUM: usize = 16;
const FEATURES: [usize; 3] = [24, 32, 40];
const SEGMENT_COUNT: usize = 92;

/// Changes bytes of a superblock slot and makes its checksum right again.
fn reseal(drive: &Drive, slot_offset: u64, at: usize, bytes: &[u8]) {
    let file = OpenOptions::new().read(true).write(true).open(drive.path()).unwrap();
    let mut slot = [0; SLOT_BYTES];
    file.read_exact_at(&mut slot, slot_offset).unwrap();
    slot[at..at + bytes.len()].copy_from_slice(bytes);
    slot[CHECKSUM..CHECKSUM + 8].fill(0);
    let checksum = crc64(&slot).to_le_bytes();
    slot[CHECKSUM..CHECKSUM + 8].copy_from_slice(&checksum);
    file.write_all_at(&slot, slot_offset).unwrap();
}

#[test]
fn a_newer_format_is_refused_and_not_touched() {
    let [compatible, read_only, incompatible] = FEATURES;
    for (at, is_refused) in
        [(VERSION, true), (read_only, true), (incompatible, true), (compatible, false)]
    {
        let drive = Drive::create("64M", &[]);
        // A feature that no version knows yet.
        let value: u32 = if at == VERSION { 2 } else { 1 << 31 };
        for offset in SLOT_OFFSETS {
            reseal(&drive, offset, at, &value.to_le_bytes());
        }
        for verb in OPENERS.into_iter().filter(|_| is_refused) {
            unchanged(&drive, |drive| refused(&open(verb, drive), "use a newer pumice"));
        }
        if is_refused {
            unchanged(&drive, |drive| refused(&forced(drive, &[]), "--overwrite-drive"));
        }
        if !is_refused {
            drive.serve().stop();
        }
    }
}

#[test]
fn one_slot_of_a_newer_format_is_enough_to_refuse() {
    for offset in SLOT_OFFSETS {
        let drive = Drive::create("64M", &[]);
        reseal(&drive, offset, VERSION, &2u32.to_le_bytes());
        for verb in OPENERS {
            unchanged(&drive, |drive| refused(&open(verb, drive), "use a newer pumice"));
        }
    }
}

/// Guards against allocating memory as a superblock states; here it states the most segments that
/// the format allows.
#[test]
fn more_segments_than_the_medium_holds_are_refused() {
    let drive = Drive::create("64M", &[]);
    for offset in SLOT_OFFSETS {
        reseal(&drive, offset, SEGMENT_COUNT, &(1u32 << 26).to_le_bytes());
    }
    for verb in OPENERS {
        unchanged(&drive, |drive| refused(&open(verb, drive), "too small"));
    }
}

#[test]
fn a_medium_that_was_cut_short_is_refused() {
    let drive = Drive::create("64M", &[]);
    let file = OpenOptions::new().write(true).open(drive.path()).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    for verb in OPENERS {
        unchanged(&drive, |drive| refused(&open(verb, drive), "small"));
    }
}

#[test]
fn a_socket_in_use_is_left_to_its_owner() {
    let drive = Drive::create("64M", &[]);
    let socket = drive.beside("socket");
    let _owner = UnixListener::bind(&socket).unwrap();
    unchanged(&drive, |drive| {
        refused(&serve(drive, &["--unix".as_ref(), &*socket]), "in use");
    });
    assert!(std::os::unix::net::UnixStream::connect(&socket).is_ok(), "the owner lost its socket");
}

#[test]
fn a_port_in_use_is_refused() {
    let drive = Drive::create("64M", &[]);
    let owner = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = owner.local_addr().unwrap().to_string();
    unchanged(&drive, |drive| {
        refused(&serve(drive, &["--listen".as_ref(), address.as_ref()]), &address);
    });
}

#[test]
fn a_drive_is_opened_by_one_server_at_a_time() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let server = drive.serve();
    let by = format!("drive is in use by process {} (pumice): wait until it ends", server.id());
    for verb in OPENERS {
        refused(&open(verb, &drive), &by);
    }
    refused(&pumice(&["top".as_ref(), drive.path(), "--once".as_ref()]), &by);
    server.stop();
    drive.serve().stop();
}

/// For a drive served by root, the advice is to use more privileges, not to stop the server.
#[test]
fn another_user_is_told_whose_drive_it_is() {
    if stand_in().is_some() || !rustix::process::geteuid().is_root() {
        println!("skipped: another user takes root");
        return;
    }
    let drive = Drive::create("64M", &[]);
    // The source tree may be closed to other users.
    let program = drive.beside("program");
    fs::copy(PUMICE, &program).unwrap();
    fs::set_permissions(program.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(drive.path(), Permissions::from_mode(0o644)).unwrap();
    let server = drive.serve_with_control(&[]);
    let by = format!("process {} (pumice) of user root: try again as that user", server.id());
    for verb in ["info", "top"] {
        let mut command = Command::new(&program);
        command.arg(verb).arg(drive.path()).args((verb == "top").then_some("--once"));
        command.env_remove("XDG_RUNTIME_DIR").uid(65534).gid(65534);
        refused(&run(&mut command, COMMAND_LIMIT), &by);
    }
    server.stop();
}

#[test]
fn a_slip_is_recognized() {
    for (args, words) in [
        (&["creat"][..], "'creat': did you mean 'create'? (see pumice --help)"),
        (&["restore", "d"], "'restore': did you mean 'receive'? (see pumice --help)"),
        (&["create", "d", "--sise", "1G"], ": did you mean '--size'? (see pumice create --help)"),
        (&["--log", "wran", "info", "d"], ": did you mean 'warn'? (see pumice info --help)"),
        (&["info", "d", "--frobnicate"], "'--frobnicate' found (see pumice info --help)"),
    ] {
        refused(&pumice(args), words);
    }
}

#[test]
fn without_a_command_all_are_named() {
    let finished = pumice::<&str>(&[]);
    assert_eq!((finished.code, finished.stdout.as_str()), (Some(2), ""));
    let said = finished.stderr;
    assert!(said.starts_with("pumice: no command given (see pumice --help)\n\n"), "{said}");
    assert!(said.contains("\nDrive commands: create, "), "{said}");
    assert!(said.contains("\nOther commands: demo, "), "{said}");
    let finished = pumice(&["snapshot"]);
    assert_eq!(finished.code, Some(2), "{finished:?}");
    let wanted = "snapshot needs one of: create, list, rollback, rotate, bookmark, delete \
                  (see pumice snapshot --help)";
    assert!(finished.stderr.contains(wanted), "{finished:?}");
}

/// Guards against a panic: JSON is UTF-8, and a path need not be.
#[test]
fn json_names_a_path_that_is_not_utf_8() {
    let drive = Drive::absent();
    let path = drive.path().parent().unwrap().join(OsStr::from_bytes(b"\xff"));
    let mut command = Command::new(PUMICE);
    let created = run(command.args(["create", "--json", "--size=64M"]).arg(&path), COMMAND_LIMIT);
    assert!(created.code == Some(0) && created.stdout.contains('\u{fffd}'), "{created:?}");
}

fn create(drive: &Drive, size: &str) -> Finished {
    // `=` keeps a size that starts with a minus an argument of its flag.
    pumice(&["create".as_ref(), drive.path(), format!("--size={size}").as_ref()])
}

fn open(verb: &str, drive: &Drive) -> Finished {
    if verb == "serve" {
        let socket = drive.beside("second-socket");
        return serve(drive, &["--unix".as_ref(), &*socket]);
    }
    pumice(&[verb.as_ref(), drive.path()])
}

/// Serves for as long as `true` runs, so that a drive that is not refused ends with 0, not with the
/// test's time limit.
fn serve(drive: &Drive, listens: &[&Path]) -> Finished {
    let args = ["serve".as_ref(), drive.path(), "--run".as_ref(), "true".as_ref()];
    pumice(&[&args[..], listens].concat())
}

/// Asserts exit code 2, nothing on stdout, and one line on stderr that contains `mention`.
pub(crate) fn refused(finished: &Finished, mention: &str) {
    let lines: Vec<&str> = finished.stderr.lines().collect();
    let one_line = lines.len() == 1 && lines[0].starts_with("pumice: ");
    assert!(
        finished.code == Some(2) && one_line && finished.stdout.is_empty(),
        "expected exit 2 and one line 'pumice: ...': {finished:#?}"
    );
    assert!(lines[0].contains(mention), "'{mention}' is not mentioned: {}", lines[0]);
}

/// Asserts that the drive's file has the same bytes afterwards.
fn unchanged(drive: &Drive, action: impl FnOnce(&Drive)) {
    let before = fs::read(drive.path()).unwrap();
    action(drive);
    let after = fs::read(drive.path()).unwrap();
    assert!(before == after, "the file was changed");
}

fn overwrite(drive: &Drive, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(drive.path()).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}
