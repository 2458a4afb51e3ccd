//! Words that this project's prose no longer uses, because readers misread them or because a
//! plainer term exists. A directional word that means the opposite once reversed a crash-safety
//! rule.

use crate::words::contains_word;

/// A word or phrase, and its replacement.
const BANNED: [(&str, &str); 17] = [
    ("behind", "for a later log position: after, beyond or up to"),
    ("whoever", "the noun: the caller, the client, the writer"),
    ("somebody", "the noun"),
    ("nobody", "the noun: no reader, no task, nothing"),
    ("for ever", "forever, or until when"),
    ("at hand", "in memory, available"),
    ("shall", "must or will"),
    ("/// gives", "returns, or what it does"),
    ("; gives", "a sentence of its own: returns"),
    ("so many", "the number, or this many"),
    ("so much", "the amount, or this much"),
    ("what there is", "the noun"),
    ("that which", "the noun"),
    ("all the same", "anyway, or still"),
    ("as ever", "as usual"),
    ("is to be told", "reports, or must report"),
    ("comes to an end", "ends"),
];

/// Phrases in which a banned word is right.
const LEFT_BEHIND: [&str; 4] =
    ["left behind", "leaves behind", "leaves nothing behind", "core behind"];

/// Files that must quote these words.
const QUOTES: &str = "tests/tidy/prose.rs";

pub(crate) fn prose_is_plain(path: &str, text: &str) -> Vec<String> {
    if path == QUOTES {
        return Vec::new();
    }
    let mut wrong = Vec::new();
    for (index, line) in text.lines().enumerate() {
        // To leave something behind is a literal use.
        let line = LEFT_BEHIND.iter().fold(line.to_lowercase(), |line, it| line.replace(it, ""));
        for (word, instead) in BANNED {
            if contains_word(&line, word) {
                wrong.push(format!("{}: '{word}': write {instead}", index + 1));
            }
        }
    }
    wrong
}

#[test]
fn words_that_readers_misread_are_refused() {
    for (good, bad) in [
        ("// After the batch.", "// Behind the batch."),
        ("/// Returns it. `all_gives_up`", "/// Gives it."),
        ("The log grows forever.", "The log grows for ever."),
    ] {
        crate::assert_tells_apart(prose_is_plain, "docs/x.md", good, bad);
    }
}
