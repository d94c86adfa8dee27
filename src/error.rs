//! One error type for the whole crate.
//!
//! [`ErrorKind`] says what the caller can do next, not which dependency failed. An [`Error`] reads
//! as a lower-case fragment that fits after "failed to": `read s3://b/chk-4/_metadata: ...`.
//!
//! How to choose a kind: ask what a sensible caller does next. Re-read and retry: `Conflict`. Wait
//! and retry: `Unavailable`. Make room: `Full`. Take another method: `Unsupported`. Stop and look at the data:
//! `Corrupt`. Change the arguments: `Invalid`. Remove what blocks: `Refused`.

use std::fmt;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// The object, bucket or snapshot is not there.
    NotFound,
    /// Something is already at the destination and it is not ours.
    AlreadyExists,
    /// Somebody changed what we looked at: read it again and retry.
    Conflict,
    /// Credentials are missing or do not allow the operation.
    Denied,
    /// The store did not answer, or asked us to slow down: retry later.
    Unavailable,
    /// No space is left where something shall be written, or a quota is used up: make room. Waiting
    /// alone does not help.
    Full,
    /// The store, the format or the pair of stores cannot do this: choose another method.
    Unsupported,
    /// The data is damaged: stop and verify.
    Corrupt,
    /// A safety rule forbids it; the message lists what blocks.
    Refused,
    /// What was asked for makes no sense: the caller's input must change.
    Invalid,
    /// A piece of evidence is missing, so that no safe answer can be given.
    Incomplete,
    /// The caller asked us to stop.
    Cancelled,
    /// A bug in this crate.
    Internal,
}

impl ErrorKind {
    /// The kind as a word for people: `not found`, `already exists`, ...
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::NotFound => "not found",
            ErrorKind::AlreadyExists => "already exists",
            ErrorKind::Conflict => "changed meanwhile",
            ErrorKind::Denied => "permission denied",
            ErrorKind::Unavailable => "unavailable",
            ErrorKind::Full => "no space left",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::Corrupt => "damaged",
            ErrorKind::Refused => "refused",
            ErrorKind::Invalid => "invalid",
            ErrorKind::Incomplete => "evidence incomplete",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Internal => "internal error",
        }
    }

    /// True where the same call may succeed later without anybody changing anything.
    pub fn is_transient(self) -> bool {
        matches!(
            self,
            ErrorKind::Unavailable | ErrorKind::Conflict | ErrorKind::Cancelled
        )
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What went wrong, where, and what the caller can do about it.
///
/// The message never holds credentials or signed URLs: requests of our own are described by
/// method and object, and answers of a store by status, code and message.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    location: Option<String>,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// An error of `kind` with a lower-case `message` that explains it.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error(Box::new(Inner {
            kind,
            operation: "",
            location: None,
            message: message.into(),
            hint: None,
            source: None,
        }))
    }

    /// Shorthand for [`ErrorKind::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Invalid, message)
    }

    /// Shorthand for [`ErrorKind::Corrupt`].
    pub fn corrupt(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Corrupt, message)
    }

    /// Shorthand for [`ErrorKind::Refused`].
    pub fn refused(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Refused, message)
    }

    /// The error of a write that this machine did not take. Where a known next step helps it names it: no space,
    /// a quota, a file system that is only read, a file that is too large.
    pub(crate) fn of_write(e: std::io::Error) -> Self {
        Error::of_full(&e)
            .unwrap_or_else(|| Error::new(ErrorKind::Unavailable, e.to_string()))
            .caused_by(e)
    }

    /// The error for a file system that takes no more, if that is what `e` says.
    pub(crate) fn of_full(e: &std::io::Error) -> Option<Self> {
        use std::io::ErrorKind as Io;
        let (kind, message, hint) = match e.kind() {
            Io::StorageFull => (
                ErrorKind::Full,
                "no space is left on this file system",
                "free some space or inodes there, or write elsewhere; then run the same command again",
            ),
            Io::QuotaExceeded => (
                ErrorKind::Full,
                "the disk quota is used up",
                "remove files or have the quota raised, or write elsewhere; then run the same command again",
            ),
            Io::ReadOnlyFilesystem => (
                ErrorKind::Denied,
                "this file system is mounted for reading only",
                "write elsewhere, or mount it for writing",
            ),
            Io::FileTooLarge => (
                ErrorKind::Invalid,
                "the file is larger than this file system, or the limit of this process (`ulimit -f`), allows",
                "write elsewhere, or raise the limit",
            ),
            _ => return None,
        };
        Some(Error::new(kind, format!("{message} ({e})")).hint(hint))
    }

    /// Names what was being done: a verb such as `read` or `duplicate`.
    /// The innermost name wins, so that a caller may name it again without harm.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        if self.0.operation.is_empty() {
            self.0.operation = operation;
        }
        self
    }

    /// Names the object, as the user would write it. The innermost name wins.
    #[must_use]
    pub fn at(mut self, location: impl fmt::Display) -> Self {
        if self.0.location.is_none() {
            let text = location.to_string();
            self.0.location = (!text.is_empty()).then_some(text);
        }
        self
    }

    /// Adds the next step for the person who reads it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        if self.0.hint.is_none() {
            self.0.hint = Some(hint.into());
        }
        self
    }

    /// Keeps the error below this one for logs.
    #[must_use]
    pub fn caused_by(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.source = Some(Box::new(source));
        self
    }

    /// The same error with another kind.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.0.kind = kind;
        self
    }

    /// What the caller can do next.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The verb that failed, or an empty text.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The object concerned, as the user would write it.
    pub fn location(&self) -> Option<&str> {
        self.0.location.as_deref()
    }

    /// The explanation alone, without operation and location.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The next step for the person who reads it.
    pub fn next_step(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = match (self.0.operation, &self.0.location) {
            ("", None) => String::new(),
            ("", Some(at)) => format!("{at}: "),
            (op, None) => format!("{op}: "),
            (op, Some(at)) => format!("{op} {at}: "),
        };
        text.push_str(&self.0.message);
        f.write_str(&printable(&text))
    }
}

