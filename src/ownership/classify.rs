//! What every object below a root is, decided before anything goes. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::Serialize;

use crate::snapshot::format_of;
use crate::store::Location;

use super::evidence::MissingEvidence;
use super::identity::SnapshotId;
use super::layout::Place;
use super::lineage::{Amount, Lineage};
use super::names::{ObjectId, is_odd};
use super::need::NeedReason;
use super::retention::{Candidate, KeepRule, RetentionReason, retain};
use super::survey::{Node, Survey};
use super::verdict::recorded_needs;

/// Nothing younger than this is deleted, unless another limit is given: longer than any checkpoint
/// takes, since what a running one has uploaded is referred to by nothing yet. In milliseconds.
pub const MIN_AGE_MS: u64 = 24 * 3_600_000;

/// Why a snapshot stays in a clean that has no rules, or that is not in the roots to be cleaned.
pub(crate) const NO_RULE: &str = "no rule lets it go";

/// How a root is cleaned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CleanPolicy {
    /// What is kept; without any rule nothing but orphans goes.
    pub keep: Vec<KeepRule>,
    /// Nothing younger goes, in milliseconds.
    pub min_age_ms: u64,
}

impl Default for CleanPolicy {
    fn default() -> CleanPolicy {
        CleanPolicy {
            keep: Vec::new(),
            min_age_ms: MIN_AGE_MS,
        }
    }
}

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// A snapshot that stays refers to it.
    Live,
    /// A snapshot that goes refers to it, and one that stays needs it too.
    NeededBy,
    /// Only snapshots refer to it that stay because of a pin, a claim, a restore or a fork; or nothing does, and a
    /// job has announced a snapshot that may, or a fork is under way that will.
    Pinned,
    /// Only snapshots that go refer to it.
    Going,
    /// Nothing refers to it, and it is young, or its job may still be about to refer to it.
    TooYoung,
    /// Nothing refers to it, and its likely cause is known.
    Orphan(Cause),
    /// Nothing refers to it, and it is not known whose it is: it stays.
    Unknown(Doubt),
    /// This crate's own small objects.
    Record,
    /// An empty object that marks a folder: it costs nothing and stays.
    Marker,
    /// It is referred to and not there.
    Absent,
}

impl Class {
    /// True if a clean deletes it.
    pub fn goes(self) -> bool {
        matches!(self, Class::Going | Class::Orphan(_))
    }

    /// The name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Live => "live",
            Class::NeededBy => "needed-by",
            Class::Pinned => "pinned",
            Class::Going => "going",
            Class::TooYoung => "too-young",
            Class::Orphan(_) => "orphan",
            Class::Unknown(_) => "unknown",
            Class::Record => "record",
            Class::Marker => "marker",
            Class::Absent => "absent",
        }
    }
}

/// The likely cause of an orphan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// In the folder of a checkpoint that was never completed, and later ones were.
    AbortedCheckpoint,
    /// In the folder of a checkpoint that was never completed, and no later one was: the job ended.
    UnfinishedCheckpoint,
    /// Among shared files, written while the oldest snapshot that is left was there already: for a
    /// checkpoint that was aborted, or by a task that was lost.
    AbortedOrLostTask,
    /// Written by a task whose handle never reached the job's coordinator.
    LostTask,
    /// Among shared files, older than every snapshot of its job: what referred to it has gone, and the
    /// job did not delete it. Flink leaves such files after each failover of its coordinator unless it
    /// claimed its snapshot.
    LeakAfterFailover,
    /// No snapshot of its job is left.
    JobWithoutSnapshots,
}

impl Cause {
    /// The cause in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::AbortedCheckpoint => "aborted checkpoint",
            Cause::UnfinishedCheckpoint => "checkpoint unfinished when the job ended",
            Cause::AbortedOrLostTask => "aborted checkpoint or lost task",
            Cause::LostTask => "lost task",
            Cause::LeakAfterFailover => "leak after failover",
            Cause::JobWithoutSnapshots => "job without snapshots",
        }
    }
}

/// Why it is not known whose an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Doubt {
    /// No engine writes such a name at such a place.
    StrangeName,
    /// A snapshot refers to an object of this name at another place: another tool may have moved
    /// that snapshot here.
    SameNameElsewhere,
    /// It lies outside of what may be cleaned.
    NotBelowRoot,
    /// It is a commit object that could not be read or understood.
    UnreadCommit,
    /// A snapshot of its job could not be read or understood, and may refer to it.
    OfUnreadSnapshot,
}

impl Doubt {
    /// The doubt in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Doubt::StrangeName => "no engine writes this name here",
            Doubt::SameNameElsewhere => "a snapshot refers to this name at another place",
            Doubt::NotBelowRoot => "outside of the root",
            Doubt::UnreadCommit => "metadata that is damaged or could not be read",
            Doubt::OfUnreadSnapshot => "a snapshot of its job could not be read, and may need it",
        }
    }
}

