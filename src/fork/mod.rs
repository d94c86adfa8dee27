//! The headline verb: an independent snapshot from an old one. Plan, duplicate, rewrite, commit,
//! prove.
//!
//! Guarantees, each with the test that holds it to them (in `tests/`):
//!
//! 0. The source is pinned before the first copy, so that no clean deletes it meanwhile; the pin goes after the
//!    proof (`ownership::cli::a_fork_pins_its_source_while_it_runs`). Where the source cannot be written to, the
//!    fork goes on without and says so: nothing depends on the source once the fork is proved, and a source that
//!    goes before makes the fork fail, not lie.
//! 1. A fork never writes or deletes a source object (`forks::local::the_original_is_never_touched`).
//! 2. The commit object is written last and create-if-absent; a fork that did not commit does not
//!    exist (`fork_kill::a_killed_fork_on_local_disk_resumes` and its like).
//! 3. After the commit no reference leaves the fork's root: proved from what was written
//!    (`forks::local::every_fixture_forks_and_survives_its_original`).
//! 4. An object at a destination that is not ours is an error, never overwritten
//!    (`forks::refusals::a_stranger_at_a_destination_is_refused`).
//! 5. Of a fork that many workers share each object is copied once, but those in flight when a worker is
//!    killed; the result is that of one process
//!    (`fork_workers::workers_that_are_killed_or_doubled_on_s3_make_the_same_fork`).
//! 6. A plan that others wrote is believed in nothing that the snapshot's metadata says
//!    (`workers::refusals::a_hostile_or_damaged_plan_is_refused_before_anything_is_written`).
//! 7. What is abandoned is removed only with proof that it is the fork's, and never once there may have been
//!    a commit (`workers::refusals::abandoning_removes_what_the_fork_has_left_and_nothing_else`), whoever commits at the
//!    same time (`ownership::giving_up::whoever_stops_where_an_abandoned_fork_is_never_committed_without_its_files`).

mod abandon;
mod commit;
mod damage;
mod document;
mod evidence;
mod export;
mod outlook;
mod pinning;
mod site;
mod source;
mod turn;
mod understood;
mod workers;

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;

use crate::error::{ErrorKind, Result};
use crate::progress::{Cancel, Progress};
use crate::restore::{
    Done, ExecuteOptions, Executed, ForkPlan, ForkTerms, Naming, execute_after, look_for_finished,
};
use crate::snapshot::{CommitObject, Snapshot, format_of};
use crate::store::{Location, Method, Stat, Stores};
use crate::verify;

pub use crate::restore::Slice;
pub use abandon::{AbandonOptions, AbandonReport, abandon};
pub use commit::{CommitOptions, CommitOutcome, CommitReport, Left, LeftReport, commit};
pub use document::{PLAN_LIMIT_BYTES, read_plan, read_plan_for, write_new, write_plan};
pub use evidence::{Copier, Proof, Trust};
pub use export::{Export, ExportKind, export};
pub use outlook::{Outlook, look_ahead};
use site::{Site, prove};
use source::refuse_other_services;
pub use source::{MovedFrom, understand, understand_both};
use understood::Understood;
pub use workers::{RunOptions, RunReport, plan_unseen, plan_workers, run_slice};

/// What to fork, and where to.
#[derive(Debug, Clone)]
pub struct ForkRequest {
    /// The snapshot: its folder, or its commit object.
    pub snapshot: Location,
    /// The root of the fork.
    pub destination: Location,
    /// Where snapshots were before another tool copied them here.
    pub moved_from: Vec<MovedFrom>,
    /// Folders in which relative references are looked up that lead nowhere.
    pub look_in: Vec<Location>,
    /// Files on another service than the snapshot's own may be read, such as files of this machine
    /// for a snapshot in a bucket.
    pub other_services: bool,
    /// How the objects of the fork are named.
    pub naming: Naming,
    /// How the plan is run.
    pub execute: ExecuteOptions,
}

impl ForkRequest {
    /// A plain fork of `snapshot` to `destination`.
    pub fn new(snapshot: Location, destination: Location) -> ForkRequest {
        ForkRequest {
            snapshot,
            destination,
            moved_from: Vec::new(),
            look_in: Vec::new(),
            other_services: false,
            naming: Naming::default(),
            execute: ExecuteOptions::default(),
        }
    }
}

