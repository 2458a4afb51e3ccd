//! Goal: `pumice forecast` predicts the performance of a drive, for people and for programs, and
//! every error message has a remedy.
//! Method: a small drive of the benchmark's own tests, and typical commands of a user.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::harness::{COMMAND_LIMIT, Finished, PUMICE, pumice, run};

const PROFILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../crates/pumice-bench/src/forecast/samples/small.toml"
);

fn forecast(args: &[&str]) -> Finished {
    pumice(&[&["forecast", "--profile", PROFILE], args].concat())
}

fn json(args: &[&str]) -> Value {
    let finished = forecast(&[args, &["--json"]].concat());
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    serde_json::from_str(&finished.stdout).expect("JSON")
}

#[test]
fn people_and_programs_get_the_same_figures() {
    let args = ["--workload", "random-write", "--saved", "50%", "--gb-per-day", "5"];
    let finished = forecast(&args);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let text = finished.stdout;
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let of = json(&args);
    let test = &of["tests"][0];
    let (drive, plain) = (&test["drive"], &test["uncompressed"]);
    let figure = |of: &Value, name: &str| of[name]["all"].as_f64().expect("a number");
    let [drive_wa, plain_wa] = [drive, plain].map(|it| figure(it, "write_amplification"));
    assert!(drive_wa < 0.4 * plain_wa, "{drive_wa} and {plain_wa}");
    let line = text.lines().find(|line| line.trim().starts_with("write amplification")).unwrap();
    for number in [drive_wa, plain_wa] {
        assert!(line.contains(&format!("{number:.3}")), "{number} in {line}");
    }
    assert!(text.contains("steady") && drive["endurance"]["years"].as_f64().unwrap() > 0.1);
    assert_eq!(of["stored_fraction"], 0.5);
    assert_eq!(json(&args), of, "the same again");
}

#[test]
fn data_is_measured_and_reports_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    fs::write(&data, vec![7; 1 << 20]).expect("written");
    let (data, page) = (data.display().to_string(), folder.path().join("page.html"));
    let shown = page.display().to_string();
    let args =
        ["--workload", "rewrite", "--data", &data, "--state", "new", "--html", &shown, "--json"];
    let finished = forecast(&args);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let of: Value = serde_json::from_str(&finished.stdout).expect("JSON");
    assert_eq!(of["saved_percent"], Value::Null, "of the data, not of the forecast");
    assert_eq!(of["data"]["saved_percent"], 100.0);
    let floor = of["stored_fraction"].as_f64().unwrap();
    assert!((floor - 0.09).abs() < 1e-3, "the drive's floor: {floor}");
    assert!(fs::read_to_string(&page).expect("a page").contains("<svg"));
    assert_eq!(forecast(&args).code, Some(2), "the page is there already");
}

#[test]
fn traces_and_jobs_are_workloads() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let trace = file("t.csv", "128166372003061629,hm,1,Write,0,8192,5\n");
    let of = json(&["--workload", &trace, "--saved", "0%", "--state", "new"]);
    assert_eq!(of["tests"][0]["drive"]["host_bytes"], 8192);
    let job = |line: &str| {
        let text = format!("[a job]\nrw=randread\nruntime=1\nnorandommap\n{line}\n");
        file("job.fio", &text)
    };
    let refused = forecast(&["--workload", &job("rate=1m"), "--saved", "0%"]);
    assert!(refused.code == Some(2) && refused.stderr.contains("rate=1m"), "{}", refused.stderr);
    let job = job("iodepth=4");
    let finished = forecast(&["--workload", &job, "--saved", "0%", "--state", "filled"]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(finished.stdout.contains("a job") && finished.stdout.contains("iodepth=4 becomes 1"));
}

#[test]
fn mistakes_are_explained() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = folder.path().join("t.csv");
    fs::write(&trace, "128166372003061629,hm,1,Write,99999999999999,8192,5\nbroken\n").unwrap();
    let trace = trace.display().to_string();
    let simple = ["--workload", "random-write", "--saved"];
    for (args, words) in [
        (vec!["--workload", "random-write"], &["compresses", "--saved"][..]),
        ([&simple[..], &["0.5"]].concat(), &["saved, stored or a ratio", "50%"]),
        (vec!["--workload", "random-wirte", "--saved", "5%"], &["did you mean random-write?"]),
        (vec!["--workload", PROFILE, "--saved", "5%"], &["unknown key"]),
        (vec!["--workload", PUMICE, "--saved", "5%"], &["--format", "blkparse"]),
        ([&simple[..], &["5%", "--fold"]].concat(), &["--fold", "remove it"]),
        ([&simple[..], &["5%", "--span", "1T"]].concat(), &["beyond the drive", "smaller"]),
        ([&simple[..], &["5%", "--state", "old"]].concat(), &["new, filled, steady or used"]),
        ([&simple[..], &["5%", "--gb-per-day", "-1"]].concat(), &["such as 20"]),
        ([&simple[..], &["5%", "--data", "x"]].concat(), &["cannot be used with"]),
        ([&simple[..], &["5%", "--full-size", "--scaled", "1G"]].concat(), &["cannot be used"]),
        ([&simple[..], &["5%", "--over-provisioning", "x"]].concat(), &["percentage"]),
        ([&simple[..], &["0%", "--over-provisioning", "0.1"]].concat(), &["has room for"]),
        (vec!["--workload", &trace, "--saved", "5%"], &["line 1", "--fold"]),
        (vec!["--workload", &trace, "--saved", "5%", "--fold"], &["line 2", "columns"]),
        (vec!["--workload", &trace, "--saved", "5%", "--format", "x"], &["msr, mqsim"]),
    ] {
        let finished = forecast(&args);
        assert_eq!(finished.code, Some(2), "{args:?}: {}", finished.stdout);
        for word in words {
            assert!(finished.stderr.contains(word), "{args:?}: {}", finished.stderr);
        }
        assert_eq!(finished.stderr.lines().count(), 1, "{args:?}: {}", finished.stderr);
    }
    let mut other = Command::new(PUMICE);
    other.args(["forecast", "--profile", "hdd-2010", "--workload", "write", "--saved", "5%"]);
    let finished = run(other.args(["--scaled", "1G"]), COMMAND_LIMIT);
    assert_eq!(finished.code, Some(2));
    assert!(
        finished.stderr.contains("--scaled is for profiles of kind \"log\" only"),
        "{}",
        finished.stderr
    );
}

