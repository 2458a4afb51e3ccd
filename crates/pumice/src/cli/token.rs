//! The position from which an interrupted receive continues, as text: `SNAPSHOT:BASE:OFFSET`.

use std::fmt;
use std::str::FromStr;

use pumice_drive::controller::Partial;
use uuid::Uuid;

/// The part of a snapshot that a drive holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token(pub(crate) Partial);

/// Stands for the base of a whole disk.
const NO_BASE: &str = "whole";

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Partial { snapshot, base, offset } = self.0;
        match base {
            Some(base) => write!(f, "{snapshot}:{base}:{offset}"),
            None => write!(f, "{snapshot}:{NO_BASE}:{offset}"),
        }
    }
}

impl FromStr for Token {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let read = || {
            let [snapshot, base, offset] = parts[..] else { return None };
            let base = match base {
                NO_BASE => None,
                base => Some(Uuid::parse_str(base).ok()?),
            };
            let (snapshot, offset) = (Uuid::parse_str(snapshot).ok()?, offset.parse().ok()?);
            Some(Self(Partial { snapshot, base, offset }))
        };
        read().ok_or_else(|| "expected a token from `pumice receive --resume-token`".to_owned())
    }
}

#[cfg(test)]
mod tests {
    //! Goal: tokens survive a round trip, and no other text is accepted as one.
    use super::*;

    #[test]
    fn round_trip() {
        for base in [None, Some(Uuid::from_u128(2))] {
            let token = Token(Partial { snapshot: Uuid::from_u128(1), base, offset: 1 << 40 });
            assert_eq!(token.to_string().parse(), Ok(token));
        }
        for text in ["", "a:b:c", "::", "x", "00000000-0000-0000-0000-000000000001:whole:-1"] {
            text.parse::<Token>().unwrap_err();
        }
    }
}
