//! Goal: the data served over HTTP matches the drive, Prometheus and its tools read it, and no
//! malformed request disturbs other clients or the drive.
//!
//! Method: requests written by hand on a socket, so that they can be malformed in any way;
//! promtool; a real Prometheus that scrapes a server under fio.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{
    COMMAND_LIMIT, Drive, PUMICE, Server, Talker, counter, pumice, run, run_ok, serve_folder, tool,
    wait_until,
};

/// Longer than any limit of the server, except the limit of a connection in use.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

const TOKEN: &str = "a-token-of-27-characters-ok";

/// An answer: status, head, body.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Serves with HTTP at a port chosen by the system; returns the server and its address.
pub(crate) fn serve(drive: &Drive, args: &[&str]) -> (Server, String) {
    let mut all = vec!["--http", "127.0.0.1:0"];
    all.extend(args);
    let server = drive.serve_with(&all);
    let address = address(&server);
    (server, address)
}

/// Returns the address at which a server reports that it serves HTTP.
pub(crate) fn address(server: &Server) -> String {
    let mut address = None;
    wait_until("the server says where it is", || {
        let said = server.stderr();
        let line = said.lines().find_map(|line| line.split_once("url=http://"));
        address = line.map(|(_, rest)| rest.trim_end_matches('/').to_owned());
        address.is_some()
    });
    address.expect("an address")
}

/// Sends bytes as they are and reads the answer to its end.
fn send(address: &str, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(address).expect("connect");
    socket.set_read_timeout(Some(ANSWER_LIMIT)).expect("a limit");
    // The server may close before it has read all.
    let _ = socket.write_all(bytes);
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn parse(text: &str) -> Answer {
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = status.unwrap_or_else(|| panic!("no answer: {text:?}"));
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

fn request(address: &str, method: &str, path: &str, headers: &str) -> Answer {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    parse(&send(address, format!("{head}{headers}\r\n").as_bytes()))
}

pub(crate) fn get(address: &str, path: &str) -> Answer {
    request(address, "GET", path, "")
}

/// Returns the value of a series in an exposition.
fn series(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = line.unwrap_or_else(|| panic!("no series {name} in\n{text}"));
    value.parse().expect("a number")
}

fn qemu_io(server: &Server, commands: &[&str]) -> bool {
    let Some(qemu_io) = tool("qemu-io") else { return false };
    let mut command = Command::new(qemu_io);
    command.args(["-f", "raw"]);
    for text in commands {
        command.args(["-c", text]);
    }
    run_ok(command.arg(server.uri()));
    true
}

#[test]
fn reported_activity_matches_the_hosts() {
    let drive = Drive::create("64M", &[]);
    let (server, address) = serve(&drive, &["--rated-tbw", "1T"]);
    let before = get(&address, "/metrics");
    assert_eq!(before.status, 200);
    assert!(
        before.head.contains("content-type: application/openmetrics-text; version=1.0.0"),
        "{}",
        before.head
    );
    assert_eq!(series(&before.body, "pumice_host_written_bytes_total{drive=\"drive\"}"), 0.0);
    if !qemu_io(&server, &["write -P 7 0 1M", "read 0 64k", "discard 0 8k", "flush"]) {
        return;
    }
    let after = get(&address, "/metrics").body;
    assert_eq!(series(&after, "pumice_host_written_bytes_total{drive=\"drive\"}"), 1048576.0);
    assert_eq!(series(&after, "pumice_host_read_bytes_total{drive=\"drive\"}"), 65536.0);
    assert_eq!(series(&after, "pumice_writable{drive=\"drive\"}"), 1.0);
    assert!(series(&after, "pumice_connections_accepted_total") >= 1.0);
    for command in ["write", "read", "trim"] {
        let labels = format!("{{drive=\"drive\",command=\"{command}\"}}");
        let name = format!("pumice_request_duration_seconds_count{labels}");
        assert!(series(&after, &name) >= 1.0, "{command}");
    }
    // The API and the command return the same.
    let api = get(&address, "/api/drives/drive");
    let mut api = api.json();
    let mut told = drive.info();
    for value in [&mut api, &mut told] {
        let value = value.as_object_mut().expect("an object");
        // Buffers come and go with the requests themselves.
        value.remove("memory");
        // Only the command knows how the drive is used.
        for key in ["schema", "process", "uris", "devices", "mountpoint", "log", "clients"] {
            value.remove(key);
        }
        value.remove("table_sector_bytes");
        value.remove("file_bytes");
        // The API has a separate path for snapshots.
        value.remove("snapshot_list");
    }
    assert_eq!(api, told);
    let drives = get(&address, "/api/drives").json();
    assert_eq!(drives[0]["name"], "drive");
    assert_eq!(drives[0]["uuid"], told["uuid"]);
    let snapshot = get(&address, "/api/snapshot").json();
    assert_eq!(snapshot["drives"][0]["rated_write_bytes"], json!(1u64 << 40));
    assert_eq!(get(&address, "/healthz").json()["status"], "ok");
    let count = counter(&told, "segment_count");
    for (query, cells) in [("", count), ("?cells=1", 1), ("?cells=4096", count)] {
        let map = get(&address, &format!("/api/drives/drive/segments{query}")).json();
        assert_eq!(map["cells"].as_array().expect("cells").len() as u64, cells, "{query}");
        assert_eq!(counter(&map, "segment_count"), count);
    }
    server.stop();
}

/// Returns the number of threads of a server whose names begin with `name`.
fn threads_called(server: &Server, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.id())).unwrap();
    let names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    names.filter(|thread| thread.starts_with(name)).count()
}

