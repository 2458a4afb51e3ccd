//! Goal: every field of every format is parsed correctly, errors contain their line number, and no
//! input causes a panic. Method: samples written by hand in the format of published traces;
//! malformed lines; random bytes, and samples with random bytes inserted.

use rand::RngExt;

use super::entry::OFFSET_MAX;
use super::reader::LINE_BYTES_MAX;
use super::*;
use crate::Result;
use crate::log_drive::Verb;
use pumice_drive::base::seed::random;

const MSR: &str = "\
128166372003061629,hm,1,Read,383496192,32768,413
128166372016382155,hm,1,Write,2822144,4096,1130
128166372026382245,hm,0,Write,0,512,17
";

const MQSIM: &str = "0 0 6144 8 0\r\n48513000 0 1024 16 1\r\n\n";

const DISKSIM: &str = "13.191135 30 0 5 1\n17.829285 30 576560 6 0\n";

const BLKPARSE: &str = "  \
  8,0    3        1     0.000000000   697  A   W 223490 + 8 <- (8,1) 223427
  8,0    3        2     0.000001829   697  Q   W 223490 + 8 [kjournald]
  8,0    3        3     0.000005359   697  G   W 223490 + 8 [kjournald]
  8,0    3        4     0.000006109   697  P   N [kjournald]
  8,0    3        5     0.000015000   697  D   W 223490 + 8 [kjournald]
  8,0    0        6     1.500000000     0  Q  RA 1024 + 256 [cat]
  8,0    0        7     1.600000000     0  Q  DS 2048 + 4096 [fstrim]
  8,0    0        8     1.700000000     0  Q FWS [jbd2/sda1-8]
  8,0    0        9     1.800000000     0  Q FWFS 64 + 8 [jbd2/sda1-8]
  8,0    0       10     1.900000000     0  U   N [cat] 1
CPU0 (8,0):
 Reads Queued:           1,        128KiB\t Writes Queued:           2,        8KiB
";

const IOLOG_2: &str = "\
fio version 2 iolog
/dev/sdb add
/dev/sdb open
/dev/sdb write 4096 8192
/dev/sdb wait 250 0
/dev/sdb read 0 512
/dev/sdc sync 0 0
/dev/sdb trim 65536 4096
/dev/sdb datasync 0 0
/dev/sdb close
";

const IOLOG_3: &str = "\
fio version 3 iolog
2 nvme add
872 nvme open
878 nvme write 0 16384
1888 nvme read 16384 4096
10001677 nvme close
";

fn read_with(text: &[u8], options: Options) -> Result<(Vec<Entry>, LeftOut)> {
    let mut reader = Reader::new(text, options)?;
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry()? {
        entries.push(entry);
    }
    Ok((entries, reader.left_out()))
}

fn read(text: &str) -> Vec<Entry> {
    read_with(text.as_bytes(), Options::default()).unwrap().0
}

fn entry(time_ns: u64, verb: Verb, disk: u32, offset: u64, bytes: u64) -> Entry {
    Entry { time_ns, verb, disk, offset, bytes }
}

#[test]
fn cambridge_lines_have_all_their_fields() {
    let first = entry(12_816_637_200_306_162_900, Verb::Read, 1, 383_496_192, 32_768);
    let second = entry(12_816_637_201_638_215_500, Verb::Write, 1, 2_822_144, 4096);
    assert_eq!(read(MSR), [first, second]);
    let options = Options { disk: Some(0), ..Options::default() };
    let (entries, left_out) = read_with(MSR.as_bytes(), options).unwrap();
    assert_eq!(entries, [entry(12_816_637_202_638_224_500, Verb::Write, 0, 0, 512)]);
    assert_eq!(left_out, LeftOut { bad_lines: 0, other_disks: 2 });
    let header = "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n";
    assert_eq!(read(&format!("{header}{MSR}")), [first, second]);
}

