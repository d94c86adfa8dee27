//! The registry of shared state that an engine keeps for one running job: which object is still needed,
//! which may go, and which was never the job's own. A pure state machine: it returns what to delete,
//! the caller deletes.
//!
//! The rules are those of Flink's `SharedStateRegistry` since FLINK-29913, with three lessons of its
//! tickets built in: an object is keyed by what it physically is and never replaced by another
//! (FLINK-29913), only confirmed objects are built upon (FLINK-25395), and whose an object is, is kept
//! with the object and survives a restart of the coordinator (FLINK-26985, FLINK-27114).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::snapshot::RestoreMode;

/// What a task hands over for a piece of shared state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Handed {
    /// An object, by what it physically is: its full location, or the logical id of a segment.
    Object(String),
    /// A placeholder for an object that the registry knows already.
    Placeholder(String),
}

/// Why a handle is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistryError {
    /// A placeholder for an object that is not known: the task and the registry disagree.
    UnknownPlaceholder,
    /// A placeholder for an object that no completed checkpoint has: its task may have deleted it.
    UnconfirmedPlaceholder,
    /// The checkpoint was subsumed before: the task keeps its object, and deletes it.
    Late,
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RegistryError::UnknownPlaceholder => "a placeholder for an object that is not known",
            RegistryError::UnconfirmedPlaceholder => {
                "a placeholder for an object that no completed checkpoint has"
            }
            RegistryError::Late => "the checkpoint was subsumed before",
        })
    }
}

impl std::error::Error for RegistryError {}

/// One object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedObject {
    /// The checkpoint that brought it.
    pub created_by: i64,
    /// The newest checkpoint that uses it.
    pub last_used_by: i64,
    /// A completed checkpoint has it.
    pub confirmed: bool,
    /// An unclaimed snapshot brought it: it is never deleted.
    pub foreign: bool,
    /// It lies in the folder of the checkpoint that brought it, which must stay as long.
    pub holds_folder: bool,
}

/// What a subsumption comes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subsumed {
    /// Objects that nothing needs any more, to be deleted by the caller.
    pub delete: Vec<String>,
    /// Checkpoints whose folders still hold objects that are needed: they must stay.
    pub folders_in_use: BTreeSet<i64>,
}

/// All shared objects of one job. Serializable: an engine stores it with its completed checkpoints, so that
/// a restart of its coordinator does not forget whose an object is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedStateRegistry {
    objects: BTreeMap<String, SharedObject>,
    /// Checkpoints below this one are subsumed.
    lowest_retained: i64,
}

impl SharedStateRegistry {
    /// Takes over what a job is restored from, by the restore mode: nothing in no-claim mode; everything as its
    /// own in claim mode; in legacy mode everything, as something that it never deletes.
    ///
    /// `in_its_folder` says of an object that it lies in the snapshot's own folder, as the files of a
    /// native savepoint do.
    pub fn restore<'o>(
        &mut self,
        snapshot: i64,
        mode: RestoreMode,
        objects: impl IntoIterator<Item = (&'o str, bool)>,
    ) {
        if mode == RestoreMode::NoClaim {
            return;
        }
        for (object, in_its_folder) in objects {
            self.objects
                .entry(object.to_string())
                .or_insert(SharedObject {
                    created_by: snapshot,
                    last_used_by: snapshot,
                    confirmed: true,
                    foreign: mode == RestoreMode::Legacy,
                    holds_folder: in_its_folder && mode == RestoreMode::Claim,
                });
        }
    }

    /// Registers what a task acknowledges for a checkpoint; returns the object that goes into its metadata.
    ///
    /// # Errors
    ///
    /// See [`RegistryError`]; nothing is changed then.
    pub fn register(&mut self, checkpoint: i64, handed: &Handed) -> Result<String, RegistryError> {
        if checkpoint < self.lowest_retained {
            return Err(RegistryError::Late);
        }
        let (id, known) = match handed {
            Handed::Object(id) => (id, self.objects.get_mut(id)),
            Handed::Placeholder(id) => match self.objects.get_mut(id) {
                None => return Err(RegistryError::UnknownPlaceholder),
                Some(object) if !object.confirmed => {
                    return Err(RegistryError::UnconfirmedPlaceholder);
                }
                known => (id, known),
            },
        };
        match known {
            Some(object) => object.last_used_by = object.last_used_by.max(checkpoint),
            None => {
                self.objects.insert(
                    id.clone(),
                    SharedObject {
                        created_by: checkpoint,
                        last_used_by: checkpoint,
                        confirmed: false,
                        foreign: false,
                        holds_folder: false,
                    },
                );
            }
        }
        Ok(id.clone())
    }

