//! Rust text reduced to code: comments, strings and characters become blanks, so that a rule about
//! calls does not apply to prose. Lines and columns stay where they were.
//!
//! A lexer for rustfmt'ed code that compiles, not a parser.

/// Returns `text` with everything but code blanked out.
pub(crate) fn only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut kept = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let skipped = not_code(bytes, at);
        if skipped == 0 {
            kept.push(bytes[at]);
            at += 1;
        } else {
            let end = (at + skipped).min(bytes.len());
            kept.extend(bytes[at..end].iter().map(|&b| if b == b'\n' { b } else { b' ' }));
            at = end;
        }
    }
    String::from_utf8(kept).expect("only ASCII is blanked out piecemeal")
}

/// Returns the strings of `text` with their quotes, each with the offset at which it begins.
pub(crate) fn strings(text: &str) -> Vec<(usize, &str)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let skipped = not_code(text.as_bytes(), at);
        let end = (at + skipped).min(text.len());
        if skipped > 0 && text[at..end].trim_start_matches(['b', 'c', 'r', '#']).starts_with('"') {
            found.push((at, &text[at..end]));
        }
        at = end.max(at + 1);
    }
    found
}

/// Returns the length in bytes of the comment, string or character at `at`; 0 if none starts there.
fn not_code(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let inside_word = at > 0 && is_word(bytes[at - 1]);
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => quoted(rest, b'"'),
        [b'\'', ..] => character(rest),
        [b'r', b'"' | b'#', ..] if !inside_word => raw_string(rest, 1),
        [b'b' | b'c', b'r', b'"' | b'#', ..] if !inside_word => raw_string(rest, 2),
        _ => 0,
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn block_comment(rest: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// Returns the length of a character literal; a lifetime is code.
fn character(rest: &[u8]) -> usize {
    match rest {
        [_, b'\\', ..] => quoted(rest, b'\''),
        [_, first, ..] => {
            let width = match first {
                0xF0.. => 4,
                0xE0.. => 3,
                0xC0.. => 2,
                _ => 1,
            };
            if rest.get(1 + width) == Some(&b'\'') { width + 2 } else { 0 }
        }
        _ => 0,
    }
}

fn raw_string(rest: &[u8], prefix: usize) -> usize {
    let hashes = rest[prefix..].iter().take_while(|&&b| b == b'#').count();
    let open = prefix + hashes;
    if rest.get(open) != Some(&b'"') {
        // A raw identifier such as `r#type`.
        return 0;
    }
    let close: Vec<u8> = std::iter::once(b'"').chain(vec![b'#'; hashes]).collect();
    let body = &rest[open + 1..];
    let end = body.windows(close.len()).position(|window| window == close);
    end.map_or(rest.len(), |end| open + 1 + end + close.len())
}

#[test]
fn strings_are_found() {
    let text = "f(\"a\\\"\", 'ä', '\"') // \"no\"\n + r#\"b\"c\"#";
    let found = strings(text).into_iter().map(|(_, string)| string);
    assert_eq!(found.collect::<Vec<_>>(), ["\"a\\\"\"", "r#\"b\"c\"#"]);
}

#[test]
fn only_code_is_kept() {
    for (text, code) in [
        ("let a = 1; // dbg", "let a = 1;       "),
        ("a /* x /* y */ z */ b", "a                   b"),
        (r#"f("a\"b", c)"#, "f(      , c)"),
        ("g('\"', '\\'', 'ä', b'x')", "g(   ,     ,     , b   )"),
        ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
        ("let s = r#\"un \"safe\"# ;", "let s =               ;"),
        ("let r#type = 1;", "let r#type = 1;"),
        ("\"two\nlines\" x", "    \n       x"),
    ] {
        assert_eq!(only(text), code, "{text}");
    }
}
