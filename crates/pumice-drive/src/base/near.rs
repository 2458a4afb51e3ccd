//! The name that somebody may have meant.

/// Letters that may be wrong in a name that is still recognised.
const EDITS_MAX: usize = 2;

/// The one of `names` that is nearest to what was typed, if it is near at all.
pub fn nearest<'a>(typed: &str, names: &[&'a str]) -> Option<&'a str> {
    let edits = |name: &&str| strsim::osa_distance(typed, name);
    let near = names.iter().copied().min_by_key(edits);
    near.filter(|name| edits(name) <= EDITS_MAX)
}

#[cfg(test)]
mod tests {
    //! Goal: slips of the finger are recognised, other words are not.
    use super::nearest;

    #[test]
    fn slips_are_recognised() {
        let names = ["copy", "atto", "iometer"];
        assert_eq!(nearest("cpoy", &names), Some("copy"));
        assert_eq!(nearest("iometre", &names), Some("iometer"));
        assert_eq!(nearest("fio", &names), None);
        assert_eq!(nearest("fio", &[]), None);
    }
}
