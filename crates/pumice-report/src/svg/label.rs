//! Width and line breaking of text without access to the font. Widths are estimated from classes of
//! characters, and tend to be too large rather than too small.

use textwrap::core::Fragment;
use textwrap::wrap_algorithms::wrap_first_fit;

/// Printed in place of omitted text.
const ELLIPSIS: char = '…';

/// Returns the width of `text` in pixels at a font size of `size`, for a sans-serif font.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().map(em).sum::<f64>() * size
}

/// Returns the width of a character relative to the font size. The widths are taken from DejaVu
/// Sans, the widest of the common fonts.
fn em(c: char) -> f64 {
    match c {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '|' | '!' | '\'' | '\u{2009}' => 0.3,
        ' ' | 'f' | 't' | 'r' | '(' | ')' | '[' | ']' | '/' | '-' => 0.4,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '…' => 1.0,
        'A'..='Z' => 0.75,
        // East Asian characters and pictographs are square.
        '\u{1100}'.. => 1.0,
        _ => 0.64,
    }
}

/// Width of a part, and of the separator before the next part.
#[derive(Debug)]
struct PartWidth {
    width: f64,
    gap: f64,
}

impl Fragment for PartWidth {
    fn width(&self) -> f64 {
        self.width
    }

    fn whitespace_width(&self) -> f64 {
        self.gap
    }

    fn penalty_width(&self) -> f64 {
        0.0
    }
}

/// Returns the parts between which `text` may be broken, each with its preceding separator: words,
/// split after hyphens, slashes and underscores.
pub(super) fn parts(text: &str) -> Vec<(&'static str, &str)> {
    let mut parts = Vec::new();
    for word in text.split_whitespace() {
        for (index, part) in word.split_inclusive(['-', '/', '_']).enumerate() {
            parts.push((if index == 0 { " " } else { "" }, part));
        }
    }
    parts
}

/// Breaks `text` into at most `lines_max` lines of at most `width` pixels. Omitted text is replaced
/// with an ellipsis.
pub(super) fn wrapped(text: &str, size: f64, width: f64, lines_max: usize) -> Vec<String> {
    let parts = parts(text);
    if parts.is_empty() {
        return Vec::new();
    }
    let fragments: Vec<PartWidth> = (0..parts.len())
        .map(|index| PartWidth {
            width: text_width(parts[index].1, size),
            gap: text_width(parts.get(index + 1).map_or("", |next| next.0), size),
        })
        .collect();
    let mut lines = Vec::new();
    let mut rest = &parts[..];
    for line in wrap_first_fit(&fragments, &[width]) {
        // The part after the last line makes that line too long, so that the line ends with an
        // ellipsis.
        let is_last = lines.len() + 1 == lines_max;
        let count = (line.len() + usize::from(is_last)).min(rest.len());
        let (first, others) = rest[..count].split_first().expect("a line has a part");
        let mut text = first.1.to_owned();
        others.iter().for_each(|(joint, part)| text.extend([*joint, *part]));
        lines.push(shortened(&text, size, width));
        rest = &rest[line.len()..];
        if is_last {
            break;
        }
    }
    lines
}

/// Returns `text` with the part beyond `width` pixels replaced by an ellipsis.
pub(super) fn shortened(text: &str, size: f64, width: f64) -> String {
    if text_width(text, size) <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = em(ELLIPSIS) * size;
    for c in text.chars() {
        used += em(c) * size;
        if used > width {
            break;
        }
        kept.push(c);
    }
    kept.truncate(kept.trim_end().len());
    kept.push(ELLIPSIS);
    kept
}

#[cfg(test)]
mod tests {
    //! Goal: text stays within its width and number of lines, and an ellipsis shows where it was
    //! truncated.
    use super::*;

    #[test]
    fn words_go_to_the_next_line() {
        let lines = wrapped("Sequential write 128 KiB", 10.0, 62.0, 3);
        assert_eq!(lines, ["Sequential", "write 128", "KiB"]);
        let lines = wrapped("mixed-read-write 4k", 10.0, 75.0, 3);
        assert_eq!(lines, ["mixed-read-", "write 4k"]);
    }

    #[test]
    fn labels_that_do_not_fit_are_cut() {
        let lines = wrapped("one two three four", 10.0, 45.0, 2);
        assert_eq!(lines, ["one two", "three…"]);
        for text in ["abcdefghijklmnopqrstuvwxyz", "漢字漢字漢字漢字", "WWWW WWWW WWWW"] {
            for line in wrapped(text, 10.0, 35.0, 2) {
                assert!(text_width(&line, 10.0) <= 35.0, "{line}");
            }
        }
        assert_eq!(wrapped("", 10.0, 35.0, 2), Vec::<String>::new());
    }
}