#[test]
fn drives_of_all_threads_are_shown() {
    let Some(qemu_io) = tool("qemu-io") else { return };
    for threads in ["1", "2", "8"] {
        let folder = tempfile::tempdir().unwrap();
        let names = ["one", "three", "two"];
        let token = folder.path().join("token");
        fs::write(&token, TOKEN).unwrap();
        let args = ["--threads", threads, "--http", "127.0.0.1:0", "--http-token-file"];
        let args = [&args[..], &[token.to_str().unwrap()]].concat();
        let server = serve_folder(folder.path(), &names, &args);
        let address = address(&server);
        for (index, name) in names.iter().enumerate() {
            let write = format!("write 0 {}k", 4 * (index + 1));
            let uri = server.uri_of(name);
            run_ok(Command::new(&qemu_io).args(["-f", "raw", "-c", &write]).arg(uri));
        }
        let metrics = get(&address, "/metrics").body;
        for (index, name) in names.iter().enumerate() {
            let written = format!("pumice_host_written_bytes_total{{drive=\"{name}\"}}");
            assert_eq!(series(&metrics, &written), 4096.0 * (index + 1) as f64);
            assert_eq!(get(&address, &format!("/api/drives/{name}/segments")).status, 200);
            let headers = format!("Authorization: Bearer {TOKEN}\r\n");
            let flushed = request(
                &address,
                "POST",
                &format!("/api/drives/{name}/flush"),
                &format!("{headers}Content-Length: 0\r\n"),
            );
            assert_eq!(flushed.status, 200, "{flushed:?}");
            // Through the drive's control socket.
            let path = folder.path().join(format!("{name}.pumice"));
            let mut info = Command::new(PUMICE);
            info.env("PUMICE_RUNTIME_DIR", folder.path().join("pumice"))
                .arg("info")
                .arg(path)
                .arg("--json");
            let info = serde_json::from_str(&run_ok(&mut info).stdout).expect("JSON");
            assert_eq!(counter(&info, "host_bytes"), 4096 * (index as u64 + 1));
        }
        let shown = get(&address, "/api/drives").json();
        let shown: Vec<_> = shown.as_array().unwrap().iter().map(|drive| &drive["name"]).collect();
        assert_eq!(shown, names);
        let threads_of_drives = match threads {
            "1" => 0,
            threads => threads.parse().unwrap_or(0).min(names.len()),
        };
        assert_eq!(threads_called(&server, "drives-"), threads_of_drives);
        assert_eq!(get(&address, "/healthz").status, 200);
        for missing in ["segments", "history"] {
            assert_eq!(get(&address, &format!("/api/drives/four/{missing}")).status, 404);
        }
        let history = get(&address, "/api/drives/two/history").json();
        assert_eq!((&history["period"], &history["fields"][0]), (&json!(5.0), &json!("time")));
        wait_until("all clients are gone", || {
            let snapshot = get(&address, "/api/snapshot").json();
            counter(&snapshot, "open") == 0 && counter(&snapshot, "accepted") >= 3
        });
        server.stop();
    }
}

