//! Goal: every built-in profile is possible and states the basis of each of its numbers; every
//! mistake in a file is reported; no file can cause a panic. Method: calculated figures are
//! compared with published figures calculated by hand; each mistake is made in an otherwise valid
//! file.

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value as Json;

use super::parse::FILE_BYTES_MAX;
use super::*;
use pumice_drive::base::{ErrorKind, chain};

/// A log-structured drive with every possible key.
const LOG: &str = r#"
name = "A drive"
about = "For tests."
year = 2010
kind = "log"
size_bytes = { is = 60_022_480_896, guess = "x" }
[link]
read_bytes_per_s = { is = 280_000_000, source = "x" }
write_bytes_per_s = { is = 270_000_000, source = "x" }
command_ns = { is = 5000, guess = "x" }
depth = { is = 32, source = "x" }
request_bytes_max = { is = 131_072, source = "x" }
[controller]
read_ns = { is = 30_000, source = "x" }
write_ns = { is = 20_000, source = "x" }
codec = { is = "lz4", guess = "x" }
stored_min = { is = 0.14, fitted = "x" }
unit_blocks = { is = 8, guess = "x" }
engine_bytes_per_s = { is = 300_000_000, guess = "x" }
store_bytes_per_s = { is = 155_000_000, guess = "x" }
cap_write_per_s = { is = 11_000, guess = "x" }
buffer_bytes = { is = 524_288, guess = "x" }
[flash]
channels = { is = 8, guess = "x" }
dies_per_channel = { is = 2, guess = "x" }
planes = { is = 2, guess = "x" }
blocks_per_plane = { is = 2048, guess = "x" }
pages_per_block = { is = 256, guess = "x" }
page_bytes = { is = 4096, guess = "x" }
read_ns = { is = 50_000, guess = "x" }
program_ns = { is = 900_000, guess = "x" }
erase_ns = { is = 2_000_000, guess = "x" }
bus_bytes_per_s = { is = 50_000_000, guess = "x" }
cache_program = { is = false, guess = "x" }
multi_plane = { is = true, guess = "x" }
overhead_percent = { is = 14, guess = "x" }
pe_cycles = { is = 5000, guess = "x" }
bad_block_percent = { is = 2, guess = "x" }
"#;

const PARITY: &str = r#"
[parity]
stripe_dies = { is = 16, guess = "x" }
"#;

const MAPPING: &str = r#"
[mapping]
unit_bytes = { is = 524_288, guess = "x" }
log_blocks = { is = 4, guess = "x" }
"#;

/// The section that a disk has in place of the flash section.
const DISK_SECTION: &str = r#"
[disk]
rpm = { is = 7200, guess = "x" }
seek_track_ns = { is = 1_000_000, guess = "x" }
seek_average_ns = { is = 9_000_000, guess = "x" }
seek_full_ns = { is = 20_000_000, guess = "x" }
outer_bytes_per_s = { is = 120_000_000, guess = "x" }
inner_bytes_per_s = { is = 60_000_000, guess = "x" }
cache_bytes = { is = 16_777_216, guess = "x" }
ncq = { is = true, guess = "x" }
reorder_max = { is = 4, guess = "x" }
"#;

/// Keys that are valid only for a drive that compresses.
const OF_CODECS: [&str; 3] = ["codec", "stored_min", "engine_bytes_per_s"];

fn block_mapped() -> String {
    let keys = OF_CODECS.into_iter().chain(["unit_blocks"]);
    let text = keys.fold(LOG.to_owned(), |text, key| without(&text, key));
    text.replace("\"log\"", "\"block-mapped\"") + MAPPING
}

fn disk() -> String {
    let of_flash = ["unit_blocks", "store_bytes_per_s", "cap_write_per_s", "buffer_bytes"];
    let flash_begins = LOG.find("[flash]").expect("a section");
    let keys = OF_CODECS.into_iter().chain(of_flash);
    let text = keys.fold(LOG[..flash_begins].to_owned(), |text, key| without(&text, key));
    text.replace("\"log\"", "\"disk\"") + DISK_SECTION
}

/// A disk with every possible key.
static DISK: LazyLock<String> = LazyLock::new(disk);

