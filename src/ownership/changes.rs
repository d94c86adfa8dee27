//! What would change a verdict: for each reason and each missing piece of evidence the next step. Pure.

use std::collections::BTreeMap;

use crate::snapshot::RestoreMode;
use crate::store::{Location, shell_word};

use super::evidence::{MissingEvidence, next_steps};
use super::identity::SnapshotId;
use super::need::NeedReason;
use super::survey::Node;

/// What would change the answer for the snapshot `own`, each with the command that does it.
pub(super) fn changes(
    own: &Node,
    reasons: &[NeedReason],
    missing: &[MissingEvidence],
) -> Vec<String> {
    let mut users: BTreeMap<(&Location, &str), Vec<&SnapshotId>> = BTreeMap::new();
    let mut changes = Vec::new();
    for reason in reasons {
        match reason {
            NeedReason::UsedBy { snapshot, .. } => users.entry((&snapshot.root, &snapshot.job)).or_default().push(snapshot),
            // What was not listed looks as if it were not there.
            NeedReason::MeantBy { snapshot, .. } if !missing.is_empty() => changes.push(format!(
                "supply the evidence that is missing: only then is it known whether references of {snapshot} lead nowhere"
            )),
            NeedReason::MeantBy { snapshot, .. } => changes.push(format!(
                "make an intact copy of {snapshot} with `forkpoint fork --look-in {}`, then remove the broken one",
                shell_word(&own.directory)
            )),
            NeedReason::Pinned { name, .. } => {
                changes.push(format!("remove the pin: forkpoint pin rm {} {name}", shell_word(&own.directory)));
            }
            NeedReason::ForkedTo { given_up: Some(way_on), .. } => changes.push(way_on.clone()),
            NeedReason::ForkedTo { destination, pin, plan, .. } => {
                changes.extend(of_fork(&own.directory, destination, pin.as_ref(), plan.as_ref()));
            }
            NeedReason::Restoring { job, mode } => changes.push(of_restore(&own.directory, job, *mode)),
        }
    }
    for ((root, job), snapshots) in users {
        let names: Vec<&str> = snapshots.iter().map(|s| s.name.as_str()).collect();
        let names = match names.len() {
            0..=4 => names.join(", "),
            n => format!(
                "{} to {} ({n} snapshots)",
                names.first().unwrap_or(&""),
                names.last().unwrap_or(&"")
            ),
        };
        let its_name = snapshots.first().map(|s| s.job_name()).unwrap_or_default();
        changes.push(match job == own.id.job && *root == own.id.root {
            true => format!("{names} of the same job must go first, or together with it"),
            false => format!(
                "{names} of job {its_name} must go first; or that job is made independent: forkpoint fork its newest snapshot"
            ),
        });
    }
    changes.extend(next_steps(missing));
    changes
}

/// How a fork that reads a snapshot comes to its end: both ways, for a fork that was begun with a plan and for one
/// that was not, where it is not known which of them it is.
fn of_fork(
    source: &Location,
    destination: &Location,
    pin: Option<&String>,
    plan: Option<&Location>,
) -> Vec<String> {
    if let Some(plan) = plan.map(shell_word) {
        return vec![
            format!(
                "finish the fork: forkpoint commit {plan}, after forkpoint run {plan} --worker I for each worker that is not done"
            ),
            format!("or give the fork up: forkpoint abandon {plan} --apply"),
        ];
    }
    let (source, destination) = (shell_word(source), shell_word(destination));
    let mut ways = vec![
        format!(
            "finish the fork: forkpoint fork {source} {destination} (with the options it was begun with, such as --moved-from); \
             or, if it was begun with a plan, forkpoint run PLAN --all and forkpoint commit PLAN"
        ),
        format!(
            "or give the fork up: forkpoint abandon PLAN --apply, with the plan it was begun with; without one forkpoint plan \
             {source} {destination} --workers 1 --out PLAN, with the same options, makes it"
        ),
    ];
    ways.extend(pin.map(|pin| {
        format!(
            "or, only if its destination has gone for good: forkpoint pin rm {source} {pin}; what was copied stays"
        )
    }));
    ways
}

/// What ends the dependence of a job that was started from a snapshot.
fn of_restore(source: &Location, job: &str, mode: RestoreMode) -> String {
    let release = format!(
        "or it was never started: forkpoint claim --release {} --job {}",
        shell_word(source),
        shell_word(job)
    );
    match mode {
        RestoreMode::Claim => format!("job {job} completes a checkpoint; {release}"),
        RestoreMode::NoClaim => {
            format!("job {job} completes a checkpoint; {release} --mode {mode}")
        }
        RestoreMode::Legacy => format!(
            "job {job} completes a checkpoint and no snapshot of it refers to this one any more, which in legacy mode \
             may never be; {release} --mode {mode}"
        ),
    }
}
