//! The share of space that compression saves, as a type.
//!
//! Tools use "50 % compressible" for three quantities: the saved fraction, the stored fraction, and
//! a ratio. A [`Saving`] prints all three and is parsed only with its percent sign.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// The saved fraction of space, in 0..=1: 0.25 means that 3/4 are stored. JSON has all three
/// quantities.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd, Serialize, JsonSchema)]
#[serde(into = "Quantities")]
pub struct Saving(f64);

#[derive(Serialize, JsonSchema)]
struct Quantities {
    /// Saved share of the space, in percent.
    saved_percent: f64,
    /// Stored bytes divided by original bytes, 0 to 1.
    stored_fraction: f64,
    /// Original bytes divided by stored bytes; `None` if nothing is stored, because JSON has no
    /// infinity.
    ratio: Option<f64>,
}

impl Saving {
    /// No saving.
    pub const NONE: Self = Self(0.0);

    /// Returns the saving for a fraction, clamped to 0..=1; NaN becomes 0.
    pub fn from_fraction(fraction: f64) -> Self {
        Self(if fraction > 0.0 { fraction.min(1.0) } else { 0.0 })
    }

    /// Returns the saving if `bytes` are stored in `stored_bytes`; 0 bytes have no saving.
    pub fn of(bytes: u64, stored_bytes: u64) -> Self {
        Self::from_fraction(1.0 - stored_bytes as f64 / bytes as f64)
    }

    /// Returns the saved fraction, in 0..=1.
    pub fn fraction(self) -> f64 {
        self.0
    }

    /// Returns the saving in percent, in 0..=100.
    pub fn percent(self) -> f64 {
        self.0 * 100.0
    }

    /// Returns the stored fraction, in 0..=1.
    pub fn stored_fraction(self) -> f64 {
        1.0 - self.0
    }

    /// Returns the ratio of original to stored bytes, at least 1; infinite if nothing is stored.
    pub fn ratio(self) -> f64 {
        1.0 / (1.0 - self.0)
    }

    /// Returns the absolute difference from another saving in percentage points.
    pub fn points_from(self, other: Self) -> f64 {
        (self.0 - other.0).abs() * 100.0
    }
}

impl fmt::Display for Saving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, stored, ratio) = (self.percent(), self.stored_fraction(), self.ratio());
        write!(f, "{percent:.1} % saved (stored {stored:.3}, ratio {ratio:.2})")
    }
}

impl FromStr for Saving {
    type Err = String;

    /// Parses percentages such as `50%` or `12.5 %`.
    fn from_str(text: &str) -> Result<Self, String> {
        let Some(number) = text.trim().strip_suffix('%') else {
            return Err(format!(
                "'{text}' is ambiguous (saved, stored or a ratio): expected the saved share with \
                 its unit, such as 50%"
            ));
        };
        let percent: Option<f64> = number.trim().parse().ok();
        match percent {
            Some(percent) if (0.0..=100.0).contains(&percent) => Ok(Self(percent / 100.0)),
            _ => Err(format!("invalid share '{text}': expected a number from 0% to 100%")),
        }
    }
}

impl From<Saving> for Quantities {
    fn from(saving: Saving) -> Self {
        Self {
            saved_percent: saving.percent(),
            stored_fraction: saving.stored_fraction(),
            ratio: Some(saving.ratio()).filter(|ratio| ratio.is_finite()),
        }
    }
}

impl<'de> Deserialize<'de> for Saving {
    /// Deserialises the first of the three quantities; the others are derived from it.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Parts {
            saved_percent: f64,
        }
        let parts = Parts::deserialize(deserializer)?;
        Ok(Self::from_fraction(parts.saved_percent / 100.0))
    }
}

#[cfg(test)]
mod tests {
    //! Goal: a saving is never mistaken for the stored share or for a ratio.
    use super::*;

    #[test]
    fn all_three_quantities_are_printed() {
        let quarter: Saving = "25%".parse().expect("a share");
        assert_eq!(quarter.to_string(), "25.0 % saved (stored 0.750, ratio 1.33)");
        assert_eq!(Saving::of(400, 300), quarter);
        assert_eq!(Saving::of(400, 500), Saving::NONE);
        assert_eq!(Saving::of(0, 0), Saving::NONE);
        let json = serde_json::to_value(Saving::from_fraction(0.5)).expect("JSON");
        let parts = serde_json::json!({
            "saved_percent": 50.0, "stored_fraction": 0.5, "ratio": 2.0
        });
        assert_eq!(json, parts);
        let all = serde_json::to_value(Saving::from_fraction(1.0)).expect("JSON");
        assert!(all["ratio"].is_null());
    }

    #[test]
    fn only_shares_with_their_sign_are_read() {
        for (text, percent) in [("0%", 0.0), ("12.5 %", 12.5), (" 98% ", 98.0), ("100%", 100.0)] {
            assert_eq!(text.parse::<Saving>().map(Saving::percent), Ok(percent), "{text}");
        }
        for text in ["", "%", "50", "0.5", "2:1", "120%", "-1%", "nan%", "inf%", "5 0%"] {
            assert!(text.parse::<Saving>().is_err(), "{text}");
        }
        assert!("50".parse::<Saving>().unwrap_err().contains("such as 50%"));
    }
}
