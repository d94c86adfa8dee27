//! Is every byte what it was? Sizes say nothing of that, so that each file is read: compared with the digest that
//! the snapshot has of it, or with the file that it is a duplicate of. I/O; memory as for other transfers.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use futures::{StreamExt, TryStreamExt};
use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::progress::Progress;
use crate::snapshot::native::{Manifest, NativeFormat};
use crate::snapshot::{CommitObject, Lookup, Snapshot, SnapshotFormat};
use crate::store::{Location, Stat, Stores};

use super::{Problem, VerifyReport, check, incomplete, verify_commit};

/// Files that are read at once. What of them is in memory is limited by the memory for transfers.
const FILES_AT_ONCE: usize = 4;

/// What the contents of a snapshot's files were compared with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Compared {
    /// With nothing: only sizes were looked at.
    Nothing,
    /// With the digests in the snapshot's own manifest.
    Digests,
    /// With the files of the snapshot in this folder, and the metadata with that one's.
    Original(Location),
}

/// A snapshot as it was read, and as its references were understood.
#[derive(Debug, Clone)]
pub struct ReadSnapshot {
    /// The commit object.
    pub commit: CommitObject,
    /// Where the files behind its references are looked up.
    pub lookup: Lookup,
    /// What it refers to.
    pub snapshot: Snapshot,
}

impl ReadSnapshot {
    /// The snapshot of `commit` by plain rules: every file lies where the metadata says.
    ///
    /// # Errors
    ///
    /// As [`CommitObject::snapshot`].
    pub fn plain(commit: CommitObject) -> Result<ReadSnapshot> {
        Ok(ReadSnapshot {
            snapshot: commit.snapshot()?,
            lookup: Lookup::new(commit.directory.clone()),
            commit,
        })
    }
}

/// Checks that every object of the snapshot at `at` is there, and that every byte is what it was: as the digests in
/// the manifest say, or as in the snapshot at `original`, of which it is a fork or a copy.
///
/// Costs what [`verify`](super::verify()) costs, and one request per 8 MiB of each file, and of each file of the
/// original.
///
/// # Errors
///
/// Those of [`verify`](super::verify()). `Invalid` without an original for a format that has no digests, or if the
/// original is another snapshot; `Incomplete` if a file could not be read.
pub async fn verify_content(
    stores: &Stores,
    at: &Location,
    original: Option<&Location>,
    progress: &dyn Progress,
) -> Result<VerifyReport> {
    let commit = CommitObject::read(stores, at).await?;
    if original.is_none() && commit.format.name() != NativeFormat.name() {
        return Err(Error::invalid(
            "the metadata has no digests of files: there is nothing to compare their contents with",
        )
        .at(&commit.location)
        .hint("name the snapshot that this one was forked or copied from with --against"));
    }
    if let Some(original) = original {
        let original = CommitObject::read(stores, original).await?;
        refuse_itself(&commit, &original)?;
        let Ok(copy) = ReadSnapshot::plain(commit.clone()) else {
            return verify_commit(stores, &commit, progress).await;
        };
        return verify_against(stores, &copy, &ReadSnapshot::plain(original)?, progress).await;
    }
    let mut report = verify_commit(stores, &commit, progress).await?;
    if commit.snapshot().is_err() {
        // That is among the problems.
        return Ok(report);
    }
    let bad: HashSet<Location> = report.problems.iter().map(|p| p.location.clone()).collect();
    let found = by_digests(stores, &commit, &bad, progress).await;
    report.problems.extend(found.map_err(incomplete)?);
    report.compared = Compared::Digests;
    Ok(report)
}

fn refuse_itself(copy: &CommitObject, original: &CommitObject) -> Result<()> {
    match copy.location == original.location {
        true => Err(Error::invalid("it would be compared with itself").at(&copy.location)),
        false => Ok(()),
    }
}

/// Checks that every object of `copy` is there, and that every byte is as in `original`, of which it is a fork or a
/// copy. Both are taken as they were understood: another tool may have moved either.
///
/// # Errors
///
/// As [`verify_content`].
pub async fn verify_against(
    stores: &Stores,
    copy: &ReadSnapshot,
    original: &ReadSnapshot,
    progress: &dyn Progress,
) -> Result<VerifyReport> {
    refuse_itself(&copy.commit, &original.commit)?;
    let mut report = check(stores, &copy.snapshot, progress).await?;
    let places = pair(original, copy)?;
    if !says_the_same(&places, copy, original)? {
        // Of another snapshot no object may be called damaged, nor be repaired from there.
        report.problems.push(problem(
            copy.commit.location.clone(),
            format!(
                "it says something else than {}, besides where the files are: it is damaged, or it is no fork and no copy of \
                 that snapshot; no file was compared",
                original.commit.location
            ),
        ));
        return Ok(report);
    }
    let bad: HashSet<Location> = report.problems.iter().map(|p| p.location.clone()).collect();
    let found = against(stores, copy, original, places, &bad, progress).await;
    report.problems.extend(found.map_err(incomplete)?);
    report.compared = Compared::Original(original.commit.directory.clone());
    Ok(report)
}