/// Why a snapshot stays.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum StayReason {
    /// The policy says so.
    Retention(RetentionReason),
    /// Somebody needs it.
    Need(NeedReason),
}

/// What happens to one snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fate {
    /// Which one.
    pub snapshot: SnapshotId,
    /// Its folder.
    pub directory: Location,
    /// Why it stays; empty if it goes.
    pub stays: Vec<StayReason>,
}

/// Every object's class.
#[derive(Debug)]
pub struct Classified {
    /// By the object's number.
    pub classes: Vec<Class>,
    /// By the snapshot's place in [`Survey::nodes`].
    pub fates: Vec<Fate>,
}

impl Classified {
    /// Objects and bytes by class.
    pub fn sums(&self, survey: &Survey) -> BTreeMap<Class, Amount> {
        let mut sums: BTreeMap<Class, Amount> = BTreeMap::new();
        for (class, fact) in self.classes.iter().zip(&survey.facts) {
            sums.entry(*class).or_default().add(fact.size);
        }
        sums
    }
}

/// What is known of the folder of a job.
#[derive(Debug, Clone, Copy, Default)]
struct Home {
    /// When its newest object was written.
    newest_object: u64,
    /// When its newest and its oldest intact snapshot were completed.
    newest_snapshot: u64,
    oldest_snapshot: u64,
    newest_number: i64,
    snapshots: u32,
    /// A snapshot of it could not be read: what that one refers to is not known.
    unread: bool,
}