/// Returns `text` without the first line of this key.
fn without(text: &str, key: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(&format!("{key} ="))).expect(key);
    text.replacen(&format!("{line}\n"), "", 1)
}

/// Returns `text` with a different number in the last line of this key.
fn with(text: &str, key: &str, number: &str) -> String {
    let start = text.rfind(&format!("\n{key} =")).expect(key) + 1;
    let line = text[start..].lines().next().expect("a line");
    let basis = line.split_once(',').expect("a basis").1;
    text.replace(line, &format!("{key} = {{ is = {number},{basis}"))
}

fn parse(text: &str) -> std::result::Result<Profile, String> {
    Profile::parse(text, "own.toml").map_err(|error| chain(&error))
}

fn flash_figures(profile: &Profile) -> FlashFigures {
    match profile.figures() {
        Figures::Flash(figures) => figures,
        Figures::Disk(_) => panic!("{} has flash", profile.id),
    }
}

/// Collects the path of every object that has an `is`.
fn with_basis(json: &Json, path: &str, found: &mut Vec<String>) {
    let Json::Object(object) = json else { return };
    if object.contains_key("is") {
        let bases = ["source", "fitted", "guess"].map(|word| object.get(word));
        let said = bases.into_iter().flatten().filter_map(Json::as_str);
        assert_eq!(said.filter(|text| !text.trim().is_empty()).count(), 1, "{path}");
        assert_eq!(object.len(), 2, "{path}");
        found.push(path.to_owned());
    }
    for (key, value) in object {
        with_basis(value, &format!("{path}/{key}"), found);
    }
}

#[test]
fn every_profile_is_valid_and_names_its_sources() {
    for (id, _) in PROFILES {
        let profile = Profile::find(id).expect(id);
        assert_eq!(profile.id, id);
        let json = serde_json::to_value(&profile).expect("a profile serializes");
        let mut in_json = Vec::new();
        with_basis(&json, "", &mut in_json);
        let facts = profile.facts();
        let mut shown: Vec<String> = facts
            .iter()
            .map(|fact| match fact.section {
                "" => format!("/{}", fact.key),
                section => format!("/{section}/{}", fact.key),
            })
            .collect();
        shown.sort_unstable();
        in_json.sort_unstable();
        assert_eq!(shown, in_json, "{id}");
        assert!(facts.iter().all(|fact| !fact.shown().is_empty()), "{id}");
        let numbers = json.as_object().expect("an object").values();
        let bare: Vec<_> = numbers.filter(|value| value.is_number()).collect();
        assert_eq!(bare, [profile.year], "{id}: numbers without a basis");
        match profile.over_provisioning_percent() {
            Some(percent) => assert!((5.0..50.0).contains(&percent), "{id}: {percent} %"),
            None => assert_eq!(profile.kind(), "disk"),
        }
    }
}

#[test]
fn the_arithmetic_agrees_with_published_figures() {
    // 16 dies of 8192 B / (940 + 2 x 62) µs, including one for parity; 14 % of the rest is not
    // data; 64 GiB sold as 50 GB.
    let profile = Profile::find("ocz-vertex-2-50").expect("a profile");
    let figures = flash_figures(&profile);
    let close = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.005;
    assert!(close(figures.die_program_bytes_per_s, 7.7e6), "{figures:?}");
    assert!(close(figures.program_bytes_per_s, 123.2e6), "{figures:?}");
    assert!(close(figures.store_bytes_per_s, 99.31e6), "{figures:?}");
    assert_eq!((figures.dies, figures.flash_bytes), (16, 64 << 30));
    assert!(close(figures.over_provisioning_percent, 37.38), "{figures:?}");
    // 128 GiB sold as 100 GB, with a limit.
    let figures = flash_figures(&Profile::find("corsair-force-100").expect("a profile"));
    assert!(close(figures.over_provisioning_percent, 37.4), "{figures:?}");
    assert_eq!(figures.store_bytes_per_s, 145e6);
    // 20 dies of one plane: 4096 B / (940 + 82) µs; specified as 70 MB/s.
    let figures = flash_figures(&Profile::find("intel-x25-m-g1-80").expect("a profile"));
    assert!(close(figures.program_bytes_per_s, 80.16e6), "{figures:?}");
    assert!(close(figures.store_bytes_per_s, 70.5e6), "{figures:?}");
    // Four channels are the limit, not 32 dies.
    let figures = flash_figures(&Profile::find("indilinx-barefoot-120").expect("a profile"));
    assert_eq!(figures.read_bytes_per_s, 480e6);
    // The transfers of 4 x 13.7 µs are added to the 660 µs of programming: 16 x 64 KiB / 660 µs.
    let figures = flash_figures(&Profile::find("generic-nvme-tlc-1tb").expect("a profile"));
    assert!(close(figures.program_bytes_per_s, 1589e6), "{figures:?}");
    // 8.33 ms per revolution.
    let Figures::Disk(figures) = parse(&DISK).expect("a disk").figures() else { panic!("a disk") };
    assert!(close(figures.latency_average_ns, 4.1667e6), "{figures:?}");
    assert!(close(figures.access_per_s, 75.9), "{figures:?}");
}

