//! Pins: named reasons to keep a snapshot. I/O.
//!
//! Whoever begins to use a snapshot writes its record first and looks for cleaners' marks then; a
//! cleaner writes its mark first and looks for records then. At least one of the two sees the other.

use bytes::Bytes;
use futures::StreamExt;

use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::formats;
use crate::store::Location;

use super::access::Access;
use super::record::{
    self, Mark, Pin, PinningFork, RECORD_LIMIT_BYTES, RECORD_VERSION, check_name, marks_in, nonce,
    own_folder, pin_at,
};

/// What a pin shall say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinRequest {
    /// Its name: letters, digits, `.`, `_`, `-`.
    pub name: String,
    /// Who wants the snapshot kept.
    pub owner: String,
    /// Why.
    pub reason: String,
    /// From when on it counts no more, in milliseconds since 1970.
    pub expires_unix_ms: Option<u64>,
    /// The fork that reads the snapshot, for a fork's own pin.
    pub fork: Option<PinningFork>,
}

impl PinRequest {
    /// The pin of a fork: it names the fork, so that whoever meets it knows how to go on.
    pub fn of_fork(fork_id: &str, destination: &Location) -> PinRequest {
        PinRequest {
            name: format!("fork-{fork_id}"),
            owner: "forkpoint fork".to_string(),
            reason: format!("fork {fork_id} to {destination} reads it"),
            expires_unix_ms: None,
            fork: Some(PinningFork {
                fork_id: fork_id.to_string(),
                destination: destination.clone(),
                plan: None,
            }),
        }
    }

    /// The same, of a fork whose workers go by the plan at this place.
    #[must_use]
    pub fn by_plan(mut self, plan: Option<&Location>) -> PinRequest {
        if let (Some(fork), Some(plan)) = (&mut self.fork, plan) {
            fork.plan = Some(plan.clone());
            self.reason.push_str(&format!(", by plan {plan}"));
        }
        self
    }
}

/// Pins the snapshot in the folder `snapshot`. A pin of a fork that is there already is taken for a rerun's.
///
/// # Guarantees
///
/// When it returns, no cleaner deletes anything of the snapshot until the pin is removed or expires.
///
/// # Cost
///
/// One write, one listing, one read per mark, one look; one read if it is there.
///
/// # Errors
///
/// `AlreadyExists` for a pin of that name; `Refused` if a cleaner has marked the snapshot; `NotFound` if it
/// is not there. Then no pin is left.
pub async fn pin(access: &dyn Access, snapshot: &Location, request: &PinRequest) -> Result<Pin> {
    check_name(&request.name)?;
    let at = pin_at(snapshot, &request.name)?;
    let pin = new_pin(access, request, false);
    let bytes = record::encode(&pin)?;
    let going = match request.fork {
        Some(_) => create_for_fork(access, snapshot, request, bytes).await?,
        None => {
            let created = access.create(&at, bytes).await;
            created.map_err(|e| match e.kind() {
                ErrorKind::AlreadyExists => e
                    .during("pin")
                    .hint("choose another name, or remove the pin that has it: forkpoint pin rm"),
                _ => e.during("pin"),
            })?;
            refuse_going(access, snapshot).await
        }
    };
    match going {
        Ok(()) => Ok(pin),
        Err(e) => {
            unpin(access, snapshot, &request.name).await?;
            Err(e.during("pin"))
        }
    }
}

/// Creates the pin of a fork, unless it is there, and then sees whether a cleaner has marked the snapshot. At once what can
/// be: on a cloud each answer takes tens of milliseconds, and all workers of a fork begin with this.
async fn create_for_fork(
    access: &dyn Access,
    snapshot: &Location,
    request: &PinRequest,
    pin: Bytes,
) -> Result<Result<()>> {
    let at = pin_at(snapshot, &request.name)?;
    for _ in 0..2 {
        let written = access.create_if_absent(&at, pin.clone()).await;
        let written = written.map_err(|e| e.during("pin"))?;
        let ours = async {
            match written {
                true => Ok(true),
                false => is_pinned_by(access, snapshot, request).await,
            }
        };
        // Only after the write: a cleaner that has not seen the pin has left its mark before.
        let (ours, going) = tokio::join!(ours, refuse_going(access, snapshot));
        // Of this fork, or of one that has just ended.
        if ours? {
            return Ok(going);
        }
    }
    // It says what is in the way.
    let created = access.create(&at, pin).await;
    created.map_err(|e| e.during("pin"))?;
    Ok(refuse_going(access, snapshot).await)
}