/// A fork that is ready to run.
#[derive(Debug, Clone)]
pub struct PlannedFork {
    /// What will be done.
    pub plan: ForkPlan,
    /// The snapshot that is forked.
    pub source: Snapshot,
    /// How the source was understood.
    pub terms: ForkTerms,
    commit_object: &'static str,
    metadata: Bytes,
}

impl PlannedFork {
    /// The snapshot that is forked, as it was understood when the fork was planned. One request.
    ///
    /// # Errors
    ///
    /// As [`plan`].
    pub async fn read_source(&self, stores: &Stores) -> Result<verify::ReadSnapshot> {
        let commit = CommitObject::read(stores, &self.terms.commit).await?;
        Ok(verify::ReadSnapshot {
            lookup: self.terms.lookup.lookup(&commit.directory)?,
            snapshot: self.source.clone(),
            commit,
        })
    }

    /// Where it is written.
    fn site<'a>(&self, stores: &'a Stores) -> Result<Site<'a>> {
        let plan = &self.plan;
        Site::new(
            stores,
            &plan.fork_id,
            &plan.source,
            &plan.destination,
            &plan.snapshot,
            self.commit_object,
        )
    }

    fn places(&self) -> Vec<Location> {
        let tasks = self.plan.tasks.iter();
        tasks.map(|t| t.destination.clone()).collect()
    }
}

/// What a fork came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForkReport {
    /// The folder of the new snapshot.
    pub snapshot: Location,
    /// The folder of the snapshot that was forked.
    pub source: Location,
    /// How to go on with the new one, on one line.
    pub how_to_restore: String,
    /// The fork's id.
    pub fork_id: String,
    /// Objects of the new snapshot, without its commit object.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that this run copied.
    pub copied: u64,
    /// Objects that an earlier run had copied.
    pub reused: u64,
    /// How many objects this run copied by which method.
    pub methods: BTreeMap<Method, u64>,
    /// True: proved from what was written.
    pub independent: bool,
    /// Why the source could not be pinned while the fork ran, if it could not.
    pub unpinned: Option<String>,
}

/// Makes the plan of a fork: reads the metadata, looks at every object, chooses names and methods.
/// Writes nothing.
///
/// Costs one read, and one listing request per 1,000 objects or one look per object.
///
/// # Errors
///
/// `NotFound`: no snapshot. `Corrupt`: damaged metadata, or objects missing or too short.
/// `Refused`: the destination overlaps the source.
pub async fn plan(
    stores: &Stores,
    request: &ForkRequest,
    progress: &dyn Progress,
) -> Result<PlannedFork> {
    let commit = CommitObject::read(stores, &request.snapshot).await?;
    let (source, lookup, stats) = understand(stores, &commit, request, progress).await?;
    if !request.other_services {
        let moved = request.moved_from.iter().filter_map(|m| m.new.as_ref());
        let named: Vec<&Location> = moved.chain(&request.look_in).collect();
        refuse_other_services(stores, &commit, &source, &named)?;
    }
    stores.check_bucket(&request.destination).await?;
    refuse_damaged(&source, &stats)?;
    let terms = ForkTerms {
        commit: commit.location.clone(),
        lookup,
        naming: request.naming,
        done: Done::default(),
    };
    let understood = Understood::new(stores, commit, source, terms, &request.destination).await?;
    PlannedFork::new(stores, understood, &stats)
}

fn refuse_damaged(source: &Snapshot, stats: &HashMap<Location, Option<Stat>>) -> Result<()> {
    let problems = verify::find_problems(source, stats);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(verify::damage_error(source, &problems).during("fork")),
    }
}

impl PlannedFork {
    fn new(
        stores: &Stores,
        understood: Understood,
        stats: &HashMap<Location, Option<Stat>>,
    ) -> Result<PlannedFork> {
        Ok(PlannedFork {
            plan: understood.plan(stores, stats)?,
            metadata: understood.metadata()?,
            commit_object: understood.commit.format.commit_object(),
            source: understood.source,
            terms: understood.terms,
        })
    }
}

