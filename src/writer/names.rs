//! Where the writer puts things: names are functions of number, attempt and subtask. Pure.

use crate::error::Result;
use crate::snapshot::native::{COMMIT_OBJECT, ManifestKind};
use crate::store::{Location, OWN_FOLDER, Sha256Sum};

use super::order::{is_attempt, uuid_of};

/// The folder of a snapshot.
pub(super) fn directory(
    home: &Location,
    kind: ManifestKind,
    number: i64,
    attempt: &str,
) -> Result<Location> {
    match kind {
        // All attempts have one folder, so that one of them wins.
        ManifestKind::Checkpoint => home.join(&format!("chk-{number}")),
        ManifestKind::Savepoint => home.join(&format!("savepoint-{number}-{attempt}")),
    }
}

/// The number of a checkpoint, by the location of its commit object in the folder of its job.
pub(super) fn checkpoint_number(home: &Location, commit: &Location) -> Option<i64> {
    let (folder, name) = home.strip(commit)?.split_once('/')?;
    let digits = folder.strip_prefix("chk-")?;
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    (name == COMMIT_OBJECT && plain)
        .then(|| digits.parse().ok())
        .flatten()
}

/// The number of a savepoint of ours, by the location of its commit object in the folder of its job.
pub(super) fn savepoint_number(home: &Location, commit: &Location) -> Option<i64> {
    let (folder, name) = home.strip(commit)?.split_once('/')?;
    let mut parts = folder.split('-');
    let number = match (parts.next(), parts.next()) {
        (Some("savepoint"), Some(digits)) => digits.parse().ok()?,
        _ => return None,
    };
    (name == COMMIT_OBJECT && parts.next().is_some_and(is_attempt)).then_some(number)
}

/// The folder of files that several snapshots refer to.
pub(super) fn shared(home: &Location) -> Result<Location> {
    home.join("shared")
}

/// The name of a file: no two are equal, and the attempt is known by it.
pub(super) fn file(attempt: &str, nonce: u64, counter: u64) -> String {
    format!("{}-{:08x}-{counter}", uuid_of(attempt), nonce >> 32)
}

/// True for a file that this attempt may have written.
pub(super) fn is_of_attempt(at: &Location, attempt: &str) -> bool {
    at.name().starts_with(&uuid_of(attempt))
}

/// The folder of lists of uploads.
pub(super) fn uploads(home: &Location) -> Result<Location> {
    home.join(&format!("{OWN_FOLDER}/uploads"))
}

/// The folder of one subtask's.
pub(super) fn uploads_of(home: &Location, operator: &str, subtask: u32) -> Result<Location> {
    uploads(home)?.join(&subtask_name(operator, subtask))
}

/// A name for a subtask that can be a file's, whatever the operator's id is.
pub(super) fn subtask_name(operator: &str, subtask: u32) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let plain: String = operator
        .chars()
        .map(|c| if allowed(c) { c } else { '_' })
        .take(48)
        .collect();
    let digest = Sha256Sum::of(operator.as_bytes()).to_string();
    format!("{plain}-{}-{subtask}", digest.get(..8).unwrap_or_default())
}

/// A list of uploads: of which snapshot, by its name.
pub(super) fn number_of_uploads(at: &Location) -> Option<i64> {
    at.name().split('-').next()?.parse().ok()
}

/// The name of a list of uploads.
pub(super) fn upload_list(number: i64, attempt: &str, nonce: u64, counter: u64) -> String {
    format!("{number}-{attempt}-{nonce:016x}-{counter}.jsonl")
}

/// The folder of notes of commits.
pub(super) fn commits(home: &Location) -> Result<Location> {
    home.join(&format!("{OWN_FOLDER}/commits"))
}

/// What says that an attempt has won. Kept until a later snapshot of the job has its own.
pub(super) fn commit_note(home: &Location, number: i64, attempt: &str) -> Result<Location> {
    home.join(&format!("{OWN_FOLDER}/commits/{number:020}-{attempt}.json"))
}

/// Number and attempt of such a note.
pub(super) fn of_commit_note(at: &Location) -> Option<(i64, &str)> {
    let folder = format!("{OWN_FOLDER}/commits");
    let is_note = at.key().rsplit_once('/')?.0.ends_with(&folder);
    let (number, attempt) = at.name().strip_suffix(".json")?.split_once('-')?;
    (is_note && is_attempt(attempt)).then(|| Some((number.parse().ok()?, attempt)))?
}

/// The pin by which an attempt keeps the snapshot that it builds upon.
pub(super) fn pin(number: i64, attempt: &str) -> String {
    format!("attempt-{number}-{attempt}")
}

/// The number of the attempt that wrote a pin, if one did.
pub(super) fn number_of_pin(at: &Location) -> Option<i64> {
    let is_pin = at.key().contains(&format!("{OWN_FOLDER}/pins/"));
    let (number, attempt) = at
        .name()
        .strip_suffix(".json")?
        .strip_prefix("attempt-")?
        .split_once('-')?;
    (is_pin && is_attempt(attempt)).then(|| number.parse().ok())?
}

/// The folder of all of these.
pub(super) fn own(home: &Location) -> Result<Location> {
    home.join(OWN_FOLDER)
}

/// The commit object of a snapshot.
pub(super) fn commit_object(directory: &Location) -> Result<Location> {
    directory.join(COMMIT_OBJECT)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTEMPT: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn what_is_named_is_recognised() {
        let home = Location::parse("s3://b/jobs/orders").unwrap();
        let commit = |kind| commit_object(&directory(&home, kind, 12, ATTEMPT).unwrap()).unwrap();
        let checkpoint = commit(ManifestKind::Checkpoint);
        assert_eq!(checkpoint_number(&home, &checkpoint), Some(12));
        assert_eq!(savepoint_number(&home, &checkpoint), None);
        let savepoint = commit(ManifestKind::Savepoint);
        assert!(savepoint_number(&home, &savepoint).is_some());
        assert_eq!(checkpoint_number(&home, &savepoint), None);
        let flink = home.join("savepoint-123456-0123456789ab/_forkpoint.json");
        assert_eq!(savepoint_number(&home, &flink.unwrap()), None);

        let note = commit_note(&home, 12, ATTEMPT).unwrap();
        assert_eq!(of_commit_note(&note), Some((12, ATTEMPT)));
        assert_eq!(number_of_pin(&note), None);
        let pin = own(&home)
            .unwrap()
            .join(&format!("pins/chk-11/{}.json", pin(12, ATTEMPT)));
        assert_eq!(number_of_pin(&pin.unwrap()), Some(12));
        let foreign = home.join(".forkpoint/pins/chk-11/audit.json").unwrap();
        assert_eq!(
            (number_of_pin(&foreign), of_commit_note(&foreign)),
            (None, None)
        );
        let name = file(ATTEMPT, 7, 3);
        assert!(is_of_attempt(
            &shared(&home).unwrap().join(&name).unwrap(),
            ATTEMPT
        ));
        assert_ne!(subtask_name("a/b", 1), subtask_name("a_b", 1));
        let list = uploads_of(&home, "a", 1)
            .unwrap()
            .join(&upload_list(12, ATTEMPT, 1, 2));
        assert_eq!(number_of_uploads(&list.unwrap()), Some(12));
    }
}
