//! Goal: `pumice scan` reports correct figures of real data, by every way of access, and every
//! error message has a remedy.
//! Method: a real file system in an image is scanned as a file and over NBD, written to a drive to
//! measure its stored size, and to zram, which counts compressed bytes itself; a block device with
//! a file system of known content; shards are merged by the program; typical mistakes of a user.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{
    COMMAND_LIMIT, Drive, Finished, LoopDevice, PUMICE, Server, counter, pumice, run, run_ok,
    spawn, tool, wait, wait_until,
};
use crate::measuring::detect::Zram;

pub(crate) fn scan(args: &[&str]) -> Finished {
    pumice(&[&["scan"], args].concat())
}

pub(crate) fn json(args: &[&str]) -> Value {
    let finished = scan(&[args, &["--json"]].concat());
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    serde_json::from_str(&finished.stdout).expect("JSON")
}

pub(crate) fn stored(of: &Value, config: usize, kind: &str) -> f64 {
    of["configs"][config][kind]["stored"].as_f64().expect("a number")
}

/// Writes an image of 48 MiB with files of every checkout: sources, documents, a program.
fn image(folder: &Path) -> PathBuf {
    let path = folder.join("image");
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut bytes = Vec::new();
    let mut folders = vec![root.join("crates"), root.join("docs"), root.join("tests")];
    while let Some(folder) = folders.pop() {
        let mut entries: Vec<_> =
            fs::read_dir(folder).expect("a folder").map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        for entry in entries {
            if entry.is_dir() {
                folders.push(entry);
            } else {
                bytes.extend(fs::read(entry).expect("a file"));
                bytes.resize(bytes.len().next_multiple_of(4096), 0);
            }
        }
    }
    let program = fs::read(PUMICE).expect("the program under test");
    bytes.extend(&program[..program.len().min(30 << 20)]);
    // A hole, and written zeroes.
    bytes.resize(44 << 20, 0);
    fs::write(&path, &bytes).expect("written");
    let file = fs::File::options().write(true).open(&path).expect("the image");
    file.write_all_at(&[7; 4096], (48 << 20) - 4096).expect("written");
    path
}

#[test]
fn a_drive_stores_data_as_the_scan_predicts() {
    let Some(nbdcopy) = tool("nbdcopy") else { return };
    let drive = Drive::create("64M", &[]);
    let image = image(drive.beside("").as_path());
    let shown = image.display().to_string();
    let of = json(&[&shown, "--all"]);
    assert!(of["is_exact"].as_bool().unwrap(), "{of}");
    // The frame size of a drive is the second chunk, and holes do not count as data.
    let expected = of["bytes"].as_f64().unwrap() * (stored(&of, 1, "drive") + 0.009);
    let server = drive.serve();
    run_ok(
        Command::new(nbdcopy)
            // The overhead of the log is that of 1 MiB writes.
            .arg("--request-size=1048576")
            .arg("--requests=1")
            .arg("--connections=1")
            .arg(&image)
            .arg(server.uri()),
    );
    // Over NBD it is the same disk, except that zeroes skipped by nbdcopy are holes there.
    let served = json(&[&server.uri(), "--all"]);
    let ratio = stored(&served, 1, "drive") * served["bytes"].as_f64().unwrap()
        / (stored(&of, 1, "drive") * of["bytes"].as_f64().unwrap());
    assert!((ratio - 1.0).abs() < 0.001, "{ratio}");
    server.stop();
    let media_bytes = counter(&drive.info(), "media_bytes") as f64;
    assert!((media_bytes / expected - 1.0).abs() < 0.02, "{media_bytes} for {expected}");
}

#[test]
fn zram_counts_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = image(folder.path());
    let bytes = fs::read(&image).expect("the image");
    let Some(zram) = Zram::with("lz4", bytes.len() as u64) else { return };
    let device = fs::File::options().write(true).open(zram.path()).expect("the device");
    device.write_all_at(&bytes, 0).expect("written");
    device.sync_all().expect("synced");
    let stat = fs::read_to_string(zram.stat("mm_stat")).expect("counters");
    let counts: Vec<f64> = stat.split_whitespace().map(|text| text.parse().unwrap()).collect();
    let shown = image.display().to_string();
    let of = json(&[&shown, "--all", "--codec", "lz4", "--chunk", "4K"]);
    let ours = stored(&of, 0, "codec") * of["bytes"].as_f64().unwrap() / bytes.len() as f64;
    // The second counter is the compressed size of the pages.
    let truth = counts[1] / bytes.len() as f64;
    assert!((ours - truth).abs() < 0.005, "{ours} and {truth}");
    // The device itself can also be scanned: its zeroes are data there.
    let device = json(&[&zram.path().display().to_string(), "--all", "--codec", "lz4"]);
    assert_eq!(device["bytes"].as_u64(), Some(bytes.len() as u64));
}

