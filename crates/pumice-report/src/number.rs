//! A measured number: value, deviation, number of decimals for display, and unit.
//!
//! Printers for people show rounded text; printers for programs show the full value. A value that
//! is not finite is shown as a dash.
//!
//! Numbers are independent of the locale: the decimal sign is a point. Thousands are grouped only
//! in HTML pages, where the spaces cannot be mistaken for column separators.

use std::fmt;

/// Printed in place of a number that does not exist.
pub(crate) const NO_NUMBER: &str = "–";

/// Maximum number of decimals. An `f64` seldom has more significant ones.
const DECIMALS_MAX: u8 = 12;

/// A number with its unit and, for a mean, its deviation.
#[derive(Clone, Debug, PartialEq)]
pub struct Number {
    /// The value, not rounded.
    pub value: f64,
    /// Standard deviation, or another quantity that the document uses for its error bars; not
    /// negative.
    pub deviation: Option<f64>,
    /// Decimals for display, at most 12.
    pub decimals: u8,
    /// Unit, such as `MB/s`; empty if there is no unit, or if the column or axis has it.
    pub unit: String,
}

impl Number {
    /// Returns a number with `decimals` decimals (at most 12), without deviation or unit.
    pub fn new(value: f64, decimals: u8) -> Self {
        Self { value, deviation: None, decimals: decimals.min(DECIMALS_MAX), unit: String::new() }
    }

    /// Returns a number with `digits` significant digits. Digits before the decimal point are never
    /// removed.
    pub fn significant(value: f64, digits: u8) -> Self {
        let exponent =
            if value == 0.0 || !value.is_finite() { 0 } else { value.abs().log10().floor() as i32 };
        let decimals = i32::from(digits) - 1 - exponent;
        Self::new(value, decimals.clamp(0, i32::from(DECIMALS_MAX)) as u8)
    }

    /// Returns a number with four significant digits, without trailing zeroes.
    pub fn plain(value: f64) -> Self {
        let mut number = Self::significant(value, 4);
        let text = number.value_text();
        if let Some((_, decimals)) = text.split_once('.') {
            number.decimals = decimals.trim_end_matches('0').len() as u8;
        }
        number
    }

    /// Returns the number with a deviation, whose sign is ignored.
    pub fn with_deviation(mut self, deviation: f64) -> Self {
        self.deviation = Some(deviation.abs());
        self
    }

    /// Returns the number with a unit.
    pub fn with_unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = unit.into();
        self
    }

    /// Returns the rounded value, without deviation or unit.
    pub(crate) fn value_text(&self) -> String {
        rounded(self.value, self.decimals)
    }

    /// Returns the rounded deviation, without unit; `None` if there is none.
    pub(crate) fn deviation_text(&self) -> Option<String> {
        self.deviation.map(|deviation| rounded(deviation, self.decimals))
    }

    /// Returns the value and deviation, such as `12.3 ± 0.4`, without the unit.
    pub(crate) fn text(&self) -> String {
        match self.deviation_text() {
            Some(deviation) => format!("{} ± {deviation}", self.value_text()),
            None => self.value_text(),
        }
    }
}

/// Writes the value, deviation and unit, such as `12.3 ± 0.4 MB/s`.
impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text())?;
        if !self.unit.is_empty() {
            write!(f, " {}", self.unit)?;
        }
        Ok(())
    }
}

/// Formats `value` with this number of decimals; zero has no sign.
pub(crate) fn rounded(value: f64, decimals: u8) -> String {
    if !value.is_finite() {
        return NO_NUMBER.to_owned();
    }
    let text = format!("{value:.*}", usize::from(decimals));
    let is_zero = text.bytes().all(|byte| !(b'1'..=b'9').contains(&byte));
    match text.strip_prefix('-') {
        Some(unsigned) if is_zero => unsigned.to_owned(),
        _ => text,
    }
}

/// Groups thousands with thin spaces if there are five or more digits before the decimal point.
pub(crate) fn grouped(text: &str) -> String {
    let end = text.find('.').unwrap_or(text.len());
    let start = text.bytes().take_while(|byte| !byte.is_ascii_digit()).count();
    let digits = &text[start.min(end)..end];
    if digits.len() < 5 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.to_owned();
    }
    let mut result = text[..start].to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            result.push('\u{2009}');
        }
        result.push(digit);
    }
    result + &text[end..]
}

#[cfg(test)]
mod tests {
    //! Goal: numbers are formatted as requested, and a value that is not finite is never shown as a
    //! number.
    use super::*;

    #[test]
    fn numbers_show_decimals_deviation_and_unit() {
        let number = Number::new(1234.567, 1).with_deviation(-12.34).with_unit("MB/s");
        assert_eq!(number.to_string(), "1234.6 ± 12.3 MB/s");
        assert_eq!(Number::new(1234.567, 0).to_string(), "1235");
    }

    #[test]
    fn significant_digits_choose_the_decimals() {
        for (value, text) in
            [(0.012345, "0.0123"), (1.2345, "1.23"), (123.45, "123"), (98765.0, "98765")]
        {
            assert_eq!(Number::significant(value, 3).to_string(), text);
        }
        assert_eq!(Number::significant(0.0, 3).to_string(), "0.00");
    }

    #[test]
    fn invalid_numbers_are_a_dash() {
        assert_eq!(Number::new(f64::NAN, 2).to_string(), "–");
        assert_eq!(Number::significant(f64::INFINITY, 2).to_string(), "–");
        assert_eq!(Number::new(-0.01, 1).to_string(), "0.0");
        assert_eq!(Number::new(-0.06, 1).to_string(), "-0.1");
    }

    #[test]
    fn thousands_are_told_apart() {
        for (text, expected) in [
            ("1234.5", "1234.5"),
            ("-12345.25", "-12 345.25"),
            ("1234567", "1 234 567"),
            ("–", "–"),
            ("", ""),
        ] {
            assert_eq!(grouped(text).replace('\u{2009}', " "), expected);
        }
    }
}