#[test]
fn a_drive_that_refuses_writes_is_not_healthy() {
    let drive = Drive::create("256M", &["--capacity", "64M", "--segment", "4M"]);
    let (server, address) = serve(&drive, &[]);
    let Some(fio) = tool("fio") else { return };
    let mut command = Command::new(fio);
    command
        .current_dir(drive.path().parent().expect("a directory"))
        .args(["--name=fill", "--ioengine=nbd", "--rw=write", "--bs=256k", "--size=256m"])
        .args(["--refill_buffers=1", "--randseed=7"])
        .arg(format!("--uri={}", server.uri()));
    assert_ne!(run(&mut command, COMMAND_LIMIT).code, Some(0), "the drive never filled");
    let health = get(&address, "/healthz");
    assert_eq!(health.status, 503, "{health:?}");
    let alerts = &health.json()["drives"][0]["alerts"];
    assert_eq!(alerts[0]["kind"], "full", "{alerts}");
    let metrics = get(&address, "/metrics").body;
    assert_eq!(series(&metrics, "pumice_writable{drive=\"drive\"}"), 0.0);
    let errors = "pumice_request_errors_total{drive=\"drive\",command=\"write\",kind=\"NoSpace\"}";
    assert!(series(&metrics, errors) >= 1.0);
    let trim = format!("discard 0 {}", 256 << 20);
    assert!(qemu_io(&server, &[&trim, "flush"]));
    wait_until("health after a trim", || get(&address, "/healthz").status == 200);
    server.stop();
}

#[test]
fn requests_need_their_permissions() {
    let drive = Drive::create("64M", &[]);
    let file = drive.beside("token");
    fs::write(&file, format!("{TOKEN}\n")).expect("write the token");
    let (server, address) = serve(&drive, &["--http-token-file", file.to_str().expect("UTF-8")]);
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    for action in ["flush", "checkpoint"] {
        let path = format!("/api/drives/drive/{action}");
        assert_eq!(request(&address, "POST", &path, "").status, 401);
        let refused = request(&address, "POST", &path, "Authorization: Bearer wrong\r\n");
        assert!(refused.head.contains("www-authenticate: basic"), "{}", refused.head);
        let done = request(&address, "POST", &path, &bearer);
        assert_eq!((done.status, &done.json()["done"]), (200, &json!(action)));
        assert_eq!(request(&address, "GET", &path, "").status, 405);
    }
    assert!(counter(&drive.info(), "checkpoints") >= 1);
    let page = get(&address, "/");
    for header in [
        "content-security-policy: default-src 'none'",
        "cross-origin-resource-policy: same-origin",
        "nosniff",
        "no-store",
    ] {
        assert!(page.head.contains(header), "{}", page.head);
    }
    assert!(!page.head.contains("access-control"), "{}", page.head);
    let rebound = "GET /metrics HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(parse(&send(&address, rebound.as_bytes())).status, 421);
    server.stop();

    let (server, address) = serve(&drive, &[]);
    let refused = request(&address, "POST", "/api/drives/drive/flush", &bearer);
    assert_eq!(refused.status, 403);
    assert!(refused.body.contains("--http-token-file"), "{}", refused.body);
    server.stop();
}

#[test]
fn an_address_for_all_needs_a_token_or_a_word() {
    let drive = Drive::create("64M", &[]);
    let path = drive.path().to_str().expect("UTF-8");
    let short = drive.beside("token");
    fs::write(&short, "short").expect("write the token");
    let short = short.to_str().expect("UTF-8");
    let socket = drive.beside("s");
    let socket = socket.to_str().expect("UTF-8");
    for (args, word) in [
        (&["--http", "0.0.0.0:0"][..], "--http-insecure"),
        (&["--http", "127.0.0.1:0", "--http-token-file", short], "16 to"),
        (&["--http", "127.0.0.1:0", "--http-token-file", "/nowhere"], "/nowhere"),
        (&["--http-insecure"], "--http"),
    ] {
        let refused = pumice(&[&["serve", path, "--unix", socket], args].concat());
        assert_eq!(refused.code, Some(2), "{args:?}");
        assert!(refused.stderr.contains(word), "{}", refused.stderr);
    }
    // A port in use is reported before anything is done to the drive.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().expect("its address").to_string();
    let before = drive.info();
    let refused = pumice(&["serve", path, "--unix", socket, "--http", &taken]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains(&taken), "{}", refused.stderr);
    assert_eq!(drive.info()["epoch"], before["epoch"]);
}