/// Guards against requiring a saving, which is meaningless for a drive without a codec.
#[test]
fn a_drive_that_does_not_compress_needs_no_saving() {
    let common = ["forecast", "--workload", "rewrite", "--state", "new", "--span", "16M"];
    let finished = pumice(&[&common[..], &["--profile", "hdd-2010"]].concat());
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert!(finished.stdout.contains("MB/s"), "{}", finished.stdout);
}

/// A grid of both lists, with charts; a list of one is a simple forecast.
#[test]
fn lists_become_a_grid() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.html").display().to_string();
    let book = folder.path().join("book.xlsx").display().to_string();
    let list = folder.path().join("list.csv").display().to_string();
    let simple = ["--workload", "random-write", "--over-provisioning", "15,30%"];
    let data = ["--saved", "0%,25%", "--saved", "50%"];
    let files = ["--html", &page, "--xlsx", &book, "--csv", &list];
    let of = json(&[&simple[..], &data, &files].concat());
    let forecasts = of["forecasts"].as_array().expect("forecasts");
    let over = |it: &Value| it["over_provisioning_percent"].as_f64().expect("a number").round();
    let saved = |it: &Value| it["data"]["saved_percent"].as_f64().expect("a number");
    let places: Vec<_> = forecasts.iter().map(|it| (over(it), saved(it))).collect();
    let row = |over: f64| [0.0, 25.0, 50.0].map(|saved| (over, saved));
    assert_eq!(places, [row(15.0), row(30.0)].concat());
    let html = fs::read_to_string(&page).expect("a page");
    assert_eq!(html.matches("<figure").count(), 3, "three charts");
    assert!(fs::metadata(&book).expect("a workbook").len() > 5000);
    assert_eq!(fs::read_to_string(&list).expect("a list").lines().count(), 7);
    let one = json(&["--workload", "write", "--over-provisioning", "30", "--saved", "50%"]);
    assert!(one["forecasts"].is_null() && one["tests"][0]["uncompressed"].is_object(), "{one}");
}

#[test]
fn large_drives_are_scaled_unless_all_is_asked_for() {
    let with = |more: &[&str]| {
        let args = ["forecast", "--profile", "micro-center-64", "--workload", "random-read"];
        let finished = pumice(&[&args[..], &["--saved", "5%", "--state", "new"], more].concat());
        assert_eq!(finished.code, Some(0), "{}", finished.stderr);
        finished.stdout
    };
    let simulated = |text: &str| {
        let of: Value = serde_json::from_str(text).expect("JSON");
        (of["simulated_bytes"].as_u64().expect("bytes"), of["size_bytes"].as_u64().expect("bytes"))
    };
    let size = 60_022_480_896;
    let (small, whole) = simulated(&with(&["--json"]));
    assert!(small.abs_diff(4 << 30) < 64 << 20 && whole == size, "{small} of {whole}");
    assert_eq!(simulated(&with(&["--json", "--full-size"])), (size / 4096 * 4096, size));
    assert!(
        with(&[]).contains("Scaled down: a drive of 4.")
            && !with(&["--full-size"]).contains("Scaled")
    );
}

#[test]
fn a_hard_disk_has_speed_and_no_endurance() {
    let args = ["forecast", "--profile", "hdd-2010", "--workload", "random-read", "--saved", "0%"];
    let text = pumice(&args).stdout;
    assert!(text.contains("read latency, mean") && text.contains("wear or endurance"), "{text}");
    assert!(!text.contains("endurance  ") && !text.contains("Scaled down"), "{text}");
    let of: Value =
        serde_json::from_str(&pumice(&[&args[..], &["--json"]].concat()).stdout).expect("JSON");
    let drive = &of["tests"][0]["drive"];
    assert!(drive["endurance"].is_null() && drive["wear"].is_null(), "{drive}");
    assert!(drive["all"]["iops"].as_f64().expect("a number") > 50.0, "{drive}");
}
