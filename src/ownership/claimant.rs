//! Which job a name means, of those that are known by the location of their folder. Pure.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::snapshot::native;
use crate::store::Location;

use super::identity::{is_called, is_location, is_short_for};
use super::layout::is_job_id;
use super::survey::{Node, Survey};

/// The job that is meant by `name`, as records name it, for a job that is started from the snapshot `own`.
///
/// The snapshot writer records a job as the location of its folder. The last parts of one are enough where no
/// other job of the writer, that has a snapshot or a record below the roots, ends alike. A name that is none of
/// theirs is taken as it is: that of a Flink job, or of a job that has written nothing yet. The beginning of a Flink
/// job's id, as lists print it, means that job.
///
/// # Errors
///
/// `Refused` with the candidates for a name of several, and for that of the very job that wrote the snapshot.
pub(super) fn resolve(survey: &Survey, own: &Node, name: &str) -> Result<String> {
    let records = &survey.records;
    let claims = records.claims.iter().map(|(of, claim)| (of, &claim.job));
    let restores = records.restores.iter().map(|(of, r)| (of, &r.job));
    let recorded: Vec<(&Location, &String)> = claims.chain(restores).collect();
    let is_recorded = |(of, job): &(&Location, &String)| **of == own.directory && *job == name;
    if recorded.iter().any(is_recorded) {
        return Ok(name.to_string());
    }
    if is_location(name) {
        return refuse_own(own, name).map(|()| name.to_string());
    }
    let homes = survey
        .nodes
        .iter()
        .filter(|node| survey.names.name(node.commit) == native::COMMIT_OBJECT)
        .filter_map(|node| node.directory.parent())
        .map(|home| home.to_string());
    let named = recorded.into_iter().map(|(_, job)| job.clone());
    let mut candidates: Vec<String> = Vec::new();
    for job in homes.chain(named).collect::<BTreeSet<String>>() {
        let is_known = |known: &String| super::identity::same_job(known, &job);
        if is_called(&job, name) && !candidates.iter().any(is_known) {
            candidates.push(job);
        }
    }
    if candidates.is_empty()
        && let Some(id) = of_flink(survey, own, name)?
    {
        return Ok(id);
    }
    let own_home = own.directory.parent().map(|home| home.to_string());
    match &candidates[..] {
        [] => Ok(name.to_string()),
        [only] if own_home.as_ref() == Some(only) => Err(Error::refused(format!(
            "the only job known as `{name}` is {only}, which wrote the snapshot and needs no record"
        ))
        .during("claim")
        .at(&own.directory)
        .hint("name the job that is started by the location of its folder")),
        [only] => Ok(only.clone()),
        several => Err(ambiguous(name, several).during("claim").at(&own.directory)),
    }
}

/// The id of the Flink job that `name` is, or is the beginning of; `None` if no folder of such a job was seen.
fn of_flink(survey: &Survey, own: &Node, name: &str) -> Result<Option<String>> {
    refuse_own(own, name)?;
    let is_whole = |part: &str| is_job_id(part) && part == name;
    let mut known: BTreeSet<String> = BTreeSet::new();
    // Of a job that has completed nothing yet only the folders tell.
    for (root, folder) in survey.names.folders().iter().filter_map(|folder| {
        let root = survey.roots.iter().find(|root| root.contains(folder))?;
        Some((root, folder))
    }) {
        let below = root.strip(folder).unwrap_or_default();
        let mut end = 0;
        for part in below.split('/') {
            end += part.len();
            let path = below.get(..end).unwrap_or_default();
            if is_whole(part) {
                return Ok(Some(name.to_string()));
            }
            if is_short_for(name, path) {
                known.insert(part.to_string());
            }
            end += 1;
        }
    }
    let known: Vec<String> = known.into_iter().collect();
    match &known[..] {
        [] => Ok(None),
        [only] => refuse_own(own, only).map(|()| Some(only.clone())),
        several => Err(Error::refused(format!(
            "`{name}` may be any of {} jobs: {}",
            several.len(),
            several.join(", ")
        ))
        .during("claim")
        .at(&own.directory)
        .hint("name the one that is meant by its whole id")),
    }
}

/// Refuses the job that wrote the snapshot, known by its id. A Flink job owns what it wrote: it deletes it when it is
/// done with it, whatever a record says, so that a record would only keep others from claiming it.
fn refuse_own(own: &Node, job: &str) -> Result<()> {
    let is_flink = own.id.job.rsplit('/').next().is_some_and(is_job_id);
    match is_flink && own.id.is_of_job(job) {
        false => Ok(()),
        true => Err(Error::refused(format!(
            "job {} wrote this snapshot, and owns it without a claim",
            own.id.job_name()
        ))
        .during("claim")
        .at(&own.directory)
        .hint(
            "name the job that is started from it; if that runs under the same id (a fixed job id), keep the snapshot \
             until it has completed a checkpoint with `forkpoint pin add`",
        )),
    }
}

/// The error for a name of several jobs.
pub(super) fn ambiguous(name: &str, candidates: &[String]) -> Error {
    Error::refused(format!(
        "`{name}` may be any of {} jobs: {}",
        candidates.len(),
        candidates.join(", ")
    ))
    .hint("name the one that is meant by the location of its folder")
}
