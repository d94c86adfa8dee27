//! The note that a fork is under way: who writes to which snapshot folder.
//!
//! `ROOT/.forkpoint/SNAPSHOT.json` is written create-if-absent before the first copy and removed after
//! the proof. It keeps two forks from writing to one folder, and tells a rerun of a killed fork, which
//! may go on, from a fork to a place where a finished one has been, which may not: the files there
//! may belong to a running job by now.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::store::{Location, OWN_FOLDER, Stores, shell_word};

/// The newest version of the note that is written and read.
const VERSION: u32 = 1;
const LIMIT_BYTES: u64 = 1024 * 1024;

/// One fork under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    version: u32,
    /// The fork's id.
    pub fork_id: String,
    /// The folder of the snapshot that is forked.
    pub source: Location,
    /// The plan that its workers go by, if there is one and its place is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Location>,
}

impl Attempt {
    /// The note of the fork `fork_id` of `source`.
    pub fn new(fork_id: &str, source: &Location) -> Attempt {
        Attempt {
            version: VERSION,
            fork_id: fork_id.to_string(),
            source: source.clone(),
            plan: None,
        }
    }

    /// The same, of a fork whose workers go by the plan at this place.
    #[must_use]
    pub fn by_plan(mut self, plan: Option<&Location>) -> Attempt {
        self.plan = plan.cloned();
        self
    }

    /// Where the note for the new snapshot in the folder `snapshot` below `root` lies.
    ///
    /// # Errors
    ///
    /// None for a folder with a name.
    pub fn location(root: &Location, snapshot: &Location) -> Result<Location> {
        root.join(&format!("{OWN_FOLDER}/{}.json", snapshot.name()))
    }

    /// Is a fork under way there, and is it this one? One request.
    ///
    /// # Errors
    ///
    /// `Refused` if it is another one.
    pub async fn is_under_way(&self, stores: &Stores, at: &Location) -> Result<bool> {
        let bytes = match stores.read(at, LIMIT_BYTES).await {
            Err(e) if crate::store::is_missing_object(&e) => return Ok(false),
            other => other?,
        };
        let version = serde_json::from_slice::<serde_json::Value>(&bytes)
            .ok()
            .and_then(|note| note.get("version")?.as_u64());
        if version.is_some_and(|v| v > u64::from(VERSION)) {
            return Err(Error::refused("a newer version of forkpoint is at work here").at(at));
        }
        let other: Attempt = serde_json::from_slice(&bytes).map_err(|e| {
            Error::new(
                ErrorKind::Refused,
                format!("a note of a fork under way is unreadable: {e}"),
            )
            .at(at)
            .hint(
                "it was left as it is, for the fork may be at work: if none to this place is, delete this one object and run \
                 the same command again; or choose another destination",
            )
        })?;
        if other.fork_id == self.fork_id {
            return Ok(true);
        }
        let root = at.parent().and_then(|own| own.parent());
        let root = root.unwrap_or_else(|| at.clone());
        let hint = format!(
            "{}, or choose another destination",
            ways_on(&other.source, &root, other.plan.as_ref())
        );
        Err(Error::refused(format!(
            "another fork to this place is under way or was left half done: of {}, as it was then",
            other.source
        ))
        .at(at)
        .hint(hint))
    }

    /// Writes the note, unless it is there. One request, and one more if it is.
    ///
    /// # Errors
    ///
    /// `Refused` if another fork was faster.
    pub async fn begin(&self, stores: &Stores, at: &Location) -> Result<()> {
        self.begin_and(stores, at, || std::future::ready(())).await
    }

    /// The same, and gives what `look` sees, which begins when there is a note.
    pub(crate) async fn begin_and<F: Future>(
        &self,
        stores: &Stores,
        at: &Location,
        look: impl Fn() -> F,
    ) -> Result<F::Output> {
        let text =
            serde_json::to_vec(self).map_err(|e| Error::new(ErrorKind::Internal, e.to_string()))?;
        for _ in 0..2 {
            if stores.put_if_absent(at, Bytes::from(text.clone())).await? {
                return Ok(look().await);
            }
            // Of another run of this fork, or another fork; or of one that has just ended.
            let (ours, seen) = tokio::join!(self.is_under_way(stores, at), look());
            if ours? {
                return Ok(seen);
            }
        }
        // It says what is in the way.
        match stores.put(at, Bytes::from(text), true).await {
            Ok(_) => Ok(look().await),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Err(Error::refused(format!(
                "the note of a fork under way cannot be written: {}",
                e.message()
            ))
            .at(at)),
            Err(e) => Err(e),
        }
    }
}

/// How a fork of `source` to `root` that is half done comes to its end: finished, or given up.
pub(crate) fn ways_on(source: &Location, root: &Location, plan: Option<&Location>) -> String {
    match plan.map(shell_word) {
        Some(plan) => format!(
            "finish it with `forkpoint commit {plan}` (after `forkpoint run {plan} --worker I` for each worker that is not done), give it \
             up with `forkpoint abandon {plan} --apply`"
        ),
        None => format!(
            "finish it with `forkpoint fork {} {}` and the options it was begun with (`forkpoint run PLAN --all` and \
             `forkpoint commit PLAN` if it was begun with a plan), give it up with {}",
            shell_word(source),
            shell_word(root),
            give_up(source, root)
        ),
    }
}

/// How what is left of a fork is removed of which nothing else is known, on the word of whoever knows.
pub(crate) fn give_up_unused(source: &Location, root: &Location) -> String {
    let (source, root) = (shell_word(source), shell_word(root));
    format!(
        "`forkpoint plan {source} {root} --workers 1 --out PLAN --to-give-up` (with the options it was begun with, such as \
         --moved-from) and then `forkpoint abandon PLAN --apply --never-used`"
    )
}

/// How a fork whose plan is not known is given up.
pub(crate) fn give_up(source: &Location, root: &Location) -> String {
    let (source, root) = (shell_word(source), shell_word(root));
    format!(
        "`forkpoint plan {source} {root} --workers 1 --out PLAN` (with the options it was begun with, such as --moved-from) \
         and then `forkpoint abandon PLAN --apply`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_copied_into_a_shell() {
        let at = |text: &str| Location::parse(text).unwrap();
        let (source, root) = (at("file:/my data/job/chk-1"), at("s3://b/it's"));
        let said = ways_on(&source, &root, None);
        let words = r#"`forkpoint fork 'file:/my data/job/chk-1' "s3://b/it's"`"#;
        assert!(said.contains(words), "{said}");
        let said = ways_on(&source, &root, Some(&at("file:/my plans/p")));
        assert!(
            said.contains("`forkpoint abandon 'file:/my plans/p' --apply`"),
            "{said}"
        );
    }
}
