//! The manifest as a document: its fields, how it is written and read.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::{Distribution, KeyGroupRange};
use crate::store::{Location, Sha256Sum};

/// The object whose presence makes a snapshot exist.
pub const COMMIT_OBJECT: &str = "_forkpoint.json";
/// What the field `format` says.
pub const FORMAT: &str = "forkpoint-snapshot";
/// The newest version that is written and read.
pub const MANIFEST_VERSION: u32 = 1;
/// Largest manifest that is written and read, in bytes: about a million files.
pub const MANIFEST_LIMIT_BYTES: u64 = 256 * 1024 * 1024;
/// Most bytes of state that one subtask may keep inside the manifest. As in Flink
/// (`MAX_FS_STATE_THRESHOLD`): a manifest is for references.
pub const INLINE_LIMIT_BYTES: usize = 1024 * 1024;

/// A snapshot: what there is, who has it, and where it lies.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// [`MANIFEST_VERSION`].
    pub version: u32,
    /// The job, by the name that its engine gives it.
    pub job: String,
    /// The number of the snapshot in its job, from 1 on.
    pub number: i64,
    /// Taken in the job's rhythm, or for a user.
    pub kind: ManifestKind,
    /// The attempt that wrote it: 32 hex digits at random. Two attempts never write equal bytes.
    pub attempt: String,
    /// When the attempt began, in milliseconds since 1970.
    pub created_unix_ms: u64,
    /// Numbers by which snapshots are compared, such as a loss. With `user` and unknown fields at most
    /// [`FREE_VALUES_LIMIT`](super::FREE_VALUES_LIMIT) values and
    /// [`FREE_TEXT_LIMIT_BYTES`](super::FREE_TEXT_LIMIT_BYTES).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// What the engine or its user wants to find again. Nobody else reads it.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub user: Map<String, Value>,
    /// The files, each once.
    pub files: Vec<ManifestFile>,
    /// The operators.
    pub operators: Vec<ManifestOperator>,
    /// Fields that this version does not know, kept as they are.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// Why a snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ManifestKind {
    /// In the job's rhythm; the job owns it, and later ones build on it.
    Checkpoint,
    /// Asked for by a user, who owns it; it shares no file with any other.
    Savepoint,
}

/// Who a file belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ManifestScope {
    /// Later snapshots may refer to it too.
    Shared,
    /// It belongs to this snapshot alone.
    Exclusive,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Where it lies: `NAME` in the snapshot's own folder, `../NAME` in the folder above it, else an
    /// absolute location.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its SHA-256, as 64 lower-case hex digits.
    pub sha256: Sha256Sum,
    /// Who it belongs to.
    pub scope: ManifestScope,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// One operator: a part of the job whose state is found again by an id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestOperator {
    /// The id, any text.
    pub id: String,
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Number of subtasks, 1 to 32768.
    pub parallelism: u32,
    /// Number of key groups, 1 to 32768.
    pub max_parallelism: u32,
    /// The subtasks that have state.
    pub subtasks: Vec<ManifestSubtask>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// What one subtask has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestSubtask {
    /// Its number, 0-based.
    pub subtask: u32,
    /// Its states.
    pub states: Vec<ManifestState>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// One state of one subtask: some files, some bytes in the manifest, or both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestState {
    /// Its name.
    pub name: String,
    /// Who gets it when the number of subtasks changes.
    pub partition: Partition,
    /// Its files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<StateFile>,
    /// Bytes kept here, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inline: Option<String>,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// A file as a state uses it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFile {
    /// Index into [`Manifest::files`].
    pub file: u32,
    /// The name by which its owner knows it.
    pub name: String,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// Who gets a state when it is restored with another number of subtasks. With the same number
/// everybody gets its own, besides what `union` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "by")]
pub enum Partition {
    /// State of keys: whoever has one of these key groups.
    KeyGroups {
        /// The key groups that the state has something of.
        range: KeyGroupRange,
    },
    /// Plain parts, such as the shard of a rank: so many elements, dealt out in turn.
    Split {
        /// How many elements it has. A state of one goes to one subtask as a whole; the writer makes no
        /// others, as nothing says which elements of a state are whose.
        elements: u32,
    },
    /// Everybody gets everything.
    Union,
    /// Every subtask has the same, and gets one of them.
    Broadcast,
}

impl Partition {
    pub(super) fn distribution(self) -> Option<(Distribution, u32)> {
        match self {
            Partition::KeyGroups { .. } => None,
            Partition::Split { elements } => Some((Distribution::Split, elements)),
            Partition::Union => Some((Distribution::Union, 1)),
            Partition::Broadcast => Some((Distribution::Broadcast, 1)),
        }
    }
}

