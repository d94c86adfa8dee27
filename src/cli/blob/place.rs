//! Which cluster, and how long things take: arguments that several verbs share.

use std::path::PathBuf;
use std::time::Duration;

use crate::blob::ClusterId;
use crate::error::Result;
use crate::ownership::parse_millis;
use crate::store::Location;

use super::super::location;

/// Where a cluster lies in its HA store.
#[derive(Debug, clap::Args)]
pub(super) struct Place {
    /// The HA store: any location (blob.retained.url).
    #[arg(long, value_name = "URL")]
    pub(super) ha: String,
    /// The installation below it, of which one server at a time is the owner (blob.cluster-id).
    #[arg(long, value_name = "ID", default_value = "default")]
    pub(super) cluster: ClusterId,
}

impl Place {
    pub(super) fn ha(&self) -> Result<Location> {
        location::parse(&self.ha)
    }
}

/// A directory of this machine. A URL would be taken for a relative path with an odd name.
pub(super) fn directory(text: &str) -> std::result::Result<PathBuf, String> {
    match text.starts_with("file:") || text.contains("://") {
        true => Err("a path of this machine is wanted, not a URL".to_string()),
        false if text.is_empty() => Err("an empty path names nothing".to_string()),
        false => Ok(PathBuf::from(text)),
    }
}

/// `30m` and the like.
pub(super) fn span(text: &str) -> std::result::Result<Duration, String> {
    parse_millis(text)
        .map(Duration::from_millis)
        .map_err(|e| e.to_string())
}

/// `10GiB` and the like: bytes, or KiB, MiB, GiB, TiB.
pub(super) fn size(text: &str) -> std::result::Result<u64, String> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let shift = match unit {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return Err(format!("`{unit}` is no unit: KiB, MiB, GiB, TiB")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("`{text}` is no size"))?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| format!("`{text}` is too large"))
}