#[test]
fn numbers_are_shown_as_people_say_them() {
    for (key, value, shown) in [
        ("size_bytes", 60_022_480_896.0, "60.02 GB"),
        ("size_bytes", 1_000_204_886_016.0, "1.00 TB"),
        ("page_bytes", 4096.0, "4 KiB"),
        ("cache_bytes", 16_777_216.0, "16 MiB"),
        ("request_bytes_max", 131_072.0, "128 KiB"),
        ("buffer_bytes", 524_289.0, "524.29 KB"),
        ("unit_bytes", 0.0, "0 B"),
        ("read_ns", 500.0, "500 ns"),
        ("read_ns", 28_571.0, "28.57 µs"),
        ("seek_average_ns", 8_900_000.0, "8.9 ms"),
        ("read_bytes_per_s", 280e6, "280 MB/s"),
        ("cap_write_per_s", 11_000.0, "11000 /s"),
        ("overhead_percent", 14.5, "14.5 %"),
        ("planes", 2.0, "2"),
    ] {
        assert_eq!(sections::quantity_text(key, value), shown, "{key}");
    }
}

#[test]
fn own_profiles_are_read() {
    let log = parse(LOG).expect("a drive");
    assert_eq!((log.id.as_str(), log.kind(), log.facts().len()), ("own", "log", 30));
    assert_eq!(log.controller.codec(), pumice_drive::codec::Codec::Lz4);
    assert_eq!((log.controller.unit_blocks(), log.controller.stored_min()), (8, 0.14));
    assert_eq!((log.parity(), log.parity_figures()), (None, None));
    let parity = parse(&format!("{LOG}{PARITY}")).expect("a drive");
    assert_eq!(parity.facts().len(), 31);
    assert_eq!(parity.clone().without_parity(), log);
    let (less, without) = (flash_figures(&parity), flash_figures(&log));
    // 64 GiB on 16 dies.
    let of = parity.parity_figures().expect("parity");
    assert_eq!((of.stripe_dies, of.parity_bytes, of.share_percent), (16, 4 << 30, 6.25));
    assert_eq!(of.store_bytes_per_s_without, without.store_bytes_per_s);
    assert!((less.store_bytes_per_s / without.store_bytes_per_s / 0.9375 - 1.0).abs() < 1e-9);
    assert!((of.over_provisioning_percent - (64.42451 / 60.02248 - 1.0) * 100.0).abs() < 0.001);
    assert_eq!(of.over_provisioning_percent_without, without.over_provisioning_percent);
    let mapped = parse(&block_mapped()).expect("a drive");
    assert_eq!((mapped.kind(), mapped.facts().len()), ("block-mapped", 28));
    assert_eq!(mapped.controller.stored_min(), 1.0);
    let disk = parse(&DISK).expect("a disk");
    assert_eq!((disk.kind(), disk.facts().len(), disk.flash()), ("disk", 17, None));
    assert_eq!(disk.over_provisioning_percent(), None);
    // The profile may also omit the codec.
    let none = with(&block_mapped(), "write_ns", "0");
    let none = none.replace("[flash]", "codec = { is = \"none\", source = \"x\" }\n[flash]");
    assert_eq!(
        parse(&none).map(|profile| profile.controller.codec()),
        Ok(pumice_drive::codec::Codec::None)
    );
}

