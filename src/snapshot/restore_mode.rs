//! Who owns a snapshot once a job runs from it: FLIP-193's three modes, as data that planning, forks,
//! ownership and the command share.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Who owns the snapshot once a job runs from it. As in Flink (FLIP-193).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RestoreMode {
    /// The job. It deletes what it no longer needs; nobody else may start from the snapshot.
    Claim,
    /// Whoever owned it before. The job must become independent of it.
    NoClaim,
    /// Nobody: the job depends on it, and never deletes it.
    Legacy,
}

impl RestoreMode {
    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            RestoreMode::Claim => "claim",
            RestoreMode::NoClaim => "no-claim",
            RestoreMode::Legacy => "legacy",
        }
    }
}

impl fmt::Display for RestoreMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for RestoreMode {
    type Err = Error;

    /// Reads a mode as this crate prints it or as Flink's options spell it: `no-claim`, `NO_CLAIM`.
    fn from_str(text: &str) -> Result<RestoreMode, Error> {
        match text.to_ascii_lowercase().replace('_', "-").as_str() {
            "claim" => Ok(RestoreMode::Claim),
            "no-claim" => Ok(RestoreMode::NoClaim),
            "legacy" => Ok(RestoreMode::Legacy),
            _ => Err(Error::invalid(format!("`{text}` is no restore mode"))
                .hint("the modes are claim, no-claim and legacy")),
        }
    }
}