#[test]
fn shards_are_merged_by_the_program() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = image(folder.path()).display().to_string();
    let place = |name: &str| folder.path().join(name).display().to_string();
    for shard in 1..=3 {
        let file = place(&format!("{shard}.json"));
        let shard = format!("{shard}/3");
        let args = [&*image, "--samples", "600", "--shard", &shard, "--partial", &file];
        assert_eq!(scan(&args).code, Some(0));
    }
    let (one, two, three) = (place("1.json"), place("2.json"), place("3.json"));
    let merged = scan(&["merge", &three, &one, &two, "--json"]);
    assert_eq!(merged.code, Some(0), "{}", merged.stderr);
    let mut merged: Value = serde_json::from_str(&merged.stdout).expect("JSON");
    let mut whole = json(&[&image, "--samples", "600"]);
    for of in [&mut merged, &mut whole] {
        of["choice"] = Value::Null;
        for config in of["configs"].as_array_mut().unwrap() {
            config["mb_per_s"] = Value::Null;
        }
    }
    // 44 MiB are one part, so that two shards are empty.
    assert_eq!(merged["configs"], whole["configs"]);
    assert_eq!(merged["extensions"], whole["extensions"]);
    assert_eq!((&merged["draws"], &merged["bytes"]), (&whole["draws"], &whole["bytes"]));
    let missing = scan(&["merge", &one, &three]);
    assert_eq!(missing.code, Some(2));
    assert!(missing.stderr.contains("shard 2/3 is missing"), "{}", missing.stderr);
    let again = scan(&["merge", &one, &one, &two, &three]);
    assert!(again.stderr.contains("are both shard 1/3"), "{}", again.stderr);
    fs::write(place("bad.json"), "{\"x\": 1}").unwrap();
    let bad = scan(&["merge", &place("bad.json")]);
    assert!(bad.code == Some(2) && bad.stderr.contains("not the result of a scan"));
}

#[test]
fn people_get_a_page_and_an_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = image(folder.path()).display().to_string();
    let page = folder.path().join("page.html");
    let profile = folder.path().join("like.json").display().to_string();
    let small = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../crates/pumice-bench/src/forecast/samples/small.toml"
    );
    let args = [
        &*image,
        "--html",
        page.to_str().unwrap(),
        "--save",
        &profile,
        "--drive",
        small,
        "--gb-per-day",
        "5",
    ];
    let finished = scan(&args);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let text = finished.stdout;
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    for words in ["Yes: compression saves", "times as fast", "write amplification", "lasts, years"]
    {
        assert!(text.contains(words), "no '{words}' in {text}");
    }
    let page = fs::read_to_string(page).expect("the page");
    assert!(page.contains("<svg") && page.contains("Compressibility of the data"));
    // The bench generates similar data.
    let like =
        pumice(&["payload", "--kind", &format!("like:{profile}"), "--size", "16M", "--json"]);
    assert_eq!(like.code, Some(0), "{}", like.stderr);
    let like: Value = serde_json::from_str(&like.stdout).expect("JSON");
    let finding = &like["measured"][0];
    let truth = stored(&json(&[&image, "--all"]), 0, "codec");
    let made = finding["stored_fraction"].as_f64().expect("a number");
    assert!((made - truth).abs() < 0.01, "{made} and {truth}");
}

