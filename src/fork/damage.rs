//! A fork that is committed and has lost files: what that is, and the ways out.

use crate::error::{Error, Result};
use crate::restore::Task;
use crate::store::{Location, Stores, shell_word};

/// The error of a fork whose commit object is there, while what `task` has made is not.
pub(super) fn lost(snapshot: &Location, directory: &Location, task: &Task) -> Error {
    let Task {
        source,
        destination,
        ..
    } = task;
    let [from, to, fork] = [source, destination, snapshot].map(shell_word);
    Error::corrupt(format!(
        "the fork was written but is not proved: it is damaged, {destination} is not there"
    ))
    .at(snapshot)
    .hint(format!(
        "start no job from it as it is. If the original is intact, `forkpoint duplicate {from} {to}` brings this \
         file back (`forkpoint verify {fork}` names all that are missing), then run the same command again; or fork to \
         another destination. If it shall go, whoever owns the destination ends the jobs that use it (`forkpoint why \
         {fork}` names them) and then removes the commit object in {directory}"
    ))
}

/// Refuses to call a committed fork done of which one of `tasks` has gone. One listing per 1,000 objects.
pub(super) async fn refuse_lost(
    stores: &Stores,
    snapshot: &Location,
    tasks: &[Task],
) -> Result<()> {
    let places: Vec<Location> = tasks.iter().map(|t| t.destination.clone()).collect();
    let there = stores.stat_all(&places).await?;
    let is_there = |at: &Location| matches!(there.get(at), Some(Some(_)));
    match tasks.iter().find(|task| !is_there(&task.destination)) {
        None => Ok(()),
        Some(task) => Err(lost(snapshot, snapshot, task)),
    }
}
