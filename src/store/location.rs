//! Where an object lies: a bucket and a key.
//!
//! The text of a location follows Flink's rules, because that is what stands in the metadata: a
//! scheme, an authority, a path; doubled slashes collapse, `.` and `..` are resolved, a trailing
//! slash goes; nothing is percent-decoded (`%41`, `?`, `#`, blanks are plain characters of a key).
//! The scheme stays as it was typed, since `s3` and `s3a` are different file systems to Flink,
//! while both name the same bucket ([`Location::bucket`]).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::error::{Error, Result};

/// The service behind a scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Provider {
    /// The local file system: `file:` or no scheme.
    Local,
    /// Objects in the memory of this process: `memory:`.
    Memory,
    /// S3 and everything that speaks its protocol: `s3:`, `s3a:`, `s3n:`, `s3p:`.
    S3,
    /// Google Cloud Storage: `gs:`.
    Gcs,
    /// Azure Blob Storage: `az:`, `azure:`, `abfs(s):`, `wasb(s):`.
    Azure,
    /// A file system that we have no client for, such as `hdfs:`: it can be named, not opened.
    Other,
}

impl Provider {
    fn of_scheme(scheme: &str) -> Option<Provider> {
        const SCHEMES: [(&[&str], Provider); 5] = [
            (&["s3", "s3a", "s3n", "s3p"], Provider::S3),
            (&["file"], Provider::Local),
            (&["gs"], Provider::Gcs),
            (
                &["az", "azure", "abfs", "abfss", "wasb", "wasbs"],
                Provider::Azure,
            ),
            (&["memory"], Provider::Memory),
        ];
        let is = |name: &&str| scheme.eq_ignore_ascii_case(name);
        let found = SCHEMES.iter().find(|(names, _)| names.iter().any(is));
        found.map(|(_, provider)| *provider)
    }
}

/// What a client is made for: one bucket or container of one account.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bucket {
    /// The service.
    pub provider: Provider,
    /// Bucket or container; empty for the local file system and for memory.
    pub name: String,
    /// The Azure account named in the location, if one was.
    pub account: Option<String>,
}

/// One object, or one folder of objects: bucket plus key.
///
/// Two locations are equal when they name the same key of the same bucket, however their schemes
/// are spelled; [`fmt::Display`] gives the spelling back.
#[derive(Clone)]
pub struct Location {
    provider: Provider,
    /// Shared with the locations that this one was made from: plans hold millions.
    scheme: Arc<str>,
    authority: Arc<str>,
    /// No leading and no trailing slash. Empty: the root of the bucket.
    key: Box<str>,
}

impl Location {
    /// Reads a location as it stands in metadata or as a user types it.
    ///
    /// A path without a scheme is a local one and must be absolute.
    ///
    /// # Errors
    ///
    /// `Invalid` for text that names nothing.
    pub fn parse(text: &str) -> Result<Location> {
        let refuse = |why: &str| Err(Error::invalid(why.to_string()).at(text));
        if text.is_empty() {
            return refuse("an empty location names nothing");
        }
        match split_text(text) {
            (None, _, path) if !path.starts_with(['/', '\\']) => {
                refuse("a path without a scheme must be absolute")
            }
            (Some(_), "", path) if !path.is_empty() && !path.starts_with('/') => {
                refuse("a path after a scheme must begin with a slash")
            }
            (scheme, authority, path) => {
                Location::assemble(text, scheme.unwrap_or("file"), authority, path)
            }
        }
    }

    fn assemble(text: &str, scheme: &str, authority: &str, path: &str) -> Result<Location> {
        let provider = Provider::of_scheme(scheme).unwrap_or(Provider::Other);
        let well_formed = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        if !well_formed {
            return Err(Error::invalid(format!("`{scheme}` is no scheme")).at(text));
        }
        let wants_bucket = !matches!(provider, Provider::Local | Provider::Memory);
        if wants_bucket && provider != Provider::Other && authority.is_empty() {
            return Err(Error::invalid("the bucket is missing").at(text));
        }
        if !wants_bucket && !authority.is_empty() && authority != "localhost" {
            return Err(Error::invalid(format!(
                "a local path has no host, but this names `{authority}`"
            ))
            .at(text)
            .hint("write three slashes: file:///path"));
        }
        let authority = if wants_bucket { authority } else { "" };
        let key = normalize(path)
            .map_err(|why| Error::invalid(why.to_string()).at(text))?
            .into_boxed_str();
        let (scheme, authority) = shared(scheme, authority);
        Ok(Location {
            provider,
            scheme,
            authority,
            key,
        })
    }