#[test]
fn mistakes_are_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name).display().to_string();
    fs::write(place("data"), vec![1; 8192]).unwrap();
    fs::write(place("kept"), "mine").unwrap();
    let (data, missing, kept) = (place("data"), place("missing"), place("kept"));
    let cases: [(&[&str], &str); 15] = [
        (&[], "required"),
        (&[&missing], "cannot scan"),
        (&["/dev/null"], "is not a file, folder or block device"),
        (&[&data, &data], "name it once"),
        (&[&data, "--codec", "gzip"], "unknown codec 'gzip'"),
        (&[&data, "--chunk", "5000"], "expected a power of two from 4K to 256K"),
        (&[&data, "--error", "0"], "expected a percentage from 0.01 to 50"),
        (&[&data, "--confidence", "100"], "expected a percentage from 50 to 99.99"),
        (&[&data, "--shard", "4/3", "--partial", &missing], "expected I/N with I from 1 to N"),
        (&[&data, "--shard", "1/3"], "--partial"),
        (&[&data, "--gb-per-day", "3"], "--gb-per-day requires --drive"),
        (&[&data, "--drive", "no-such-drive"], "no-such-drive"),
        (&[&data, "--partial", &kept], "use --force to overwrite it"),
        (&["nbd+unix:///?socket=/nonexistent/sock"], "/nonexistent/sock"),
        (&["nbds://localhost:10888/"], "TLS is not supported yet"),
    ];
    for (args, words) in cases {
        let finished = scan(args);
        assert_eq!(finished.code, Some(2), "{args:?}: {}", finished.stderr);
        assert!(finished.stderr.contains(words), "{args:?}: {}", finished.stderr);
        assert!(finished.stdout.is_empty(), "{args:?}: {}", finished.stdout);
    }
    assert_eq!(fs::read_to_string(kept).unwrap(), "mine");
    fs::write(place("disk.qcow2"), b"QFI\xfb and more").unwrap();
    let image = scan(&[&place("disk.qcow2")]);
    assert!(image.stdout.contains("is a qcow2 image"), "{}", image.stdout);
}

#[test]
fn an_interrupted_full_read_reports_the_read_part() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = image(folder.path());
    let mut command = Command::new(PUMICE);
    command.args(["scan", "--all", "--threads", "1", "--rate-limit", "2M"]).arg(&image);
    let mut child = spawn(&mut command);
    let read_bytes = || {
        let io = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap_or_default();
        io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse::<u64>().ok()).unwrap_or(0)
    };
    wait_until("some of it is read", || read_bytes() > 2 << 20);
    run_ok(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let mut out = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut out).expect("output");
    assert_eq!(wait(&mut child, COMMAND_LIMIT).expect("it ends soon").code(), Some(130));
    let text = out.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in ["% that were read", "not a random sample", "Interrupted: all figures"] {
        assert!(text.contains(words), "no '{words}' in {out}");
    }
    for words in ["Yes", "exact", "pumice create"] {
        assert!(!text.contains(words), "'{words}' in {out}");
    }
}

/// Checks that every key of the result is described.
#[test]
fn the_result_is_documented() {
    let folder = tempfile::tempdir().expect("a folder");
    let of =
        json(&[&image(folder.path()).display().to_string(), "--codec", "liblz4", "--codec", "lz4"]);
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/scan.md"));
    let page = page.expect("the page");
    let section = page.split("## The result as JSON").nth(1).expect("a section");
    for key in of.as_object().expect("an object").keys() {
        assert!(section.contains(&format!("`{key}`")), "docs/scan.md does not describe {key}");
    }
    for key in of["configs"][0]["drive"].as_object().expect("an object").keys() {
        assert!(section.contains(&format!("`{key}`")), "docs/scan.md does not describe {key}");
    }
    assert_eq!(of["format"], 1);
    let codecs: Vec<_> =
        of["configs"].as_array().unwrap().iter().map(|it| &it["config"]["codec"]).collect();
    assert_eq!(codecs, ["liblz4", "liblz4", "lz4", "lz4"]);
    // The two implementations differ, and a drive uses one of them.
    let (theirs, ours) = (stored(&of, 0, "codec"), stored(&of, 2, "codec"));
    assert!(theirs != ours && (theirs - ours).abs() < 0.02, "{theirs} {ours}");
    assert_eq!(of["create"]["codec"], "lz4");
}