#[test]
fn a_basis_is_one_and_says_something() {
    let line = "depth = { is = 32, source = \"x\" }";
    for (is, words) in [
        ("depth = 32", "line 11: invalid type: integer `32`"),
        ("depth = { is = 32 }", "line 11: the number has no basis"),
        ("depth = { is = 32, source = \" \" }", "line 11: source, fitted or guess is blank"),
        ("depth = { is = 32, source = \"x\", guess = \"y\" }", "line 11: the number has two bases"),
        ("depth = { is = 32, fitted = \"x\", guess = \"y\" }", "line 11: the number has two bases"),
        ("depth = { is = 32, sauce = \"x\" }", "line 11: unknown field `sauce`"),
        ("depth = { source = \"x\" }", "line 11: missing field `is`"),
        ("depth = { is = -1, source = \"x\" }", "line 11: invalid value: integer `-1`"),
        ("depth = { is = 1.5, source = \"x\" }", "line 11: invalid type: floating point"),
    ] {
        assert_eq!(LOG.matches(line).count(), 1);
        let error = parse(&LOG.replace(line, is)).expect_err(is);
        assert!(error.starts_with("own.toml, ") && error.contains(words), "{words}: {error}");
    }
}

/// The errors for impossible drives, each with a different number for one key.
const IMPOSSIBLE: [(&str, &str, &str); 31] = [
    ("size_bytes", "0", "size_bytes: 0 is not possible: expected 4096"),
    ("size_bytes", "9_000_000_000_000_000_000", "size_bytes: 9000000000000000000 is not possible"),
    ("size_bytes", "4097", "size_bytes: 4097 is not a multiple of 4096: round it down"),
    ("size_bytes", "68_719_476_736", "less than size_bytes, 68719476736: look at the geometry"),
    ("read_bytes_per_s", "0", "[link] read_bytes_per_s: 0 is not possible: expected 1 to"),
    ("depth", "0", "[link] depth: 0 is not possible: expected 1 to 65536"),
    ("depth", "65_537", "[link] depth: 65537 is not possible: expected 1 to 65536"),
    ("request_bytes_max", "512", "[link] request_bytes_max: 512 is not possible: expected 4096 to"),
    ("write_ns", "10_000_000_001", "[controller] write_ns: 10000000001 is not possible"),
    ("stored_min", "0.0", "[controller] stored_min: 0 is not possible: expected 0.001 to 1"),
    ("stored_min", "1.01", "[controller] stored_min: 1.01 is not possible: expected 0.001 to 1"),
    ("stored_min", "nan", "[controller] stored_min: NaN is not possible: expected 0.001 to 1"),
    ("unit_blocks", "3", "[controller] unit_blocks: 3 is not a power of two: expected 1 to"),
    ("unit_blocks", "8192", "[controller] unit_blocks: 8192 is not possible: expected 1 to 4096"),
    ("unit_blocks", "0", "[controller] unit_blocks: 0 is not possible: expected 1 to 4096"),
    ("buffer_bytes", "1_000_000_000_000", "[controller] buffer_bytes: 1000000000000 is not"),
    ("codec", "\"none\"", "[controller] stored_min without a codec: remove it, or name a codec"),
    ("codec", "\"lzma\"", "unknown codec 'lzma': use none, lz4"),
    ("channels", "0", "[flash] channels: 0 is not possible: expected 1 to 1024"),
    ("planes", "0", "[flash] planes: 0 is not possible: expected 1 to 16"),
    (
        "page_bytes",
        "4224",
        "[flash] page_bytes: 4224 is not a power of two: do not count the spare",
    ),
    ("page_bytes", "256", "[flash] page_bytes: 256 is not possible: expected 512 to"),
    ("blocks_per_plane", "16", "536870912 bytes, but only 526133493 are good, less than"),
    ("program_ns", "0", "[flash] program_ns: 0 is not possible: expected 1 to"),
    ("bus_bytes_per_s", "0", "[flash] bus_bytes_per_s: 0 is not possible: expected 1 to"),
    ("overhead_percent", "91", "[flash] overhead_percent: 91 is not possible: expected 0 to 90"),
    (
        "overhead_percent",
        "-0.5",
        "[flash] overhead_percent: -0.5 is not possible: expected 0 to 90",
    ),
    ("overhead_percent", "inf", "[flash] overhead_percent: inf is not possible: expected 0 to 90"),
    ("bad_block_percent", "13", "are good, less than size_bytes, 60022480896: look at"),
    ("bad_block_percent", "51", "[flash] bad_block_percent: 51 is not possible: expected 0 to 50"),
    ("pe_cycles", "0", "[flash] pe_cycles: 0 is not possible: expected 1 to"),
];

