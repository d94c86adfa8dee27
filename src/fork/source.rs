//! How the snapshot that is forked is understood: where its files really are.

use std::collections::HashMap;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::snapshot::{CommitObject, LookupRules, MovedPlace, Prefix, Snapshot};
use crate::store::{Location, Stat, Stores};
use crate::verify::{self, ReadSnapshot};

use super::ForkRequest;

/// How many references are tried when the new place of a moved prefix is looked for.
const MOVED_SAMPLE: usize = 8;

/// An old place of a snapshot that another tool has copied.
#[derive(Debug, Clone)]
pub struct MovedFrom {
    /// The text as the user gave it, for messages.
    text: String,
    /// The old place as it was typed.
    old_text: String,
    old: Prefix,
    pub(super) new: Option<Location>,
}

impl MovedFrom {
    /// Reads `OLD` or `OLD=NEW`. Without a new place it is looked for among the folders above the
    /// snapshot.
    ///
    /// # Errors
    ///
    /// `Invalid` if the text names no place.
    pub fn parse(text: &str) -> Result<MovedFrom> {
        // Paths may hold `=` too: the first one behind which an absolute place stands divides.
        let divided = text.match_indices('=').find_map(|(at, _)| {
            let new = Location::parse(&text[at + 1..]).ok()?;
            Some((&text[..at], new))
        });
        let (old, new) = match divided {
            Some((old, new)) => (old, Some(new)),
            None => (text, None),
        };
        if !old.contains(':') && !old.starts_with('/') {
            return Err(Error::invalid("an old place is an absolute path or a URL")
                .at(text)
                .hint("write it as it stands in the metadata, such as s3://old-bucket/checkpoints; `forkpoint show` prints it"));
        }
        Ok(MovedFrom {
            text: text.into(),
            old_text: old.into(),
            old: Prefix::parse(old)?,
            new,
        })
    }
}

/// Reads a snapshot by the rules of the request: where its objects lie, by which rules that was
/// found, and what the stores say of them.
///
/// # Errors
///
/// As [`plan`](super::plan), except that missing objects are no error here.
pub async fn understand(
    stores: &Stores,
    commit: &CommitObject,
    request: &ForkRequest,
    progress: &dyn Progress,
) -> Result<(Snapshot, LookupRules, HashMap<Location, Option<Stat>>)> {
    let mut rules = LookupRules::default();
    refuse_hidden(&request.moved_from)?;
    for moved in &request.moved_from {
        let new = match &moved.new {
            Some(new) => Some(new.clone()),
            None => find_moved(stores, commit, moved).await?,
        };
        if let Some(to) = new {
            let from = moved.old_text.clone();
            rules.moved.push(MovedPlace { from, to });
        }
    }
    let mut source = commit.snapshot_by(&rules.lookup(&commit.directory)?)?;
    let mut stats = verify::look_at_objects(stores, &source, progress).await?;
    if !request.look_in.is_empty()
        && look_elsewhere(stores, &source, &stats, &request.look_in, &mut rules).await?
    {
        source = commit.snapshot_by(&rules.lookup(&commit.directory)?)?;
        stats = verify::look_at_objects(stores, &source, progress).await?;
    }
    Ok((source, rules, stats))
}

/// Refuses a rule that would never be asked: an earlier one is for all that lies below its old place.
fn refuse_hidden(rules: &[MovedFrom]) -> Result<()> {
    let hides = |earlier: &MovedFrom, later: &MovedFrom| {
        let same = earlier.text == later.text;
        !same && earlier.old.strip(&later.old_text).is_some()
    };
    for (n, later) in rules.iter().enumerate() {
        let before = rules.iter().take(n);
        if let Some(earlier) = before.into_iter().find(|earlier| hides(earlier, later)) {
            return Err(Error::invalid(format!(
                "`{}` would be ignored: `{}`, which comes first, is for all that lies below its old place",
                later.text, earlier.text
            ))
            .during("read --moved-from")
            .hint("name the longer old place first, and each old place once"));
        }
    }
    Ok(())
}

/// Reads a fork or copy, and the snapshot that it was made from, of which another tool may have moved either: by the
/// rules of the request where they lead to files, and plainly else.
///
/// A rule with a new place is meant for the one that lies there, if the other one does not.
///
/// # Errors
///
/// As [`understand`]; `Invalid` or `NotFound` if the rules lead nowhere for both.
pub async fn understand_both(
    stores: &Stores,
    copy: CommitObject,
    original: CommitObject,
    request: &ForkRequest,
    progress: &dyn Progress,
) -> Result<(ReadSnapshot, ReadSnapshot)> {
    let of = |own: &CommitObject, other: &CommitObject| {
        let is_meant = |moved: &&MovedFrom| {
            moved
                .new
                .as_ref()
                .is_none_or(|new| new.contains(&own.directory) || !new.contains(&other.directory))
        };
        ForkRequest {
            moved_from: request
                .moved_from
                .iter()
                .filter(is_meant)
                .cloned()
                .collect(),
            ..request.clone()
        }
    };
    let (for_copy, for_original) = (of(&copy, &original), of(&original, &copy));
    let plain = ReadSnapshot::plain(copy.clone())?;
    let copy = match understand_as(stores, copy, &for_copy, progress).await {
        Ok((read, true)) => read,
        // A fork names its own files: it may lie below the old place all the same.
        Ok((read, false)) => match is_whole(stores, &plain, progress).await? {
            true => plain,
            false => read,
        },
        Err(e) if leads_nowhere(&e) => plain,
        Err(e) => return Err(e),
    };
    let original = match understand_as(stores, original.clone(), &for_original, progress).await {
        Ok((read, _)) => read,
        Err(e) if leads_nowhere(&e) && !copy.lookup.is_plain() => ReadSnapshot::plain(original)?,
        Err(e) => return Err(e),
    };
    Ok((copy, original))
}

