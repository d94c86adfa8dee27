//! From a path in the metadata to the place where the object really lies.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::store::{Location, normalize, split_text};

/// How the paths of one snapshot are understood: a pure rule, applied alike when the references
/// are read and when they are rewritten.
#[derive(Debug, Clone)]
pub struct Lookup {
    directory: Location,
    moved: Vec<Moved>,
    elsewhere: HashMap<String, Location>,
}

/// Objects that the metadata places below `from` really lie below `to`.
#[derive(Debug, Clone)]
pub struct Moved {
    from: Prefix,
    to: Location,
}

/// A place as text: it may be on a file system that we have no client for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prefix {
    scheme: String,
    authority: String,
    key: String,
}

impl Prefix {
    /// Reads a place; the spellings of one service's scheme (`s3`, `s3a`) count as equal.
    ///
    /// # Errors
    ///
    /// `Invalid` if the text names no place.
    pub fn parse(text: &str) -> Result<Prefix> {
        let (scheme, authority, path) = split_text(text);
        let key = normalize(path).map_err(|why| Error::invalid(why).at(text))?;
        let scheme = scheme.unwrap_or("file").to_ascii_lowercase();
        let scheme = match scheme.as_str() {
            "s3a" | "s3n" | "s3p" => "s3".to_string(),
            "abfss" => "abfs".to_string(),
            "wasbs" => "wasb".to_string(),
            _ => scheme,
        };
        Ok(Prefix {
            scheme,
            authority: authority.to_string(),
            key,
        })
    }

    /// The path of `text` below this place, counted in whole parts.
    pub fn strip(&self, text: &str) -> Option<String> {
        let other = Prefix::parse(text).ok()?;
        if self.scheme != other.scheme || self.authority != other.authority {
            return None;
        }
        if self.key.is_empty() {
            return Some(other.key);
        }
        let rest = other.key.strip_prefix(&self.key)?;
        match rest.strip_prefix('/') {
            Some(rest) => Some(rest.to_string()),
            None if rest.is_empty() => Some(String::new()),
            None => None,
        }
    }
}

/// The rules of a [`Lookup`] as a document: what a plan carries, so that whoever runs it understands
/// the metadata as its planner did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LookupRules {
    /// Places that were copied elsewhere by another tool. Earlier rules win.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<MovedPlace>,
    /// Relative paths that were found outside the snapshot's folder, and where.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub elsewhere: BTreeMap<String, Location>,
}

/// Objects that the metadata places below `from` really lie below `to`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedPlace {
    /// The old place, as text: it may be on a file system that we have no client for.
    pub from: String,
    /// The new one.
    pub to: Location,
}

impl LookupRules {
    /// The lookup by these rules for metadata in the folder `directory`.
    ///
    /// # Errors
    ///
    /// `Invalid` if an old place names none.
    pub fn lookup(&self, directory: &Location) -> Result<Lookup> {
        let mut lookup = Lookup::new(directory.clone());
        for moved in &self.moved {
            lookup.add_moved(Prefix::parse(&moved.from)?, moved.to.clone());
        }
        for (relative, location) in &self.elsewhere {
            lookup.add_elsewhere(relative.clone(), location.clone());
        }
        Ok(lookup)
    }
}

impl Lookup {
    /// Absolute paths mean what they say, relative ones lie below `directory`, the folder of the
    /// metadata.
    pub fn new(directory: Location) -> Lookup {
        Lookup {
            directory,
            moved: Vec::new(),
            elsewhere: HashMap::new(),
        }
    }

    /// Paths below `from` are looked up below `to`. Earlier rules win.
    pub fn add_moved(&mut self, from: Prefix, to: Location) {
        self.moved.push(Moved { from, to });
    }

    /// The relative path `relative` is looked up at `location`.
    pub fn add_elsewhere(&mut self, relative: String, location: Location) {
        self.elsewhere.insert(relative, location);
    }

    /// True if every file lies where the metadata says.
    pub fn is_plain(&self) -> bool {
        self.moved.is_empty() && self.elsewhere.is_empty()
    }

    /// The folder that holds the metadata.
    pub fn directory(&self) -> &Location {
        &self.directory
    }

    /// Where the object behind an absolute path lies.
    ///
    /// # Errors
    ///
    /// `Invalid` for paths that name nothing.
    pub fn absolute(&self, text: &str) -> Result<Location> {
        for moved in &self.moved {
            match moved.from.strip(text).as_deref() {
                Some("") => return Ok(moved.to.clone()),
                Some(rest) => return moved.to.join(rest),
                None => {}
            }
        }
        Location::parse(text)
    }

    /// Where the object behind a relative path lies, and the path in its plain form.
    ///
    /// # Errors
    ///
    /// `Invalid` for a path that leaves the folder of the metadata.
    pub fn relative(&self, text: &str) -> Result<(Location, String)> {
        let inside = self.directory.join(text)?;
        let plain = self
            .directory
            .strip(&inside)
            .unwrap_or_default()
            .to_string();
        match self.elsewhere.get(&plain) {
            Some(location) => Ok((location.clone(), plain)),
            None => Ok((inside, plain)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_prefix_counts_whole_parts_and_knows_schemes_we_have_no_client_for() {
        let mut lookup = Lookup::new(Location::parse("s3://new/backup/job/chk-3").unwrap());
        lookup.add_moved(
            Prefix::parse("hdfs://name/flink/job").unwrap(),
            Location::parse("s3://new/backup/job").unwrap(),
        );
        let at = |text| lookup.absolute(text).unwrap().to_string();
        assert_eq!(
            at("hdfs://name/flink/job/shared/x"),
            "s3://new/backup/job/shared/x"
        );
        assert_eq!(at("s3://other/x"), "s3://other/x");
        let elsewhere = "hdfs://name/flink/job2/shared/x";
        assert_eq!(at(elsewhere), elsewhere);
        assert!(
            Prefix::parse("s3://b/x")
                .unwrap()
                .strip("s3a://b/x/y")
                .is_some()
        );
    }

    #[test]
    fn a_relative_path_stays_in_its_folder() {
        let lookup = Lookup::new(Location::parse("s3://b/chk-3").unwrap());
        assert_eq!(
            lookup.relative("/x").unwrap().0.to_string(),
            "s3://b/chk-3/x"
        );
        assert_eq!(lookup.relative("d/../x").unwrap().1, "x");
        assert!(lookup.relative("../x").is_err());
        assert!(lookup.relative("..").is_err());
    }
}
