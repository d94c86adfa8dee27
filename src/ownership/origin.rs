//! From which snapshot one was made that shares no object with it: by what its objects are called. Pure.
//!
//! A fork, and a job of the snapshot writer that was started without claim, leave no record of their source once
//! they are proved or complete. But the names of their duplicates are a function of source and destination, so
//! that they can be computed again for each snapshot that may have been the source: 64 bits or more that agree.
//! What has no such names is told by the random names in a snapshot's own folder, which are kept. Where neither
//! is there, or the source is gone, nothing is said.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use crate::restore::{ForkId, Naming};
use crate::store::{Location, Provider};

use super::layout::Place;
use super::lineage::{GrowthEvidence, Lineage, Parent};
use super::names::ObjectId;

/// So many duplicates of a snapshot are looked into: one is enough, unless what it was made from is gone.
const MARKS_AT_MOST: usize = 4;
/// And so many objects that one of them may be the duplicate of.
const SOURCES_AT_MOST: usize = 64;
/// Hex digits that end the name of a duplicate.
const DIGITS: usize = 16;
/// Hex digits of a fork's id.
const ID_DIGITS: usize = 32;

/// What the name of a duplicate says of the fork that made it.
struct Mark {
    /// The root of the fork.
    root: Location,
    /// The name of the source, which ends where the digits begin.
    source: String,
    /// The digits, or the id of the fork.
    digits: String,
    kind: MarkKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MarkKind {
    /// The object has the name of its source and 16 digits.
    Object,
    /// The folder that it lies in has, and went as a whole.
    Folder,
    /// It has its whole old key below `shared/FORK_ID/`.
    WholeKey,
}

impl Mark {
    /// What the location of a duplicate says, if it can be one.
    fn of(at: &Location) -> Option<Mark> {
        if let Some((root, id)) = whole_key(at) {
            return Some(Mark {
                root,
                source: at.name().to_string(),
                digits: id,
                kind: MarkKind::WholeKey,
            });
        }
        let folder = at.parent()?;
        let (named, kind) = match digits_of(at.name()) {
            Some(_) => (at, MarkKind::Object),
            None => (&folder, MarkKind::Folder),
        };
        let (source, digits) = digits_of(named.name())?;
        Some(Mark {
            root: named.parent()?.parent()?,
            source: source.to_string(),
            digits: digits.to_string(),
            kind,
        })
    }
}

/// Name and digits of a duplicate.
fn digits_of(name: &str) -> Option<(&str, &str)> {
    let (source, digits) = name.rsplit_once('-')?;
    (!source.is_empty() && is_hex(digits, DIGITS)).then_some((source, digits))
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// Root and id of a fork whose objects have their whole old keys.
fn whole_key(at: &Location) -> Option<(Location, String)> {
    let key = at.key();
    let mut from = 0;
    while let Some(found) = key.get(from..)?.find("shared/") {
        let start = from + found;
        let after = start + "shared/".len();
        let id = key.get(after..after + ID_DIGITS).unwrap_or_default();
        let whole = start == 0 || key.as_bytes().get(start - 1) == Some(&b'/');
        let ends = key.as_bytes().get(after + ID_DIGITS) == Some(&b'/');
        if whole && ends && is_hex(id, ID_DIGITS) {
            let root = key.get(..start)?.trim_end_matches('/');
            return Some((at.with_key(root), id.to_string()));
        }
        from = after;
    }
    None
}

/// A place as the one who forked may have named it: without the account that is the default one.
fn spellings(at: &Location) -> Vec<Location> {
    let mut all = vec![at.clone()];
    let bucket = at.bucket();
    if bucket.provider == Provider::Azure && bucket.account.is_some() {
        all.extend(Location::parse(&format!(
            "az://{}/{}",
            bucket.name,
            at.key()
        )));
    }
    all
}

/// For each snapshot, by its place in [`Survey::nodes`](super::Survey::nodes), the one that it was made from, where
/// the names of its objects prove that it is a duplicate of that one.
///
/// Costs a look at the names of all references, and for each snapshot that has duplicates some hashes for each
/// snapshot that they may be of.
pub(super) fn origins(lineage: &Lineage<'_>) -> Vec<Option<Parent>> {
    let mut origins = by_fork_names(lineage);
    by_own_objects(lineage, &mut origins);
    origins
}

fn by_fork_names(lineage: &Lineage<'_>) -> Vec<Option<Parent>> {
    let survey = lineage.survey();
    let names = &survey.names;
    let may_hold: Vec<bool> = names
        .folders()
        .iter()
        .map(|folder| digits_of(folder.name()).is_some() || whole_key(&folder.child("x")).is_some())
        .collect();
    let mut marks: HashMap<ObjectId, Mark> = HashMap::new();
    let mut of_node: Vec<Vec<ObjectId>> = Vec::with_capacity(survey.nodes.len());
    for node in &survey.nodes {
        let may_be = |id: &&ObjectId| {
            let folder = names.folder_of(**id) as usize;
            may_hold.get(folder) == Some(&true) || digits_of(names.name(**id)).is_some()
        };
        let mut own = Vec::new();
        for id in node.objects.iter().filter(may_be) {
            if own.len() == MARKS_AT_MOST {
                break;
            }
            if !marks.contains_key(id) {
                let Some(mark) = names.location(*id).as_ref().and_then(Mark::of) else {
                    continue;
                };
                marks.insert(*id, mark);
            }
            own.push(*id);
        }
        of_node.push(own);
    }
    if marks.is_empty() {
        return vec![None; survey.nodes.len()];
    }
    let mut candidates = Candidates::find(lineage, &marks);
    let proven: HashMap<ObjectId, usize> = marks
        .iter()
        .filter_map(|(id, mark)| Some((*id, candidates.prove(lineage, mark)?)))
        .collect();
    let origin = |(number, ids): (usize, &Vec<ObjectId>)| {
        let node = ids.iter().find_map(|id| proven.get(id))?;
        (*node != number).then_some(Parent {
            node: *node,
            shared: 0,
            evidence: GrowthEvidence::ForkNames,
        })
    };
    of_node.iter().enumerate().map(origin).collect()
}

/// What duplicates may be of.
struct Candidates {
    /// Objects by their names.
    objects: HashMap<String, Vec<ObjectId>>,
    /// Objects in folders of these names.
    in_folders: HashMap<String, Vec<ObjectId>>,
    /// Ids of forks of a snapshot to a root.
    ids: HashMap<(usize, Location, Naming), Vec<ForkId>>,
}

impl Candidates {
    fn find(lineage: &Lineage<'_>, marks: &HashMap<ObjectId, Mark>) -> Candidates {
        let names = &lineage.survey().names;
        let wanted = |folder: bool| -> HashMap<String, Vec<ObjectId>> {
            let of_kind = marks
                .values()
                .filter(|mark| (mark.kind == MarkKind::Folder) == folder);
            of_kind
                .map(|mark| (mark.source.clone(), Vec::new()))
                .collect()
        };
        let (mut objects, mut in_folders) = (wanted(false), wanted(true));
        let folders: Vec<Option<&str>> = names
            .folders()
            .iter()
            .map(|folder| Some(folder.name()).filter(|name| in_folders.contains_key(*name)))
            .collect();
        let take = |found: Option<&mut Vec<ObjectId>>, id: ObjectId| {
            if let Some(found) = found.filter(|found| found.len() < SOURCES_AT_MOST) {
                found.push(id);
            }
        };
        for id in 0..u32::try_from(names.len()).unwrap_or(u32::MAX) {
            if lineage.users(id).is_empty() {
                continue;
            }
            take(objects.get_mut(names.name(id)), id);
            if let Some(Some(folder)) = folders.get(names.folder_of(id) as usize) {
                take(in_folders.get_mut(*folder), id);
            }
        }
        Candidates {
            objects,
            in_folders,
            ids: HashMap::new(),
        }
    }

    /// The snapshot whose fork to the root of the mark would have given this very name.
    fn prove(&mut self, lineage: &Lineage<'_>, mark: &Mark) -> Option<usize> {
        let names = &lineage.survey().names;
        let sources = match mark.kind {
            MarkKind::Folder => self.in_folders.get(&mark.source),
            MarkKind::Object | MarkKind::WholeKey => self.objects.get(&mark.source),
        };
        let mut tried = HashSet::new();
        for id in sources?.clone() {
            let Some(mut source) = names.location(id) else {
                continue;
            };
            if mark.kind == MarkKind::Folder {
                source = source.parent()?;
            }
            for user in lineage.users(id) {
                let user = *user as usize;
                if !tried.insert((user, source.clone())) {
                    continue;
                }
                let ids = self.ids(lineage, user, mark)?;
                let is_named = |id: &ForkId| match mark.kind {
                    MarkKind::WholeKey => id.as_str() == mark.digits,
                    _ => spellings(&source)
                        .iter()
                        .any(|source| id.digits_of(source) == mark.digits),
                };
                if ids.iter().any(is_named) {
                    return Some(user);
                }
            }
        }
        None
    }

    /// The ids that a fork of the snapshot at `node` to the root of the mark may have.
    fn ids(&mut self, lineage: &Lineage<'_>, node: usize, mark: &Mark) -> Option<&Vec<ForkId>> {
        let survey = lineage.survey();
        let own = survey.nodes.get(node)?;
        let commit = survey.names.location(own.commit)?;
        let naming = match mark.kind {
            MarkKind::WholeKey => Naming::WholeKeys,
            _ => Naming::Engine,
        };
        let ids = self.ids.entry((node, mark.root.clone(), naming));
        Some(ids.or_insert_with(|| {
            let mut ids = Vec::new();
            for commit in spellings(&commit) {
                for root in spellings(&mark.root) {
                    let sum = own.commit_sha256;
                    ids.push(ForkId::with_naming(&commit, &sum.bytes(), &root, naming));
                    // As the snapshot writer makes it.
                    let text = sum.to_string();
                    ids.push(ForkId::with_naming(&commit, text.as_bytes(), &root, naming));
                }
            }
            ids
        }))
    }
}

/// Snapshots of one number, in folders of one name, whose own objects have the same random names and sizes: all but
/// the oldest are copies of it.
fn by_own_objects(lineage: &Lineage<'_>, origins: &mut [Option<Parent>]) {
    let hasher = RandomState::new();
    let mut alike: HashMap<u64, Vec<usize>> = HashMap::new();
    for number in 0..origins.len() {
        if let Some(own) = own_objects(lineage, number) {
            alike.entry(hasher.hash_one(&own)).or_default().push(number);
        }
    }
    let nodes = &lineage.survey().nodes;
    for group in alike.values_mut().filter(|group| group.len() > 1) {
        let modified = |n: &usize| nodes.get(*n).map_or(0, |node| node.modified);
        group.sort_by_key(modified);
        let Some((oldest, copies)) = group.split_first() else {
            continue;
        };
        for copy in copies {
            let (Some(from), Some(to)) = (nodes.get(*oldest), nodes.get(*copy)) else {
                continue;
            };
            let is_later = from.modified > 0 && from.modified < to.modified;
            if let Some(origin) = origins.get_mut(*copy)
                && origin.is_none()
                && is_later
                && !from.id.is_of_one_job_with(&to.id)
            {
                *origin = Some(Parent {
                    node: *oldest,
                    shared: 0,
                    evidence: GrowthEvidence::SameObjects,
                });
            }
        }
    }
}

/// Name and number of a snapshot, and names and sizes of objects.
type OwnObjects<'s> = (&'s str, i64, Vec<(&'s str, u64)>);

/// What a copy of a snapshot has in common with it: name and number, and names and sizes of the objects in its own
/// folder. `None` without any such object, or if one is not there or has no random name.
fn own_objects<'s>(lineage: &Lineage<'s>, number: usize) -> Option<OwnObjects<'s>> {
    let survey = lineage.survey();
    let node = survey.nodes.get(number)?;
    let folder = survey.names.folder_of(node.commit);
    let mut own = Vec::new();
    for id in &node.objects {
        if *id == node.commit || survey.names.folder_of(*id) != folder {
            continue;
        }
        let (name, fact) = (survey.names.name(*id), survey.fact(*id));
        if !fact.listed || !Place::is_engine_name(name) {
            return None;
        }
        own.push((name, fact.size));
    }
    own.sort_unstable();
    (!own.is_empty()).then(|| (node.directory.name(), node.id.number, own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_is_told_by_its_name_its_folder_or_its_whole_key() {
        let mark = |text: &str| {
            let mark = Mark::of(&Location::parse(text).unwrap())?;
            Some((mark.root.to_string(), mark.source, mark.digits))
        };
        let told = |root: &str, source: &str, digits: &str| {
            Some((root.to_string(), source.to_string(), digits.to_string()))
        };
        let digits = "0123456789abcdef";
        let id = "0123456789abcdef0123456789abcdef";
        assert_eq!(
            mark(&format!("s3://b/fork/shared/x-y-{digits}")),
            told("s3://b/fork", "x-y", digits)
        );
        assert_eq!(
            mark(&format!("s3://b/shared/x-{digits}")).map(|m| m.1),
            Some("x".into())
        );
        assert_eq!(
            mark(&format!("s3://b/fork/shared/op_0_2-{digits}/x")),
            told("s3://b/fork", "op_0_2", digits)
        );
        assert_eq!(
            mark(&format!("s3://b/fork/shared/{id}/ckpt/job/shared/x")),
            told("s3://b/fork", "x", id)
        );
        for none in [
            "s3://b/fork/shared/x".to_string(),
            format!("s3://b/fork/shared/-{digits}"),
            format!("s3://b/fork/shared/x-{}", digits.to_uppercase()),
            format!("s3://b/fork/myshared/{id}/x"),
            format!("s3://b/fork/shared/{id}"),
            format!("x-{digits}").replace("x", "s3://x"),
        ] {
            assert_eq!(mark(&none), None, "{none}");
        }
    }
}
