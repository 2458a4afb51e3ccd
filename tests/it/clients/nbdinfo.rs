//! Goal: the features that the server announces, as read by libnbd's nbdinfo, are those of the
//! drive.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Drive, Server, run_ok, stand_in, tool};

#[test]
fn the_export_describes_the_drive() {
    let drive = Drive::create("64M", &[]);
    let Some(export) = export(&drive.serve()) else { return };
    assert_eq!(export["export-size"], 64 << 20, "{export:#}");
    for (flag, expected) in FLAGS {
        assert_eq!(export[flag], expected, "{flag} in {export:#}");
    }
    let size = |name: &str| export[name].as_u64().unwrap_or_else(|| panic!("{name}: {export:#}"));
    assert_eq!(size("block_size_minimum"), 1, "requests need no alignment: {export:#}");
    assert_eq!(size("block_size_preferred"), 4096, "the logical block: {export:#}");
    assert!(size("block_size_maximum") >= 1 << 20, "{export:#}");
}

/// Flags of a writable drive.
const FLAGS: [(&str, bool); 10] = [
    ("is_read_only", false),
    ("is_rotational", false),
    ("can_flush", true),
    ("can_fua", true),
    ("can_trim", true),
    ("can_zero", true),
    ("can_multi_conn", true),
    ("can_cache", true),
    ("can_df", true),
    ("can_fast_zero", true),
];

#[test]
fn a_read_only_server_says_so() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let Some(export) = export(&drive.serve_with(&["--read-only"])) else { return };
    assert_eq!(export["is_read_only"], true, "{export:#}");
}

#[test]
fn the_server_lists_its_export() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    let drive = Drive::create("64M", &[]);
    let server = drive.serve();
    let mut command = Command::new(nbdinfo);
    let listed = json(&run_ok(command.args(["--json", "--list"]).arg(server.uri())).stdout);
    let exports = listed["exports"].as_array().expect("a list of exports");
    assert_eq!(exports.len(), 1, "{listed:#}");
    assert_eq!(exports[0]["export-size"], 64 << 20, "{listed:#}");
    server.stop();
}

fn export(server: &Server) -> Option<Value> {
    let mut command = Command::new(tool("nbdinfo")?);
    let said = json(&run_ok(command.args(["--json", "--no-content"]).arg(server.uri())).stdout);
    assert_eq!(said["protocol"], "newstyle-fixed", "{said:#}");
    Some(said["exports"][0].clone())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("nbdinfo prints JSON")
}