#[test]
fn an_interrupt_shows_the_results_so_far() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = image(folder.path());
    let partial = folder.path().join("partial.json");
    // At 1 MiB a second it would take most of a minute.
    let mut command = Command::new(PUMICE);
    command.args(["scan", "--samples", "5000", "--chunk", "4K", "--rate-limit", "1M", "--json"]);
    command.arg("--partial").arg(&partial).arg(&image);
    let mut child = spawn(&mut command);
    let read_bytes = || {
        let io = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap_or_default();
        io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse::<u64>().ok()).unwrap_or(0)
    };
    wait_until("more than a round is read", || read_bytes() > 4 << 20);
    run_ok(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let mut out = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut out).expect("output");
    let ended = wait(&mut child, COMMAND_LIMIT).expect("it ends soon");
    assert_eq!(ended.code(), Some(130));
    let of: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(of["is_complete"], false);
    assert!(of["draws"].as_u64().unwrap().is_multiple_of(512), "{}", of["draws"]);
    let again = scan(&["merge", &partial.display().to_string()]);
    assert!(again.stderr.contains("was interrupted"), "{}", again.stderr);
}

#[test]
fn times_of_access_stay() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("data");
    fs::write(&file, vec![1; 1 << 20]).unwrap();
    // Older than the modification time: then relatime would update the access time.
    run_ok(Command::new("touch").args(["-a", "-d", "2001-01-01"]).arg(&file));
    let accessed = || fs::metadata(&file).unwrap().accessed().unwrap();
    let before = accessed();
    json(&[&folder.path().display().to_string(), "--all"]);
    assert_eq!(accessed(), before);
}

/// Bytes of noise and of a device that holds them in a file system.
const NOISE_BYTES: usize = 72 << 20;
const DEVICE_BYTES: u64 = 192 << 20;

#[test]
fn a_block_device_is_scanned() {
    let Some(mkfs) = tool("mkfs.ext4") else { return };
    let Some(device) = LoopDevice::new(DEVICE_BYTES) else { return };
    let folder = tempfile::tempdir().expect("a folder");
    for number in 0..9 {
        let mut noise = vec![0; NOISE_BYTES / 9];
        fs::File::open("/dev/urandom").unwrap().read_exact(&mut noise).expect("noise");
        fs::write(folder.path().join(format!("noise-{number}")), noise).expect("written");
    }
    fs::write(folder.path().join("same"), vec![b'x'; 24 << 20]).expect("written");
    run_ok(Command::new(mkfs).arg("-q").arg("-d").arg(folder.path()).arg(device.path()));
    let shown = device.path().display().to_string();
    let exact = json(&[&shown, "--all"]);
    assert_eq!(exact["bytes"].as_u64(), Some(DEVICE_BYTES));
    // Noise with its headers; the rest is only the file system's own blocks.
    let noise = NOISE_BYTES as f64 / DEVICE_BYTES as f64;
    let truth = stored(&exact, 1, "drive");
    assert!((noise..noise + 0.01).contains(&truth), "{truth} for {noise}");
    let drawn = json(&[&shown, "--error", "2", "--samples", "6000", "--chunk", "4K"]);
    assert_eq!(drawn["is_exact"], false);
    let of = &drawn["configs"][0]["drive"];
    let end = |name: &str| of[name].as_f64().expect("a number");
    let (low, high, truth) = (end("stored_low"), end("stored_high"), stored(&exact, 0, "drive"));
    assert!(low <= truth && truth <= high && high - low < 0.08, "{truth} in {low} to {high}");
    assert!(drawn["bytes_read"].as_u64().unwrap() < DEVICE_BYTES / 4, "{drawn}");
}

#[test]
fn a_device_without_permission_is_said() {
    let Some(setpriv) = tool("setpriv") else { return };
    let Some(device) = LoopDevice::new(1 << 20) else { return };
    // The folder of the program may be closed to other users.
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("open to all");
    let program = folder.path().join("pumice");
    fs::copy(PUMICE, &program).expect("a copy");
    let mut command = Command::new(setpriv);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    let finished = run(command.arg("scan").arg(device.path()), COMMAND_LIMIT);
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    for words in [device.path().to_str().unwrap(), "scan it as root", "Permission denied"] {
        assert!(finished.stderr.contains(words), "no '{words}' in {}", finished.stderr);
    }
}