/// Runs a fork from the plan to the proof.
///
/// A fork that was stopped, by [`Cancel`] or by a crash, goes on where it was when it is run again
/// with the same source and destination.
///
/// Costs, besides those of [`plan`], one listing per 1,000 objects of the destination, one copy
/// request per object, one write per 500 receipts or second, one write for the commit object, and
/// for the proof one read and the looks of the plan once more.
///
/// # Errors
///
/// As [`plan`]; `Refused` if something that is not ours lies at a destination.
pub async fn fork(
    stores: &Stores,
    request: &ForkRequest,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<ForkReport> {
    let planned = plan(stores, request, progress).await?;
    run(stores, &planned, &request.execute, progress, cancel).await
}

/// Runs a planned fork.
///
/// # Errors
///
/// As [`fork`].
pub async fn run(
    stores: &Stores,
    planned: &PlannedFork,
    options: &ExecuteOptions,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<ForkReport> {
    let plan = &planned.plan;
    let site = planned.site(stores)?;
    let ours = || Ok(planned.metadata.clone());
    let (under_way, committed, is_empty) = tokio::join!(
        site.is_under_way(),
        site.is_committed(ours),
        site.is_empty()
    );
    let (under_way, mut committed) = (under_way?, committed?);
    let (mut unpinned, mut seen) = (None, None);
    let journal = if !under_way && !committed {
        // Another run may have ended between the look and the note.
        let look = || async {
            tokio::join!(
                site.is_committed(ours),
                look_for_finished(stores, &plan.tasks, progress)
            )
        };
        match site.begin(&planned.places(), is_empty, look).await {
            // What is in the way may be this very fork, which another run has made and committed since the look.
            Err(e) if e.kind() == ErrorKind::Refused && site.is_committed(ours).await? => {
                committed = true;
                None
            }
            Err(e) => return Err(e),
            Ok(begun) => {
                unpinned = begun.unpinned;
                committed = begun.seen.0?;
                seen = Some(begun.seen.1?);
                match begun.journal {
                    Ok(journal) => Some(journal),
                    Err(e) => {
                        // A place that can have no journal: nothing was copied, so that nothing needs to stay.
                        if e.kind() == ErrorKind::Refused {
                            site.take_back().await?;
                        }
                        return Err(e);
                    }
                }
            }
        }
    } else if under_way {
        if !committed {
            site.refuse_given_up().await?;
            unpinned = site.pin_source().await?;
        }
        Some(site.journal().await?)
    } else {
        None
    };
    let executed = match &journal {
        Some(journal) if !committed => {
            let made = async {
                let tasks = &plan.tasks;
                let there = match seen {
                    Some(there) => there,
                    None => look_for_finished(stores, tasks, progress).await?,
                };
                let run = execute_after(stores, tasks, &there, journal, options, progress, cancel);
                let executed = run.await?;
                cancel.check()?;
                site.commit(journal, &planned.metadata).await?;
                Ok(executed)
            };
            match made.await {
                Ok(executed) => executed,
                Err(e) => {
                    site.note_again(journal).await;
                    return Err(e);
                }
            }
        }
        _ => Executed {
            reused: plan.objects,
            ..Executed::default()
        },
    };
    prove(stores, plan, progress).await?;
    match &journal {
        Some(journal) => site.tidy(journal).await?,
        None => site.tidy_rest().await?,
    }
    site.remove_empty_folders().await;
    Ok(ForkReport {
        unpinned,
        ..ForkReport::of(planned, executed)
    })
}

impl ForkReport {
    fn of(planned: &PlannedFork, executed: Executed) -> ForkReport {
        let plan = &planned.plan;
        ForkReport {
            snapshot: plan.snapshot.clone(),
            source: plan.source.clone(),
            how_to_restore: format_of(planned.commit_object)
                .map(|f| f.how_to_restore(&plan.snapshot))
                .unwrap_or_default(),
            fork_id: plan.fork_id.clone(),
            objects: plan.objects,
            bytes: plan.bytes,
            copied: executed.copied,
            reused: executed.reused,
            methods: executed.methods,
            independent: true,
            unpinned: None,
        }
    }
}
