//! Turns the store client's errors and a service's answers into ours.

use std::borrow::Cow;
use std::fmt::Display;

use crate::error::{Error, ErrorKind, chain_text};

/// What rustls says where the system has no certificate of an authority.
const NO_CERTIFICATES: &str = "No CA certificates were loaded";
const CERTIFICATES_HINT: &str = "HTTPS needs the certificates of the authorities to trust: install them (the package \
ca-certificates), or name a file of them in SSL_CERT_FILE";

/// Our error for one of object_store's, naming what was done and to which object.
pub(crate) fn from_client(
    e: object_store::Error,
    operation: &'static str,
    at: impl Display,
) -> Error {
    use object_store::Error as E;
    let text = chain_text(Some(&e));
    let (kind, message) = match &e {
        E::NotFound { .. } if names_missing_bucket(&text) => missing_bucket(),
        E::NotFound { .. } => (ErrorKind::NotFound, "no such object".to_string()),
        E::AlreadyExists { .. } => (
            ErrorKind::AlreadyExists,
            "an object is already there".into(),
        ),
        E::Precondition { .. } => (
            ErrorKind::Conflict,
            "the object is not the one that was looked at before".into(),
        ),
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => denied(&text),
        E::NotImplemented { .. } | E::NotSupported { .. } => (ErrorKind::Unsupported, brief(&text)),
        E::InvalidPath { .. } => (
            ErrorKind::Unsupported,
            format!(
                "a key that the store client cannot address: {}",
                brief(&text)
            ),
        ),
        _ if names_missing_bucket(&text) => missing_bucket(),
        _ if asked_the_machine(&text) => no_credentials(),
        _ if says_full(&text) => full("HTTP 507"),
        _ if text.contains(" 403 ") || text.contains(" 401 ") => denied(&text),
        // One object of a batch of deletions, of which only the code is told.
        _ if text.contains("(code: AccessDenied)") => denied(&text),
        _ if text.contains("Error opening") || text.contains("builder error") => {
            (ErrorKind::Invalid, brief(&text))
        }
        _ => (ErrorKind::Unavailable, brief(&said_below(&text))),
    };
    let error = Error::new(kind, message)
        .during(operation)
        .at(at)
        .caused_by(e);
    match kind {
        ErrorKind::Denied => error.hint(CREDENTIALS_HINT),
        ErrorKind::Full => error.hint(ROOM_HINT),
        _ if text.contains("(Connect)") || text.contains(NO_CERTIFICATES) => {
            error.hint(no_connection_hint(&text))
        }
        _ => error,
    }
}

/// What to do where no connection could be made, by what is said of it.
pub(crate) fn no_connection_hint(text: &str) -> &'static str {
    match text.contains(NO_CERTIFICATES) {
        true => CERTIFICATES_HINT,
        false => {
            "see that the address is right and that the server is there, then run the same command again"
        }
    }
}

/// What the store client was told, without its own words about request, times and settings.
fn said_below(text: &str) -> Cow<'_, str> {
    let said = || {
        let (_, performing) = text.split_once("Error performing ")?;
        let (request, said) = performing.split_once(" - ")?;
        let (_, retries) = request.split_once("after ").unwrap_or_default();
        let (retries, _) = retries.split_once(" retries").unwrap_or_default();
        Some(match retries {
            "" | "0" => Cow::Borrowed(said),
            retries => Cow::Owned(format!("{said}, after {retries} retries")),
        })
    };
    said().unwrap_or(Cow::Borrowed(text))
}

fn no_credentials() -> (ErrorKind, String) {
    let message = "no credentials are set, and this machine has none of its own";
    (ErrorKind::Denied, message.into())
}

/// True if the client found no credentials and asked the addresses at which clouds give them to their own machines.
fn asked_the_machine(text: &str) -> bool {
    [
        "169.254.169.254",
        "169.254.170.2",
        "metadata.google.internal",
    ]
    .iter()
    .any(|host| text.contains(host))
}

