//! How Flink understands the text of a path (class `org.apache.flink.core.fs.Path`, which lets
//! `java.net.URI` do a part of the work).
//!
//! Pure text: nothing is percent-decoded, and `%41`, `?`, `#`, blanks and `+` are plain characters.
//! Compare paths only after parsing them, and write the raw text back where nothing changes.

use std::borrow::Cow;
use std::fmt;

use super::utf::Utf;
use crate::{Error, Result};

/// A path as Flink sees it, in normal form.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlinkPath {
    /// The scheme such as `s3`, in the case it was written; none means the reader's default.
    pub scheme: Option<String>,
    /// Bucket or host, possibly with user and port. Never empty.
    pub authority: Option<String>,
    /// The rest. With a scheme or an authority it is empty or starts with a slash. `..` stands only
    /// where it could not be resolved.
    pub path: String,
}

impl FlinkPath {
    /// Parses and normalizes: backslashes become slashes, slashes in a row become one, a slash at
    /// the end goes, `.` and `..` are resolved as far as possible.
    ///
    /// # Errors
    /// `Invalid` for what Flink refuses as well: an empty text, a scheme with characters that
    /// schemes don't have, a relative path behind a scheme.
    pub fn parse(text: &str) -> Result<Self> {
        check(text).map_err(|why| Error::invalid(format!("the path {text:?} {why}")))?;
        // Flink puts a slash before `C:`, so that the letter is not taken for a scheme.
        let text = if has_drive(text.as_bytes()) {
            Cow::Owned(format!("/{text}"))
        } else {
            Cow::Borrowed(text)
        };
        let (scheme, rest) = split_scheme(&text);
        let (authority, path) = split_authority(rest);
        Ok(FlinkPath {
            scheme: scheme.map(str::to_owned),
            authority: authority.filter(|a| !a.is_empty()).map(str::to_owned),
            path: resolve_dots(&collapse(path)),
        })
    }

    /// The path of a relative handle below this directory, as Flink resolves it: slashes in front
    /// are dropped and `..` may leave the directory. Check with [`FlinkPath::is_below`] before
    /// trusting the answer.
    ///
    /// # Errors
    /// `Invalid` where `relative` is empty, has a colon in its first segment, or names a host: there
    /// Flink fails or takes it for something else than a path below the directory.
    pub fn resolve(&self, relative: &str) -> Result<Self> {
        check_relative(relative)
            .map_err(|why| Error::invalid(format!("the relative path {relative:?} {why}")))?;
        let child = FlinkPath::parse(relative)?;
        if child.authority.is_some() {
            return Err(Error::invalid(format!(
                "the relative path {relative:?} names a host"
            )));
        }
        let child = child.path.strip_prefix('/').unwrap_or(&child.path);
        let joined = match self.path.as_str() {
            "" if self.authority.is_none() => child.to_owned(),
            parent => format!("{}/{child}", parent.strip_suffix('/').unwrap_or(parent)),
        };
        Ok(FlinkPath {
            scheme: self.scheme.clone(),
            authority: self.authority.clone(),
            path: collapse(&resolve_dots(&joined)),
        })
    }

    /// True where this path is within `directory` (and is not the directory itself), comparing
    /// scheme, authority and whole segments as they are written.
    pub fn is_below(&self, directory: &FlinkPath) -> bool {
        let within = || {
            let dir = directory.path.strip_suffix('/').unwrap_or(&directory.path);
            let below = self.path.strip_prefix(dir)?.strip_prefix('/')?;
            Some(!below.is_empty() && !below.split('/').any(|segment| segment == ".."))
        };
        self.scheme == directory.scheme
            && self.authority == directory.authority
            && within() == Some(true)
    }
}

/// The text of Flink's `Path.toString()`.
impl fmt::Display for FlinkPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(scheme) = &self.scheme {
            write!(f, "{scheme}:")?;
        }
        if let Some(authority) = &self.authority {
            write!(f, "//{authority}")?;
        }
        match self.path.strip_prefix('/') {
            Some(rest)
                if self.scheme.is_none()
                    && self.authority.is_none()
                    && has_drive(rest.as_bytes()) =>
            {
                f.write_str(rest)
            }
            _ => f.write_str(&self.path),
        }
    }
}

impl std::str::FromStr for FlinkPath {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        FlinkPath::parse(text)
    }
}

