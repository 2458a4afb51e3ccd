//! A number, and how it is known.
//!
//! Invariant: a basis says something; there is no number without one.

use serde::{Deserialize, Serialize};

/// A number (or a word, or yes and no) with its basis.
///
/// In TOML `{ is = 900_000, source = "data sheet" }`, with exactly one of `source`, `fitted` and
/// `guess`; in JSON the same.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "Text<T>")]
pub struct Sourced<T> {
    /// The number; its unit is at the end of its key.
    pub is: T,
    /// How it is known.
    #[serde(flatten)]
    pub basis: Basis,
}

/// How a number is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Somebody published it, or it follows from what was published: who, where.
    Source(String),
    /// Nobody published it; with it the model gives published results: which.
    Fitted(String),
    /// Nobody published it: why it is likely.
    Guess(String),
}

impl Basis {
    /// The key it has in TOML.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Source(_) => "source",
            Self::Fitted(_) => "fitted",
            Self::Guess(_) => "guess",
        }
    }

    /// What it says; not blank.
    pub fn text(&self) -> &str {
        match self {
            Self::Source(text) | Self::Fitted(text) | Self::Guess(text) => text,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text<T> {
    is: T,
    source: Option<String>,
    fitted: Option<String>,
    guess: Option<String>,
}

impl<T> TryFrom<Text<T>> for Sourced<T> {
    type Error = &'static str;

    fn try_from(text: Text<T>) -> Result<Self, &'static str> {
        let basis = match (text.source, text.fitted, text.guess) {
            (Some(source), None, None) => Basis::Source(source),
            (None, Some(fitted), None) => Basis::Fitted(fitted),
            (None, None, Some(guess)) => Basis::Guess(guess),
            (None, None, None) => {
                return Err("nothing says how this is known: add source, fitted or guess");
            }
            _ => return Err("this is known in two ways: keep one of source, fitted and guess"),
        };
        match basis.text().trim().is_empty() {
            true => Err("source, fitted or guess is blank: say how this is known"),
            false => Ok(Self { is: text.is, basis }),
        }
    }
}
