//! Goal: hostile clients cannot slow others down, lock them out, or exhaust the server's memory.
//! Method: 64 clients of each kind in `benches/crowd.py`, which measures; limits that also hold on
//! a busy machine. The cost of 256 clients is in docs/operate.md.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::{COMMAND_LIMIT, Drive, Server, run, stand_in, tool, wait_until};
use crate::serving::tls::Authority;

/// Clients of each kind.
const CLIENTS: u64 = 64;

/// Memory that they may take in addition to the server's for one client, in KiB: 64 MiB for
/// payloads and 32 MiB for replies; for each client 1 MiB of payload, another 1 MiB to read it, and
/// memory of its other requests and the allocator (278 MiB were measured).
const MORE_KIB_MAX: u64 = (64 + 32 + CLIENTS * 4) << 10;

/// Returns the resident memory, in KiB.
fn resident_kib(server: &Server) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn count(server: &Server, what: &str) -> usize {
    fs::read_dir(format!("/proc/{}/{what}", server.id())).unwrap().count()
}

#[test]
fn hostile_clients_of_each_kind_cost_others_little() {
    let Some(python) = tool("python3") else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let authority = Authority::new("an authority");
    let certificates = authority.server();
    let tls = certificates.to_str().unwrap();
    let args = ["--connections", "1000", "--tls-certificates", tls, "--tls", "allow"];
    let server = drive.serve_with(&args);
    let before = (resident_kib(&server), count(&server, "task"), count(&server, "fd"));
    let bench = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/crowd.py"));
    let mut command = Command::new(python);
    command.arg(bench).arg(server.socket());
    command.args(["--clients", &CLIENTS.to_string(), "--seconds", "0.2", "--rounds", "3"]);
    command.args(["--tls", "--json"]);
    let finished = run(&mut command, COMMAND_LIMIT);
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    let kinds: Vec<Value> = finished.stdout.lines().map(|it| it.parse().unwrap()).collect();
    assert_eq!(kinds.len(), 11, "{finished:#?}");
    for kind in &kinds {
        let number = |key: &str| kind[key].as_f64().expect("a number");
        assert!(number("new_client_s_max") < 5.0, "{kind}");
        assert!(number("ratio") > 0.1, "{kind}");
    }
    let taken_kib = resident_kib(&server) - before.0;
    assert!(taken_kib < MORE_KIB_MAX, "{taken_kib} KiB");
    wait_until("nothing is left of them", || {
        (count(&server, "task"), count(&server, "fd")) <= (before.1 + 8, before.2)
    });
    server.stop();
    drive.assert_checks();
}