/// True for `C:` and the like.
fn has_drive(text: &[u8]) -> bool {
    matches!(text, [letter, b':', ..] if letter.is_ascii_alphabetic())
}

/// Splits at the first colon, if it stands before any slash.
fn split_scheme(text: &str) -> (Option<&str>, &str) {
    match text.find([':', '/']) {
        Some(at) if text.as_bytes().get(at) == Some(&b':') => match text.split_once(':') {
            Some((scheme, rest)) => (Some(scheme), rest),
            None => (None, text),
        },
        _ => (None, text),
    }
}

/// Splits `//authority` off; two slashes alone are no authority.
fn split_authority(text: &str) -> (Option<&str>, &str) {
    match text.strip_prefix("//") {
        Some(rest) if !rest.is_empty() => {
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            (Some(authority), path)
        }
        _ => (None, text),
    }
}

/// Unifies slashes and drops the one at the end (but keeps `/` and `/C:/`).
fn collapse(path: &str) -> String {
    let mut collapsed = String::with_capacity(path.len());
    for c in path.chars() {
        let c = if c == '\\' { '/' } else { c };
        if c != '/' || !collapsed.ends_with('/') {
            collapsed.push(c);
        }
    }
    let drive_root = collapsed
        .strip_prefix('/')
        .and_then(|rest| rest.strip_suffix(":/"))
        .is_some_and(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_alphabetic()));
    if collapsed.len() > 1 && collapsed.ends_with('/') && !drive_root {
        collapsed.pop();
    }
    collapsed
}

/// Resolves `.` and `..` as `java.net.URI.normalize` does.
fn resolve_dots(path: &str) -> String {
    if !path.split('/').any(|s| matches!(s, "." | "..")) {
        return path.to_owned();
    }
    let (root, relative) = match path.strip_prefix('/') {
        Some(relative) => ("/", relative),
        None => ("", path),
    };
    let mut kept: Vec<&str> = Vec::new();
    // A directory whose last part was resolved away keeps its slash, as in Java.
    let mut slash_at_end = false;
    for segment in relative.split('/') {
        slash_at_end = false;
        match segment {
            "." => slash_at_end = true,
            ".." if kept.last().is_some_and(|last| *last != "..") => {
                kept.pop();
                slash_at_end = true;
            }
            _ => kept.push(segment),
        }
    }
    let mut resolved = String::with_capacity(path.len() + 2);
    resolved.push_str(root);
    // Without this, the first segment would read as a scheme.
    if root.is_empty() && kept.first().is_some_and(|first| first.contains(':')) {
        resolved.push_str("./");
    }
    resolved.push_str(&kept.join("/"));
    if slash_at_end && !kept.is_empty() {
        resolved.push('/');
    }
    resolved
}

/// Says why Flink refuses `text` as a path, if it does.
pub(super) fn check(text: &str) -> std::result::Result<(), &'static str> {
    if text.is_empty() {
        return Err("is empty");
    }
    if has_drive(text.as_bytes()) {
        return Ok(());
    }
    let (Some(scheme), rest) = split_scheme(text) else {
        return Ok(());
    };
    let mut letters = scheme.bytes();
    if !letters.next().is_some_and(|b| b.is_ascii_alphabetic())
        || !letters.all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    {
        return Err("has a scheme with characters that no scheme may have");
    }
    if !rest.starts_with(['/', '\\']) {
        return Err("has a scheme but is relative");
    }
    Ok(())
}

/// Says why Flink refuses `text` as the path of a relative handle, if it does.
pub(super) fn check_relative(text: &str) -> std::result::Result<(), &'static str> {
    const EMPTY: &str = "names no file";
    // What Flink itself writes: a plain file name.
    if !text.starts_with('/') && !text.bytes().any(|b| matches!(b, b':' | b'\\')) {
        return if text.is_empty() { Err(EMPTY) } else { Ok(()) };
    }
    let colon = "has a colon in its first segment";
    match check(text).and_then(|()| FlinkPath::parse(text).map_err(|_| colon)) {
        Ok(path) if path.authority.is_some() => Ok(()),
        Ok(path) if path.scheme.is_some() => Err(colon),
        Ok(path) if path.path == "/" => Err(EMPTY),
        Ok(path) => {
            let relative = path.path.strip_prefix('/').unwrap_or(&path.path);
            if relative.split('/').next().is_some_and(|s| s.contains(':')) {
                return Err(colon);
            }
            Ok(())
        }
        Err(why) => Err(why),
    }
}