/// Our error for an answer with a failure status, or with an error in the body of a success.
pub(crate) fn from_answer(
    status: u16,
    body: &[u8],
    operation: &'static str,
    at: impl Display,
) -> Error {
    let text = String::from_utf8_lossy(&body[..body.len().min(4096)]);
    let code = service_code(&text);
    let said = match &code {
        Some(code) => format!("HTTP {status} {code}"),
        None => format!("HTTP {status}"),
    };
    let code = code.as_deref().unwrap_or("");
    let (kind, message) = match (status, code) {
        _ if names_missing_bucket(&text) => missing_bucket(),
        (404, _) | (_, "NoSuchKey" | "BlobNotFound") => {
            (ErrorKind::NotFound, format!("no such object ({said})"))
        }
        (_, code) if ARCHIVED_CODES.contains(&code) => (
            ErrorKind::Denied,
            format!("the object lies in an archive, from which it cannot be read ({said})"),
        ),
        (status, code) if status == 507 || FULL_CODES.contains(&code) => full(&said),
        (401 | 403, _)
        | (
            _,
            "AccessDenied"
            | "ExpiredToken"
            | "TokenRefreshRequired"
            | "InvalidToken"
            | "InvalidAccessKeyId",
        ) => denied_as(code),
        (412, _) | (_, "PreconditionFailed") => (
            ErrorKind::Conflict,
            format!("the object is not the one that was looked at before ({said})"),
        ),
        (409, "BlobAlreadyExists") => (
            ErrorKind::AlreadyExists,
            "an object is already there".into(),
        ),
        (409, "" | "ConditionalRequestConflict" | "OperationAborted" | "PendingCopyOperation") => (
            ErrorKind::Conflict,
            format!("another writer was faster ({said})"),
        ),
        (409, _) => (
            ErrorKind::Conflict,
            format!("the service refuses it as things are there ({said})"),
        ),
        (501 | 405, _) | (_, "NotImplemented" | "APINotImplemented") => (
            ErrorKind::Unsupported,
            format!("the service does not offer this request ({said})"),
        ),
        (400, _) => (
            ErrorKind::Invalid,
            format!("the service refused the request ({said})"),
        ),
        _ => (
            ErrorKind::Unavailable,
            format!("the service answered {said}"),
        ),
    };
    let error = Error::new(kind, message).during(operation).at(at);
    match kind {
        ErrorKind::Denied if ARCHIVED_CODES.contains(&code) => error.hint(ARCHIVE_HINT),
        ErrorKind::Denied => error.hint(CREDENTIALS_HINT),
        ErrorKind::Full => error.hint(ROOM_HINT),
        _ => error,
    }
}

/// What S3 and Azure call it that an object must be brought back from an archive before it can be read or copied.
const ARCHIVED_CODES: [&str; 2] = ["InvalidObjectState", "BlobArchived"];
const ARCHIVE_HINT: &str = "bring it back first (S3: RestoreObject, Azure: Set Blob Tier), which takes hours; then run the same \
                            command again";

const CREDENTIALS_HINT: &str =
    "check the credentials, whether they have expired, and what they may do in this bucket";

/// What servers call it that there is no space, or that a bucket's limit is reached. The last is Azurite's.
const FULL_CODES: [&str; 3] = [
    "XMinioStorageFull",
    "XMinioAdminBucketQuotaExceeded",
    "MemoryExtentStoreAtSizeLimit",
];
const ROOM_HINT: &str =
    "make room in the store, or raise the bucket's quota; then run the same command again";

fn full(said: &str) -> (ErrorKind, String) {
    let message = format!("the store has no space left, or the quota is used up ({said})");
    (ErrorKind::Full, message)
}

/// True for the words of a server that has no space, or whose bucket has a limit that is reached.
fn says_full(text: &str) -> bool {
    text.contains(" 507 ") || FULL_CODES.iter().any(|code| text.contains(code))
}

