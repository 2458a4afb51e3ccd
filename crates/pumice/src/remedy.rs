//! Texts of errors for users: the libraries' texts, and the flag or command of this program that
//! helps. Libraries name neither; their errors have a [`Remedy`].

use std::error::Error as StdError;

use pumice_drive::{Error, Remedy};

/// Returns an error and its causes in one line, with the flag or command that helps.
///
/// Libraries disagree on whether an error's text includes its cause; a cause that its parent
/// already ends with is left out.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let (mut line, mut help, mut next) = (String::new(), None, Some(error));
    while let Some(error) = next {
        let text = error.to_string();
        if line.is_empty() {
            line = text;
        } else if !line.ends_with(&text) {
            line += &format!(": {text}");
        }
        help = help.or_else(|| words(error));
        next = error.source();
    }
    match help {
        Some(help) => line + "; " + help,
        None => line,
    }
}

/// Like [`chain`], of an error of any library.
pub(crate) fn chain_of(error: &anyhow::Error) -> String {
    chain(error.as_ref())
}

/// Returns the flag or command that resolves an error, if there is one.
fn words(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    Some(match error.downcast_ref::<Error>()?.remedy()? {
        Remedy::Overwrite => "use --force to overwrite it",
        Remedy::Degraded => "`pumice serve --degraded` continues without a member",
        Remedy::Fenced => "`pumice extract --fenced` reads it",
        Remedy::Forget => "for one that is gone, use `pumice snapshot delete --forget`",
        Remedy::Resume => "`pumice receive --resume-token` prints the token with which to continue",
    })
}

#[cfg(test)]
mod tests {
    //! Goal: an error is one line that names each cause once, and the flag that helps at its end.
    use anyhow::anyhow;
    use pumice_drive::ErrorKind;

    use super::*;

    #[test]
    fn a_cause_that_its_parent_repeats_is_left_out() {
        let error = anyhow!("not found").context("cannot open a: not found").context("drive");
        assert_eq!(chain(error.as_ref()), "drive: cannot open a: not found");
        assert_eq!(chain(anyhow!("full").as_ref()), "full");
        assert_eq!(chain(anyhow!("full").context("a").as_ref()), "a: full");
    }

    #[test]
    fn the_remedy_of_a_cause_is_at_the_end() {
        let exists = || Error::new(ErrorKind::AlreadyExists, "b exists");
        let error = exists().with_remedy(Remedy::Overwrite).caused_by("c");
        let error = anyhow::Error::from(error).context("a");
        assert_eq!(chain(error.as_ref()), "a: b exists: c; use --force to overwrite it");
        let error = Error::new(ErrorKind::Corrupt, "a").caused_by(exists());
        assert_eq!(chain(&error), "a: b exists");
    }
}
