//! Goal: a server follows its configuration file, including changes made before a restart, and an
//! invalid file stops no running server.
//!
//! Method: the built program on files of the test, rewritten files, and the file that comes with
//! it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Drive, PUMICE, Server, pumice, run_ok, stand_in, tool, wait_until};

fn configuration(drive: &Drive, socket: &Path, more: &str) -> PathBuf {
    let file = drive.beside("drive.toml");
    let (path, unix) = (drive.path().display(), socket.display());
    fs::write(&file, format!("paths = [\"{path}\"]\nunix = \"{unix}\"\n{more}")).unwrap();
    file
}

fn serve(drive: &Drive, socket: &Path, more: &str) -> (Server, PathBuf) {
    let file = configuration(drive, socket, more);
    let mut command = Command::new(PUMICE);
    command.args(["serve", "--config"]).arg(&file);
    let server = Server::start(
        command.env("PUMICE_RUNTIME_DIR", drive.beside("pumice")).env_remove("PUMICE_LOG"),
        socket.to_owned(),
    );
    (server, file)
}

#[test]
fn a_restart_reads_the_file_again() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let socket = drive.beside("socket");
    let (server, file) = serve(&drive, &socket, "description = \"the first\"\n");
    let said = || run_ok(Command::new(&nbdinfo).arg(server.uri())).stdout;
    assert!(said().contains("the first"), "{}", said());

    configuration(&drive, &socket, "description = \"the second\"\nread-only = true\n");
    server.restart();
    let now = said();
    assert!(now.contains("the second") && now.contains("is_read_only: true"), "{now}");

    configuration(&drive, &socket, "read_only = true\n");
    server.hang_up();
    wait_until("the file is refused", || {
        server.stderr().contains("not restarted: the server continues")
    });
    let place = format!("{}:3: unknown key 'read_only'", file.display());
    assert!(server.stderr().contains(&place), "{}", server.stderr());
    assert!(said().contains("the second"), "it serves on");
    server.stop();
}

#[test]
fn a_file_that_is_wrong_is_refused_in_one_line() {
    let drive = Drive::create("64M", &[]);
    let (socket, file) = (drive.beside("socket"), drive.beside("drive.toml"));
    let refused = |more: &str| {
        configuration(&drive, &socket, more);
        let refused = pumice(&["serve".as_ref(), "--config".as_ref(), file.as_os_str()]);
        assert_eq!(refused.code, Some(2), "{more}: {}", refused.stderr);
        assert_eq!(refused.stderr.lines().count(), 1, "{}", refused.stderr);
        refused.stderr
    };
    let line = refused("map-cache = \"a lot\"\n");
    assert!(line.contains("drive.toml:3: map-cache: invalid value 'a lot'"), "{line}");
    let line = refused("connections = true\n");
    assert!(line.contains("drive.toml:3: connections: expected a string"), "{line}");
    fs::write(&file, "unix = \"socket\"\n").unwrap();
    let refused = pumice(&["serve".as_ref(), "--config".as_ref(), file.as_os_str()]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("names no drive: add paths ="), "{}", refused.stderr);
    assert!(!drive.beside("socket").exists());
}

#[test]
fn errors_of_a_start_refuse_a_restart() {
    let Some(nbdinfo) = tool("nbdinfo") else { return };
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let socket = drive.beside("socket");
    let (server, file) = serve(&drive, &socket, "");
    let path = drive.path().display().to_string();
    let short = drive.beside("token");
    fs::write(&short, "abc").unwrap();
    let junk = drive.beside("junk.pumice");
    fs::write(&junk, "junk").unwrap();
    let with = |more: &str| format!("paths = [\"{path}\"]\n{more}");
    for (text, why) in [
        (with("http = \"127.0.0.1:0\"\nhttp-token-file = \"/nonexistent\"\n"), "/nonexistent"),
        (
            with(&format!("http = \"127.0.0.1:0\"\nhttp-token-file = \"{}\"\n", short.display())),
            "a token has",
        ),
        (with("http = \"0.0.0.0:0\"\n"), "--http-token-file"),
        (with("listen = \"0.0.0.0:0\"\n"), "--insecure"),
        ("paths = [\"/nonexistent.pumice\"]\n".to_owned(), "cannot open /nonexistent.pumice"),
        (format!("paths = [\"{}\"]\n", junk.display()), "holds no Pumice drive"),
        (format!("paths = [\"{path}\", \"{path}\"]\n"), "would both be the export"),
    ] {
        fs::write(&file, &text).unwrap();
        let refusals = || server.stderr().matches("not restarted: the server continues").count();
        let before = refusals();
        server.hang_up();
        wait_until("the file is refused", || refusals() > before);
        let said = server.stderr();
        let last = said.lines().rfind(|line| line.contains("not restarted")).unwrap();
        assert!(last.contains(why), "{text}: {last}");
        run_ok(Command::new(&nbdinfo).arg("--size").arg(server.uri()));
    }
    server.stop();
}

#[test]
fn a_check_lists_the_exports() {
    if stand_in().is_some() {
        return;
    }
    let drive = Drive::create("64M", &[]);
    let path = drive.path().to_str().unwrap();
    let checked = pumice(&["serve", path, "--check"]);
    let said = (checked.code, checked.stdout.as_str(), checked.stderr.as_str());
    assert_eq!(said, (Some(0), "valid: would serve drive\n", ""));
}

/// Checks the example as it is, and with every commented-out line enabled.
#[test]
fn the_example_is_right_down_to_its_comments() {
    if stand_in().is_some() {
        return;
    }
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("dist/example.toml");
    let drive = Drive::create("64M", &[]);
    let check = |file: &Path| {
        let file = file.to_str().unwrap();
        run_ok(Command::new(PUMICE).args(["serve", "--check", "--config", file]));
    };
    let text = fs::read_to_string(&path).unwrap();
    // The drive of the example is not on every machine.
    let named = "/var/lib/pumice/example.pumice";
    assert!(text.contains(named), "{text}");
    let text = text.replace(named, drive.path().to_str().unwrap());
    let copy = drive.beside("example.toml");
    fs::write(&copy, &text).unwrap();
    check(&copy);
    let is_key = |line: &str| line.split(" = ").next().is_some_and(|key| !key.contains(' '));
    let put_to_use = |line: &&str| line.strip_prefix("# ").filter(|line| is_key(line)).is_some();
    assert!(text.lines().filter(put_to_use).count() > 5, "{text}");
    let uncommented = |line: &str| match line.strip_prefix("# ") {
        Some(key) if is_key(key) => key.to_owned(),
        _ => line.to_owned(),
    };
    let all: Vec<String> = text.lines().map(uncommented).collect();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("all.toml");
    fs::write(&file, all.join("\n")).unwrap();
    // All keys are known then; only the certificates, which are also checked, are missing.
    let missing = pumice(&["serve", "--check", "--config", file.to_str().unwrap()]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("/etc/pumice/tls/"), "{}", missing.stderr);
    let rest: Vec<_> = all.iter().filter(|line| !line.starts_with("tls-")).cloned().collect();
    fs::write(&file, rest.join("\n")).unwrap();
    check(&file);
}