fn new_pin(access: &dyn Access, request: &PinRequest, announces: bool) -> Pin {
    Pin {
        version: RECORD_VERSION,
        nonce: nonce(access),
        name: request.name.clone(),
        owner: request.owner.clone(),
        reason: request.reason.clone(),
        created_unix_ms: access.now(),
        expires_unix_ms: request.expires_unix_ms,
        fork: request.fork.clone(),
        announces,
    }
}

/// Announces a snapshot in the folder `snapshot`, which is yet to come: until it is there, or the pin is removed
/// or expires, no cleaner takes anything in the folder of its job for an orphan.
///
/// For what refers to objects that were there before it and that no snapshot refers to, however old they are.
///
/// # Cost
///
/// One write, one listing, one read per mark.
///
/// # Errors
///
/// `AlreadyExists` for a pin of that name; `Refused` if a cleaner is about to delete orphans there. Then no pin
/// is left.
pub(crate) async fn announce(
    access: &dyn Access,
    snapshot: &Location,
    request: &PinRequest,
) -> Result<()> {
    check_name(&request.name)?;
    let at = pin_at(snapshot, &request.name)?;
    let pin = record::encode(&new_pin(access, request, true))?;
    let written = access.create(&at, pin).await;
    written.map_err(|e| e.during("announce"))?;
    // Only now: a cleaner that has not seen the pin has left its mark before.
    if let Err(e) = refuse_destination(access, snapshot).await {
        unpin(access, snapshot, &request.name).await?;
        return Err(e.during("announce"));
    }
    Ok(())
}

/// Removes a pin; one that is not there is fine. One request.
///
/// # Errors
///
/// If the store refuses.
pub async fn unpin(access: &dyn Access, snapshot: &Location, name: &str) -> Result<()> {
    check_name(name)?;
    let at = pin_at(snapshot, name)?;
    access.delete(&at).await?;
    tidy(access, snapshot, &at).await;
    Ok(())
}

/// True if there is a pin of this name. One request.
///
/// # Errors
///
/// If the store does not say.
pub async fn is_pinned_as(access: &dyn Access, snapshot: &Location, name: &str) -> Result<bool> {
    check_name(name)?;
    Ok(access.find(&pin_at(snapshot, name)?).await?.is_some())
}