async fn by_digests(
    stores: &Stores,
    commit: &CommitObject,
    bad: &HashSet<Location>,
    progress: &dyn Progress,
) -> Result<Vec<Problem>> {
    let manifest = Manifest::decode(&commit.bytes).map_err(|e| e.at(&commit.location))?;
    let mut files = Vec::with_capacity(manifest.files.len());
    for file in &manifest.files {
        let at = manifest.locate(file, &commit.directory)?;
        if !bad.contains(&at) {
            files.push((at, file));
        }
    }
    let bytes = files.iter().map(|(_, file)| file.size).sum();
    progress.begin("reading files", files.len() as u64, bytes);
    let found = futures::stream::iter(files)
        .map(|(at, file)| async move {
            let sum = stores.sha256_of(&at, file.size).await?;
            progress.advance(1, file.size);
            Ok((sum != file.sha256).then(|| {
                problem(
                    at,
                    format!(
                        "other bytes: their SHA-256 is {sum}, the manifest says {}",
                        file.sha256
                    ),
                )
            }))
        })
        .buffer_unordered(FILES_AT_ONCE)
        .try_filter_map(|found: Option<Problem>| async move { Ok(found) })
        .try_collect()
        .await;
    progress.end();
    sorted(found)
}

async fn against(
    stores: &Stores,
    copy: &ReadSnapshot,
    source_read: &ReadSnapshot,
    places: HashMap<Location, Location>,
    bad: &HashSet<Location>,
    progress: &dyn Progress,
) -> Result<Vec<Problem>> {
    let mut problems = Vec::new();
    let (commit, original) = (&copy.commit, &source_read.commit);
    let (snapshot, source) = (&copy.snapshot, &source_read.snapshot);
    let home = commit.directory.parent();
    let files: Vec<&Location> = source.objects.iter().map(|o| &o.location).collect();
    let folders = source.folders.iter().map(|f| &f.location);
    for folder in stray_folders(&files, folders, &places, home.as_ref()) {
        problems.push(problem(
            commit.location.clone(),
            format!(
                "it has the engine remove {folder} as a whole, which is not where its files are"
            ),
        ));
    }
    let sources: HashMap<&Location, &Location> = places.iter().map(|(a, b)| (b, a)).collect();
    let mut pairs: Vec<(&Location, &Location)> = Vec::new();
    for object in &snapshot.objects {
        let source = sources.get(&object.location).copied();
        if let Some(source) = source.filter(|_| !bad.contains(&object.location)) {
            pairs.push((&object.location, source));
        }
    }
    if !pairs.is_empty() && pairs.iter().all(|(at, source)| at == source) {
        return Err(Error::invalid(format!(
            "both refer to the very same files, so that there is nothing to compare with those of {}",
            original.directory
        ))
        .at(&commit.directory)
        .hint("if another tool has moved one of them here, name its old place with --moved-from"));
    }
    let wanted: Vec<Location> = pairs.iter().flat_map(|(a, b)| [*a, *b]).cloned().collect();
    let stats = stores.stat_all(&wanted).await?;
    let size = |at: &Location| {
        let stat: Option<&Stat> = stats.get(at).and_then(Option::as_ref);
        stat.map(|stat| stat.size)
    };
    let mut same_size = Vec::with_capacity(pairs.len());
    for (at, source) in pairs {
        match (size(at), size(source)) {
            (Some(a), Some(b)) if a == b && at == source => {}
            (Some(a), Some(b)) if a == b => same_size.push((at.clone(), source.clone(), a)),
            (Some(a), Some(b)) => problems.push(problem(
                at.clone(),
                format!("{a} bytes, where {source} has {b}"),
            )),
            (None, _) => problems.push(problem(at.clone(), "it has gone meanwhile".into())),
            (_, None) => {
                return Err(Error::new(
                    ErrorKind::Incomplete,
                    "an object of the original is not there: nothing can be compared with it",
                )
                .at(source)
                .hint(
                    "the original's metadata names this place: if another tool has moved it, name its old place with --moved-from; one that has lost files cannot be compared with",
                ));
            }
        }
    }
    let bytes = same_size.iter().map(|(.., size)| size).sum();
    progress.begin("comparing files", same_size.len() as u64, bytes);
    let found = futures::stream::iter(same_size)
        .map(|(at, source, size)| async move {
            let same = stores.same_content(&at, &source, size).await?;
            progress.advance(1, size);
            Ok((!same).then(|| problem(at, format!("other bytes than {source}"))))
        })
        .buffer_unordered(FILES_AT_ONCE)
        .try_filter_map(|found: Option<Problem>| async move { Ok(found) })
        .try_collect::<Vec<Problem>>()
        .await;
    progress.end();
    problems.extend(found?);
    sorted(Ok(problems))
}