/// For machines on which other users must not see what drives do.
#[test]
fn a_unix_socket_is_for_permitted_users() {
    let drive = Drive::create("64M", &[]);
    let socket = drive.beside("web");
    let place = format!("unix:{}", socket.display());
    let server = drive.serve_with(&["--http", &place]);
    wait_until("the server says where it is", || server.stderr().contains(&place));
    let ask = |path: &str| {
        let mut client = UnixStream::connect(&socket).expect("connect");
        client.set_read_timeout(Some(ANSWER_LIMIT)).expect("a limit");
        let head = format!("GET {path} HTTP/1.1\r\nHost: any.example\r\nConnection: close\r\n\r\n");
        client.write_all(head.as_bytes()).expect("a request");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer");
        parse(&answer)
    };
    assert_eq!(ask("/api/drives").json()[0]["name"], "drive");
    assert_eq!(ask("/healthz").status, 200);
    // A restarted server takes over the socket.
    server.restart();
    wait_until("HTTP is served again", || UnixStream::connect(&socket).is_ok());
    assert_eq!(ask("/healthz").status, 200);
    server.stop();
    assert!(!socket.exists(), "the socket was not removed");
    let path = drive.path().to_str().expect("UTF-8");
    let refused = pumice(&["serve", path, "--check", "--http", "unix:"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("a path"), "{refused:?}");
}

#[test]
fn garbage_gets_a_status_and_disturbs_nobody() {
    let drive = Drive::create("64M", &[]);
    let (server, address) = serve(&drive, &[]);
    let host = format!("Host: {address}\r\nConnection: close\r\n");
    let long = "x".repeat(100_000);
    let many: String = (0..200).map(|index| format!("x-{index}: 1\r\n")).collect();
    for (bytes, status) in [
        ("\0\u{1}\u{2} nonsense \r\n\r\n".to_owned(), 400),
        ("GET\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), 400),
        (format!("GET /{long} HTTP/1.1\r\n{host}\r\n"), 431),
        (format!("GET / HTTP/1.1\r\n{host}x: {long}\r\n\r\n"), 431),
        (format!("GET / HTTP/1.1\r\n{host}{many}\r\n"), 431),
        (format!("GET / HTTP/1.1\r\n{host}Content-Length: 99999999999\r\n\r\n"), 413),
        (format!("GET / HTTP/1.1\r\n{host}Content-Length: -1\r\n\r\n"), 400),
        (format!("GET / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\nzz\r\n"), 413),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 421),
        (format!("GET /nothing HTTP/1.1\r\n{host}\r\n"), 404),
        (format!("GET /../../etc/passwd HTTP/1.1\r\n{host}\r\n"), 404),
        (format!("GET /%2e%2e%2fpage.css HTTP/1.1\r\n{host}\r\n"), 404),
        (format!("GET /api/drives/%FF HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("GET /api/drives/other HTTP/1.1\r\n{host}\r\n"), 404),
        (format!("GET /api/drives/other/segments HTTP/1.1\r\n{host}\r\n"), 404),
        (format!("GET /api/drives/drive/segments?cells=0 HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("GET /api/drives/drive/segments?cells=9999999 HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("GET /api/drives/drive/segments?cells=x HTTP/1.1\r\n{host}\r\n"), 400),
        (format!("DELETE /metrics HTTP/1.1\r\n{host}\r\n"), 403),
        (format!("HEAD /metrics HTTP/1.1\r\n{host}\r\n"), 200),
    ] {
        let answer = parse(&send(&address, bytes.as_bytes()));
        let shown: String = bytes.chars().take(80).collect();
        assert_eq!(answer.status, status, "{shown:?}: {answer:?}");
    }
    // A client of the NBD socket at the HTTP port, and the other way round.
    let hello = send(&address, b"NBDMAGICIHAVEOPT\0\0\0\x03");
    assert!(hello.is_empty() || hello.starts_with("HTTP/1.1 400"), "{hello}");
    assert_eq!(get(&address, "/healthz").status, 200);
    assert!(!server.stderr().contains("panic"), "{}", server.stderr());
    server.stop();
}

/// As many connections as the server accepts send nothing or an occasional byte; NBD continues
/// meanwhile, and HTTP does once their time is over.
#[test]
fn slow_clients_lose_their_place() {
    let drive = Drive::create("64M", &[]);
    let (server, address) = serve(&drive, &[]);
    let mut slow: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut socket = TcpStream::connect(&address).expect("connect");
            socket.write_all(b"GET /metrics HTTP/1.1\r\nX-").expect("a piece");
            socket
        })
        .collect();
    if !qemu_io(&server, &["write 0 1M", "flush"]) {
        return;
    }
    let answer = get(&address, "/metrics");
    assert_eq!(answer.status, 200);
    // The first connections were closed, although they kept sending.
    let mut byte = [0; 512];
    slow[0].set_read_timeout(Some(ANSWER_LIMIT)).expect("a limit");
    let ended = slow[0].read(&mut byte);
    assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    drop(slow);
    server.stop();
}

#[test]
fn promtool_has_nothing_to_say() {
    let Some(promtool) = tool("promtool") else { return };
    let drive = Drive::create("64M", &[]);
    let (server, address) = serve(&drive, &[]);
    if !qemu_io(&server, &["write 0 1M", "flush"]) {
        return;
    }
    let file = drive.beside("metrics");
    // promtool reads only the older format, where a counter is described under its series' name.
    let mut text = get(&address, "/metrics").body;
    let counters = text.lines().filter_map(|line| line.strip_suffix(" counter"));
    let names: Vec<_> = counters.map(|line| line.replacen("# TYPE ", "", 1)).collect();
    for name in names {
        text = text.replace(&format!("# HELP {name} "), &format!("# HELP {name}_total "));
        text = text.replace(&format!("# TYPE {name} "), &format!("# TYPE {name}_total "));
    }
    fs::write(&file, text.replace("# EOF\n", "")).expect("write the metrics");
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" check metrics < \"$1\""]).arg(promtool).arg(file);
    let checked = run(&mut command, COMMAND_LIMIT);
    assert_eq!((checked.code, &*checked.stderr), (Some(0), ""), "{}", checked.stdout);
    server.stop();
}

