//! The plan of a fork that many workers share, as a document: read, written, and held against the
//! snapshot that it is about. What the snapshot's own metadata says is never taken from a document.

use std::collections::HashSet;

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::restore::{Execution, RESTORE_PLAN_VERSION, RestorePlan, RestoreTask, Slice};
use crate::snapshot::CommitObject;
use crate::snapshot::RestoreMode;
use crate::store::{Location, Stores, is_missing_object};

use super::source::refuse_other_services;
use super::understood::Understood;

/// Largest plan that is read, in bytes: some four million tasks.
pub const PLAN_LIMIT_BYTES: u64 = 2 * 1024 * 1024 * 1024;

/// Reads a plan. One request.
///
/// # Errors
///
/// `NotFound` if there is none, `Corrupt` if it is none, `Unsupported` if it is of a newer version.
pub async fn read_plan(stores: &Stores, at: &Location) -> Result<RestorePlan> {
    read_plan_for(stores, at, Slice::All).await
}

/// Reads what whoever does this slice needs of a plan: of the tasks only its own. With them [`run_slice`](super::run_slice)
/// does that slice; whatever needs the whole plan refuses it. One request.
///
/// # Errors
///
/// As [`read_plan`].
pub async fn read_plan_for(stores: &Stores, at: &Location, slice: Slice) -> Result<RestorePlan> {
    let bytes = match stores.read(at, PLAN_LIMIT_BYTES).await {
        Err(e) if is_missing_object(&e) || e.kind() == ErrorKind::NotFound => {
            return Err(Error::new(ErrorKind::NotFound, "there is no plan here")
                .during("read")
                .at(at)
                .hint(
                    "make one with `forkpoint plan SNAPSHOT DESTINATION --workers N --out PLAN`",
                ));
        }
        other => other?,
    };
    let read = match slice {
        Slice::All => RestorePlan::from_json(&bytes),
        Slice::Worker(worker) => RestorePlan::from_json_of_worker(&bytes, worker),
    };
    read.map_err(|e| e.during("read").at(at))
}

/// Writes a plan where nothing is, or where the very same plan is. One request.
///
/// # Errors
///
/// `AlreadyExists` if something else is there: workers may be at work by it.
pub async fn write_plan(stores: &Stores, at: &Location, plan: &RestorePlan) -> Result<()> {
    write_new(stores, at, Bytes::from(plan.to_json()?)).await
}

/// Writes a document where nothing is, or where the very same document is. One request.
///
/// # Errors
///
/// `AlreadyExists` if something else is there.
pub async fn write_new(stores: &Stores, at: &Location, bytes: Bytes) -> Result<()> {
    match stores.put(at, bytes.clone(), true).await {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            match stores.read(at, PLAN_LIMIT_BYTES).await? == bytes {
                true => Ok(()),
                false => Err(Error::new(
                    ErrorKind::AlreadyExists,
                    "another document is already there",
                )
                .during("write")
                .at(at)
                .hint("it was left as it is: workers may go by it; choose another name")),
            }
        }
        Err(e) => Err(e.during("write")),
    }
}

/// The fork that `plan` is about, derived from the snapshot's metadata, after a check that the plan
/// says the same. One request.
///
/// # Errors
///
/// `Refused` if it does not, or if the metadata has changed; `Invalid` if it is the plan of
/// something else.
pub(super) async fn understand_plan(
    stores: &Stores,
    plan: &RestorePlan,
    other_services: bool,
) -> Result<Understood> {
    let (Some(terms), Some(destination), RestoreMode::NoClaim, Execution::Offline { .. }) =
        (&plan.terms, &plan.destination, plan.mode, plan.execution)
    else {
        return Err(
            Error::invalid("this is no plan of a fork that workers share")
                .hint("`forkpoint plan SNAPSHOT DESTINATION --workers N --out PLAN` makes one"),
        );
    };
    if plan.version != RESTORE_PLAN_VERSION {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("the plan has version {}", plan.version),
        ));
    }
    let commit = CommitObject::read(stores, &terms.commit)
        .await
        .map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                Error::new(ErrorKind::NotFound, "the snapshot of the plan has gone")
                    .during("read")
                    .at(&terms.commit)
                    .hint("`forkpoint abandon PLAN` removes what was copied of it")
                    .caused_by(e)
            }
            _ => e,
        })?;
    let lookup = terms.lookup.lookup(&commit.directory)?;
    let source = commit.snapshot_by(&lookup)?;
    if !other_services {
        refuse_other_services(stores, &commit, &source, &[])?;
    }
    let understood = Understood::new(stores, commit, source, terms.clone(), destination).await?;
    check(plan, &understood)?;
    Ok(understood)
}

/// Refuses a plan that was read for one worker, where the whole is needed. Pure.
///
/// # Errors
///
/// `Invalid`.
pub(super) fn refuse_part(plan: &RestorePlan) -> Result<()> {
    match plan.tasks.len() as u64 == plan.objects {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "this is not the whole plan: it has {} tasks of {}",
            plan.tasks.len(),
            plan.objects
        ))
        .hint("make a new plan with `forkpoint plan`")),
    }
}

/// Does the plan say what the metadata says? Pure.
fn check(plan: &RestorePlan, understood: &Understood) -> Result<()> {
    let refuse = |why: String| {
        Err(Error::refused(why)
            .during("run the plan for")
            .at(&understood.source.directory)
            .hint("make a new plan with `forkpoint plan`"))
    };
    if plan.metadata_sha256 != understood.metadata_sha256 {
        return refuse("the snapshot's metadata is not what it was when the plan was made".into());
    }
    let layout = &understood.layout;
    if plan.fork_id.as_deref() != Some(layout.id().as_str())
        || plan.snapshot.as_ref() != Some(layout.snapshot())
        || plan.source != understood.source.directory
    {
        return refuse("the plan is not that of this fork: its id or its folders differ".into());
    }
    let folders = layout.folders();
    if plan.folders.len() != folders.len()
        || !plan
            .folders
            .iter()
            .zip(folders)
            .all(|(ours, (from, to))| ours.source == *from && ours.destination == *to)
    {
        return refuse("the plan names other folders than the metadata".into());
    }
    let workers: HashSet<u32> = plan.workers.iter().map(|w| w.worker).collect();
    let mut seen = vec![false; understood.places.len()];
    for task in &plan.tasks {
        let RestoreTask {
            duplicate,
            worker,
            ranges,
            ..
        } = task;
        let (source, to) = (&duplicate.source, &duplicate.destination);
        let objects = &understood.source.objects;
        let Ok(at) = objects.binary_search_by(|o| o.location.cmp(source)) else {
            return refuse(format!(
                "the plan copies {source}, which is no object of the snapshot"
            ));
        };
        if understood.places.get(at) != Some(to) {
            let why = match layout.root().contains(to) {
                true => "which is not its place in the fork",
                false => "outside the destination of the fork",
            };
            return refuse(format!("the plan copies {source} to {to}, {why}"));
        }
        let size = duplicate.size;
        if !objects.get(at).is_some_and(|o| o.size.allows(size)) {
            return refuse(format!(
                "the plan says that {source} has {size} bytes, which the metadata does not say"
            ));
        }
        match seen.get_mut(at) {
            Some(seen) if !*seen => *seen = true,
            _ => return refuse(format!("the plan copies {source} twice")),
        }
        if !workers.contains(worker) {
            return refuse(format!(
                "the plan gives {source} to worker {worker}, whom it does not have"
            ));
        }
        if !ranges.is_empty() {
            return refuse(format!(
                "the plan copies parts of {source}, but a fork copies whole objects"
            ));
        }
    }
    Ok(())
}