    /// The service that holds it.
    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// The key in its bucket: no leading or trailing slash. For a local file the absolute path
    /// without its leading slash.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The last part of the key; empty at the root of a bucket.
    pub fn name(&self) -> &str {
        self.key.rsplit('/').next().unwrap_or("")
    }

    /// The bucket, independent of how the scheme is spelled.
    pub fn bucket(&self) -> Bucket {
        let (name, account) = match (self.provider, self.authority.split_once('@')) {
            // container@account.dfs.core.windows.net
            (Provider::Azure, Some((container, host))) => {
                let account = host.split('.').next().unwrap_or(host);
                (container.to_string(), Some(account.to_string()))
            }
            (Provider::Other, _) => (format!("{}://{}", self.scheme, self.authority), None),
            _ => (self.authority.to_string(), None),
        };
        Bucket {
            provider: self.provider,
            name,
            account,
        }
    }

    /// The folder that holds this object; `None` at the root of a bucket.
    pub fn parent(&self) -> Option<Location> {
        if self.key.is_empty() {
            return None;
        }
        let end = self.key.rfind('/').unwrap_or(0);
        Some(self.with_key(&self.key[..end]))
    }

    /// The object at `relative` below this folder. `relative` is normalized like a path;
    /// one that leaves the folder is refused.
    ///
    /// # Errors
    ///
    /// `Invalid` if `relative` is empty or climbs out with `..`.
    pub fn join(&self, relative: &str) -> Result<Location> {
        let refuse =
            |why: &str| Err(Error::invalid(why.to_string()).at(format!("{self}/{relative}")));
        let key = match normalize(relative) {
            Ok(key) if key.is_empty() => return refuse("a relative path must name something"),
            Ok(key) => key,
            Err(_) => return refuse("a relative path must not leave its folder"),
        };
        Ok(if self.key.is_empty() {
            self.with_key(&key)
        } else {
            self.with_key(&format!("{}/{key}", self.key))
        })
    }

    /// The object of the name `below` in this folder, taken as it is: as a listing gave it.
    pub(crate) fn child(&self, below: &str) -> Location {
        match self.key.is_empty() {
            true => self.with_key(below),
            false => self.with_key(&format!("{}/{below}", self.key)),
        }
    }

    /// True if `other` is this very location or lies below it, counted in whole path parts:
    /// `s3://b/a` contains `s3://b/a/x` but not `s3://b/ab`.
    pub fn contains(&self, other: &Location) -> bool {
        self.same_bucket(other) && self.key_below(&other.key).is_some()
    }