#[test]
fn columns_of_simulators_have_all_their_fields() {
    let first = entry(0, Verb::Write, 0, 6144 * 512, 4096);
    assert_eq!(read(MQSIM), [first, entry(48_513_000, Verb::Read, 0, 1024 * 512, 8192)]);
    let first = entry(13_191_135, Verb::Read, 30, 0, 2560);
    assert_eq!(read(DISKSIM), [first, entry(17_829_285, Verb::Write, 30, 576_560 * 512, 3072)]);
}

#[test]
fn events_of_blkparse_count_once() {
    let disk = 8 << 20;
    let expected = [
        entry(1829, Verb::Write, disk, 223_490 * 512, 4096),
        entry(1_500_000_000, Verb::Read, disk, 1024 * 512, 256 * 512),
        entry(1_600_000_000, Verb::Trim, disk, 2048 * 512, 4096 * 512),
        entry(1_700_000_000, Verb::Flush, disk, 0, 0),
        entry(1_800_000_000, Verb::Write, disk, 64 * 512, 4096),
    ];
    assert_eq!(read(BLKPARSE), expected);
    let issued: Vec<&str> = BLKPARSE.lines().filter(|line| !line.contains("  Q ")).collect();
    let issued = issued.join("\n").replace(" Q ", " I ");
    assert_eq!(read(&issued), [entry(15_000, Verb::Write, disk, 223_490 * 512, 4096)]);
}

#[test]
fn other_lines_of_blkparse_are_no_events() {
    let queued = "  8,0    3       11     0.009507758   697  Q   W 223490 + 8 [kjournald]\n";
    let message = "  8,0    3        0     0.009507759   697  m   N cfq697 a message (8)\n";
    for head in ["my program (697)", "CPU0 (sda):", "CPU0 (8,0):", "Total (sda):"] {
        let statistics = format!("{head}\n Reads Queued:           0,        0KiB\n");
        let text = format!("Input file sda.blktrace.0 added\n{message}{queued}{statistics}");
        let write = entry(9_507_758, Verb::Write, 8 << 20, 223_490 * 512, 4096);
        assert_eq!(read(&text), [write], "{head}");
    }
    let completed = queued.replace(" Q ", " C ");
    let error = read_with(completed.as_bytes(), Options::default()).unwrap_err().to_string();
    assert!(error.contains("none is queued (Q) or issued (D)"), "{error}");
}

#[test]
fn logs_of_fio_have_all_their_fields() {
    let expected = [
        entry(0, Verb::Write, 0, 4096, 8192),
        entry(250_000, Verb::Read, 0, 0, 512),
        entry(250_000, Verb::Trim, 0, 65_536, 4096),
        entry(250_000, Verb::Flush, 0, 0, 0),
    ];
    assert_eq!(read(IOLOG_2), expected);
    let options = Options { disk: Some(1), ..Options::default() };
    let other = read_with(IOLOG_2.as_bytes(), options).unwrap();
    assert_eq!(other.0, [entry(250_000, Verb::Flush, 1, 0, 0)]);
    let expected =
        [entry(878_000, Verb::Write, 0, 0, 16_384), entry(1_888_000, Verb::Read, 0, 16_384, 4096)];
    assert_eq!(read(IOLOG_3), expected);
}

