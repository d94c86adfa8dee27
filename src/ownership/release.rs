//! The end of a claim or a restore: its record is taken back. I/O.

use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::RestoreMode;
use crate::store::Location;

use super::access::Access;
use super::claimant::ambiguous;
use super::identity::{is_called, is_short_for, same_job};
use super::pin::{list, tidy};
use super::record::{self, Claim, RECORD_LIMIT_BYTES, Restore, claim_at, own_folder, restore_at};

/// Takes a claim back, or ends a job's dependence. What is not there is fine. The job may be named by the last
/// part of the location of its folder. Two requests, or a listing and a read of each restore.
///
/// # Errors
///
/// `Refused` if another job has claimed the snapshot, if several jobs of that name were started from it, or if the job was
/// started from it in another mode.
pub async fn release(
    access: &dyn Access,
    snapshot: &Location,
    job: &str,
    mode: RestoreMode,
) -> Result<bool> {
    let found = match mode {
        RestoreMode::Claim => claim_to_release(access, snapshot, job).await?,
        _ => restore_to_release(access, snapshot, job).await?,
    };
    let Some(at) = found else {
        return match recorded_otherwise(access, snapshot, job, mode).await? {
            None => Ok(false),
            Some(other) => Err(Error::refused(format!(
                "job {job} was started from it in {other} mode, not in {mode}"
            ))
            .during("release")
            .at(snapshot)
            .hint(format!("to end that, say --mode {other}"))),
        };
    };
    access.delete(&at).await?;
    tidy(access, snapshot, &at).await;
    Ok(true)
}

/// In which other mode the job was started from the snapshot, if it was.
async fn recorded_otherwise(
    access: &dyn Access,
    snapshot: &Location,
    job: &str,
    mode: RestoreMode,
) -> Result<Option<RestoreMode>> {
    let read = async |at: &Location| access.read(at, RECORD_LIMIT_BYTES).await;
    let at = match mode {
        RestoreMode::Claim => restore_to_release(access, snapshot, job).await?,
        _ => Some(claim_at(snapshot)?),
    };
    let Some(at) = at else { return Ok(None) };
    let bytes = match read(&at).await {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if mode == RestoreMode::Claim {
        return Ok(Some(record::decode::<Restore>(&bytes, &at)?.mode));
    }
    let claim: Claim = record::decode(&bytes, &at)?;
    Ok(is_same(&claim.job, job).then_some(RestoreMode::Claim))
}

/// The snapshots that the job took over together with this one, as its older checkpoints, and still holds. One listing
/// and a read of each claim.
///
/// # Errors
///
/// If a claim cannot be read.
pub async fn claimed_with(
    access: &dyn Access,
    snapshot: &Location,
    job: &str,
) -> Result<Vec<Location>> {
    let mut found = Vec::new();
    let Some(home) = snapshot.parent() else {
        return Ok(found);
    };
    for at in list(access, &own_folder(snapshot)?.child("claims")).await? {
        let bytes = match access.read(&at, RECORD_LIMIT_BYTES).await {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            other => other?,
        };
        let claim: Claim = record::decode(&bytes, &at)?;
        let is_of_job = is_same(&claim.job, job);
        if let (true, Some(name)) = (is_of_job, at.name().strip_suffix(".json"))
            && claim.with.as_deref() == Some(snapshot.name())
        {
            found.push(home.child(name));
        }
    }
    found.sort();
    Ok(found)
}

/// True if the job of a record is the one that is meant by `job`.
fn is_same(recorded: &str, job: &str) -> bool {
    same_job(recorded, job) || is_called(recorded, job) || is_short_for(job, recorded)
}

async fn claim_to_release(
    access: &dyn Access,
    snapshot: &Location,
    job: &str,
) -> Result<Option<Location>> {
    let at = claim_at(snapshot)?;
    let bytes = match access.read(&at, RECORD_LIMIT_BYTES).await {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let claim: Claim = record::decode(&bytes, &at)?;
    match is_same(&claim.job, job) {
        true => Ok(Some(at)),
        false => Err(Error::refused(format!("job {} has claimed it", claim.job))
            .during("release")
            .at(snapshot)),
    }
}

async fn restore_to_release(
    access: &dyn Access,
    snapshot: &Location,
    job: &str,
) -> Result<Option<Location>> {
    let exact = restore_at(snapshot, job)?;
    if access.find(&exact).await?.is_some() {
        return Ok(Some(exact));
    }
    let folder = own_folder(snapshot)?.child(&format!("restores/{}", snapshot.name()));
    let mut found = Vec::new();
    for at in list(access, &folder).await? {
        let bytes = match access.read(&at, RECORD_LIMIT_BYTES).await {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            other => other?,
        };
        let restore: Restore = record::decode(&bytes, &at)?;
        if same_job(&restore.job, job) {
            return Ok(Some(at));
        }
        if is_called(&restore.job, job) || is_short_for(job, &restore.job) {
            found.push((at, restore.job));
        }
    }
    match &found[..] {
        [] => Ok(None),
        [(at, _)] => Ok(Some(at.clone())),
        several => {
            let jobs: Vec<String> = several.iter().map(|(_, job)| job.clone()).collect();
            Err(ambiguous(job, &jobs).during("release").at(snapshot))
        }
    }
}
