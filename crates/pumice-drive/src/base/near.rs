//! Suggestions for a mistyped name.

/// Maximum edit distance of a suggested name from the typed one. Arbitrary.
const EDITS_MAX: usize = 2;

/// Returns the name with the fewest edits from `typed`, or `None` if all names differ by more than
/// two edits.
pub fn nearest<'a>(typed: &str, names: &[&'a str]) -> Option<&'a str> {
    let edits = |name: &&str| strsim::osa_distance(typed, name);
    let near = names.iter().copied().min_by_key(edits);
    near.filter(|name| edits(name) <= EDITS_MAX)
}

#[cfg(test)]
mod tests {
    //! Goal: typing errors are recognized; other words are not.
    use super::nearest;

    #[test]
    fn slips_are_recognized() {
        let names = ["copy", "atto", "iometer"];
        assert_eq!(nearest("cpoy", &names), Some("copy"));
        assert_eq!(nearest("iometre", &names), Some("iometer"));
        assert_eq!(nearest("fio", &names), None);
        assert_eq!(nearest("fio", &[]), None);
    }
}