/// True if the service asks us to slow down.
pub(crate) fn is_throttle(status: u16, body: &[u8]) -> bool {
    if matches!(status, 429 | 503) {
        return true;
    }
    // In a body only where it can be an error: copies answer 200 first and fail later.
    if status != 200 || body.len() > 4096 {
        return false;
    }
    let text = String::from_utf8_lossy(body);
    text.contains("<Error")
        && matches!(
            service_code(&text).as_deref(),
            Some("SlowDown" | "ServerBusy")
        )
}

/// True if the same request may succeed when it is sent again.
pub(crate) fn worth_repeating(status: u16, body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&body[..body.len().min(4096)]);
    let code = service_code(&text);
    // SeaweedFS answers 500 for a bucket that does not exist.
    if names_missing_bucket(&text) {
        return false;
    }
    matches!(status, 408 | 429 | 500 | 502 | 503 | 504)
        || matches!(
            code.as_deref(),
            Some(
                "SlowDown"
                    | "ServiceUnavailable"
                    | "InternalError"
                    | "RequestTimeout"
                    | "ServerBusy"
                    | "OperationTimedOut"
                    | "ConditionalRequestConflict"
                    | "BadDigest"
                    | "Md5Mismatch"
            )
        )
}

/// True for Azure's answer to a write that must not replace a blob.
pub(crate) fn says_blob_exists(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&body[..body.len().min(4096)]);
    service_code(&text).as_deref() == Some("BlobAlreadyExists")
}

/// True for S3's answer to the completion of an upload whose parts are not those that were named.
pub(crate) fn says_invalid_part(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&body[..body.len().min(4096)]);
    service_code(&text).as_deref() == Some("InvalidPart")
}

/// True for the error of a condition that did not hold, whatever the status that it came with.
pub(crate) fn says_condition_failed(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(&body[..body.len().min(4096)]);
    service_code(&text).as_deref() == Some("PreconditionFailed")
}

/// The message of the error for a bucket that does not exist.
const MISSING_BUCKET: &str = "the bucket does not exist";

/// The error for a bucket that does not exist.
pub(crate) fn missing_bucket_error(operation: &'static str, at: impl Display) -> Error {
    let (kind, message) = missing_bucket();
    Error::new(kind, message).during(operation).at(at)
}

/// True for the error of an object that does not exist in a bucket that may.
pub(crate) fn is_missing_object(e: &Error) -> bool {
    e.kind() == ErrorKind::NotFound && e.message() != MISSING_BUCKET
}

/// True for the error of a bucket that does not exist.
pub(crate) fn is_missing_bucket(e: &Error) -> bool {
    e.kind() == ErrorKind::NotFound && e.message() == MISSING_BUCKET
}

fn missing_bucket() -> (ErrorKind, String) {
    (ErrorKind::NotFound, MISSING_BUCKET.to_string())
}

/// The service says it in its code or message; a key of that name, which stands in the request's
/// URL or in the answer's resource, says nothing.
fn names_missing_bucket(text: &str) -> bool {
    let code = service_code(text);
    if matches!(
        code.as_deref(),
        Some("NoSuchBucket" | "ContainerNotFound" | "BucketNotFound")
    ) {
        return true;
    }
    let message = between(text, "<Message>", "</Message>")
        .or_else(|| between(text, "\"message\":\"", "\""))
        .or_else(|| between(text, "\"message\": \"", "\""))
        .unwrap_or_default();
    [
        "bucket does not exist",
        "bucket not found",
        "no bucket named",
    ]
    .iter()
    .any(|mark| message.contains(mark))
}

/// The text between two marks, if it is there and short.
fn between(text: &str, open: &str, close: &str) -> Option<String> {
    let start = text.find(open)? + open.len();
    let len = text.get(start..)?.find(close)?;
    let found = text.get(start..start + len)?.trim();
    (!found.is_empty() && found.len() < 200).then(|| found.to_string())
}

fn denied_as(code: &str) -> (ErrorKind, String) {
    let code = if code.is_empty() {
        String::new()
    } else {
        format!(" ({code})")
    };
    (ErrorKind::Denied, format!("access denied{code}"))
}