    /// The checkpoint is complete: its objects, `used`, may be built upon.
    pub fn confirm<'o>(&mut self, checkpoint: i64, used: impl IntoIterator<Item = &'o str>) {
        for id in used {
            if let Some(object) = self.objects.get_mut(id) {
                object.confirmed = true;
                object.last_used_by = object.last_used_by.max(checkpoint);
            }
        }
    }

    /// The checkpoint was aborted. Nothing goes yet: a later one that is under way may have been handed the same
    /// objects (FLINK-24611). They go when a later one completes without them.
    pub fn abort(&mut self, _checkpoint: i64) {}

    /// From now on `lowest_retained` is the oldest checkpoint that is kept. Savepoints do not count. To be called
    /// after every completion, even if nothing was subsumed.
    pub fn subsume(&mut self, lowest_retained: i64) -> Subsumed {
        self.lowest_retained = self.lowest_retained.max(lowest_retained);
        let lowest = self.lowest_retained;
        let mut subsumed = Subsumed::default();
        self.objects.retain(|id, object| {
            // What is not the job's own is remembered forever, lest it be taken for its own one day.
            let stays = object.foreign || object.last_used_by >= lowest;
            if !stays {
                subsumed.delete.push(id.clone());
            }
            if stays && object.holds_folder && object.created_by < lowest {
                subsumed.folders_in_use.insert(object.created_by);
            }
            stays
        });
        subsumed
    }

    /// What is known of an object.
    pub fn get(&self, object: &str) -> Option<&SharedObject> {
        self.objects.get(object)
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// True without any object.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(id: &str) -> Handed {
        Handed::Object(id.to_string())
    }

    fn complete(
        registry: &mut SharedStateRegistry,
        checkpoint: i64,
        used: &[&str],
        lowest: i64,
    ) -> Vec<String> {
        for id in used {
            registry.register(checkpoint, &object(id)).unwrap();
        }
        registry.confirm(checkpoint, used.iter().copied());
        registry.subsume(lowest).delete
    }

    #[test]
    fn an_object_goes_when_the_last_checkpoint_that_uses_it_is_subsumed() {
        let mut registry = SharedStateRegistry::default();
        assert!(complete(&mut registry, 1, &["a", "b"], 1).is_empty());
        assert!(complete(&mut registry, 2, &["b", "c"], 1).is_empty());
        assert_eq!(complete(&mut registry, 3, &["c"], 2), ["a"]);
        assert_eq!(complete(&mut registry, 4, &["c", "d"], 3), ["b"]);
        assert_eq!(registry.len(), 2);
    }

    #[test]
    fn what_an_aborted_checkpoint_brought_goes_with_a_later_completion_unless_that_uses_it() {
        let mut registry = SharedStateRegistry::default();
        complete(&mut registry, 1, &["a"], 1);
        // Acknowledged for 2; 3, which is under way at the same time, was handed the same object.
        registry.register(2, &object("b")).unwrap();
        registry.register(2, &object("lost")).unwrap();
        registry.register(3, &object("b")).unwrap();
        registry.abort(2);
        registry.confirm(3, ["a", "b"]);
        assert_eq!(registry.subsume(3).delete, ["lost"]);
        assert!(registry.get("b").unwrap().confirmed);
    }

    #[test]
    fn what_an_unclaimed_snapshot_brought_is_never_deleted_even_after_a_restart() {
        let mut registry = SharedStateRegistry::default();
        registry.restore(1, RestoreMode::Legacy, [("theirs", false)]);
        complete(&mut registry, 2, &["theirs", "mine"], 2);
        let stored = serde_json::to_string(&registry).unwrap();
        let mut registry: SharedStateRegistry = serde_json::from_str(&stored).unwrap();
        assert_eq!(complete(&mut registry, 3, &["new"], 3), ["mine"]);
        assert!(registry.get("theirs").unwrap().foreign);
        registry.register(4, &object("theirs")).unwrap();
        registry.confirm(4, ["theirs"]);
        assert_eq!(complete(&mut registry, 5, &["other"], 5), ["new"]);
    }

    #[test]
    fn a_claimed_snapshot_is_the_jobs_own_and_its_folder_stays_while_it_is_needed() {
        let mut registry = SharedStateRegistry::default();
        registry.restore(
            5,
            RestoreMode::Claim,
            [("in-savepoint", true), ("gone-soon", true)],
        );
        complete(&mut registry, 6, &["in-savepoint"], 5);
        let subsumed = registry.subsume(6);
        assert_eq!(subsumed.delete, ["gone-soon"]);
        assert_eq!(subsumed.folders_in_use, [5].into());
        registry.register(7, &object("x")).unwrap();
        registry.confirm(7, ["x"]);
        let subsumed = registry.subsume(7);
        assert_eq!(subsumed.delete, ["in-savepoint"]);
        assert!(subsumed.folders_in_use.is_empty());
    }

    #[test]
    fn a_no_claim_restore_registers_nothing() {
        let mut registry = SharedStateRegistry::default();
        registry.restore(5, RestoreMode::NoClaim, [("theirs", false)]);
        assert!(registry.is_empty());
        let placeholder = Handed::Placeholder("theirs".into());
        assert_eq!(
            registry.register(6, &placeholder),
            Err(RegistryError::UnknownPlaceholder)
        );
    }

    #[test]
    fn placeholders_stand_for_confirmed_objects_only() {
        let mut registry = SharedStateRegistry::default();
        registry.register(1, &object("a")).unwrap();
        let placeholder = Handed::Placeholder("a".into());
        assert_eq!(
            registry.register(2, &placeholder),
            Err(RegistryError::UnconfirmedPlaceholder)
        );
        registry.confirm(1, ["a"]);
        assert_eq!(registry.register(2, &placeholder).unwrap(), "a");
    }

    #[test]
    fn two_checkpoints_at_once_keep_one_entry_an_object_and_a_late_one_is_turned_away() {
        let mut registry = SharedStateRegistry::default();
        // Both upload their own file for one logical state: two objects, two entries.
        registry.register(1, &object("s3://b/shared/1")).unwrap();
        registry.register(2, &object("s3://b/shared/2")).unwrap();
        registry.confirm(2, ["s3://b/shared/2"]);
        assert_eq!(registry.subsume(2).delete, ["s3://b/shared/1"]);
        assert_eq!(
            registry.register(1, &object("s3://b/shared/3")),
            Err(RegistryError::Late)
        );
    }
}
