//! What coordinator and subtasks tell each other, as documents that any engine can carry.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::restore::Task;
use crate::snapshot::KeyGroupRange;
use crate::snapshot::native::{ManifestKind, ManifestScope, Partition};
use crate::store::{Location, Sha256Sum};

/// The newest version of orders and acknowledgements that is written and read.
pub const ORDER_VERSION: u32 = 1;

/// A file that is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileRef {
    /// Where it lies.
    pub location: Location,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256.
    pub sha256: Sha256Sum,
}

/// A file of a snapshot that is complete, or a duplicate that will be made: the next one may refer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReusableFile {
    /// The state that it is of.
    pub state: String,
    /// The name by which its owner knows it.
    pub name: String,
    /// The key groups of that state, for state of keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_groups: Option<KeyGroupRange>,
    /// The file.
    pub file: FileRef,
}

/// What one subtask must know to write its part of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubtaskOrder {
    /// [`ORDER_VERSION`].
    pub version: u32,
    /// The folder of the job.
    pub home: Location,
    /// The folder of the snapshot.
    pub directory: Location,
    /// The number of the snapshot.
    pub number: i64,
    /// Checkpoint or savepoint.
    pub kind: ManifestKind,
    /// The attempt: 32 hex digits.
    pub attempt: String,
    /// From then on the attempt cannot be committed, in milliseconds since 1970.
    pub deadline_unix_ms: u64,
    /// The operator.
    pub operator: String,
    /// The subtask, 0-based.
    pub subtask: u32,
    /// Its key groups.
    pub key_groups: KeyGroupRange,
    /// The number of key groups of its operator: none of its states has others.
    pub max_parallelism: u32,
    /// Files that it may refer to instead of uploading them. What several subtasks may refer to is held once.
    #[serde(with = "in_common")]
    pub reusable: Vec<Arc<ReusableFile>>,
    /// Duplicates that it must make, since the job was started without claim.
    pub duplicates: Vec<Task>,
    /// Earlier attempts at this number may have left files.
    pub look_for_uploads: bool,
}

/// Where a file of an acknowledgement comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// Uploaded for this attempt.
    Uploaded,
    /// Uploaded for an earlier attempt at this snapshot that was not completed.
    Unconfirmed,
    /// One of [`SubtaskOrder::reusable`].
    Reused,
}

/// A file of an acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcknowledgedFile {
    /// The file.
    pub file: FileRef,
    /// Who it belongs to.
    pub scope: ManifestScope,
    /// Where it comes from.
    pub origin: Origin,
}

/// A state of an acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcknowledgedState {
    /// Its name.
    pub name: String,
    /// Who gets it in a restore.
    pub partition: Partition,
    /// Its files, as indices into [`Acknowledgement::files`], each with the name that its owner gives it.
    pub files: Vec<(u32, String)>,
    /// Bytes for the manifest, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<String>,
}

/// What one subtask has written for one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledgement {
    /// [`ORDER_VERSION`].
    pub version: u32,
    /// The attempt.
    pub attempt: String,
    /// The operator.
    pub operator: String,
    /// The subtask.
    pub subtask: u32,
    /// Its files.
    pub files: Vec<AcknowledgedFile>,
    /// Its states.
    pub states: Vec<AcknowledgedState>,
    /// Duplicates that it has made, or found made.
    pub duplicated: Vec<Location>,
}

impl Acknowledgement {
    /// Bytes that were uploaded for this attempt.
    pub fn uploaded_bytes(&self) -> u64 {
        self.bytes(|origin| origin == Origin::Uploaded)
    }

    /// Bytes that need not be uploaded, since they were there.
    pub fn reused_bytes(&self) -> u64 {
        self.bytes(|origin| origin != Origin::Uploaded)
    }

    fn bytes(&self, of: impl Fn(Origin) -> bool) -> u64 {
        let own = self.files.iter().filter(|f| of(f.origin));
        own.map(|f| f.file.size).fold(0, u64::saturating_add)
    }

    /// The document, as JSON.
    ///
    /// # Errors
    ///
    /// `Internal` if it cannot be written as JSON.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        to_json(self)
    }

    /// Reads a document.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a newer version, `Corrupt` for anything else that is none.
    pub fn from_json(bytes: &[u8]) -> Result<Acknowledgement> {
        from_json(bytes, "acknowledgement")
    }
}

impl SubtaskOrder {
    /// The document, as JSON.
    ///
    /// # Errors
    ///
    /// `Internal` if it cannot be written as JSON.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        to_json(self)
    }

    /// Reads a document.
    ///
    /// # Errors
    ///
    /// As [`Acknowledgement::from_json`].
    pub fn from_json(bytes: &[u8]) -> Result<SubtaskOrder> {
        from_json(bytes, "order of a coordinator")
    }
}

pub(super) fn to_json(document: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(document)
        .map_err(|e| Error::new(ErrorKind::Internal, "no JSON can be made of it").caused_by(e))
}

/// Entries that several documents have in common in memory; each has them in its text.
pub(super) mod in_common {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(in super::super) fn serialize<T: Serialize, S: Serializer>(
        entries: &[Arc<T>],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_seq(entries.iter().map(|entry| &**entry))
    }

    pub(in super::super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<Arc<T>>, D::Error> {
        let entries = Vec::<T>::deserialize(from)?;
        Ok(entries.into_iter().map(Arc::new).collect())
    }
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

pub(super) fn from_json<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T> {
    let damaged =
        |e: serde_json::Error| Error::corrupt(format!("this is no {what}: {e}")).caused_by(e);
    let Version { version } = serde_json::from_slice(bytes).map_err(damaged)?;
    if version > ORDER_VERSION {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("the {what} has version {version}, this program knows up to {ORDER_VERSION}"),
        )
        .hint("let all processes of a job use one version of forkpoint"));
    }
    serde_json::from_slice(bytes).map_err(damaged)
}

/// An attempt's id as a UUID, with which the names of its files begin.
pub(super) fn uuid_of(attempt: &str) -> String {
    let part = |from: usize, to: usize| attempt.get(from..to).unwrap_or_default();
    format!(
        "{}-{}-{}-{}-{}",
        part(0, 8),
        part(8, 12),
        part(12, 16),
        part(16, 20),
        part(20, 32)
    )
}

/// True for 32 lower-case hex digits.
pub(super) fn is_attempt(text: &str) -> bool {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == 32 && text.bytes().all(hex)
}
