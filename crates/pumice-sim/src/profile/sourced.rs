//! A number and its basis.
//!
//! Invariant: the basis is not blank, and there is no number without a basis.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A number (or an identifier, or a boolean) with its basis.
///
/// In TOML `{ is = 900_000, source = "data sheet" }`, with exactly one of `source`, `fitted` and
/// `guess`; JSON has the same form. A value that was fitted to published results of one drive may
/// contain the name of that drive, and the value without these results:
/// `{ is = 3, fitted = "..", of = "a-drive", otherwise = 4 }`, or `"none"` if there would be no
/// number.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "Text<T>")]
#[schemars(!try_from)]
pub struct Sourced<T> {
    /// The value; its unit is at the end of its key.
    pub is: T,
    /// The basis of the value.
    #[serde(flatten)]
    pub basis: Basis,
}

/// The basis of a number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// The value was published, or follows from published numbers: author and place of publication.
    Source(String),
    /// The value was not published, but makes the model reproduce published results, which are
    /// listed in the text.
    Fitted(String),
    /// The value was not published: the reason why it is plausible.
    Guess(String),
}

impl Basis {
    /// Returns the key of the basis in TOML.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Source(_) => "source",
            Self::Fitted(_) => "fitted",
            Self::Guess(_) => "guess",
        }
    }

    /// Returns the text of the basis, which is not blank.
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
    /// Drives whose published results were used in the fit, and the value without them; see
    /// [`Profile::find_without`](super::Profile::find_without).
    #[serde(rename = "of")]
    _of: Option<String>,
    #[serde(rename = "otherwise")]
    _otherwise: Option<toml::Value>,
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
                return Err("the number has no basis: add source, fitted or guess");
            }
            _ => return Err("the number has two bases: keep one of source, fitted and guess"),
        };
        if basis.text().trim().is_empty() {
            Err("source, fitted or guess is blank: state the basis")
        } else {
            Ok(Self { is: text.is, basis })
        }
    }
}