/// An error and its causes on one line, each said once.
pub(crate) fn chain_text(first: Option<&dyn std::error::Error>) -> String {
    let mut text = String::new();
    let mut next = first;
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&more);
        }
        next = cause.source();
    }
    text
}

/// The text on one line, with control characters spelled out: names come from files that others
/// wrote, and must not steer a terminal.
pub(crate) fn printable(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.contains(char::is_control) {
        return text.into();
    }
    let spelled = |c: char| match c.is_control() {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(spelled).collect::<String>().into()
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({:?}: {self}", self.0.kind)?;
        if let Some(hint) = &self.0.hint {
            write!(f, "; hint: {hint}")?;
        }
        f.write_str(")")
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0
            .source
            .as_deref()
            .map(|e| e as &(dyn std::error::Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_takes_no_more_is_named_with_what_helps_and_never_called_transient() {
        // ENOSPC, EDQUOT, EROFS, EFBIG.
        let told = [
            (28, ErrorKind::Full, "no space is left"),
            (122, ErrorKind::Full, "quota"),
            (30, ErrorKind::Denied, "reading only"),
            (27, ErrorKind::Invalid, "larger than"),
        ];
        for (code, kind, message) in told {
            let e = Error::of_write(std::io::Error::from_raw_os_error(code));
            assert_eq!(e.kind(), kind, "{code}");
            assert!(!e.kind().is_transient(), "{code}");
            assert!(e.to_string().contains(message), "{code}: {e}");
            assert!(e.next_step().is_some(), "{code}");
        }
        let e = Error::of_write(std::io::ErrorKind::ConnectionReset.into());
        assert_eq!(e.kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn the_innermost_name_wins() {
        let e = Error::corrupt("unexpected end of file at byte 12")
            .during("decode")
            .at("s3://b/chk-1/_metadata")
            .during("fork")
            .at("s3://b/chk-1");
        assert_eq!(
            e.to_string(),
            "decode s3://b/chk-1/_metadata: unexpected end of file at byte 12"
        );
        assert_eq!(e.kind(), ErrorKind::Corrupt);
    }
}