    /// The path of `other` below this location: empty if they are equal, `None` if it lies
    /// elsewhere.
    pub fn strip<'o>(&self, other: &'o Location) -> Option<&'o str> {
        if !self.same_bucket(other) {
            return None;
        }
        self.key_below(&other.key)
    }

    /// True if both are in one bucket, however their schemes are spelled.
    pub(crate) fn same_bucket(&self, other: &Location) -> bool {
        if self.provider != other.provider {
            return false;
        }
        let equal = same_text(&self.authority, &other.authority);
        match self.provider {
            // The account is spelled in several ways, and other file systems go by their scheme.
            Provider::Azure | Provider::Other => {
                (equal && same_text(&self.scheme, &other.scheme)) || self.bucket() == other.bucket()
            }
            _ => equal,
        }
    }

    fn key_below<'o>(&self, key: &'o str) -> Option<&'o str> {
        if self.key.is_empty() {
            return Some(key);
        }
        let rest = key.strip_prefix(&*self.key)?;
        if rest.is_empty() {
            Some(rest)
        } else {
            rest.strip_prefix('/')
        }
    }

    /// Another key of the same bucket, in the same spelling.
    pub(crate) fn with_key(&self, key: &str) -> Location {
        self.with_owned_key(key.to_string())
    }

    /// The same for a key that nobody else needs.
    pub(crate) fn with_owned_key(&self, key: String) -> Location {
        Location {
            provider: self.provider,
            scheme: Arc::clone(&self.scheme),
            authority: Arc::clone(&self.authority),
            key: key.into_boxed_str(),
        }
    }

    /// The same container, with its account written out.
    pub(crate) fn with_azure_account(&self, account: &str) -> Location {
        Location {
            authority: format!("{}@{account}.blob.core.windows.net", self.authority).into(),
            ..self.clone()
        }
    }

    /// Refuses a folder for snapshots that no verb would find again: listings of services break at control characters, so
    /// that nothing below such a name counts as a snapshot.
    ///
    /// # Errors
    ///
    /// `Unsupported`.
    pub(crate) fn refuse_control_characters(&self) -> Result<()> {
        match self.key.contains(char::is_control) {
            false => Ok(()),
            true => Err(Error::new(
                crate::ErrorKind::Unsupported,
                "the name holds a control character, and no snapshot below it would be found again",
            )
            .at(self)
            .hint("choose a folder with a plain name")),
        }
    }

    /// The path on this machine, for a local location.
    pub fn local_path(&self) -> Option<std::path::PathBuf> {
        (self.provider == Provider::Local)
            .then(|| std::path::PathBuf::from(format!("/{}", self.key)))
    }

    /// The key as object_store's type.
    ///
    /// # Errors
    ///
    /// `Unsupported` for keys that object_store cannot address: control characters.
    pub(crate) fn object_path(&self) -> Result<object_store::path::Path> {
        object_store::path::Path::parse(&*self.key).map_err(|e| {
            Error::new(
                crate::ErrorKind::Unsupported,
                "the key holds a character that the store client cannot address",
            )
            .at(self)
            .caused_by(e)
        })
    }
}

/// Scheme, authority and path of a text. The scheme ends at the first `:` that stands before any
/// slash; the authority stands between `//` and the next slash.
pub(crate) fn split_text(text: &str) -> (Option<&str>, &str, &str) {
    let (scheme, rest) = match text.find([':', '/', '\\']) {
        Some(at) if text.as_bytes().get(at) == Some(&b':') => (&text[..at], &text[at + 1..]),
        _ => return (None, "", text),
    };
    match rest.strip_prefix("//") {
        Some(after) => {
            let (authority, path) = after.split_at(after.find('/').unwrap_or(after.len()));
            (Some(scheme), authority, path)
        }
        None => (Some(scheme), "", rest),
    }
}

/// The parts of a path, resolved: no empty parts, no `.`, no `..`; joined by single slashes.
pub(crate) fn normalize(path: &str) -> Result<String, &'static str> {
    let trimmed = path.trim_matches('/');
    // Nearly all are: metadata and plans hold millions.
    let is_normal = !trimmed.contains('\\')
        && (trimmed.split('/')).all(|part| !matches!(part, "" | "." | ".."));
    if is_normal {
        return Ok(trimmed.to_string());
    }
    resolve(path)
}

fn resolve(path: &str) -> Result<String, &'static str> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split(['/', '\\']) {
        match part {
            "" | "." => {}
            ".." => {
                if parts.pop().is_none() {
                    return Err("the path climbs above its root with `..`");
                }
            }
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

/// Scheme and authority as this thread has read them a moment ago, if it has: metadata and plans name few buckets, millions
/// of times.
fn shared(scheme: &str, authority: &str) -> (Arc<str>, Arc<str>) {
    const KEPT: usize = 4;
    thread_local! {
        static READ: RefCell<VecDeque<(Arc<str>, Arc<str>)>> = const { RefCell::new(VecDeque::new()) };
    }
    READ.with_borrow_mut(|read| {
        if let Some(known) = read
            .iter()
            .find(|(s, a)| **s == *scheme && **a == *authority)
        {
            return known.clone();
        }
        let new: (Arc<str>, Arc<str>) = (scheme.into(), authority.into());
        read.truncate(KEPT - 1);
        read.push_front(new.clone());
        new
    })
}

/// Equal, and at once if both are the same piece of memory, as in locations made from one another.
fn same_text(one: &Arc<str>, other: &Arc<str>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

impl PartialEq for Location {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.same_bucket(other)
    }
}

impl Eq for Location {}

impl Hash for Location {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.provider.hash(state);
        self.key.hash(state);
    }
}

