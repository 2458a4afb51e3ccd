//! Settings for reaching a store, from the same sources as in the AWS tools: the environment, or
//! else a profile in `~/.aws/credentials` and `~/.aws/config`.
//!
//! If neither has credentials, the client requests the credentials of a role from the machine.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use pumice_drive::base::{Error, ErrorKind, Result};

/// Longest file of profiles, in bytes: far more than any has.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The settings of a store that are known before the first request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) key: Option<String>,
    pub(super) secret: Option<String>,
    pub(super) token: Option<String>,
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
    /// A file of certificates to trust, in PEM.
    pub(super) ca_bundle: Option<PathBuf>,
}

/// Environment variables by name.
type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The lines of a profile.
type Profile = BTreeMap<String, String>;

impl Settings {
    /// Returns the settings of environment and profile.
    ///
    /// # Errors
    /// `NotFound` if the named profile does not exist; a file of profiles cannot be read.
    pub(super) fn read() -> Result<Self> {
        Self::of(&|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn of(environment: Environment<'_>) -> Result<Self> {
        let named = environment("AWS_PROFILE").or_else(|| environment("AWS_DEFAULT_PROFILE"));
        let name = named.clone().unwrap_or_else(|| "default".into());
        let home = environment("HOME").map(PathBuf::from);
        let file = |variable: &str, file: &str| {
            let own = environment(variable).map(PathBuf::from);
            own.or_else(|| Some(home.as_ref()?.join(".aws").join(file)))
        };
        let credentials = profile(file("AWS_SHARED_CREDENTIALS_FILE", "credentials"), &name)?;
        let config = profile(file("AWS_CONFIG_FILE", "config"), &name)?;
        if let (Some(name), None, None) = (named, &credentials, &config) {
            let what = format!("the profile '{name}' (AWS_PROFILE) is in neither file of ~/.aws");
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        let (credentials, config) = (credentials.unwrap_or_default(), config.unwrap_or_default());
        let both = |name: &str| credentials.get(name).or_else(|| config.get(name)).cloned();
        let first = |names: &[&str]| names.iter().find_map(|name| environment(name));
        let mut settings = Self {
            region: first(&["AWS_REGION", "AWS_DEFAULT_REGION"]).or_else(|| both("region")),
            endpoint: first(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
                .or_else(|| both("endpoint_url")),
            ca_bundle: environment("AWS_CA_BUNDLE").or_else(|| both("ca_bundle")).map(Into::into),
            ..Self::default()
        };
        // Key, secret and token belong together: all come from one source.
        if let Some(key) = environment("AWS_ACCESS_KEY_ID") {
            settings.key = Some(key);
            settings.secret = environment("AWS_SECRET_ACCESS_KEY");
            settings.token = environment("AWS_SESSION_TOKEN");
        } else if let Some(key) = both("aws_access_key_id") {
            settings.key = Some(key);
            settings.secret = both("aws_secret_access_key");
            settings.token = both("aws_session_token");
        }
        Ok(settings)
    }
}

/// Returns the lines of a profile in a file; `None` if the profile or the file does not exist.
fn profile(file: Option<PathBuf>, name: &str) -> Result<Option<Profile>> {
    let Some(file) = file.filter(|file| file.exists()) else { return Ok(None) };
    let is_short = fs::metadata(&file).is_ok_and(|found| found.len() <= FILE_BYTES_MAX);
    let text =
        if is_short { fs::read_to_string(&file) } else { Err(std::io::Error::other("long")) };
    let text = text.map_err(|error| {
        Error::new(ErrorKind::InvalidInput, format!("cannot read {}: {error}", file.display()))
    })?;
    Ok(find(&text, name))
}

/// Returns the lines below `[name]` or `[profile name]`. Nested lines, which are indented, are
/// settings of other services.
fn find(text: &str, name: &str) -> Option<Profile> {
    let mut found: Option<Profile> = None;
    let mut is_inside = false;
    for line in text.lines() {
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            let section = section.trim();
            let section = section.strip_prefix("profile ").map_or(section, str::trim);
            is_inside = section == name;
            if is_inside {
                found.get_or_insert_default();
            }
        } else if let (true, Some((key, value))) = (is_inside, line.split_once('=')) {
            let profile = found.get_or_insert_default();
            profile.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    //! Goal: settings come from the sources of the AWS tools.
    use super::*;

    #[test]
    fn the_environment_comes_before_the_profile() {
        let folder = tempfile::tempdir().unwrap();
        let aws = folder.path().join(".aws");
        fs::create_dir(&aws).unwrap();
        let credentials = "[default]\naws_access_key_id = one\naws_secret_access_key=s/=1\n\
                           [other]\naws_access_key_id=two\naws_secret_access_key=2\n";
        fs::write(aws.join("credentials"), credentials).unwrap();
        let config = "# of two\n[default]\nregion = eu-1\ns3 =\n  region = no\n\
                      [profile other]\nregion = eu-2\nendpoint_url = http://store\n";
        fs::write(aws.join("config"), config).unwrap();
        let home = folder.path().to_str().unwrap();
        let of = |set: &[(&str, &str)]| {
            Settings::of(&|name| match set.iter().find(|(known, _)| *known == name) {
                Some((_, value)) => Some((*value).to_owned()),
                None => (name == "HOME").then(|| home.to_owned()),
            })
        };
        let plain = of(&[]).unwrap();
        assert_eq!(plain.key.as_deref(), Some("one"));
        assert_eq!(plain.secret.as_deref(), Some("s/=1"));
        assert_eq!(plain.region.as_deref(), Some("eu-1"));
        let other = of(&[("AWS_PROFILE", "other")]).unwrap();
        assert_eq!(other.key.as_deref(), Some("two"));
        assert_eq!(other.endpoint.as_deref(), Some("http://store"));
        let set = [("AWS_ACCESS_KEY_ID", "three"), ("AWS_PROFILE", "other")];
        let mixed = of(&set).unwrap();
        assert_eq!((mixed.key.as_deref(), mixed.secret), (Some("three"), None));
        assert_eq!(mixed.region.as_deref(), Some("eu-2"));
        let absent = of(&[("AWS_PROFILE", "absent")]).unwrap_err();
        assert_eq!(absent.kind(), ErrorKind::NotFound);
    }
}