fn denied(text: &str) -> (ErrorKind, String) {
    if asked_the_machine(text) {
        return no_credentials();
    }
    let code = service_code(text)
        .map(|c| format!(" ({c})"))
        .unwrap_or_default();
    (ErrorKind::Denied, format!("access denied{code}"))
}

/// The `<Code>` of an XML error, or the `reason` of a JSON one.
fn service_code(text: &str) -> Option<String> {
    between(text, "<Code>", "</Code>")
        .or_else(|| between(text, "\"reason\": \"", "\""))
        .or_else(|| between(text, "\"reason\":\"", "\""))
}

/// One line of at most 300 characters; a message, not a page of XML.
fn brief(text: &str) -> String {
    let line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(300) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_without_space_is_told_from_one_that_does_not_answer() {
        let minio = b"<Error><Code>XMinioStorageFull</Code><Message>m</Message></Error>";
        for (status, body) in [(507, &minio[..]), (507, b""), (400, minio)] {
            let e = from_answer(status, body, "write", "s3://b/k");
            assert_eq!(e.kind(), ErrorKind::Full, "{status}");
            assert!(e.next_step().is_some_and(|s| s.contains("make room")));
            assert!(!worth_repeating(status, body), "{status}");
        }
        let source = "Error performing PUT http://s/b/k in 1ms - Server returned non-2xx status code: \
                      507 Insufficient Storage: ";
        let e = object_store::Error::Generic {
            store: "S3",
            source: source.into(),
        };
        assert_eq!(from_client(e, "write", "s3://b/k").kind(), ErrorKind::Full);
    }

    #[test]
    fn where_nobody_listens_the_address_is_the_thing_to_look_at() {
        let source = "Error performing GET http://127.0.0.1:9/b/k in 1.2s, after 6 retries, max_retries: 6, \
                      retry_timeout: 90s - HTTP error: error sending request: client error (Connect): tcp connect \
                      error: Connection refused (os error 111)";
        let generic = |source: &str| object_store::Error::Generic {
            store: "S3",
            source: source.to_string().into(),
        };
        let e = from_client(generic(source), "read", "s3://b/k");
        assert_eq!(e.kind(), ErrorKind::Unavailable);
        assert_eq!(
            e.message(),
            "HTTP error: error sending request: client error (Connect): tcp connect error: Connection refused (os error \
             111), after 6 retries"
        );
        assert!(e.next_step().unwrap().contains("the address is right"));
        for other in ["no such thing", "Error performing GET x"] {
            let e = from_client(generic(other), "read", "s3://b/k");
            assert!(e.message().contains(other), "{e}");
            assert_eq!(e.next_step(), None);
        }
    }

    #[test]
    fn what_is_archived_is_told_from_what_is_forbidden_and_from_a_race() {
        for (status, code) in [(403, "InvalidObjectState"), (409, "BlobArchived")] {
            let body = format!("<Error><Code>{code}</Code></Error>");
            let e = from_answer(status, body.as_bytes(), "copy", "s3://b/k");
            assert_eq!(e.kind(), ErrorKind::Denied);
            assert!(e.to_string().contains("archive"), "{e}");
            assert!(e.next_step().is_some_and(|s| s.contains("bring it back")));
        }
        let said = |code: &str| {
            let body = format!("<Error><Code>{code}</Code></Error>");
            from_answer(409, body.as_bytes(), "write", "az://b/k").to_string()
        };
        assert!(said("ConditionalRequestConflict").contains("another writer"));
        assert!(said("BlobImmutableDueToPolicy").contains("as things are there"));
        assert!(said("MemoryExtentStoreAtSizeLimit").contains("no space left"));
    }

    #[test]
    fn missing_credentials_are_named_as_such() {
        let source = "Error performing GET http://169.254.169.254/latest/api/token in 1ms";
        let e = object_store::Error::Generic {
            store: "S3",
            source: source.into(),
        };
        let e = from_client(e, "read", "s3://b/k");
        assert_eq!(e.kind(), ErrorKind::Denied);
        assert!(e.to_string().contains("no credentials are set"), "{e}");
    }
}
