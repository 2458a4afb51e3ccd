//! Goal: shells, `man`, systemd and collectors of logs accept the files that the program provides
//! for them.
//!
//! Method: each file is given to its program.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{COMMAND_LIMIT, Drive, PUMICE, pumice, run, run_ok, stand_in, tool};

#[test]
fn every_command_has_a_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    run_ok(Command::new(PUMICE).arg("man").arg(&pages));
    for name in ["pumice", "pumice-create", "pumice-serve", "pumice-check", "pumice-man"] {
        let page = fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
        assert!(page.contains(".SH NAME") && page.contains(".SH OPTIONS"), "{name}");
    }
    let serve = fs::read_to_string(pages.join("pumice-serve.1")).unwrap();
    assert!(serve.contains("tls\\-certificates"), "the flags of the command are in its page");
    let refused = pumice(&["man", "/proc/nowhere"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("choose another directory"), "{}", refused.stderr);
}

#[test]
fn bash_completes_commands_and_flags() {
    let Some(bash) = tool("bash") else { return };
    let script = "
eval \"$(\"$1\" completions bash)\"
COMP_WORDS=(pumice ser); COMP_CWORD=1; _pumice pumice ser pumice; echo \"${COMPREPLY[@]}\"
COMP_WORDS=(pumice serve --tls-v); COMP_CWORD=2; _pumice pumice --tls-v serve
echo \"${COMPREPLY[@]}\"
";
    let said = run_ok(Command::new(bash).args(["-c", script, "bash", PUMICE])).stdout;
    assert_eq!(said, "serve\n--tls-verify-peer\n");
}

#[test]
fn the_log_can_be_read_by_machines() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let path = drive.path().to_str().unwrap();
    let serve = ["--log-format", "json", "serve", path, "--run", "true"];
    let said = run_ok(Command::new(PUMICE).args(serve)).stderr;
    let lines: Vec<Value> =
        said.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let serving = |line: &Value| line["message"].as_str().is_some_and(|it| it.contains("serving"));
    let line = lines.iter().find(|line| serving(line)).unwrap_or_else(|| panic!("{said}"));
    assert_eq!(line["level"], "INFO");
    assert!(line["timestamp"].is_string(), "{line}");
}

/// Returns the units of `dist` in a folder, with the program under test.
fn units() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let dist = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("dist");
    let rotate = ["pumice-rotate@.service", "pumice-rotate@.timer"];
    for name in
        ["pumice@.service", "pumice@.socket", "pumice-attach@.service"].iter().chain(&rotate)
    {
        let unit = fs::read_to_string(dist.join(name)).unwrap();
        // An installation has a program at that path.
        let unit = unit.replace("/usr/bin/pumice", PUMICE);
        fs::write(folder.path().join(name), unit).unwrap();
    }
    folder
}

#[test]
fn systemd_takes_the_units() {
    let Some(analyze) = tool("systemd-analyze") else { return };
    let folder = units();
    let rotate = ["pumice-rotate@test.service", "pumice-rotate@test.timer"];
    for name in ["pumice@test.service", "pumice-attach@test.service"].iter().chain(&rotate) {
        let mut command = Command::new(&analyze);
        command
            .args(["verify", "--man=no"])
            .env("SYSTEMD_UNIT_PATH", format!("{}:", folder.path().display()));
        let said = run(command.arg(folder.path().join(name)), COMMAND_LIMIT);
        let about_ours = said.stderr.lines().filter(|line| line.contains("pumice")).count();
        assert_eq!((said.code, about_ours), (Some(0), 0), "{}", said.stderr);
    }
}

/// Findings of `systemd-analyze security` for `pumice-attach@.service`, and why they stay.
const OPEN_ITEMS: [&str; 16] = [
    // Only root may mount, make loop devices, and open the drives of other users; and the memory of
    // a process that a file system waits for must not wait for it.
    "UserOrDynamicUser",
    "PrivateUsers",
    "CapabilityBoundingSet_CAP_SYS_ADMIN",
    "CapabilityBoundingSet_CAP_DAC_FOWNER_IPC_OWNER",
    "CapabilityBoundingSet_CAP_SYS_NICE_RESOURCE",
    "SystemCallFilter_mount",
    // It gets FUSE and loop devices only, and the sockets of other commands and of systemd.
    "DeviceAllow",
    "PrivateDevices",
    "RestrictAddressFamilies_AF_UNIX",
    // Settings of a loop device are in /sys, and other processes that use it in /proc.
    "ProcSubset",
    "ProtectKernelTunables",
    "ProtectProc",
    // Drives and mount points may be anywhere but in the system's own folders.
    "PrivateTmp",
    "ProtectHome",
    "ProtectSystem",
    "RootDirectoryOrRootImage",
];

/// A server listens to the world, and needs no rights for that. Attaching needs root, and the
/// mounts of the machine in short steps only; it listens to no one else. `guest` tests that both
/// work with these rights.
#[test]
fn the_units_have_few_rights() {
    let Some(analyze) = tool("systemd-analyze") else { return };
    let folder = units();
    // In tenths: all must be below 3.0. With systemd 252 the first two have 1.5 and 2.4.
    for name in ["pumice@.service", "pumice-attach@.service", "pumice-rotate@.service"] {
        let mut command = Command::new(&analyze);
        command.args(["security", "--no-pager", "--offline=true", "--threshold", "29"]);
        let said = run(command.arg(folder.path().join(name)), COMMAND_LIMIT);
        assert_eq!(said.code, Some(0), "{}\n{}", said.stdout, said.stderr);
    }
    let mut command = Command::new(&analyze);
    command.args(["security", "--no-pager", "--offline=true", "--json=short"]);
    let said = run_ok(command.arg(folder.path().join("pumice-attach@.service"))).stdout;
    let items: Vec<Value> = serde_json::from_str(&said).expect("a list of items");
    let is_open = |item: &&Value| {
        let exposure = item["exposure"].as_str().and_then(|text| text.parse::<f64>().ok());
        exposure.is_some_and(|exposure| exposure > 0.0)
    };
    let name = |item: &Value| item["json_field"].as_str().expect("a name").to_owned();
    let more: Vec<String> = items.iter().filter(is_open).map(name).collect();
    assert!(!more.is_empty(), "{said}");
    let unknown: Vec<_> = more.iter().filter(|it| !OPEN_ITEMS.contains(&it.as_str())).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
