//! Which job a name means, of those that are known by the location of their folder. Pure.

use std::collections::BTreeSet;

use crate::error::{Error, Result};
use crate::snapshot::native;
use crate::store::Location;

use super::identity::{is_called, is_location};
use super::survey::{Node, Survey};

/// The job that is meant by `name`, as records name it, for a job that is started from the snapshot `own`.
///
/// The snapshot writer records a job as the location of its folder. The last parts of one are enough where no
/// other job of the writer, that has a snapshot or a record below the roots, ends alike. A name that is none of
/// theirs is taken as it is: that of a Flink job, or of a job that has written nothing yet.
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
    if is_location(name) || recorded.iter().any(is_recorded) {
        return Ok(name.to_string());
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

/// The error for a name of several jobs.
pub(super) fn ambiguous(name: &str, candidates: &[String]) -> Error {
    Error::refused(format!(
        "`{name}` may be any of {} jobs: {}",
        candidates.len(),
        candidates.join(", ")
    ))
    .hint("name the one that is meant by the location of its folder")
}