#[test]
fn impossible_numbers_are_refused_by_key() {
    for (key, number, words) in IMPOSSIBLE {
        let error = parse(&with(LOG, key, number)).expect_err(words);
        assert!(error.starts_with("own.toml") && error.contains(words), "{words}: {error}");
    }
    for (number, words) in [
        ("1", "own.toml: [parity] stripe_dies: 1 is not possible: expected 2 to 1048576"),
        ("5", "own.toml: [parity] stripe_dies: 5 does not divide the 16 dies of [flash]"),
        (
            "8",
            "own.toml: [parity] stripe_dies: of 67345087201 good bytes it leaves 58926951300 for",
        ),
        ("2.5", "line 41: invalid type: floating point"),
    ] {
        let text = with(&format!("{LOG}{PARITY}"), "stripe_dies", number);
        let error = parse(&text).expect_err(words);
        assert!(error.contains(words) && !error.contains('\n'), "{words}: {error}");
    }
    for (key, number, words) in [
        ("unit_bytes", "5000", "[mapping] unit_bytes: 5000 is not a multiple of page_bytes, 4096"),
        ("unit_bytes", "0", "[mapping] unit_bytes: 0 is not possible"),
        ("log_blocks", "200_000", "[mapping] log_blocks: 200000 units of 524288 bytes do not fit"),
    ] {
        let error = parse(&with(&block_mapped(), key, number)).expect_err(words);
        assert!(error.contains(words), "{words}: {error}");
    }
    for (key, number, words) in [
        ("rpm", "0", "[disk] rpm: 0 is not possible: expected 1 to"),
        ("seek_average_ns", "900_000", "[disk] seek_track_ns, 1000000, seek_average_ns, 900000"),
        ("seek_full_ns", "8_000_000", "and seek_full_ns, 8000000, do not rise: order them"),
        ("inner_bytes_per_s", "120_000_001", "is more than outer_bytes_per_s, 120000000: swap"),
        ("cache_bytes", "0", "[disk] cache_bytes: 0 is not possible"),
    ] {
        let error = parse(&with(&DISK, key, number)).expect_err(words);
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn sections_and_keys_match_the_kind() {
    let codec = "[controller]\ncodec = { is = \"lz4\", guess = \"x\" }\n\
                 stored_min = { is = 0.1, guess = \"x\" }";
    let buffer = "[controller]\nbuffer_bytes = { is = 8192, guess = \"x\" }";
    let flash = LOG.split_once("[flash]").expect("a section").1;
    let disk = DISK.split_once("[disk]").expect("a section").1;
    let mapped = block_mapped();
    for (text, words) in [
        (LOG.replace("\"log\"", "\"tape\""), "own.toml, line 5: unknown variant `tape`"),
        (LOG.replace("year = 2010\n", ""), "missing field `year`"),
        (LOG.replace("A drive", " "), "own.toml: name is blank: enter a text"),
        (LOG.replace("For tests.", ""), "own.toml: about is blank: enter a text"),
        (format!("{LOG}[disk]{disk}"), "[disk] does not belong to kind \"log\": remove it"),
        (format!("{LOG}{MAPPING}"), "[mapping] does not belong to kind \"log\""),
        (format!("{mapped}[disk]{disk}"), "[disk] does not belong to kind \"block-mapped\""),
        (format!("{}[flash]{flash}", *DISK), "[flash] does not belong to kind \"disk\""),
        (format!("{}{MAPPING}", *DISK), "[mapping] does not belong to kind \"disk\""),
        (format!("{mapped}{PARITY}"), "[parity] does not belong to kind \"block-mapped\": remove"),
        (format!("{}{PARITY}", *DISK), "[parity] does not belong to kind \"disk\""),
        (format!("{LOG}[parity]\n"), "line 39: missing field `stripe_dies`"),
        (format!("{LOG}[tape]\n"), "line 39: unknown field `tape`"),
        (LOG.replace("[flash]", "[flesh]"), "line 23: unknown field `flesh`"),
        (LOG.split("[flash]").next().unwrap().into(), "there is no [flash], which kind \"log\""),
        (mapped.replace(MAPPING, ""), "there is no [mapping], which kind \"block-mapped\" needs"),
        (DISK.split("[disk]").next().unwrap().into(), "there is no [disk], which kind \"disk\""),
        (DISK.split("[link]").next().unwrap().into(), "there is no [disk]"),
        (LOG.replace("[link]", "[limk]"), "unknown field `limk`"),
        (LOG.replace("planes =", "plains ="), "line 26: unknown field `plains`, expected one of"),
        (without(LOG, "erase_ns"), "line 23: missing field `erase_ns`"),
        (format!("{LOG}erase_ns = {{ is = 1, guess = \"x\" }}\n"), "line 39: duplicate key"),
        (without(LOG, "buffer_bytes"), "own.toml: [controller] buffer_bytes is missing: add it"),
        (without(LOG, "stored_min"), "[controller] stored_min is missing: a codec needs it"),
        (without(LOG, "codec"), "[controller] stored_min without a codec: remove it"),
        (mapped.replace("[controller]", codec), "compressed blocks need kind \"log\": change one"),
        (DISK.replace("[controller]", codec), "[controller] codec: no disk compresses: remove it"),
        (DISK.replace("[controller]", buffer), "a disk has [disk] cache_bytes: remove it"),
        ("[".repeat(100_000), "own.toml, line 1: "),
        (String::new(), "missing field `name`"),
    ] {
        let error = parse(&text).expect_err(words);
        assert!(error.starts_with("own.toml") && error.contains(words), "{words}: {error}");
    }
}

/// 1024 x 1024 dies of 16 planes of 2^24 blocks of 2^16 pages of 2^20 bytes: 2^84.
#[test]
fn a_geometry_beyond_64_bits_is_refused() {
    let most = [
        ("channels", "1024"),
        ("dies_per_channel", "1024"),
        ("planes", "16"),
        ("blocks_per_plane", "16_777_216"),
        ("pages_per_block", "65_536"),
        ("page_bytes", "1_048_576"),
    ];
    let text = most.iter().fold(LOG.to_owned(), |text, (key, number)| with(&text, key, number));
    assert!(parse(&text).expect_err("too much").contains("[flash] has more bytes than 64 bits"));
}

#[test]
fn profiles_are_found_by_id_and_path() {
    let find = |name: &str| Profile::find(name).map(|_| ()).unwrap_err();
    let error = find("hdd-2011");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let words = "no drive or file is called hdd-2011, did you mean hdd-2010? Drives: micro-center";
    assert!(error.to_string().starts_with(words), "{error}");
    let error = find("X25-M").to_string();
    assert!(error.contains(", did you mean intel-x25-m-g1-80 or intel-x25-m-g2-160?"), "{error}");
    assert!(find("floppy").to_string().contains("is called floppy. Drives: "));
    assert!(find("").to_string().contains("is called . Drives: "));
    assert_eq!(find("./missing.toml").kind(), ErrorKind::NotFound);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mine.toml");
    let name = path.to_str().expect("a plain path");
    std::fs::write(&path, LOG).expect("a file");
    assert_eq!(Profile::find(name).map(|profile| profile.id).ok().as_deref(), Some("mine"));
    std::fs::write(&path, "#".repeat(FILE_BYTES_MAX as usize + 1)).expect("a file");
    assert!(find(name).to_string().ends_with("1048576 bytes, the limit for a profile"));
    assert!(find("/dev/zero").to_string().contains("/dev/zero is larger than 1048576 bytes"));
    std::fs::write(&path, [0xff; 8]).expect("a file");
    assert!(find(name).to_string().ends_with("mine.toml is not a text file"));
}

/// The keys of a part are used if the profile lacks them; a number is never combined from both.
#[test]
fn shared_parts_are_included() {
    let drives = ["micro-center-64", "corsair-force-100", "ocz-agility-2-100", "ocz-vertex-2-50"];
    let [first, others @ ..] = drives.map(|id| Profile::find(id).expect(id));
    for other in others {
        // Firmware limits differ.
        let mut controller = other.controller.clone();
        controller.cap_write_per_s = first.controller.cap_write_per_s.clone();
        assert_eq!(controller, first.controller, "{}", other.id);
    }
    let own = "size_bytes = { is = 50_000_003_072, guess = \"x\" }";
    let text = format!(
        "include = \"corsair-force-100\"\n{own}\n[link]\ndepth = {{ is = 1, guess = \"x\" }}"
    );
    let profile = parse(&text).expect("a drive");
    assert_eq!((profile.size_bytes.is, profile.link.depth.is), (50_000_003_072, 1));
    assert_eq!(profile.link.depth.basis, Basis::Guess("x".into()));
    assert_eq!(profile.controller, Profile::find("corsair-force-100").unwrap().controller);
    for (include, words) in [
        ("\"sandforce\"", "no part is called sandforce: use sandforce-sf-1200"),
        ("[]", "expected the names of parts"),
        ("7", "expected the names of parts"),
        ("\"mlc-34nm\"", "missing field"),
    ] {
        let error = parse(&format!("include = {include}\n")).expect_err(words);
        assert!(error.starts_with("own.toml: ") && error.contains(words), "{words}: {error}");
    }
}

/// Guards against predictions that were fitted to the results that they predict.
#[test]
fn fitted_values_can_be_omitted() {
    let with = Profile::find("corsair-force-100").unwrap();
    let without = Profile::find_without("corsair-force-100", "corsair-force-100").unwrap();
    let rates = [&with, &without].map(|it| it.link.write_bytes_per_s.is);
    assert_eq!(rates, [257_000_000, 270_000_000]);
    assert_eq!(without.controller.store_bytes_per_s, None);
    assert_eq!(Profile::find_without("corsair-force-100", "hdd-2010").unwrap(), with);
    for (id, _) in PROFILES {
        Profile::find_without(id, id).expect(id);
    }
    assert_eq!(Profile::find_without("x", "y").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn more_channels_are_faster_until_something_else_is_the_limit() {
    let by_channels = Profile::find("ocz-vertex-2-50").unwrap().by_channels();
    let channels: Vec<_> = by_channels.iter().map(|of| of.channels).collect();
    assert_eq!(channels, [1, 2, 4, 8, 16, 32]);
    let ratio = by_channels[1].write_bytes_per_s / by_channels[0].write_bytes_per_s;
    assert!((ratio - 2.0).abs() < 1e-9, "{by_channels:?}");
    assert_eq!(by_channels[5].write_bytes_per_s, 145e6, "the controller");
    assert_eq!(by_channels[5].read_bytes_per_s, 280e6, "the link");
    assert_eq!(Profile::find("hdd-2010").unwrap().by_channels(), []);
}

proptest! {
    /// A file with arbitrary numbers is either refused, or all of its calculated values are finite.
    #[test]
    fn any_numbers_are_refused_or_can_be_computed_with(
        changes in prop::collection::vec((any::<Index>(), any::<i64>(), 0..64u32), 1..6),
        base in prop::sample::select(vec![LOG.to_owned(), block_mapped(), DISK.clone()]),
    ) {
        let mut text = base;
        for (index, number, shift) in changes {
            let keys: Vec<String> = text
                .lines()
                .filter(|line| line.contains("{ is ="))
                .filter_map(|line| Some(line.split_once(" =")?.0.to_owned()))
                .collect();
            text = with(&text, &keys[index.index(keys.len())], &(number >> shift).to_string());
        }
        if let Ok(profile) = parse(&text) {
            let json = serde_json::to_value(profile.figures()).expect("figures serialize");
            let finite = json.as_object().expect("an object").values().all(Json::is_number);
            prop_assert!(finite, "{}", json);
            prop_assert!(profile.facts().iter().all(|fact| !fact.shown().is_empty()));
        }
    }
}
