//! The properties at the end of the file: how the snapshot was made, and what Flink does with it.
//!
//! Flink's `MetadataV4Serializer` writes its `CheckpointProperties` object with Java's own
//! serialization. It holds no paths; it is read only to know that the file ends where it should,
//! and for reports.

use super::java::{Graph, ObjectView, Value};
use super::utf::Utf;
use super::wire::{Cursor, corrupt};
use crate::Result;

const PACKAGE: &str = "org.apache.flink.runtime.checkpoint.";

/// How a snapshot was made (Flink's `CheckpointProperties`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Properties<'a> {
    /// A checkpoint or a savepoint.
    pub kind: SnapshotKind,
    /// Flink's name of the kind, such as `Checkpoint` or `Savepoint`.
    pub name: Utf<'a>,
    /// What a job that restores from it may do with its files.
    pub sharing: SharingStrategy,
    /// It is discarded as soon as there are enough newer ones.
    pub discard_subsumed: bool,
    /// It is discarded when the job finishes.
    pub discard_finished: bool,
    /// It is discarded when the job is cancelled.
    pub discard_cancelled: bool,
    /// It is discarded when the job fails.
    pub discard_failed: bool,
    /// It is discarded when the job is suspended.
    pub discard_suspended: bool,
    /// A user asked for it; limits on the number of checkpoints did not apply.
    pub forced: bool,
    /// Flink knows that it does not own the files.
    pub unclaimed: bool,
}

/// What kind of snapshot it is (Flink's `CheckpointType` and `SavepointType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SnapshotKind {
    /// A checkpoint.
    Checkpoint,
    /// A savepoint.
    Savepoint {
        /// How the state is laid out.
        format: SavepointFormat,
        /// What the job did after it.
        post_action: PostAction,
    },
}

macro_rules! constants {
    ($(#[$doc:meta])* $type:ident { $($(#[$vdoc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $type { $($(#[$vdoc])* $variant,)+ }

        impl $type {
            /// The name that Flink uses.
            pub fn as_str(self) -> &'static str {
                match self { $($type::$variant => $name,)+ }
            }

            fn from_name(name: &[u8]) -> Option<Self> {
                [$($type::$variant),+].into_iter().find(|c| c.as_str().as_bytes() == name)
            }
        }
    };
}

constants! {
    /// What a job that restores from a snapshot may do with its files
    /// (Flink's `SnapshotType.SharingFilesStrategy`).
    SharingStrategy {
        /// It may build on them, and delete them when it no longer needs them.
        ForwardBackward = "FORWARD_BACKWARD",
        /// Later checkpoints may use them; they don't use files of earlier ones.
        Forward = "FORWARD",
        /// Nobody else uses them.
        NoSharing = "NO_SHARING",
    }
}

constants! {
    /// How a savepoint's state is laid out (Flink's `SavepointFormatType`).
    SavepointFormat {
        /// One form for all backends.
        Canonical = "CANONICAL",
        /// The backend's own form.
        Native = "NATIVE",
    }
}

constants! {
    /// What a job did after a savepoint (Flink's `SavepointType.PostCheckpointAction`).
    PostAction {
        /// It went on.
        None = "NONE",
        /// It was suspended.
        Suspend = "SUSPEND",
        /// It was drained and ended.
        Terminate = "TERMINATE",
    }
}

/// Reads the stream; `None` where it holds Java's null, as the State Processor API writes it.
pub(super) fn read<'a>(cursor: &mut Cursor<'a>) -> Result<Option<Properties<'a>>> {
    let at = cursor.at();
    let (graph, root) = Graph::read(cursor)?;
    if matches!(root, Value::Null) {
        return Ok(None);
    }
    let reader = Reader { graph: &graph, at };
    reader.properties(root).map(Some)
}

struct Reader<'g, 'a> {
    graph: &'g Graph<'a>,
    at: usize,
}

impl<'g, 'a> Reader<'g, 'a> {
    fn properties(&self, root: Value) -> Result<Properties<'a>> {
        let object = self.object(root, "checkpoint properties")?;
        match object.class() {
            Some((name, 2)) if is_class(name, "CheckpointProperties") => {}
            other => {
                return Err(corrupt(
                    self.at,
                    format_args!("an object of {other:?} in place of checkpoint properties"),
                ));
            }
        }
        let flag = |name| match object.field(name) {
            Some(Value::Bool(flag)) => Ok(flag),
            _ => Err(self.lacks(name)),
        };
        let snapshot = self.object(self.field(object, "checkpointType")?, "checkpointType")?;
        let Some((class, _)) = snapshot.class() else {
            return Err(self.lacks("checkpointType"));
        };
        let kind = if is_class(class, "CheckpointType") {
            SnapshotKind::Checkpoint
        } else if is_class(class, "SavepointType") {
            SnapshotKind::Savepoint {
                format: self.constant(snapshot, "formatType", SavepointFormat::from_name)?,
                post_action: self.constant(
                    snapshot,
                    "postCheckpointAction",
                    PostAction::from_name,
                )?,
            }
        } else {
            return Err(corrupt(
                self.at,
                format_args!("an unknown snapshot type {class:?} in the checkpoint properties"),
            ));
        };
        // A savepoint's strategy follows from its kind; Flink does not store it.
        let sharing = match kind {
            SnapshotKind::Checkpoint => {
                self.constant(snapshot, "sharingFilesStrategy", SharingStrategy::from_name)?
            }
            SnapshotKind::Savepoint { .. } => SharingStrategy::NoSharing,
        };
        let name = self.field(snapshot, "name")?;
        Ok(Properties {
            kind,
            name: self.graph.text(name).ok_or_else(|| self.lacks("name"))?,
            sharing,
            discard_subsumed: flag("discardSubsumed")?,
            discard_finished: flag("discardFinished")?,
            discard_cancelled: flag("discardCancelled")?,
            discard_failed: flag("discardFailed")?,
            discard_suspended: flag("discardSuspended")?,
            forced: flag("forced")?,
            unclaimed: flag("unclaimed")?,
        })
    }

    fn object(&self, value: Value, what: &str) -> Result<ObjectView<'g, 'a>> {
        self.graph.object(value).ok_or_else(|| self.lacks(what))
    }

    fn field(&self, object: ObjectView<'g, 'a>, name: &str) -> Result<Value> {
        object.field(name).ok_or_else(|| self.lacks(name))
    }

    fn constant<T>(
        &self,
        object: ObjectView<'g, 'a>,
        field: &str,
        from_name: fn(&[u8]) -> Option<T>,
    ) -> Result<T> {
        let value = self.field(object, field)?;
        self.graph
            .constant(value)
            .and_then(|(_, name)| from_name(name.as_bytes()))
            .ok_or_else(|| self.lacks(field))
    }

    fn lacks(&self, what: &str) -> crate::Error {
        corrupt(
            self.at,
            format_args!("checkpoint properties without a usable {what}"),
        )
    }
}

fn is_class(name: Utf<'_>, class: &str) -> bool {
    name.as_bytes()
        .strip_prefix(PACKAGE.as_bytes())
        .is_some_and(|rest| rest == class.as_bytes())
}
