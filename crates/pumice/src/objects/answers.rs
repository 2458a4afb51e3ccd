//! The meaning of a store's answers: the error code, and a sentence of advice.
//!
//! A store explains itself in a page of XML, which its client repeats for each cause. Only its code
//! is useful, and its message if the code is unknown here. The text comes from the store, so before
//! it is shown, it is shortened and control characters are removed.

use pumice_drive::base::{ErrorKind, chain};

/// Maximum length of the shown part of an answer, in characters.
const BRIEF: usize = 200;

/// The permissions that credentials need.
const DENIED: &str = "access is denied: the credentials need s3:GetObject, s3:PutObject and \
                      s3:DeleteObject on the objects, and s3:ListBucket on the bucket";

const REGION: &str = "the bucket is in another region: set AWS_REGION to that";

/// Error codes on which the user can act.
const KNOWN: [(&str, ErrorKind, &str); 11] = [
    (
        "ExpiredToken",
        ErrorKind::PermissionDenied,
        "the session token has expired: get new credentials, set AWS_ACCESS_KEY_ID, \
         AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, and start pumice again",
    ),
    (
        "InvalidToken",
        ErrorKind::PermissionDenied,
        "the session token does not belong to the access key: set AWS_SESSION_TOKEN, or unset it",
    ),
    (
        "InvalidAccessKeyId",
        ErrorKind::PermissionDenied,
        "the store does not know the access key: check AWS_ACCESS_KEY_ID, or the profile, and \
         AWS_ENDPOINT_URL",
    ),
    (
        "SignatureDoesNotMatch",
        ErrorKind::PermissionDenied,
        "the secret key does not match the access key: check AWS_SECRET_ACCESS_KEY, or the profile",
    ),
    ("AccessDenied", ErrorKind::PermissionDenied, DENIED),
    (
        "NoSuchBucket",
        ErrorKind::NotFound,
        "there is no such bucket: create it, or check its name and AWS_ENDPOINT_URL",
    ),
    ("PermanentRedirect", ErrorKind::InvalidInput, REGION),
    ("AuthorizationHeaderMalformed", ErrorKind::InvalidInput, REGION),
    ("IllegalLocationConstraintException", ErrorKind::InvalidInput, REGION),
    (
        "RequestTimeTooSkewed",
        ErrorKind::PermissionDenied,
        "the clock of this machine is wrong: set it, for example with NTP",
    ),
    ("NotImplemented", ErrorKind::Unsupported, "the store does not support this request"),
];

/// Returns the meaning of an error of the client.
pub(super) fn meaning(error: &object_store::Error) -> (ErrorKind, String) {
    let text = chain(error);
    let code = between(&text, "Code").map(brief);
    let known = |code: &String| KNOWN.iter().find(|(name, ..)| name == code);
    if let Some((code, kind, what)) = code.as_ref().and_then(known) {
        let region = between(&text, "Region").filter(|_| *what == REGION);
        let region = region.map(|region| format!(" ({})", brief(region))).unwrap_or_default();
        return (*kind, format!("{code}: {what}{region}"));
    }
    match error {
        // For answers without a code: an answer to HEAD has no page.
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => {
            (ErrorKind::PermissionDenied, DENIED.to_owned())
        }
        object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
            (ErrorKind::Unsupported, "the store does not support this request".to_owned())
        }
        _ => {
            let message = between(&text, "Message").map(brief).unwrap_or_default();
            let what = code.map(|code| format!("{code}: {message}"));
            (ErrorKind::Io, what.unwrap_or_else(|| innermost(error)))
        }
    }
}

/// Returns the text in the first element of this name.
fn between<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(inner, _)| inner)
}

/// Returns the first line of a message of a store or its client.
fn brief(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.chars().filter(|character| !character.is_control()).take(BRIEF).collect()
}

/// Returns the innermost cause, which the outer ones repeat.
fn innermost(error: &object_store::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(cause) = inner.source() {
        inner = cause;
    }
    brief(&inner.to_string())
}

#[cfg(test)]
mod tests {
    //! Goal: an answer is shown as its code and one sentence of advice. Method: answers of stores,
    //! within the text of the client.
    use super::*;

    fn answer(code: &str, more: &str) -> object_store::Error {
        let source = format!(
            "Error performing PUT http://store/x in 1ms - Server returned non-2xx status code: \
             400 Bad Request: <?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>Long \
             \u{1b}[31m words</Message>{more}<HostId>{}</HostId></Error>",
            "x".repeat(1000)
        );
        object_store::Error::Generic { store: "S3", source: source.into() }
    }

    #[test]
    fn an_error_is_one_sentence() {
        for (code, kind, word) in [
            ("ExpiredToken", ErrorKind::PermissionDenied, "AWS_SESSION_TOKEN"),
            ("InvalidAccessKeyId", ErrorKind::PermissionDenied, "AWS_ACCESS_KEY_ID"),
            ("SignatureDoesNotMatch", ErrorKind::PermissionDenied, "AWS_SECRET_ACCESS_KEY"),
            ("AccessDenied", ErrorKind::PermissionDenied, "s3:PutObject"),
            ("NoSuchBucket", ErrorKind::NotFound, "create it"),
            ("PermanentRedirect", ErrorKind::InvalidInput, "AWS_REGION"),
            ("RequestTimeTooSkewed", ErrorKind::PermissionDenied, "NTP"),
        ] {
            let (found, text) = meaning(&answer(code, ""));
            assert_eq!(found, kind, "{text}");
            assert!(text.starts_with(&format!("{code}: ")) && text.contains(word), "{text}");
            assert!(text.len() < 250 && !text.contains('<'), "{text}");
        }
        let wrong = answer("AuthorizationHeaderMalformed", "<Region>eu-1</Region>");
        assert!(meaning(&wrong).1.ends_with("(eu-1)"), "{}", meaning(&wrong).1);
        let (kind, text) = meaning(&answer("SlowDown", ""));
        assert_eq!((kind, &*text), (ErrorKind::Io, "SlowDown: Long [31m words"));
    }

    #[test]
    fn an_answer_without_a_code_is_shown_once() {
        let inner = std::io::Error::from_raw_os_error(111);
        let error = object_store::Error::Generic { store: "S3", source: inner.into() };
        assert_eq!(meaning(&error), (ErrorKind::Io, "Connection refused (os error 111)".into()));
        let source = "403 Forbidden".into();
        let denied = object_store::Error::PermissionDenied { path: "x".into(), source };
        assert_eq!(meaning(&denied), (ErrorKind::PermissionDenied, DENIED.into()));
    }
}