#[test]
fn a_bad_line_is_named_or_counted() {
    for (format, good, bad, word) in [
        (Format::Msr, MSR, "128166372026382245,hm,1,Erase,0,512,17", "Erase"),
        (Format::Msr, MSR, "128166372026382245,hm,1,Write,-5,512,17", "offset"),
        (Format::Msr, MSR, "1281663720263822450,hm,1,Write,0,512,17", "time"),
        (Format::Msr, MSR, "128166372026382245,hm,1,Write,0,0,17", "no bytes"),
        (Format::Msr, MSR, "128166372026382245,hm,1,Write,0,99999999999,17", "99999999999"),
        (Format::Msr, MSR, "128166372026382245,hm,1,Write", "columns"),
        (Format::Mqsim, MQSIM, "48513000 0 1024 16", "4 columns"),
        (Format::Mqsim, MQSIM, "48513000 0 1024 16 x", "type"),
        (Format::Mqsim, MQSIM, "48513000 0 99999999999999999999 16 1", "sector"),
        (Format::Mqsim, MQSIM, "48513000 0 18446744073709551615 16 1", "too large"),
        (Format::Mqsim, MQSIM, "48513000 9999999999 1 16 1", "disk"),
        (Format::Blkparse, BLKPARSE, "  8,0  3  2  x.0  697  Q  W 1 + 8 [k]", "time"),
        (Format::Blkparse, BLKPARSE, "what is this", "not an event"),
        (Format::Iolog, IOLOG_2, "/dev/sdb write 4096", "length"),
        (Format::Iolog, IOLOG_2, "/dev/sdb erase 4096 4096", "erase"),
        (Format::Iolog, IOLOG_3, "nvme write 0 4096", "time"),
        (Format::Iolog, IOLOG_3, "5 nvme wait 0 4096", "wait"),
    ] {
        let good: Vec<_> = good.lines().take(4).collect();
        let (line, text) =
            (format!("line {}", good.len() + 1), format!("{}\n{bad}\n", good.join("\n")));
        let options = Options { format: Some(format), ..Options::default() };
        let error = read_with(text.as_bytes(), options).expect_err(bad).to_string();
        assert!(error.contains(&line) && error.contains(word), "{bad}: {error}");
        let skips = Options { skips_bad: true, ..options };
        let (_, left_out) = read_with(text.as_bytes(), skips).expect(bad);
        assert_eq!(left_out.bad_lines, 1, "{bad}");
    }
}

#[test]
fn invalid_traces_are_refused_and_long_lines_skipped() {
    for text in ["", "hello\n", "fio version 9 iolog\n", "1,2,3\n"] {
        let error = read_with(text.as_bytes(), Options::default()).expect_err(text);
        assert!(error.to_string().contains("msr, mqsim, blkparse, iolog"), "{error}");
    }
    let long = "9".repeat(3 * LINE_BYTES_MAX);
    let text = format!("1 0 8 8 1\n{long}\n2 0 8 8 0\n");
    let skips = Options { skips_bad: true, ..Options::default() };
    let (entries, left_out) = read_with(text.as_bytes(), skips).unwrap();
    assert_eq!((entries.len(), left_out.bad_lines), (2, 1));
    let error = read_with(text.as_bytes(), Options::default()).unwrap_err();
    assert!(error.to_string().contains("line 2"), "{error}");
    for format in Format::ALL {
        assert_eq!(format.name().parse::<Format>(), Ok(format));
    }
    assert!("csv".parse::<Format>().unwrap_err().contains("blkparse"));
}

#[test]
fn random_bytes_bring_nothing_down() {
    let mut random = random(1);
    let samples = [MSR, MQSIM, DISKSIM, BLKPARSE, IOLOG_2, IOLOG_3];
    for round in 0..3000 {
        let mut bytes = match round % 7 {
            6 => (0..random.random_range(0..400)).map(|_| random.random()).collect(),
            sample => samples[sample].as_bytes().to_vec(),
        };
        for _ in 0..random.random_range(0..8) {
            if let Some(last) = bytes.len().checked_sub(1) {
                let at = random.random_range(0..=last);
                let digits = b"0189,.+- \n";
                let digit = digits[random.random_range(0..digits.len())];
                bytes[at] = if random.random() { digit } else { random.random() };
            }
        }
        for format in Format::ALL.map(Some).into_iter().chain([None]) {
            let options = Options { format, skips_bad: true, disk: None };
            let Ok((entries, _)) = read_with(&bytes, options) else { continue };
            for Entry { offset, bytes, .. } in entries {
                assert!(offset <= OFFSET_MAX && bytes <= OFFSET_MAX);
            }
        }
    }
}