/// Does the metadata of `copy` say what that of `original` does, with each file at its place in `places`?
fn says_the_same(
    places: &HashMap<Location, Location>,
    copy: &ReadSnapshot,
    original: &ReadSnapshot,
) -> Result<bool> {
    let home = &copy.commit.directory;
    let rewritten =
        original
            .commit
            .format
            .rewrite(&original.commit.bytes, &original.lookup, home, &|old| {
                Ok(places.get(old).unwrap_or(old).clone())
            })?;
    if rewritten == copy.commit.bytes {
        return Ok(true);
    }
    if copy.lookup.is_plain() {
        return Ok(false);
    }
    // It names old places: compared is what it means.
    let meant = copy
        .commit
        .format
        .rewrite(&copy.commit.bytes, &copy.lookup, home, &|old| {
            Ok(old.clone())
        })?;
    Ok(rewritten == meant)
}

/// Where each object and folder of `original` is in `copy`: both name them in the same order.
fn pair(original: &ReadSnapshot, copy: &ReadSnapshot) -> Result<HashMap<Location, Location>> {
    let other = |why: String| {
        Err(Error::corrupt(format!(
            "it is no fork and no copy of {}: {why}",
            original.commit.directory
        ))
        .at(&copy.commit.directory)
        .hint(
            "name the very snapshot that it was made from; if this is the one, the copy is damaged",
        ))
    };
    if original.commit.format.name() != copy.commit.format.name() {
        return other("they are of two formats".into());
    }
    let of = |read: &ReadSnapshot| -> Result<(Vec<u32>, Vec<Location>)> {
        let commit = &read.commit;
        // The format asks for the new place of each reference: here it stays where it is.
        let named = RefCell::new((Vec::new(), Vec::new(), HashMap::<Location, u32>::new()));
        let keep = |old: &Location| {
            let (order, all, numbers) = &mut *named.borrow_mut();
            let next = u32::try_from(all.len()).unwrap_or(u32::MAX);
            let number = *numbers.entry(old.clone()).or_insert_with(|| {
                all.push(old.clone());
                next
            });
            order.push(number);
            Ok(old.clone())
        };
        commit
            .format
            .rewrite(&commit.bytes, &read.lookup, &commit.directory, &keep)
            .map_err(|e| e.at(&commit.location))?;
        let (order, all, _) = named.into_inner();
        Ok((order, all))
    };
    let ((before, old), (after, new)) = (of(original)?, of(copy)?);
    if before.len() != after.len() || old.len() != new.len() {
        return other(format!(
            "{} references to {} places, where that one has {} to {}",
            after.len(),
            new.len(),
            before.len(),
            old.len()
        ));
    }
    // Numbered in the order in which they are met, equal structures have equal numbers.
    if before != after {
        return other("their references are to other objects each".into());
    }
    Ok(old.into_iter().zip(new).collect())
}

/// The places of folders, which the engine removes as a whole, that do not hold what they held in the original; and
/// those of empty ones that lie outside of the folder `home`, in which the copy lies.
fn stray_folders<'p, 'f>(
    files: &[&Location],
    folders: impl Iterator<Item = &'f Location>,
    places: &'p HashMap<Location, Location>,
    home: Option<&Location>,
) -> Vec<&'p Location> {
    let is_stray = |(old, new): &(&Location, &Location)| {
        let mut held = files
            .iter()
            .filter_map(|file| Some((old.strip(file)?, places.get(*file)?)))
            .peekable();
        match held.peek() {
            Some(_) => held.any(|(inside, file)| new.strip(file) != Some(inside)),
            None => home.is_some_and(|home| !home.contains(new)),
        }
    };
    folders
        .filter_map(|old| Some((old, places.get(old)?)))
        .filter(is_stray)
        .map(|(_, new)| new)
        .collect()
}

fn problem(location: Location, problem: String) -> Problem {
    Problem {
        location,
        problem,
        missing: false,
        relative: false,
    }
}

fn sorted(problems: Result<Vec<Problem>>) -> Result<Vec<Problem>> {
    problems.map(|mut problems| {
        problems.sort_by(|a, b| a.location.cmp(&b.location));
        problems
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_holds_other_files_than_before_is_found() {
        let at = |text: &str| Location::parse(&format!("s3://b/{text}")).unwrap();
        let (file, folder, empty) = (at("a/shared/f/x"), at("a/shared/f"), at("a/owned/e"));
        let home = at("fork");
        let strays = |new_file: &str, new_folder: &str, new_empty: &str| {
            let places = HashMap::from([
                (file.clone(), at(new_file)),
                (folder.clone(), at(new_folder)),
                (empty.clone(), at(new_empty)),
            ]);
            let folders = [&folder, &empty].into_iter();
            let found = stray_folders(&[&file], folders, &places, Some(&home));
            found.into_iter().cloned().collect::<Vec<Location>>()
        };
        assert_eq!(
            strays("fork/shared/f-1/x", "fork/shared/f-1", "fork/owned/e-1"),
            []
        );
        let other = at("fork/shared/f-2");
        assert_eq!(
            strays("fork/shared/f-1/x", "fork/shared/f-2", "fork/owned/e-1"),
            [other]
        );
        let outside = at("a/owned/e");
        assert_eq!(
            strays("fork/shared/f-1/x", "fork/shared/f-1", "a/owned/e"),
            [outside]
        );
    }
}
