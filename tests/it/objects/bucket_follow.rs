//! Goal: a follower of a drive in a bucket shows the commits of the writing machine: each request
//! reads the state of one moment, never older than the previous one. It writes nothing to the
//! bucket.
//! Method: the store of `bucket`, a writer, and a follower whose one client repeatedly reads a
//! region in one request (`fixtures/follow.py`), while the writer overwrites the region and
//! unlinked objects are deleted; the follower killed and started again.

use std::process::Command;

use crate::harness::{COMMAND_LIMIT, fixture, python_with_libnbd, run, run_ok, tool};
use crate::objects::bucket::{BUCKET, Store};

/// Versions that are written while a client follows. Each takes a commit or two.
const VERSIONS: &str = "12";

#[test]
fn a_follower_shows_the_commits_of_another_machine() {
    let (Some(python), Some(store)) = (python_with_libnbd(), Store::start()) else { return };
    let Some(io) = tool("qemu-io") else { return };
    let client = |what: &str, uri: &str, number: &str| {
        let mut command = Command::new(&python);
        command.arg(fixture("follow.py")).args([what, uri, number]);
        command
    };
    let place = format!("s3://{BUCKET}/seven");
    store.create("seven", "first");
    let writer = store.serve("first", &[]);
    run_ok(&mut client("write", &writer.uri(), "1"));
    store.until_committed("first");
    let follower = store.serve(&place, &["--follow=1"]);
    run_ok(&mut client("read", &follower.uri(), "1"));
    // The reader keeps its connection while new versions appear and the objects of its version are
    // deleted.
    let mut read = client("read", &follower.uri(), VERSIONS);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| run(&mut read, COMMAND_LIMIT));
        run_ok(&mut client("write", &writer.uri(), VERSIONS));
        let read = reading.join().expect("the reader");
        assert_eq!(read.code, Some(0), "{read:#?}");
        let images = read.stdout.split(' ').next().and_then(|text| text.parse::<u32>().ok());
        assert!(images > Some(1), "it has moved on meanwhile: {read:#?}");
    });
    follower.kill();
    writer.stop();
    // There is no other writer now.
    let objects = || {
        let listed = store.ask(&format!("GET /{BUCKET}?list-type=2&prefix=seven/"));
        listed.split("<Contents>").skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let before = objects();
    assert!(before.len() > 5, "{before:?}");
    let follower = store.serve(&place, &["--follow"]);
    run_ok(&mut client("read", &follower.uri(), VERSIONS));
    let mut write = Command::new(&io);
    write.args(["-f", "raw", "-c", "write -P 9 0 4k", &follower.uri()]);
    assert_ne!(run(&mut write, COMMAND_LIMIT).code, Some(0), "a follower is read-only");
    follower.stop();
    assert_eq!(objects(), before, "a follower writes nothing");
    // The follower has claimed nothing either: the writer continues.
    let writer = store.serve("first", &[]);
    run_ok(&mut client("read", &writer.uri(), VERSIONS));
    writer.stop();
}

#[test]
fn only_drives_in_buckets_are_followed() {
    let Some(store) = Store::start() else { return };
    let refused = store.pumice(&["serve", "--follow", "drive.pumice"]);
    assert_eq!(refused.code, Some(2), "{refused:#?}");
    assert!(refused.stderr.contains("--follow is for a drive at s3://"), "{refused:#?}");
    let snapshot = format!("s3://{BUCKET}/seven@one");
    let refused = store.pumice(&["serve", "--follow", &snapshot]);
    assert!(refused.stderr.contains("a snapshot does not change"), "{refused:#?}");
}