/// Does the pin of this fork keep the snapshot? One request.
///
/// # Errors
///
/// If it is there and cannot be read.
pub(crate) async fn is_pinned_by(
    access: &dyn Access,
    snapshot: &Location,
    request: &PinRequest,
) -> Result<bool> {
    let at = pin_at(snapshot, &request.name)?;
    let there: Pin = match access.read(&at, RECORD_LIMIT_BYTES).await {
        Ok(bytes) => record::decode(&bytes, &at)?,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    Ok(is_of_same_fork(&there, request))
}

/// True if both are of one fork, whatever plans its workers go by.
fn is_of_same_fork(there: &Pin, request: &PinRequest) -> bool {
    match (&there.fork, &request.fork) {
        (Some(there), Some(ours)) => {
            there.fork_id == ours.fork_id && there.destination == ours.destination
        }
        _ => false,
    }
}

/// The pins of a snapshot. One listing, one read each.
///
/// # Errors
///
/// If one cannot be read.
pub async fn pins(access: &dyn Access, snapshot: &Location) -> Result<Vec<Pin>> {
    let folder = own_folder(snapshot)?.child(&format!("pins/{}", snapshot.name()));
    let mut pins = Vec::new();
    for at in list(access, &folder).await? {
        match access.read(&at, RECORD_LIMIT_BYTES).await {
            Ok(bytes) => pins.push(record::decode(&bytes, &at)?),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    pins.sort_by(|a: &Pin, b: &Pin| a.name.cmp(&b.name));
    Ok(pins)
}

/// Removes what is left of our own folder beside a snapshot, where there are folders.
pub(crate) async fn tidy(access: &dyn Access, snapshot: &Location, record: &Location) {
    if let Some(home) = snapshot.parent() {
        access.remove_empty_folders(record, &home).await;
    }
}

/// The names below a folder of records. One listing.
pub(crate) async fn list(access: &dyn Access, folder: &Location) -> Result<Vec<Location>> {
    let mut found = Vec::new();
    let mut listing = match access.list(folder) {
        Ok(listing) => listing,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(found),
        Err(e) => return Err(e),
    };
    while let Some(next) = listing.next().await {
        match next {
            Ok((at, _)) if at.name().ends_with(".json") => found.push(at),
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(found),
            Err(e) => return Err(e),
        }
    }
    Ok(found)
}

/// The marks in the folder of a job that count at this moment. One listing, one read each.
pub(crate) async fn active_marks(
    access: &dyn Access,
    home: &Location,
) -> Result<Vec<(Location, Mark)>> {
    let mut marks = Vec::new();
    for at in list(access, &marks_in(home)).await? {
        let mark: Mark = match access.read(&at, RECORD_LIMIT_BYTES).await {
            Ok(bytes) => record::decode(&bytes, &at)?,
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        if mark.is_active(access.now()) {
            marks.push((at, mark));
        }
    }
    Ok(marks)
}

/// Refuses a snapshot that a cleaner is about to delete, or has deleted.
pub(crate) async fn refuse_going(access: &dyn Access, snapshot: &Location) -> Result<()> {
    let Some(home) = snapshot.parent() else {
        return snapshot_is_there(access, snapshot).await;
    };
    let (marks, there) = tokio::join!(
        active_marks(access, &home),
        snapshot_is_there(access, snapshot)
    );
    for (at, mark) in marks? {
        if mark.snapshots.iter().any(|name| name == snapshot.name()) {
            return Err(being_cleaned(&mark, &at).at(snapshot));
        }
    }
    there
}

/// Makes sure that there is a snapshot in this folder. One request per format at most.
///
/// # Errors
///
/// `NotFound` if there is none.
pub async fn snapshot_is_there(access: &dyn Access, snapshot: &Location) -> Result<()> {
    for format in formats() {
        if access
            .find(&snapshot.join(format.commit_object())?)
            .await?
            .is_some()
        {
            return Ok(());
        }
    }
    Err(Error::new(
        ErrorKind::NotFound,
        "no snapshot here: there is no `_metadata` and no `_forkpoint.json`",
    )
    .at(snapshot))
}

fn being_cleaned(mark: &Mark, at: &Location) -> Error {
    if let Some(fork) = &mark.fork {
        return fork.given_up(at);
    }
    Error::refused(format!("plan {} is about to delete it", mark.plan)).hint(format!(
        "if that shall not be, see that nobody applies the plan, and remove {at}; it counts no more from {} on",
        crate::clock::utc(mark.until_unix_ms.saturating_add(record::MARK_MARGIN_MS))
    ))
}

/// Refuses to begin a fork to `snapshot` while a cleaner is about to delete orphans or a snapshot of that name
/// there, or somebody gives the fork up. Called after the fork's note was written: a cleaner that has not seen the note has left a mark.
///
/// # Errors
///
/// `Refused`.
pub async fn refuse_destination(access: &dyn Access, snapshot: &Location) -> Result<()> {
    let Some(home) = snapshot.parent() else {
        return Ok(());
    };
    for (at, mark) in active_marks(access, &home).await? {
        let named = mark.snapshots.iter().any(|name| name == snapshot.name());
        match &mark.fork {
            Some(fork) if named => return Err(fork.given_up(&at).at(snapshot)),
            _ if named || mark.orphans => return Err(being_cleaned(&mark, &at).at(snapshot)),
            _ => {}
        }
    }
    Ok(())
}