impl PartialOrd for Location {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Location {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Sorting and searching millions of locations must not make two buckets for each look.
        match self.same_bucket(other) {
            true => self.key.cmp(&other.key),
            false => self.bucket().cmp(&other.bucket()),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.authority.is_empty() {
            write!(f, "{}:/{}", self.scheme, self.key)
        } else if self.key.is_empty() {
            write!(f, "{}://{}", self.scheme, self.authority)
        } else {
            write!(f, "{}://{}/{}", self.scheme, self.authority, self.key)
        }
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl serde::Serialize for Location {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Location {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_str(Text)
    }
}

/// Reads a location without a copy of its text.
struct Text;

impl serde::de::Visitor<'_> for Text {
    type Value = Location;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a location")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Location, E> {
        Location::parse(text).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Location {
        Location::parse(text).unwrap()
    }

    #[test]
    fn a_path_that_needs_no_work_is_what_work_would_make_of_it() {
        let mut paths = vec![String::new()];
        for _ in 0..7 {
            for path in std::mem::take(&mut paths) {
                assert_eq!(normalize(&path), resolve(&path), "{path}");
                paths.extend(["a", ".", "/", "\\"].map(|next| path.clone() + next));
            }
        }
        assert_eq!(paths.len(), 4usize.pow(7));
    }

    #[test]
    fn the_spelling_is_kept_and_the_path_is_normalized() {
        for (typed, printed) in [
            ("s3a://b/x//y/./z/", "s3a://b/x/y/z"),
            ("s3://b/x/../y", "s3://b/y"),
            ("s3://b", "s3://b"),
            ("S3://B/x", "S3://B/x"),
            ("file:///tmp/x", "file:/tmp/x"),
            ("file:/tmp/x", "file:/tmp/x"),
            ("file://localhost/tmp/x", "file:/tmp/x"),
            ("/tmp/x/", "file:/tmp/x"),
            ("gs://b/a b%20?#+é", "gs://b/a b%20?#+é"),
            ("s3://b/a\\b/.c", "s3://b/a/b/.c"),
            ("s3://b//", "s3://b"),
            (
                "abfss://c@acc.dfs.core.windows.net/p",
                "abfss://c@acc.dfs.core.windows.net/p",
            ),
        ] {
            assert_eq!(at(typed).to_string(), printed);
        }
    }

    #[test]
    fn spellings_of_one_object_are_equal() {
        assert_eq!(at("s3://b/x"), at("s3a://b/x"));
        assert_eq!(
            at("abfss://c@acc.dfs.core.windows.net/p"),
            at("wasbs://c@acc.blob.core.windows.net/p")
        );
        assert_ne!(at("s3://b/x"), at("s3://c/x"));
        assert_ne!(at("s3://b/x"), at("gs://b/x"));
    }

    #[test]
    fn contains_counts_whole_parts() {
        assert!(at("s3://b/a").contains(&at("s3a://b/a/x")));
        assert!(at("s3://b/a").contains(&at("s3://b/a")));
        assert!(at("s3://b").contains(&at("s3://b/a")));
        assert!(!at("s3://b/a").contains(&at("s3://b/ab")));
        assert!(!at("s3://b/a").contains(&at("s3://c/a/x")));
        assert_eq!(at("/a/b").strip(&at("/a/b/c/d")), Some("c/d"));
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "x/y",
            "s3:x",
            "s3://",
            "s3:///x",
            "file://host/x",
            "s3://b/../x",
            "1x://n/x",
        ] {
            assert!(Location::parse(text).is_err(), "{text}");
        }
        assert!(at("s3://b/a").join("../x").is_err());
        assert!(at("s3://b/a").join("x/../..").is_err());
        assert_eq!(at("s3://b/a").join("/x").unwrap(), at("s3://b/a/x"));
    }
}
