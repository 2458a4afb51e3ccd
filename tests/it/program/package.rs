//! Goal: the Debian package can be built: every file that Cargo.toml lists exists or is written by
//! `make package-files`, and is installed at the path that the unit and the documents name.
//!
//! Method: the metadata as TOML, the rule of the Makefile run with the built program. Acceptance by
//! dpkg and lintian is tested by hand (docs/operate.md).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{COMMAND_LIMIT, PUMICE, run_ok, tool};

/// The folder that `make package-files` writes, as named in the manifest, relative to the crate's
/// folder.
const WRITTEN: &str = "../../target/package/";

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the folder of the manifest, to which its paths are relative.
fn package() -> PathBuf {
    root().join("crates/pumice")
}

fn metadata() -> toml::Table {
    let manifest = fs::read_to_string(package().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    manifest["package"]["metadata"]["deb"].as_table().expect("a table").clone()
}

/// Returns the source and the target of each file.
fn assets(metadata: &toml::Table) -> Vec<(String, String)> {
    let text = |value: &toml::Value| value.as_str().expect("a text").to_owned();
    let assets = metadata["assets"].as_array().expect("a list");
    assets.iter().map(|asset| (text(&asset[0]), text(&asset[1]))).collect()
}

/// Returns the files that match a source with a star.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().unwrap().to_str().unwrap();
    let Some((start, end)) = name.split_once('*') else {
        // A link to an installed file leads nowhere before the installation.
        let exists = pattern.is_file() || pattern.is_symlink();
        return exists.then(|| pattern.to_owned()).into_iter().collect();
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
        all.iter().filter(|path| !path.is_dir() && !used.contains(path)).collect();
    assert!(unused.is_empty(), "written and not packed: {unused:?}");
}

#[test]
fn the_units_find_the_installed_files() {
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
    let service = fs::read_to_string(dist.join("pumice-attach@.service")).unwrap();
    let start = format!("{} attach --step serve --config /etc/pumice/%i.toml\n", goes_to("pumice"));
    assert!(service.contains(&start), "{service}");
    // mount(8) searches only /sbin, which has a link to the program.
    assert_eq!(goes_to("/mount.pumice"), "/usr/sbin/mount.pumice");
    assert_eq!(goes_to("/umount.pumice"), "/usr/sbin/umount.pumice");
    assert_eq!(goes_to("man/*.1"), "/usr/share/man/man1/*.1", "man:pumice-serve(1)");
    let operate = fs::read_to_string(root().join("docs/operate.md")).unwrap();
    for name in ["example.toml", "example-attach.toml", "grafana-pumice.json"] {
        let path = goes_to(name);
        assert!(operate.contains(&path), "docs/operate.md does not name {path}");
    }
}

/// Returns the files below a folder, links included.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let is_folder = entry.file_type().unwrap().is_dir();
            if is_folder { &mut folders } else { &mut found }.push(entry.path());
        }
    }
    found
}

/// Guards against an installation that needs cargo, which root often lacks, and that leaves files
/// of root in the tree.
#[test]
fn the_build_is_installed_and_removed_again() {
    let Some(make) = tool("make") else { return };
    let folder = tempfile::tempdir().unwrap();
    let (built, installed) = (folder.path().join("package"), folder.path().join("installed"));
    let run = |target: &str| {
        let mut command = Command::new(&make);
        command.current_dir(root()).args(["--silent", target, "CARGO=false", "PREFIX=/opt/p"]);
        command.arg(format!("PUMICE={PUMICE}")).arg(format!("DESTDIR={}", installed.display()));
        command.arg(format!("PACKAGE_FILES={}", built.display()));
        crate::harness::run(&mut command, COMMAND_LIMIT)
    };
    let refused = run("install");
    assert!(refused.stderr.contains("run make build first"), "{refused:#?}");
    assert!(!installed.exists());
    for target in ["package-files", "install"] {
        let finished = run(target);
        assert_eq!(finished.code, Some(0), "{finished:#?}");
    }
    let program = installed.join("opt/p/bin/pumice");
    run_ok(Command::new(program).arg("--version"));
    for helper in ["mount.pumice", "umount.pumice"] {
        let link = fs::read_link(installed.join("sbin").join(helper)).unwrap();
        assert_eq!(link, Path::new("/opt/p/bin/pumice"));
    }
    let units = installed.join("opt/p/lib/systemd/system");
    assert!(units.join("pumice-rotate@.timer").is_file());
    let verbs = [
        ("pumice@.service", "serve"),
        ("pumice-attach@.service", "attach"),
        ("pumice-rotate@.service", "snapshot rotate"),
    ];
    for (unit, verb) in verbs {
        let unit = fs::read_to_string(units.join(unit)).unwrap();
        assert!(unit.contains(&format!("ExecStart=/opt/p/bin/pumice {verb} ")), "{unit}");
    }
    for name in ["man/man1/pumice-attach.1", "bash-completion/completions/pumice"] {
        assert!(installed.join("opt/p/share").join(name).is_file(), "{name}");
    }
    let finished = run("uninstall");
    assert_eq!(finished.code, Some(0), "{finished:#?}");
    assert!(files(&installed).is_empty(), "{:?}", files(&installed));
}
