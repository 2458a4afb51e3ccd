//! Goal: the Debian package can be built: all that Cargo.toml says goes into it is there or is
//! written by `make package-files`, and lies where the unit and the documents say.
//!
//! Method: the metadata as TOML, the rule of the Makefile run with the built program. Whether dpkg
//! and lintian take the package is tried by hand (docs/operate.md).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{PUMICE, run_ok, tool};

/// What `make package-files` writes, as the manifest names it: from the crate's folder.
const WRITTEN: &str = "../../target/package/";

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The folder of the manifest, to which its paths are relative.
fn package() -> PathBuf {
    root().join("crates/pumice")
}

fn metadata() -> toml::Table {
    let manifest = fs::read_to_string(package().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    manifest["package"]["metadata"]["deb"].as_table().expect("a table").clone()
}

/// What goes where: source and target.
fn assets(metadata: &toml::Table) -> Vec<(String, String)> {
    let text = |value: &toml::Value| value.as_str().expect("a text").to_owned();
    let assets = metadata["assets"].as_array().expect("a list");
    assets.iter().map(|asset| (text(&asset[0]), text(&asset[1]))).collect()
}

/// The files that a source with a star stands for.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().unwrap().to_str().unwrap();
    let Some((start, end)) = name.split_once('*') else {
        return pattern.is_file().then(|| pattern.to_owned()).into_iter().collect();
    };
    let Ok(entries) = fs::read_dir(pattern.parent().unwrap()) else { return Vec::new() };
    let files = entries.map(|entry| entry.unwrap().path());
    let is_meant = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(start) && name.ends_with(end)
    };
    files.filter(is_meant).collect()
}

#[test]
fn everything_in_the_package_is_there_or_is_written() {
    let Some(make) = tool("make") else { return };
    let folder = tempfile::tempdir().unwrap();
    let written = folder.path().join("package");
    let mut command = Command::new(make);
    command.args(["--silent", "package-files"]).arg(format!("PUMICE={PUMICE}"));
    run_ok(command.arg(format!("PACKAGE_FILES={}", written.display())).current_dir(root()));

    let metadata = metadata();
    let place = |source: &str| match source.strip_prefix(WRITTEN) {
        Some(name) => written.join(name),
        None => package().join(source),
    };
    let mut used = Vec::new();
    for (source, _) in assets(&metadata) {
        if source == "target/release/pumice" {
            continue;
        }
        let files = matching(&place(&source));
        assert!(!files.is_empty(), "{source} is not there");
        used.extend(files);
    }
    let copyright =
        fs::read_to_string(package().join(metadata["license-file"][0].as_str().unwrap()));
    assert!(copyright.expect("a file").contains("License: Expat or Apache-2.0"));
    let changelog = place(metadata["changelog"].as_str().unwrap());
    let text = fs::read_to_string(&changelog).unwrap();
    let first = format!("pumice ({}-1) unstable; urgency=medium", env!("CARGO_PKG_VERSION"));
    assert_eq!(text.lines().next(), Some(first.as_str()), "{text}");
    let signed = format!("\n -- {}  ", metadata["maintainer"].as_str().unwrap());
    assert!(text.contains(&signed), "{text}");
    used.push(changelog);

    let of = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let all: Vec<PathBuf> = of(&written).chain(of(&written.join("man"))).collect();
    let unused: Vec<&PathBuf> =
        all.iter().filter(|path| path.is_file() && !used.contains(path)).collect();
    assert!(unused.is_empty(), "written and not packed: {unused:?}");
}

#[test]
fn the_units_find_what_is_installed() {
    let metadata = metadata();
    let assets = assets(&metadata);
    let goes_to = |source: &str| {
        let found = assets.iter().find(|(from, _)| from.ends_with(source));
        let (from, to) = found.unwrap_or_else(|| panic!("no {source}"));
        let name = from.rsplit('/').next().unwrap();
        if to.ends_with('/') { format!("/{to}{name}") } else { format!("/{to}") }
    };
    assert_eq!(goes_to("pumice@.*"), "/usr/lib/systemd/system/pumice@.*");
    let dist = root().join("dist");
    assert_eq!(matching(&dist.join("pumice@.*")).len(), 2, "service and socket");
    let service = fs::read_to_string(dist.join("pumice@.service")).unwrap();
    let start = format!("ExecStart={} serve --config /etc/pumice/%i.toml\n", goes_to("pumice"));
    assert!(service.contains(&start), "{service}");
    assert_eq!(goes_to("man/*.1"), "/usr/share/man/man1/*.1", "man:pumice-serve(1)");
    let operate = fs::read_to_string(root().join("docs/operate.md")).unwrap();
    for path in [goes_to("example.toml"), goes_to("grafana-pumice.json")] {
        assert!(operate.contains(&path), "docs/operate.md does not name {path}");
    }
}