/// [`FlinkPath::parse`] without the result, for a text of the file.
pub(super) fn check_utf(text: Utf<'_>) -> std::result::Result<(), &'static str> {
    check(&text.to_str_lossy())
}

/// [`check_relative`] for a text of the file.
pub(super) fn check_relative_utf(text: Utf<'_>) -> std::result::Result<(), &'static str> {
    check_relative(&text.to_str_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(text: &str) -> String {
        FlinkPath::parse(text).unwrap().to_string()
    }

    #[test]
    fn paths_print_as_flink_prints_them() {
        for (text, printed) in [
            ("s3://bucket/a/b", "s3://bucket/a/b"),
            ("s3://bucket//a///b/", "s3://bucket/a/b"),
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket/"),
            ("s3:///x", "s3:/x"),
            ("file:///x/y", "file:/x/y"),
            ("file:/x/y/", "file:/x/y"),
            ("S3A://Bucket/X", "S3A://Bucket/X"),
            ("s3a://bucket\\a/b\\c", "s3a://bucket\\a/b/c"),
            ("s3://u@bucket:99/x", "s3://u@bucket:99/x"),
            ("s3://b/a b%41?q#f+", "s3://b/a b%41?q#f+"),
            ("/data/x", "/data/x"),
            ("//host/x", "//host/x"),
            ("x/y", "x/y"),
            ("/", "/"),
            ("//", "/"),
            ("C:/win/x", "C:/win/x"),
            ("C:\\win\\x", "C:/win/x"),
            ("C:/", "C:/"),
            ("s3:\\x", "s3:/x"),
            ("s3://b/./a/../c", "s3://b/c"),
            ("s3://b/../x", "s3://b/../x"),
            ("/a/../../x", "/../x"),
            ("/a/b/..", "/a/"),
            ("/a/.", "/a/"),
            ("/a/..", "/"),
            ("./a:b", "./a:b"),
            ("x/../a:b/c", "./a:b/c"),
            ("a/..", ""),
        ] {
            assert_eq!(normal(text), printed, "{text}");
        }
    }

    #[test]
    fn what_flink_refuses_is_refused() {
        for text in [
            "", "s3:", "s3:x", ":x", ":/x", "1s3://x", "s_3://x", "a\\b:/c",
        ] {
            let error = FlinkPath::parse(text).unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::Invalid, "{text}");
        }
    }

    #[test]
    fn relative_paths_resolve_against_a_directory() {
        let dir = FlinkPath::parse("s3://bucket/job/chk-1").unwrap();
        for (relative, resolved, below) in [
            ("x", "s3://bucket/job/chk-1/x", true),
            ("a/b", "s3://bucket/job/chk-1/a/b", true),
            ("/abs/x", "s3://bucket/job/chk-1/abs/x", true),
            ("../../out/x", "s3://bucket/out/x", false),
            ("../../../x", "s3://bucket/../x", false),
            ("../chk-10/x", "s3://bucket/job/chk-10/x", false),
            ("./a:b", "s3://bucket/job/chk-1/a:b", true),
            ("a b%41?q#f", "s3://bucket/job/chk-1/a b%41?q#f", true),
            (".", "s3://bucket/job/chk-1", false),
            ("..", "s3://bucket/job", false),
            ("a/b/..", "s3://bucket/job/chk-1/a", true),
        ] {
            let path = dir.resolve(relative).unwrap();
            assert_eq!(path.to_string(), resolved, "{relative}");
            assert_eq!(path.is_below(&dir), below, "{relative}");
        }
        for bad in [
            "", "/", "//", "///", "\\", "/a/..", "a:b", "/a:b", "s3://x/y", "C:/x", "//h/x",
        ] {
            assert!(dir.resolve(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn directories_at_the_root_of_a_bucket_work() {
        let root = FlinkPath::parse("s3://bucket").unwrap();
        let file = root.resolve("x").unwrap();
        assert_eq!(file.to_string(), "s3://bucket/x");
        assert!(file.is_below(&root));
        assert!(!file.is_below(&FlinkPath::parse("s3://other").unwrap()));
    }
}