/// What a folder is, and of which job.
#[derive(Debug, Clone, Copy)]
struct FolderPlace {
    kind: FolderKind,
    home: u32,
    cleanable: bool,
    /// A snapshot that stays names it as a folder that is removed as a whole.
    held: bool,
    /// A snapshot is to come in the folder of a job above it, and may refer to anything in it.
    announced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FolderKind {
    Checkpoint(i64),
    Shared,
    TaskOwned,
    Record,
    Strange,
}

/// Decides for every object and every snapshot below `roots`, which are among those surveyed or
/// below them (as they really are: see [`Access::real`](super::Access::real)), at the time `now`.
///
/// This says what would go if all evidence were there; whether it is, is said by
/// [`Survey::missing`].
pub fn classify(
    lineage: &Lineage<'_>,
    roots: &[Location],
    policy: &CleanPolicy,
    now: u64,
) -> Classified {
    let survey = lineage.survey();
    let (mut folders, mut homes) = places(survey, roots, now);
    for (id, fact) in (0u32..).zip(&survey.facts) {
        let folder = folders.get(survey.names.folder_of(id) as usize);
        if let Some(home) = folder.and_then(|f| homes.get_mut(f.home as usize)) {
            home.newest_object = home.newest_object.max(fact.modified);
        }
    }
    let fates = fates(survey, roots, &folders, &homes, policy, now);
    hold_folders(survey, &fates, &mut folders);
    let mut classes = Vec::with_capacity(survey.facts.len());
    for (id, fact) in (0u32..).zip(&survey.facts) {
        let folder = folders.get(survey.names.folder_of(id) as usize);
        let name = survey.names.name(id);
        let class = match (lineage.users(id), folder) {
            _ if !fact.listed => Class::Absent,
            ([], Some(folder)) => unreferenced(name, *fact, *folder, &homes, policy, now),
            ([], None) => Class::Unknown(Doubt::StrangeName),
            (users, folder) => referenced(users, &fates, folder.is_some_and(|f| f.cleanable)),
        };
        classes.push(class);
    }
    doubt_same_names(lineage, &mut classes);
    Classified { classes, fates }
}

fn places(survey: &Survey, roots: &[Location], now: u64) -> (Vec<FolderPlace>, Vec<Home>) {
    let announced = announced(survey, now);
    let mut homes: Vec<Home> = vec![Home::default()];
    let mut numbers: HashMap<Location, u32> = HashMap::new();
    let mut folders = Vec::with_capacity(survey.names.folders().len());
    for folder in survey.names.folders() {
        let root = survey.roots.iter().find(|root| root.contains(folder));
        let probe = folder.child("00000000-0000-0000-0000-000000000000");
        let place = root.map_or(Place::Stranger, |root| Place::of(root, &probe, 1));
        let kind = match &place {
            Place::OfCheckpoint { number, .. } => FolderKind::Checkpoint(*number),
            Place::Shared { .. } => FolderKind::Shared,
            Place::TaskOwned { .. } => FolderKind::TaskOwned,
            Place::Record => FolderKind::Record,
            _ => FolderKind::Strange,
        };
        let number = number_of(&mut numbers, &mut homes, place.home().cloned());
        // The folder of a job may lie in one of a name that is taken for that of another job's files.
        let mut above = std::iter::successors(Some(folder.clone()), Location::parent);
        folders.push(FolderPlace {
            kind,
            home: number,
            cleanable: roots.iter().any(|root| root.contains(folder)),
            held: false,
            announced: !announced.is_empty() && above.any(|at| announced.contains(&at)),
        });
    }
    for unread in survey
        .missing
        .iter()
        .filter_map(MissingEvidence::unread_snapshot)
    {
        let number = number_of(&mut numbers, &mut homes, unread.parent());
        // Number 0 is that of all that has no job.
        if let Some(home) = homes.get_mut(number as usize).filter(|_| number > 0) {
            home.unread = true;
        }
    }
    for node in survey.nodes.iter().filter(|n| n.missing == 0) {
        let number = number_of(&mut numbers, &mut homes, node.directory.parent());
        if let Some(home) = homes.get_mut(number as usize) {
            home.newest_snapshot = home.newest_snapshot.max(node.modified);
            home.newest_number = home.newest_number.max(node.id.number);
            home.oldest_snapshot = match home.snapshots {
                0 => node.modified,
                _ => home.oldest_snapshot.min(node.modified),
            };
            home.snapshots += 1;
        }
    }
    (folders, homes)
}

/// The number of a job's folder; 0 for none.
fn number_of(
    numbers: &mut HashMap<Location, u32>,
    homes: &mut Vec<Home>,
    home: Option<Location>,
) -> u32 {
    let Some(home) = home else { return 0 };
    *numbers.entry(home).or_insert_with(|| {
        homes.push(Home::default());
        u32::try_from(homes.len() - 1).unwrap_or(0)
    })
}

/// The folders of jobs in which snapshots are to come: announced ones, and forks under way.
fn announced(survey: &Survey, now: u64) -> HashSet<Location> {
    let pins = survey.records.pins.iter();
    let announced = pins.filter(|(_, pin)| pin.announces && pin.is_active(now));
    let announced = announced.map(|(of, _)| of);
    let forks = survey.records.forks.iter().map(|(of, _)| of);
    announced
        .chain(forks)
        .filter(|of| survey.find(of).is_none())
        .filter_map(Location::parent)
        .collect()
}

/// A claim of a claim of a claim: as many are followed.
const CLAIMS_FOLLOWED: usize = 64;

/// The family of each snapshot: its job's, or that of the job that has claimed it, once that job has
/// completed a snapshot; and so on if that one was claimed by a third.
fn family(survey: &Survey, node: &Node) -> String {
    let mut heir = node;
    for _ in 0..CLAIMS_FOLLOWED {
        let claim = survey
            .records
            .claims
            .iter()
            .find(|(of, _)| *of == heir.directory);
        let Some((_, claim)) = claim else { break };
        let own = survey.nodes.iter().filter(|n| n.id.is_of_job(&claim.job));
        match own.max_by_key(|n| n.id.number) {
            Some(newest) if newest.directory != heir.directory => heir = newest,
            _ => break,
        }
    }
    format!("{}/{}", heir.id.root, heir.id.job)
}

fn fates(
    survey: &Survey,
    roots: &[Location],
    folders: &[FolderPlace],
    homes: &[Home],
    policy: &CleanPolicy,
    now: u64,
) -> Vec<Fate> {
    let candidates: Vec<Candidate> = survey
        .nodes
        .iter()
        .map(|node| Candidate {
            id: node.id.clone(),
            family: family(survey, node),
            kind: node.kind,
            modified: node.modified,
            intact: node.missing == 0,
        })
        .collect();
    let mut active = HashSet::new();
    for (node, candidate) in survey.nodes.iter().zip(&candidates) {
        // Activity is seen in the shared folder, in that of a checkpoint, or in the snapshot itself.
        let near = folders.get(survey.names.folder_of(node.commit) as usize);
        let home = near
            .and_then(|f| homes.get(f.home as usize))
            .copied()
            .unwrap_or_default();
        let last = home.newest_object.max(node.modified);
        if last == 0 || now.saturating_sub(last) < policy.min_age_ms {
            active.insert(candidate.family.clone());
        }
    }
    let kept = retain(&candidates, &policy.keep, &active, policy.min_age_ms, now);
    let fate = |(node, reasons): (&Node, Vec<RetentionReason>)| {
        let mut stays: Vec<StayReason> = reasons.into_iter().map(StayReason::Retention).collect();
        stays.extend(
            recorded_needs(survey, node, now)
                .into_iter()
                .map(StayReason::Need),
        );
        if (policy.keep.is_empty() || !roots.iter().any(|root| root.contains(&node.directory)))
            && stays.is_empty()
        {
            stays.push(StayReason::Retention(RetentionReason::Rule(NO_RULE.into())));
        }
        Fate {
            snapshot: node.id.clone(),
            directory: node.directory.clone(),
            stays,
        }
    };
    survey.nodes.iter().zip(kept).map(fate).collect()
}

/// Folders that snapshots which stay name as wholes hold all that is in them.
fn hold_folders(survey: &Survey, fates: &[Fate], folders: &mut [FolderPlace]) {
    let staying = survey
        .nodes
        .iter()
        .zip(fates)
        .filter(|(_, fate)| !fate.stays.is_empty());
    let named: HashSet<u32> = staying
        .flat_map(|(node, _)| node.folders.iter().copied())
        .collect();
    if named.is_empty() {
        return;
    }
    let all = survey.names.folders();
    let whole: HashSet<&Location> = named.iter().filter_map(|n| all.get(*n as usize)).collect();
    for (place, folder) in folders.iter_mut().zip(all) {
        let mut above = std::iter::successors(Some(folder.clone()), Location::parent);
        place.held = above.any(|f| whole.contains(&f));
    }
}

fn referenced(users: &[u32], fates: &[Fate], cleanable: bool) -> Class {
    let fates = || users.iter().filter_map(|n| fates.get(*n as usize));
    let stays = fates().filter(|fate| !fate.stays.is_empty()).count();
    let by_need_only = |fate: &Fate| fate.stays.iter().all(|s| matches!(s, StayReason::Need(_)));
    match stays {
        0 if cleanable => Class::Going,
        0 => Class::Live,
        n if n < users.len() => Class::NeededBy,
        _ if fates().all(by_need_only) => Class::Pinned,
        _ => Class::Live,
    }
}

fn unreferenced(
    name: &str,
    fact: super::survey::Fact,
    folder: FolderPlace,
    homes: &[Home],
    policy: &CleanPolicy,
    now: u64,
) -> Class {
    let home = homes.get(folder.home as usize).copied().unwrap_or_default();
    let probe = Place::is_engine_name(name);
    match folder.kind {
        _ if fact.size == 0 && (name.is_empty() || name.ends_with('/')) => return Class::Marker,
        FolderKind::Record => return Class::Record,
        // Of an odd key, the name is the whole of it.
        _ if name
            .rsplit('/')
            .next()
            .is_some_and(|last| format_of(last).is_some()) =>
        {
            return Class::Unknown(Doubt::UnreadCommit);
        }
        FolderKind::Strange => return Class::Unknown(Doubt::StrangeName),
        _ if is_odd(name) || !probe => return Class::Unknown(Doubt::StrangeName),
        _ if !folder.cleanable => return Class::Unknown(Doubt::NotBelowRoot),
        _ if folder.held => return Class::NeededBy,
        _ if folder.announced => return Class::Pinned,
        _ => {}
    }
    if fact.modified == 0 || now.saturating_sub(fact.modified) < policy.min_age_ms {
        return Class::TooYoung;
    }
    if home.unread {
        return Class::Unknown(Doubt::OfUnreadSnapshot);
    }
    // A job that is at work and has completed nothing since may yet refer to what it has uploaded.
    let at_work = now.saturating_sub(home.newest_object) < policy.min_age_ms;
    if at_work && fact.modified >= home.newest_snapshot {
        return Class::TooYoung;
    }
    Class::Orphan(match folder.kind {
        _ if home.snapshots == 0 => Cause::JobWithoutSnapshots,
        FolderKind::Checkpoint(number) if number > home.newest_number => {
            Cause::UnfinishedCheckpoint
        }
        FolderKind::Checkpoint(_) => Cause::AbortedCheckpoint,
        FolderKind::TaskOwned => Cause::LostTask,
        _ if fact.modified < home.oldest_snapshot => Cause::LeakAfterFailover,
        _ => Cause::AbortedOrLostTask,
    })
}

/// An orphan whose name a snapshot refers to at another place may be a part of a moved snapshot.
fn doubt_same_names(lineage: &Lineage<'_>, classes: &mut [Class]) {
    let names = &lineage.survey().names;
    let mut orphans: HashMap<&str, Vec<ObjectId>> = HashMap::new();
    for (id, class) in (0u32..).zip(classes.iter()) {
        if matches!(class, Class::Orphan(_)) {
            orphans.entry(names.name(id)).or_default().push(id);
        }
    }
    if orphans.is_empty() {
        return;
    }
    let mut doubtful = Vec::new();
    for id in 0..u32::try_from(classes.len()).unwrap_or(u32::MAX) {
        if !lineage.users(id).is_empty()
            && let Some(ids) = orphans.remove(names.name(id))
        {
            doubtful.extend(ids);
        }
    }
    for id in doubtful {
        if let Some(class) = classes.get_mut(id as usize) {
            *class = Class::Unknown(Doubt::SameNameElsewhere);
        }
    }
}
