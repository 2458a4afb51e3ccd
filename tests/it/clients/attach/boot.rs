//! Goal: drives are attached by mount(8), by a unit, and by the commands of README.md.
//! Method: mount(8) in a namespace in which the program is its helper; the rights of the unit; the
//! lines of README.md, typed by a user.

use std::os::unix::fs::{PermissionsExt, chown};

use super::*;
use crate::harness::{notice, spawn};

/// Executes a line of fstab, in a namespace of mounts in which the program is mount(8)'s helper.
#[test]
fn mount_and_umount_know_drives() {
    let Some(attachable) = Attachable::new("128M") else { return };
    attachable.mount(&["--mkfs=ext4"]);
    attachable.detach_well(&attachable.mountpoint());
    let folder = attachable.drive.beside("helpers");
    fs::create_dir(&folder).unwrap();
    for name in ["mount.pumice", "umount.pumice"] {
        std::os::unix::fs::symlink(PUMICE, folder.join(name)).unwrap();
    }
    let table = attachable.drive.beside("fstab");
    let (path, mountpoint) = (attachable.drive.path(), attachable.mountpoint());
    let (path, mountpoint) = (path.display(), mountpoint.display());
    let options = "nofail,x-systemd.automount,noatime,map-cache=64M";
    fs::write(&table, format!("{path} {mountpoint} pumice {options} 0 0\n")).unwrap();
    let script = format!(
        "set -e
        # The mounts of other tests are theirs. One goes by itself when its folder does.
        for other in $(findmnt -rno TARGET | grep pumice-); do umount -l $other || :; done
        sbin=$(readlink -f /sbin)
        mount -t overlay overlay -o lowerdir={folder}:$sbin $sbin || exit 77
        mount -T {table} {mountpoint}
        findmnt -n -o FSTYPE,OPTIONS {mountpoint}
        echo kept > {mountpoint}/file
        # What is mounted is not mounted again.
        mount -T {table} -a
        umount {mountpoint}
        if findmnt {mountpoint} || mount -t pumice -o mkfs=ext4 {path} {mountpoint}; then exit 1; fi
        mount -t pumice -o ro {path} {mountpoint}
        cat {mountpoint}/file
        umount {mountpoint}",
        folder = folder.display(),
        table = table.display(),
    );
    let mut command = attachable.command("ignored");
    command = {
        let mut unshare = Command::new("unshare");
        let directory = command.get_envs().next().unwrap();
        unshare.env(directory.0, directory.1.unwrap());
        unshare
    };
    let finished = run(command.args(["--mount", "sh", "-c", &script]), COMMAND_LIMIT);
    if finished.code == Some(77) {
        println!("skipped: no overlay file system: {}", finished.stderr);
        return;
    }
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    assert!(finished.stdout.starts_with("ext4 "), "{finished:#?}");
    assert!(finished.stdout.contains("noatime") && finished.stdout.ends_with("kept\n"));
    assert!(finished.stderr.contains("mkfs is not an option of a mount"), "{finished:#?}");
    attachable.assert_nothing_left();
    attachable.drive.assert_checks();
}

/// The service manager's side of `Type=notify`, with the rights of the unit.
#[test]
fn the_systemd_unit_runs_and_reports_readiness() {
    let Some(attachable) = Attachable::new("128M") else { return };
    let Some(setpriv) = tool("setpriv") else { return };
    attachable.mount(&["--mkfs=ext4"]);
    let mountpoint = attachable.mountpoint();
    attachable.detach_well(&mountpoint);
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/pumice-attach@.service");
    let unit = fs::read_to_string(unit).unwrap();
    let rights = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let rights = rights.unwrap().replace("CAP_", "+").to_lowercase().replace(' ', ",");
    let config = attachable.drive.beside("config.toml");
    // The order of keys has no meaning.
    let text = format!("mountpoint = {mountpoint:?}\npath = {:?}\n", attachable.drive.path());
    fs::write(&config, text + "mount-options = \"noatime\"\n").unwrap();
    let notices = attachable.drive.beside("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&notices).unwrap();
    let mut command = Command::new(setpriv);
    command.arg(format!("--bounding-set=-all,{rights}")).arg("--no-new-privs").arg(PUMICE);
    command.args(["attach", "--foreground", "--config"]).arg(&config);
    command.env("PUMICE_RUNTIME_DIR", attachable.drive.beside("pumice"));
    let mut child = spawn(command.env("NOTIFY_SOCKET", &notices));
    assert_eq!(notice(&manager), "READY=1");
    assert!(mount_options(&mountpoint).contains("noatime"));
    fs::write(mountpoint.join("file"), "content").unwrap();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let status = crate::harness::wait(&mut child, COMMAND_LIMIT).expect("it ends");
    assert_eq!(status.code(), Some(0));
    attachable.assert_nothing_left();
}

/// Types the quick start of README.md as a user with sudo; all other lines run without root's
/// rights.
#[test]
fn the_readme_s_quick_start_works_as_typed() {
    let Some(attachable) = Attachable::new("64M") else { return };
    let Some(setpriv) = tool("setpriv") else { return };
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let block = readme.split("\nThen:\n\n```text\n").nth(1).expect("the block");
    let block = block.split("```").next().unwrap();
    let home = attachable.drive.beside("");
    fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).unwrap();
    let programs = home.join("bin");
    fs::create_dir_all(home.join("data")).unwrap();
    fs::write(home.join("data/file"), "content").unwrap();
    fs::create_dir(&programs).unwrap();
    fs::copy(PUMICE, programs.join("pumice")).unwrap();
    let path = std::env::var("PATH").unwrap();
    let mountpoint = attachable.mountpoint();
    for place in [&home, &home.join("data"), &home.join("data/file")] {
        chown(place, Some(65534), Some(65534)).unwrap();
    }
    let mut lines = 0;
    for line in block.lines().filter(|line| !line.contains("make build")) {
        let line = line.split(" #").next().unwrap().trim();
        let typed = line.replace("/mnt", mountpoint.to_str().unwrap());
        let mut command = match typed.strip_prefix("sudo ") {
            Some(rest) => {
                let mut shell = Command::new("sh");
                shell.args(["-c", rest]).env("SUDO_UID", "65534").env("SUDO_GID", "65534");
                // Only commands of root need to find each other.
                shell.env("PUMICE_RUNTIME_DIR", home.join("pumice"));
                shell
            }
            None => {
                let mut user = Command::new(&setpriv);
                user.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &typed]);
                user
            }
        };
        command.env("PATH", format!("{}:{path}", programs.display())).env("HOME", &home);
        let finished = run(command.current_dir(&home), COMMAND_LIMIT);
        assert_eq!(finished.code, Some(0), "{line}: {finished:#?}");
        if line.starts_with("cp ") {
            assert_eq!(fs::read(mountpoint.join("data/file")).unwrap(), b"content");
        }
        lines += 1;
    }
    assert_eq!(lines, 5, "{block}");
    attachable.assert_nothing_left();
}
