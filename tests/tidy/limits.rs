//! Limits on lines of a file, lines of a function and columns of a line; and the required header.

/// Maximum number of lines of a file.
const FILE_LINES_MAX: usize = 800;

/// Maximum number of lines of a function, from its signature to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;

/// Characters of a line of code, or of the prose of a document.
const COLUMNS_MAX: usize = 100;

/// Functions that may be longer, as `path::name`. Each needs its reason here.
const LONG_FUNCTIONS: [&str; 0] = [];

pub(crate) fn file_is_short(path: &str, text: &str) -> Vec<String> {
    let lines = text.lines().count();
    let long = path.ends_with(".rs") && lines > FILE_LINES_MAX;
    Vec::from_iter(long.then(|| format!("{lines}: more than {FILE_LINES_MAX} lines")))
}

/// Checks the length of functions: in rustfmt'ed code, a function ends at the first `}` in the
/// column where its signature begins.
pub(crate) fn functions_fit_a_screen(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let code = crate::code::only(text);
    let lines: Vec<&str> = code.lines().map(str::trim_end).collect();
    let mut wrong = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let length = function_lines(&lines[number..]);
        let excused = LONG_FUNCTIONS.contains(&format!("{path}::{name}").as_str());
        if length > FUNCTION_LINES_MAX && !excused {
            wrong.push(format!("{}: {name} has {length} lines", number + 1));
        }
    }
    wrong
}

fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let qualifiers = ["pub", "async", "const", "unsafe", "extern", "default"];
    let plain = before
        .split_whitespace()
        .all(|word| qualifiers.contains(&word) || word.starts_with("pub(") || word.ends_with(')'));
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (plain && end > 0).then(|| &after[..end])
}

/// Returns the number of lines of the function whose signature begins in the first of `lines`; 1
/// without a body.
fn function_lines(lines: &[&str]) -> usize {
    let indent = lines[0].len() - lines[0].trim_start().len();
    for (index, line) in lines.iter().enumerate() {
        let here = line.len() - line.trim_start().len() == indent;
        let one_line = index == 0 && (line.ends_with(';') || line.ends_with('}'));
        if here && (one_line || line.ends_with(';') || line.trim_start() == "}") {
            return index + 1;
        }
    }
    lines.len()
}

pub(crate) fn lines_fit(path: &str, text: &str) -> Vec<String> {
    let lines = match path.rsplit('.').next() {
        Some("rs" | "py") => text.lines().collect(),
        // Output of programs and rows of tables may have any length.
        Some("md") if path != "docs/cli.md" => crate::dialect::prose(path, text),
        _ => Vec::new(),
    };
    let has_room = |line: &str| line.split(' ').all(|word| word.len() <= COLUMNS_MAX / 2);
    let long = |line: &str| line.chars().count() > COLUMNS_MAX && has_room(line);
    let numbered = lines.into_iter().enumerate().filter(|(_, line)| long(line));
    numbered.map(|(index, _)| format!("{}: more than {COLUMNS_MAX} columns", index + 1)).collect()
}

/// Checks that every Rust file begins with its description.
pub(crate) fn header_is_there(path: &str, text: &str) -> Vec<String> {
    let missing = path.ends_with(".rs") && !text.starts_with("//! ");
    Vec::from_iter(missing.then(|| "1: no `//!` header".to_owned()))
}

#[test]
fn a_long_file_is_refused() {
    let (good, bad) = ("x\n".repeat(800), "x\n".repeat(801));
    crate::assert_tells_apart(file_is_short, "src/x.rs", &good, &bad);
}

#[test]
fn a_long_function_is_refused() {
    let function = |head: &str, inside: usize| {
        let indent = " ".repeat(head.len() - head.trim_start().len());
        format!(
            "impl X {{\n{head}\n{}{indent}}}\n}}\n",
            format!("{indent}    f();\n").repeat(inside)
        )
    };
    for head in [
        "fn f() {",
        "    pub(crate) async fn f(&self) {",
        "    unsafe extern \"C\" fn f(\n        x: T,\n    ) -> T\n    where\n        T: X,\n    {",
    ] {
        let signature = head.lines().count() + 1;
        let (good, bad) = (function(head, 70 - signature), function(head, 71 - signature));
        crate::assert_tells_apart(functions_fit_a_screen, "src/x.rs", &good, &bad);
    }
    let declared =
        format!("trait X {{\n    fn f(&self);\n    fn g() {{}}\n{}}}\n", "\n".repeat(90));
    assert!(functions_fit_a_screen("src/x.rs", &declared).is_empty());
}

#[test]
fn a_long_line_is_refused() {
    crate::assert_tells_apart(lines_fit, "src/x.rs", &"ä".repeat(100), &"x ".repeat(51));
    let table = format!("| {} |", "x".repeat(100));
    crate::assert_tells_apart(lines_fit, "docs/x.md", &table, &"x ".repeat(51));
}

#[test]
fn a_missing_header_is_refused() {
    crate::assert_tells_apart(header_is_there, "src/x.rs", "//! What.\n", "use std::io;\n");
}
