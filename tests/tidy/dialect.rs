//! How much of the prose is in this project's dialect: relative clauses where English has a noun.
//! The limits may only fall.

/// A word or phrase, and its maximum number of occurrences in 1,000 words of a file's prose.
const LIMITS: [(&str, usize); 4] =
    [("what", 2), ("of which", 1), ("those that", 1), ("that of", 1)];

/// Additional occurrences of each in any file, because a short file has few words.
const FREE: usize = 2;

/// Words of a paragraph of a document.
const PARAGRAPH_WORDS_MAX: usize = 120;

/// Documents that quote the texts or output of others.
const QUOTES: [&str; 2] = ["docs/cli.md", "tests/tidy/dialect.rs"];

pub(crate) fn nouns_are_nouns(path: &str, text: &str) -> Vec<String> {
    let prose = prose(path, text);
    if QUOTES.contains(&path) {
        return Vec::new();
    }
    let words: Vec<String> = prose.iter().flat_map(|line| words(line)).collect();
    let mut wrong = Vec::new();
    for (phrase, limit) in LIMITS {
        let phrase: Vec<&str> = phrase.split(' ').collect();
        let count = words.windows(phrase.len()).filter(|window| *window == phrase).count();
        let allowed = FREE + words.len() * limit / 1000;
        if count > allowed {
            let phrase = phrase.join(" ");
            wrong
                .push(format!("1: '{phrase}' {count} times, of at most {allowed}: write the noun"));
        }
    }
    wrong
}

pub(crate) fn paragraphs_are_short(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".md") || QUOTES.contains(&path) {
        return Vec::new();
    }
    let (mut wrong, mut count) = (Vec::new(), 0);
    let prose = prose(path, text);
    for (index, line) in prose.iter().enumerate() {
        let start = line.trim_start();
        let is_number = start.split_once(". ").is_some_and(|(it, _)| it.parse::<u32>().is_ok());
        let begins = is_number || line.is_empty() || start.starts_with(['*', '-', '#', '|', '>']);
        count = if begins { 0 } else { count } + words(line).count();
        let ends = prose.get(index + 1).is_none_or(|next| next.is_empty());
        if ends && count > PARAGRAPH_WORDS_MAX {
            wrong.push(format!("{}: a paragraph of {count} words", index + 1));
        }
    }
    wrong
}

/// Words and phrases that no name of a function has: a noun names the subject of a test better.
const NO_NAMES: [&str; 7] =
    ["what", "whatever", "who", "in_vain", "of_its_own", "of_their_own", "that_of"];

pub(crate) fn names_have_nouns(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".rs") {
        return Vec::new();
    }
    let name = |line: &str| {
        let (_, rest) = line.trim_start().split_once("fn ")?;
        let (name, _) = rest.split_once('(')?;
        let parts = format!("_{name}_");
        let found = NO_NAMES.iter().find(|it| parts.contains(&format!("_{it}_")))?;
        // A function with the short name "what" is no sentence.
        (name != *found).then(|| format!("the name {name} has '{found}': write the noun"))
    };
    let numbered = text.lines().enumerate();
    numbered.filter_map(|(at, line)| Some(format!("{}: {}", at + 1, name(line)?))).collect()
}

/// Returns the prose of each line: comments of code, text of documents outside of blocks of code
/// and tables; empty where there is none.
pub(crate) fn prose<'a>(path: &str, text: &'a str) -> Vec<&'a str> {
    let is_code = path.ends_with(".rs");
    let is_document = path.ends_with(".md");
    let mut in_block = false;
    let line = |line: &'a str| {
        let start = line.trim_start();
        if is_code {
            return start.strip_prefix("//").map_or("", |it| it.trim_start_matches(['/', '!']));
        }
        let is_fence = start.starts_with("```");
        in_block ^= is_fence;
        if !is_document || in_block || is_fence || start.starts_with('|') { "" } else { line }
    };
    text.lines().map(line).collect()
}

/// Returns the words of a line, without names of code.
fn words(line: &str) -> impl Iterator<Item = String> {
    let text = line.split('`').step_by(2);
    let words = text.flat_map(|text| text.split(|c: char| !c.is_alphabetic() && c != '\''));
    words.filter(|word| !word.is_empty()).map(str::to_lowercase)
}

#[test]
fn free_relatives_are_counted() {
    let (good, bad) = ("// The data that was read.\n", "// What was read of what it has.\n");
    crate::assert_tells_apart(nouns_are_nouns, "src/x.rs", good, &bad.repeat(2));
    crate::assert_tells_apart(
        nouns_are_nouns,
        "src/x.rs",
        "f(\"what what what what\");",
        &bad.repeat(2),
    );
}

#[test]
fn names_without_nouns_are_refused() {
    let name = |words: &str| format!("    fn {words}() {{\n");
    let good = name("damaged_frames_are_refused") + &name("what") + &name("whole_is_kept");
    crate::assert_tells_apart(names_have_nouns, "x.rs", &good, &name("what_is_bad_is_refused"));
    crate::assert_tells_apart(names_have_nouns, "x.rs", "", &name("tests_of_their_own"));
}

#[test]
fn long_paragraphs_are_refused() {
    let text = |words: usize| format!("# Title\n\n{}\n", "word\n".repeat(words));
    crate::assert_tells_apart(paragraphs_are_short, "docs/x.md", &text(120), &text(121));
    crate::assert_tells_apart(paragraphs_are_short, "x.md", "```\na\n```\n* b\n", &text(200));
}
