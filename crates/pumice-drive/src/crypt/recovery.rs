//! Recovery codes: 256 random bits as people copy them from paper.
//!
//! ```text
//! 256 bits | 24 bits of SHA-256 -> 56 digits in base 32 -> 14 groups of 4: ABCD-EFGH-...
//! ```
//!
//! The digits are Crockford's: no I, L, O or U. Parsing reads I and L as 1, O as 0 and lowercase
//! letters as uppercase, and ignores spaces and hyphens.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use zeroize::Zeroizing;

use super::{KEY_BYTES, Randomness, Secret};

const DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// Bytes of the check value.
const CHECK_BYTES: usize = 3;

/// Digits of a code: 5 bits each.
const CODE_DIGITS: usize = (KEY_BYTES + CHECK_BYTES) * 8 / 5;
const _: () = assert!(CODE_DIGITS * 5 == (KEY_BYTES + CHECK_BYTES) * 8, "digits are full");

const GROUP_DIGITS: usize = 4;

/// A code that opens a drive when all other secrets are lost. Only `Display` prints it.
#[derive(Clone, PartialEq, Eq)]
pub struct RecoveryCode(Zeroizing<[u8; KEY_BYTES]>);

impl RecoveryCode {
    /// Draws a new code.
    pub fn draw(randomness: &Randomness) -> Self {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        randomness.fill(&mut *bytes);
        Self(bytes)
    }

    /// Returns the code as a [`Secret`].
    pub fn secret(&self) -> Secret {
        Secret::Recovery(self.0.clone())
    }
}

/// Returns the check value of a code.
fn check(bytes: &[u8; KEY_BYTES]) -> [u8; CHECK_BYTES] {
    let hash = digest(&SHA256, bytes);
    *hash.as_ref().first_chunk().expect("a hash is longer")
}

impl fmt::Debug for RecoveryCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecoveryCode")
    }
}

impl fmt::Display for RecoveryCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bits = 0_u32;
        let mut count = 0;
        let mut written = 0;
        for byte in self.0.iter().chain(&check(&self.0)) {
            bits = bits << 8 | u32::from(*byte);
            count += 8;
            while count >= 5 {
                count -= 5;
                let digit = DIGITS.get((bits >> count & 31) as usize);
                if written > 0 && written % GROUP_DIGITS == 0 {
                    f.write_str("-")?;
                }
                write!(f, "{}", char::from(*digit.expect("5 bits name a digit")))?;
                written += 1;
            }
        }
        assert_eq!(written, CODE_DIGITS, "all bits of a code are written");
        Ok(())
    }
}

impl FromStr for RecoveryCode {
    type Err = String;

    /// Parses a code, with or without hyphens and spaces.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES + CHECK_BYTES]);
        let mut target = bytes.iter_mut();
        let (mut bits, mut count, mut digits) = (0_u32, 0, 0);
        for character in text.chars().filter(|&c| c != '-' && !c.is_whitespace()) {
            let digit = match character.to_ascii_uppercase() {
                'I' | 'L' => '1',
                'O' => '0',
                other => other,
            };
            let value = DIGITS.iter().position(|&known| char::from(known) == digit);
            let value = value.ok_or("a recovery code has digits and letters without I, L, O, U")?;
            bits = bits << 5 | u32::try_from(value).unwrap_or(0);
            count += 5;
            digits += 1;
            if count >= 8 {
                count -= 8;
                let byte = target.next().ok_or_else(|| wrong_length(digits))?;
                *byte = (bits >> count & 0xff) as u8;
            }
        }
        if digits != CODE_DIGITS {
            return Err(wrong_length(digits));
        }
        let (code, checked) = bytes.split_first_chunk().expect("a code is longer than a key");
        if check(code) != checked {
            return Err("the recovery code has a typing error: its check value is wrong".into());
        }
        Ok(Self(Zeroizing::new(*code)))
    }
}

fn wrong_length(digits: usize) -> String {
    format!("a recovery code has {CODE_DIGITS} digits and letters, not {digits}")
}

#[cfg(test)]
mod tests {
    //! Goal: a code survives printing and careless typing, and every wrong digit is detected.
    use super::*;

    #[test]
    fn round_trip() {
        for seed in 0..20 {
            let code = RecoveryCode::draw(&Randomness::seeded(seed));
            let text = code.to_string();
            assert_eq!(text.len(), 14 * 5 - 1);
            assert!(text.split('-').all(|group| group.len() == 4), "{text}");
            assert_eq!(text.parse(), Ok(code.clone()));
            let sloppy = text.to_lowercase().replace('-', " ").replace('1', "l").replace('0', "o");
            assert_eq!(sloppy.parse(), Ok(code));
        }
    }

    #[test]
    fn every_wrong_digit_is_noticed() {
        let text = RecoveryCode::draw(&Randomness::seeded(1)).to_string();
        for (at, digit) in text.char_indices().filter(|&(_, digit)| digit != '-') {
            for other in DIGITS.iter().map(|&other| char::from(other)).filter(|o| *o != digit) {
                let mut wrong = text.clone();
                wrong.replace_range(at..=at, &other.to_string());
                assert!(wrong.parse::<RecoveryCode>().is_err(), "{wrong}");
            }
        }
        for wrong in ["", "ABC", &text[1..], &format!("{text}0"), &text.replace('-', "U")] {
            assert!(wrong.parse::<RecoveryCode>().is_err(), "{wrong}");
        }
    }
}