fn leads_nowhere(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Invalid | ErrorKind::NotFound)
}

/// A snapshot by the rules of the request, and whether all its files are there.
async fn understand_as(
    stores: &Stores,
    commit: CommitObject,
    request: &ForkRequest,
    progress: &dyn Progress,
) -> Result<(ReadSnapshot, bool)> {
    let (snapshot, rules, stats) = understand(stores, &commit, request, progress).await?;
    let lookup = rules.lookup(&commit.directory)?;
    let read = ReadSnapshot {
        commit,
        lookup,
        snapshot,
    };
    Ok((read, stats.values().all(Option::is_some)))
}

async fn is_whole(stores: &Stores, read: &ReadSnapshot, progress: &dyn Progress) -> Result<bool> {
    let stats = verify::look_at_objects(stores, &read.snapshot, progress).await?;
    Ok(stats.values().all(Option::is_some))
}

/// Metadata in a bucket must not have files of this machine copied into a bucket, unless the user
/// has `named` the place.
pub(super) fn refuse_other_services(
    stores: &Stores,
    commit: &CommitObject,
    source: &Snapshot,
    named: &[&Location],
) -> Result<()> {
    let service = |at: &Location| {
        let bucket = stores.canonical(at).bucket();
        (bucket.provider, bucket.account)
    };
    let own = service(&commit.location);
    let stranger = source
        .objects
        .iter()
        .map(|o| &o.location)
        .find(|at| service(at) != own && !named.iter().any(|place| place.contains(at)));
    match stranger {
        None => Ok(()),
        Some(at) => Err(Error::refused(format!(
            "the snapshot in {} refers to a file on another service",
            commit.directory
        ))
        .at(at)
        .hint("if that is right, say so with --other-services; if the snapshot was copied here, use --moved-from OLD_PREFIX")),
    }
}

/// Finds the folder above the snapshot below which objects of the old place are found; `None` if the
/// snapshot has only relative references, so that it may lie anywhere.
async fn find_moved(
    stores: &Stores,
    commit: &CommitObject,
    moved: &MovedFrom,
) -> Result<Option<Location>> {
    let paths = commit
        .format
        .absolute_paths(&commit.bytes, usize::MAX)
        .map_err(|e| e.during("read").at(&commit.location))?;
    if paths.is_empty() {
        return Ok(None);
    }
    let below: Vec<String> = paths
        .iter()
        .filter_map(|path| moved.old.strip(path))
        .filter(|rest| !rest.is_empty())
        .take(MOVED_SAMPLE)
        .collect();
    if below.is_empty() {
        return Err(Error::invalid(format!(
            "no reference of the snapshot lies below {}",
            moved.text
        ))
        .during("look for the moved files of")
        .at(&commit.directory)
        .hint("`forkpoint show` prints where the metadata places each file"));
    }
    let mut tried = Vec::new();
    let mut candidate = Some(commit.directory.clone());
    while let Some(folder) = candidate {
        let wanted: Vec<Location> = below
            .iter()
            .map(|rest| folder.join(rest))
            .collect::<Result<_>>()?;
        if stores
            .stat_all(&wanted)
            .await?
            .values()
            .all(Option::is_some)
        {
            return Ok(Some(folder));
        }
        candidate = folder.parent();
        tried.push(folder.to_string());
    }
    Err(Error::new(
        ErrorKind::NotFound,
        format!(
            "files of {} are not below any folder above the snapshot; looked for `{}` in {}",
            moved.text,
            below.first().map(String::as_str).unwrap_or_default(),
            tried.join(", ")
        ),
    )
    .during("look for the moved files of")
    .at(&commit.directory)
    .hint("name the new place yourself: --moved-from OLD_PREFIX=NEW_PREFIX"))
}

/// Looks for relative references that lead nowhere in other folders. True if any was found.
async fn look_elsewhere(
    stores: &Stores,
    source: &Snapshot,
    stats: &HashMap<Location, Option<Stat>>,
    folders: &[Location],
    rules: &mut LookupRules,
) -> Result<bool> {
    let mut any = false;
    for folder in folders {
        let lost: Vec<(&String, Location)> = source
            .objects
            .iter()
            .filter(|o| matches!(stats.get(&o.location), Some(None)))
            .filter_map(|o| o.relative.as_ref())
            .map(|relative| Ok((relative, folder.join(relative)?)))
            .collect::<Result<_>>()?;
        let wanted: Vec<Location> = lost.iter().map(|(_, at)| at.clone()).collect();
        let there = stores.stat_all(&wanted).await?;
        for (relative, at) in lost {
            if matches!(there.get(&at), Some(Some(_))) {
                rules.elsewhere.insert(relative.clone(), at);
                any = true;
            }
        }
    }
    Ok(any)
}
