//! Goal: docs/format.md and the code describe the same bytes.
//!
//! Method: `pumice_drive::format::tables` lists the fields of each structure as the code lays them
//! out; the document's tables `| offset | bytes | field | meaning |` must list the same, in the
//! same order, without gap or overlap.

use std::fs;
use std::path::Path;

/// A row: offset in bytes, length in bytes, name.
type Field = (usize, usize, String);

#[test]
fn document_and_code_agree() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("docs/format.md");
    let document = fs::read_to_string(path).expect("docs/format.md");
    let tables = pumice_drive::format::tables();
    for expected in ["Superblock", "Segment header", "Batch header", "Record header"] {
        assert!(tables.iter().any(|(name, _)| *name == expected), "the code lists no {expected}");
    }
    for (name, fields) in tables {
        let code: Vec<Field> = fields
            .into_iter()
            .map(|(offset, bytes, field)| (offset, bytes, field.to_owned()))
            .collect();
        assert_eq!(table(&document, name), code, "left: docs/format.md, right: code; {name}");
        assert!(!code.is_empty(), "the code lists no field of {name}");
        assert_eq!(first_gap(&code), None, "{name}: a byte belongs to no field or to two");
    }
}

/// Returns the rows of the table under `## heading`; empty if there is none.
fn table(document: &str, heading: &str) -> Vec<Field> {
    let section = document.lines().skip_while(|line| *line != format!("## {heading}")).skip(1);
    section.take_while(|line| !line.starts_with("## ")).filter_map(row).collect()
}

/// Parses a row of a table of fields; `None` for its head, its rule and other lines.
fn row(line: &str) -> Option<Field> {
    let cells: Vec<&str> = line.strip_prefix('|')?.split('|').map(str::trim).collect();
    let [offset, bytes, field, _meaning, ..] = cells[..] else { return None };
    Some((offset.parse().ok()?, bytes.parse().ok()?, field.trim_matches('`').to_owned()))
}

/// Returns the first offset at which a field does not begin where the previous one ends.
fn first_gap(fields: &[Field]) -> Option<usize> {
    let mut end = 0;
    for (offset, bytes, _) in fields {
        if *offset != end {
            return Some(*offset);
        }
        end += bytes;
    }
    None
}

#[test]
fn tables_are_read_as_written() {
    let document = "\
# Format

## Superblock

Words | and words.

| offset | bytes | field | meaning |
|---|---|---|---|
| 0 | 8 | `magic` | `PUMICE` |
| 8 | 4 | version | of the format |

## Batch header

| offset | bytes | field | meaning |
|--:|--:|---|---|
| 0 | 4 | magic | x |
";
    let fields = [(0, 8, "magic".to_owned()), (8, 4, "version".to_owned())];
    assert_eq!(table(document, "Superblock"), fields);
    assert_eq!(table(document, "Batch header").len(), 1);
    assert!(table(document, "Segment header").is_empty());
    assert_eq!(first_gap(&fields), None);
    assert_eq!(first_gap(&fields[1..]), Some(8));
}
