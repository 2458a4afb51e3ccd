//! Places of drives in buckets: `s3://BUCKET/NAME`.

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};

const SCHEME: &str = "s3://";

/// A drive in a bucket: all its objects have names below `name/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BucketPlace {
    pub(crate) bucket: String,
    pub(crate) name: String,
}

impl BucketPlace {
    /// Reads an argument; `None` if it is a path.
    ///
    /// # Errors
    /// Bucket or name are missing, or have characters that not every store accepts.
    pub(crate) fn of(argument: &Path) -> Result<Option<Self>> {
        let Some(rest) = argument.to_str().and_then(|text| text.strip_prefix(SCHEME)) else {
            return Ok(None);
        };
        let (bucket, name) = rest.split_once('/').unwrap_or((rest, ""));
        let name = name.trim_end_matches('/');
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_part = |part: &str| !matches!(part, "" | "." | "..") && part.bytes().all(is_plain);
        if !is_part(bucket) || !name.split('/').all(is_part) {
            bail!(
                "{}: expected s3://BUCKET/NAME, of letters, digits, - _ . and / between parts of \
                 the name",
                argument.display()
            );
        }
        Ok(Some(Self { bucket: bucket.to_owned(), name: name.to_owned() }))
    }
}

impl fmt::Display for BucketPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.bucket, self.name)
    }
}

#[cfg(test)]
mod tests {
    //! Goal: paths stay paths, and names that stores treat differently are refused.
    use super::*;

    #[test]
    fn places_are_told_from_paths() {
        let of = |text: &str| BucketPlace::of(Path::new(text));
        assert_eq!(of("drive.pumice").unwrap(), None);
        assert_eq!(of("s3:/x/y").unwrap(), None);
        let place = of("s3://bucket/vm/disk-1/").unwrap().unwrap();
        assert_eq!((&*place.bucket, &*place.name), ("bucket", "vm/disk-1"));
        assert_eq!(place.to_string(), "s3://bucket/vm/disk-1");
        for wrong in
            ["s3://", "s3://b", "s3://b/", "s3://b//x", "s3://b/../x", "s3://b/a b", "s3:///x"]
        {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