impl ManifestState {
    /// The bytes kept in the manifest.
    ///
    /// # Errors
    ///
    /// `Corrupt` if they are no base64.
    pub fn inline_bytes(&self) -> Result<Option<Vec<u8>>> {
        let text = self.inline.as_deref();
        text.map(|text| ManifestState::decode_inline(&self.name, text))
            .transpose()
    }

    /// Bytes of the state `name` as they stand in the manifest.
    ///
    /// # Errors
    ///
    /// As [`ManifestState::inline_bytes`].
    pub fn decode_inline(name: &str, text: &str) -> Result<Vec<u8>> {
        STANDARD
            .decode(text)
            .map_err(|e| Error::corrupt(format!("the bytes of state `{name}` are no base64: {e}")))
    }

    /// Bytes as they stand in the manifest.
    pub fn encode_inline(bytes: &[u8]) -> String {
        STANDARD.encode(bytes)
    }
}

#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    ///
    /// `Unsupported` for a newer version; `Corrupt` for anything else that is no manifest, with the byte
    /// where it ceases to be one, or the part of it that contradicts another.
    pub fn decode(bytes: &[u8]) -> Result<Manifest> {
        check_head(bytes)?;
        super::free::check_free(bytes)?;
        let manifest: Manifest =
            serde_json::from_slice(bytes).map_err(|e| no_manifest(bytes, &e))?;
        super::read::check(&manifest)?;
        Ok(manifest)
    }

    /// The manifest as JSON, for people too. The same manifest gives the same bytes.
    ///
    /// # Errors
    ///
    /// `Invalid` for a manifest that could not be read again, or would be larger than [`MANIFEST_LIMIT_BYTES`] or
    /// than metrics, user data and unknown fields may be ([`FREE_VALUES_LIMIT`](super::FREE_VALUES_LIMIT)).
    pub fn encode(&self) -> Result<Vec<u8>> {
        super::read::check(self).map_err(|e| e.with_kind(ErrorKind::Invalid))?;
        if let Some((name, _)) = self.metrics.iter().find(|(_, value)| !value.is_finite()) {
            return Err(Error::invalid(format!(
                "metric `{name}` is no finite number"
            )));
        }
        let mut bytes = serde_json::to_vec_pretty(self).map_err(|e| {
            Error::new(
                ErrorKind::Internal,
                "the manifest cannot be written as JSON",
            )
            .caused_by(e)
        })?;
        bytes.push(b'\n');
        if bytes.len() as u64 > MANIFEST_LIMIT_BYTES {
            return Err(Error::invalid(format!(
                "the manifest would have {} bytes, more than the {MANIFEST_LIMIT_BYTES} that are read",
                bytes.len()
            ))
            .hint("write fewer and larger files, or keep less state inside the manifest"));
        }
        super::free::check_free(&bytes)
            .map_err(|e| super::free::too_much(e.with_kind(ErrorKind::Invalid)))?;
        Ok(bytes)
    }

    /// Where a file lies, for a manifest in the folder `directory`.
    ///
    /// # Errors
    ///
    /// `Corrupt` for a path that leads nowhere.
    pub fn locate(&self, file: &ManifestFile, directory: &Location) -> Result<Location> {
        super::read::locate(&file.path, &crate::snapshot::Lookup::new(directory.clone()))
            .map(|(at, _)| at)
    }
}

/// Refuses what is no manifest, or one of a newer version, before the rest is looked at: it may mean more
/// than is understood.
pub(super) fn check_head(bytes: &[u8]) -> Result<()> {
    let head: Head = serde_json::from_slice(bytes).map_err(|e| no_manifest(bytes, &e))?;
    if head.format != FORMAT {
        return Err(Error::corrupt(format!(
            "this is no snapshot of forkpoint's own format: its format is `{}`, not `{FORMAT}`",
            head.format.chars().take(64).collect::<String>()
        )));
    }
    if head.version > MANIFEST_VERSION {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the manifest has version {}, newer than {MANIFEST_VERSION}, which this forkpoint knows",
                head.version
            ),
        )
        .hint("use a newer forkpoint"));
    }
    Ok(())
}

/// The error of the JSON reader, with the byte where it stopped.
pub(super) fn no_manifest(bytes: &[u8], e: &serde_json::Error) -> Error {
    // Lines are counted from 1, bytes of a line as well; 0 where nothing was read.
    let before: usize = bytes
        .split_inclusive(|b| *b == b'\n')
        .take(e.line().saturating_sub(1))
        .map(<[u8]>::len)
        .sum();
    let at = (before + e.column().saturating_sub(1)).min(bytes.len());
    // The reader's own words end in line and column.
    let text = e.to_string();
    let why = match text.rfind(" at line ") {
        Some(end) => text.get(..end).unwrap_or(&text),
        None => &text,
    };
    let why: String = why.chars().take(200).collect();
    Error::corrupt(format!("this is no manifest: {why} (at byte {at})"))
}