#[test]
fn prometheus_reads_the_counters() {
    let (Some(prometheus), Some(fio)) = (tool("prometheus"), tool("fio")) else { return };
    let drive = Drive::create("64M", &[]);
    let (server, address) = serve(&drive, &[]);
    let config = drive.beside("prometheus.yml");
    let text = format!(
        "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\nscrape_configs:\n  - job_name: \
         pumice\n    static_configs: [{{ targets: ['{address}'] }}]\n"
    );
    fs::write(&config, text).expect("write the configuration");
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec \"$0\" \"$@\" 2>&1"])
        .arg(prometheus)
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", drive.beside("tsdb").display()))
        .arg("--web.listen-address=127.0.0.1:0");
    let mut prometheus = Talker::start(&mut command);
    let at = loop {
        let line = prometheus.next_line();
        if line.contains("\"Listening on\"") {
            break line.split_once("address=").expect("an address").1.trim().to_owned();
        }
    };
    let query = |expression: &str| -> Option<f64> {
        let answer = get(&at, &format!("/api/v1/query?query={expression}"));
        // Prometheus returns 503 until it has read its own files.
        let answer: Value = serde_json::from_str(&answer.body).ok()?;
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    };
    wait_until("a first scrape", || query("up") == Some(1.0));
    let mut load = Command::new(fio);
    load.current_dir(drive.path().parent().expect("a directory"))
        .args([
            "--name=load",
            "--thread",
            "--ioengine=nbd",
            "--rw=randwrite",
            "--bs=4k",
            "--size=64m",
        ])
        .args(["--iodepth=8", "--rate=4m", "--time_based", "--runtime=60"])
        .arg(format!("--uri={}", server.uri()));
    let load = Talker::start(&mut load);
    wait_until("bytes a second", || {
        query("rate(pumice_host_written_bytes_total[10s])").is_some_and(|rate| rate > 1e6)
    });
    let quantile = "histogram_quantile(0.99,rate(pumice_request_duration_seconds_bucket%7Bcommand\
                    =%22write%22%7D[10s]))";
    wait_until("a latency", || {
        query(quantile).is_some_and(|seconds| seconds > 0.0 && seconds < 16.0)
    });
    let parts = "sum(pumice_space_bytes)-sum(pumice_capacity_bytes)";
    assert_eq!(query(parts), Some(0.0));
    drop(load);
    drop(prometheus);
    server.stop();
}