#[test]
fn others_come_first_unless_told_otherwise() {
    let Some(ionice) = tool("ionice") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let image = image(folder.path());
    let niceness = |stat: String| {
        // The name may have blanks; after it the niceness is the 17th.
        let niceness = stat.rsplit_once(')').expect("a name").1.split_whitespace().nth(16);
        niceness.expect("a niceness").to_owned()
    };
    let own = niceness(fs::read_to_string("/proc/self/stat").expect("this process"));
    for (flags, idle, nice) in [(&[][..], true, "19"), (&["--full-speed"], false, &*own)] {
        let mut command = Command::new(PUMICE);
        command
            .args(["scan", "--all", "--threads", "2", "--rate-limit", "1M"])
            .args(flags)
            .arg(&image);
        let mut child = spawn(&mut command);
        let tasks = format!("/proc/{}/task", child.id());
        let ids = || -> Vec<String> {
            let entries = fs::read_dir(&tasks).into_iter().flatten().flatten();
            entries.map(|entry| entry.file_name().into_string().expect("a number")).collect()
        };
        let read_bytes = || {
            let io = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap_or_default();
            io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok()).unwrap_or(0)
        };
        wait_until("threads read", || read_bytes() > 1 << 20 && ids().len() > 2);
        for id in ids() {
            let class = run_ok(Command::new(&ionice).args(["-p", &id])).stdout;
            assert_eq!(class.contains("idle"), idle, "{id}: {class}");
            let stat = fs::read_to_string(format!("{tasks}/{id}/stat")).expect("a thread");
            assert_eq!(niceness(stat), nice);
        }
        run_ok(Command::new("kill").args(["-INT", &child.id().to_string()]));
        wait(&mut child, COMMAND_LIMIT).expect("it ends soon");
    }
}

#[test]
fn a_drive_on_a_medium_is_forecast() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = image(folder.path()).display().to_string();
    let page = folder.path().join("page.html");
    let args = [&*image, "--all", "--medium", "10MB"];
    let of = json(&args);
    let main = of["main"].as_u64().unwrap() as usize;
    let on = &of["on_medium"];
    let speed = |name: &str| on[name]["is"].as_f64().expect("a number");
    let expected = 10.0 / (stored(&of, main, "drive") + 0.009);
    assert!((speed("drive_mb_per_s") / expected - 1.0).abs() < 1e-6, "{on} for {expected}");
    assert_eq!((&on["bound"], &on["medium"]["is_measured"]), (&"medium".into(), &false.into()));
    let finished = scan(&[&args[..], &["--html", page.to_str().unwrap()]].concat());
    let words = format!("sequentially at {expected:.0} MB/s");
    let text = finished.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains(&words), "no '{words}' in {text}");
    assert!(fs::read_to_string(page).expect("the page").contains(&words));
    // Measured in the image's folder, where nothing else is left afterwards.
    let place = folder.path().display().to_string();
    let measured = json(&[&image, "--all", "--medium", &place]);
    assert_eq!(measured["on_medium"]["medium"]["is_measured"], true);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    let wrong = scan(&[&image, "--medium", "fast"]);
    assert!(wrong.code == Some(2) && wrong.stderr.contains("such as 530M"), "{}", wrong.stderr);
}

/// Guards against a scan that cannot be interrupted while a remote server lists its data.
#[test]
fn the_map_of_an_export_is_interrupted() {
    let Some(nbdkit) = tool("nbdkit") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (socket, log) = (folder.path().join("socket"), folder.path().join("log"));
    let mut command = Command::new(&nbdkit);
    command.args(["--foreground", "--exit-with-parent", "--filter=log", "--filter=delay"]);
    command.arg("--unix").arg(&socket).args(["memory", "16T", "delay-extents=20ms"]);
    let server = Server::start(command.arg(format!("logfile={}", log.display())), socket);
    let mut child = spawn(Command::new(PUMICE).arg("scan").arg(server.uri()));
    let asked = || fs::read_to_string(&log).is_ok_and(|text| text.contains(" Extents id="));
    wait_until("the map is asked for", asked);
    kill_process(Pid::from_child(&child), Signal::INT).expect("a child");
    let status = wait(&mut child, Duration::from_secs(5)).expect("an end after one signal");
    assert_eq!(status.code(), Some(130));
    let mut said = String::new();
    child.stderr.take().expect("stderr is piped").read_to_string(&mut said).expect("text");
    assert!(said.contains("interrupted before anything was read"), "{said}");
    server.kill();
}
