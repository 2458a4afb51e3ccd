//! A snapshot for tests of code that shows one.

use std::rc::Rc;

use super::snapshot::HostStats;
use super::*;
use pumice_drive::controller::{Info, Overview};

/// A server with one drive that was written to.
pub(crate) fn snapshot(name: &str) -> Snapshot {
    let mut host = HostStats::default();
    host.write.bytes = 1000;
    host.write.latency.record(10_000);
    host.write.errors.push((pumice_drive::base::ErrorKind::NoSpace, 1));
    let mut info: Info = serde_json::from_value(info_json()).expect("an info");
    info.host_bytes = 1000;
    info.frame_bytes = 500;
    info.media_bytes = 600;
    let drive = DriveSnapshot {
        name: name.to_owned(),
        info,
        overview: Overview { live_bytes: 1, free_bytes: 2, ..Overview::default() },
        host,
        rated_write_bytes: Some(6000),
        bucket_cost: None,
        media_bytes_at_start: 100,
    };
    let validity = Validity { file: "server-cert.pem".into(), from_s: 1, until_s: 2 };
    let connections = Connections {
        open: 1,
        accepted: 2,
        refused: 4,
        refused_requests: 3,
        validities: vec![validity],
    };
    let drives = vec![drive];
    Snapshot { version: "1.2.3".into(), now_ns: 5_000_000_000, taken_ns: 9, connections, drives }
}

fn info_json() -> serde_json::Value {
    use pumice_drive::controller::{Drive, OpenOptions, Spec, create};
    use pumice_drive::media::mem::MemMedium;
    use pumice_drive::runtime::Runtime;
    let runtime = Runtime::simulated();
    let spec = Spec { segment_bytes: 4 << 20, ..Spec::new(uuid::Uuid::from_u128(7), 1 << 20) };
    let medium = MemMedium::new(spec.geometry().expect("a geometry").medium_bytes());
    runtime.block_on(async {
        create(&medium, &spec).await.expect("a drive");
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let drive = Drive::open(Rc::new(medium), runtime.clock(), options).await.expect("it opens");
        serde_json::to_value(drive.info()).expect("info serializes")
    })
}

#[test]
fn a_snapshot_survives_the_way() {
    let sent = snapshot("d");
    let line = serde_json::to_string(&sent).expect("it serializes");
    assert_eq!(serde_json::from_str::<Snapshot>(&line).expect("it is read"), sent);
}
