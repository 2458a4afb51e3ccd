//! Parses the lines of an fio job file.
//!
//! ```text
//! [global]            applies to the jobs that follow
//! rw=randwrite        ; a comment
//! [a job]
//! time_based          is time_based=1
//! filename=${DISK}    is taken from the environment
//! ```

/// Maximum number of jobs in a file (arbitrary).
const JOBS_MAX: usize = 500;

/// Maximum number of options in a job, including those of `[global]` (arbitrary).
const OPTIONS_MAX: usize = 500;

/// A job: its name and options, in order. The options of `[global]` precede its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) options: Vec<(String, String)>,
}

/// Returns the jobs of a file, in order.
///
/// # Errors
/// The reason, with the line number.
pub(crate) fn sections(text: &str) -> Result<Vec<Section>, String> {
    let mut global = Section::default();
    let mut sections: Vec<Section> = Vec::new();
    let mut is_global = true;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split([';', '#']).next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.rsplit_once(']').map(|(name, _)| name);
            let name = name.ok_or_else(|| format!("line {number}: '{line}' has no ]"))?;
            is_global = name == "global";
            if !is_global {
                sections.push(Section { name: name.to_owned(), options: global.options.clone() });
            }
            if sections.len() > JOBS_MAX {
                return Err(format!("more than {JOBS_MAX} jobs"));
            }
            continue;
        }
        if line.starts_with("include ") {
            return Err(format!("line {number}: '{line}' is not supported: copy the file here"));
        }
        let (key, value) = line.split_once('=').unwrap_or((line, "1"));
        let value = expanded(value.trim()).map_err(|what| format!("line {number}: {what}"))?;
        let option = (key.trim().to_owned(), value);
        let section = match sections.last_mut() {
            _ if is_global => &mut global,
            Some(section) => section,
            None => return Err(format!("line {number}: an option before the first job")),
        };
        section.options.push(option);
        if section.options.len() > OPTIONS_MAX {
            return Err(format!("line {number}: more than {OPTIONS_MAX} options of a job"));
        }
    }
    if sections.is_empty() {
        return Err("the file has no job, only [global]".to_owned());
    }
    Ok(sections)
}

/// Returns a value with its environment variables expanded.
///
/// Unset variables and fio's own keywords, which begin with a dollar sign, are refused. fio
/// replaces an unset variable with the empty string. Both would change the measurement here.
fn expanded(value: &str) -> Result<String, String> {
    let (mut whole, mut rest) = (String::new(), value);
    while let Some((before, after)) = rest.split_once('$') {
        let named = after.strip_prefix('{').and_then(|after| after.split_once('}'));
        let Some((name, after)) = named else {
            return Err(format!("'{value}' is not supported: only variables as in ${{NAME}} are"));
        };
        let found = std::env::var(name);
        let found = found.map_err(|error| {
            format!("the variable {name} of '{value}': {error}; set it: {name}=VALUE pumice ...")
        })?;
        whole.extend([before, &found]);
        rest = after;
    }
    Ok(whole + rest)
}

#[cfg(test)]
mod tests {
    //! Goal: a job has the same options as in fio.
    use super::*;

    #[test]
    fn global_options_precede_own_ones() {
        let text = "; a comment\n[global]\nbs = 4k # inline\n\n[one]\nrw=read\n[global]\ndirect\n\
                    [two [b]]\nbs=8k\n";
        let found = sections(text).unwrap();
        let option = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(found[0].options, [option("bs", "4k"), option("rw", "read")]);
        let two = [option("bs", "4k"), option("direct", "1"), option("bs", "8k")];
        assert_eq!((found[1].name.as_str(), &found[1].options[..]), ("two [b]", &two[..]));
    }

    #[test]
    fn variables_of_the_environment_are_expanded() {
        let found = sections("[a]\nfilename=/a${CARGO_PKG_NAME}b${CARGO_PKG_NAME}\n").unwrap();
        let name = "/apumice-benchbpumice-bench".to_owned();
        assert_eq!(found[0].options, [("filename".to_owned(), name)]);
    }

    #[test]
    fn mistakes_are_named_by_their_line() {
        for (text, words) in [
            ("[global]\nbs=4k\n", "only [global]"),
            ("[a\n", "line 1: '[a' has no ]"),
            ("[a]\ninclude b.fio\n", "line 2: 'include b.fio'"),
            ("[a]\nfilename=${NO_SUCH}\n", "line 2: the variable NO_SUCH of '${NO_SUCH}'"),
            ("[a]\nfilename=$jobname.dat\n", "line 2: '$jobname.dat' is not supported"),
            ("[a]\nfilename=a${b\n", "line 2: 'a${b' is not supported"),
        ] {
            let error = sections(text).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
        let many = format!("[global]\n{}", "a=1\n".repeat(501));
        assert!(sections(&many).unwrap_err().contains("500 options"));
        assert!(sections(&"[a]\n".repeat(501)).unwrap_err().contains("500 jobs"));
    }
}
