//! The plan of a clean: what goes, object by object, and why. Pure but for writing and reading text.
//!
//! A plan is text, one JSON document a line: first a [`PlanHeader`], then a [`PlanEntry`] for each object.
//! A million objects are written and read as a stream.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};
use crate::store::Location;

use super::super::classify::{Cause, Class, Classified, CleanPolicy, Fate, classify};
use super::super::evidence::{MissingEvidence, incomplete_error};
use super::super::lineage::{Amount, Lineage};
use super::super::names::ObjectId;
use super::super::retention::KeepRule;

/// The newest version of a plan that is written and read.
pub const PLAN_VERSION: u32 = 1;

/// What goes.
#[derive(Debug)]
pub struct CleanPlan {
    /// The first line of the plan.
    pub header: PlanHeader,
    /// The class of every object, and the fate of every snapshot.
    pub classified: Classified,
    /// Sums by class.
    pub sums: BTreeMap<Class, Amount>,
    /// What is not known: while there is anything, nothing may be deleted.
    pub missing: Vec<MissingEvidence>,
}

/// The first line of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanHeader {
    /// 1.
    pub version: u32,
    /// A digest of all that follows: the same plan has the same id.
    pub plan: String,
    /// What is cleaned.
    pub roots: Vec<Location>,
    /// What else was looked at.
    pub also: Vec<Location>,
    /// The rules, as they were given.
    pub keep: Vec<String>,
    /// Nothing younger goes, in milliseconds.
    pub min_age_ms: u64,
    /// When it was made, in milliseconds since 1970.
    pub made_unix_ms: u64,
    /// The snapshots that go.
    pub snapshots: Vec<GoingSnapshot>,
    /// The folders of the snapshots that were seen to stay: a second look that misses one of them is looked
    /// into.
    pub staying: Vec<Location>,
    /// Objects that go.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A snapshot that goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoingSnapshot {
    /// Its folder.
    pub directory: Location,
    /// Its job.
    pub job: String,
    /// Its number.
    pub number: i64,
    /// Objects of it that go; others are needed.
    pub objects: u64,
    /// Their bytes, counted for each snapshot that uses them.
    pub bytes: u64,
}

/// An object that goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanEntry {
    /// The object.
    pub object: Location,
    /// Its size in bytes.
    pub bytes: u64,
    /// A digest of size, time and tag, in hex: another object of this name is left alone.
    pub fingerprint: String,
    /// A snapshot that refers to it, for one that goes with its snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<Location>,
    /// The likely cause, for an orphan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orphan: Option<String>,
}

/// Plans the clean of `roots` at the time `now`. Says what would go if all evidence were there.
pub fn plan_clean(
    lineage: &Lineage<'_>,
    roots: &[Location],
    also: &[Location],
    policy: &CleanPolicy,
    now: u64,
) -> CleanPlan {
    let survey = lineage.survey();
    let classified = classify(lineage, roots, policy, now);
    let mut snapshots = Vec::new();
    for (node, fate) in survey.nodes.iter().zip(&classified.fates) {
        if fate.stays.is_empty() {
            let mut amount = Amount::default();
            for id in &node.objects {
                if classified
                    .classes
                    .get(*id as usize)
                    .is_some_and(|class| class.goes())
                {
                    amount.add(survey.fact(*id).size);
                }
            }
            snapshots.push(GoingSnapshot {
                directory: node.directory.clone(),
                job: node.id.job.clone(),
                number: node.id.number,
                objects: amount.objects,
                bytes: amount.bytes,
            });
        }
    }
    let sums = classified.sums(survey);
    let mut going = Amount::default();
    for amount in sums
        .iter()
        .filter(|(class, _)| class.goes())
        .map(|(_, amount)| amount)
    {
        going.objects += amount.objects;
        going.bytes = going.bytes.saturating_add(amount.bytes);
    }
    let mut plan = CleanPlan {
        header: PlanHeader {
            version: PLAN_VERSION,
            plan: String::new(),
            roots: roots.to_vec(),
            also: also.to_vec(),
            keep: policy.keep.iter().map(KeepRule::to_string).collect(),
            min_age_ms: policy.min_age_ms,
            made_unix_ms: now,
            snapshots,
            staying: classified
                .fates
                .iter()
                .filter(|fate| !fate.stays.is_empty())
                .map(|fate| fate.directory.clone())
                .collect(),
            objects: going.objects,
            bytes: going.bytes,
        },
        classified,
        sums,
        missing: survey.missing.clone(),
    };
    plan.header.plan = plan.id(lineage);
    plan
}

impl CleanPlan {
    /// The objects that go, by number.
    pub fn going(&self) -> impl Iterator<Item = ObjectId> + '_ {
        (0u32..)
            .zip(&self.classified.classes)
            .filter(|(_, class)| class.goes())
            .map(|(id, _)| id)
    }

    /// The snapshots that stay, and why.
    pub fn staying(&self) -> impl Iterator<Item = &Fate> {
        self.classified
            .fates
            .iter()
            .filter(|fate| !fate.stays.is_empty())
    }

    /// The line of one object.
    pub fn entry(&self, lineage: &Lineage<'_>, id: ObjectId) -> Option<PlanEntry> {
        let survey = lineage.survey();
        let fact = survey.fact(id);
        let user = lineage
            .users(id)
            .first()
            .and_then(|n| survey.nodes.get(*n as usize));
        Some(PlanEntry {
            object: survey.names.location(id)?,
            bytes: fact.size,
            fingerprint: format!("{:016x}", fact.fingerprint),
            of: user.map(|node| node.directory.clone()),
            orphan: match self.classified.classes.get(id as usize) {
                Some(Class::Orphan(cause)) => Some(Cause::as_str(*cause).to_string()),
                _ => None,
            },
        })
    }

    fn id(&self, lineage: &Lineage<'_>) -> String {
        let survey = lineage.survey();
        let mut digest = PlanDigest::of(&self.header);
        for id in self.going() {
            if let Some(at) = survey.names.location(id) {
                let fingerprint = format!("{:016x}", survey.fact(id).fingerprint);
                digest.add(&at, &fingerprint);
            }
        }
        digest.finish()
    }

    /// Writes the plan as text.
    ///
    /// # Errors
    ///
    /// `Incomplete` while evidence is missing: such a plan must not be applied. `Full` if there is no
    /// space for it, `Unavailable` if it cannot be written.
    pub fn write(&self, lineage: &Lineage<'_>, to: &mut dyn Write) -> Result<()> {
        if !self.missing.is_empty() {
            return Err(incomplete_error(&self.missing).during("plan"));
        }
        let failed = |e: std::io::Error| Error::of_write(e).during("write the plan");
        let json = |e: serde_json::Error| failed(e.into());
        serde_json::to_writer(&mut *to, &self.header).map_err(json)?;
        to.write_all(b"\n").map_err(failed)?;
        for id in self.going() {
            if let Some(entry) = self.entry(lineage, id) {
                serde_json::to_writer(&mut *to, &entry).map_err(json)?;
                to.write_all(b"\n").map_err(failed)?;
            }
        }
        to.flush().map_err(failed)
    }
}

/// The digest of a plan that is its id. Numbers of objects depend on the order of a listing, places do not:
/// the order of the entries does not count.
struct PlanDigest {
    hash: Sha256,
    folded: [u8; 32],
}

impl PlanDigest {
    fn of(header: &PlanHeader) -> PlanDigest {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update(text);
            hash.update([0]);
        };
        header.roots.iter().for_each(|root| add(&root.to_string()));
        header.keep.iter().for_each(|rule| add(rule));
        add(&format!("{} {}", header.min_age_ms, header.objects));
        for snapshot in &header.snapshots {
            add(&snapshot.directory.to_string());
        }
        header.staying.iter().for_each(|at| add(&at.to_string()));
        PlanDigest {
            hash,
            folded: [0; 32],
        }
    }

    fn add(&mut self, at: &Location, fingerprint: &str) {
        let mut one = Sha256::new();
        one.update(at.to_string());
        one.update([0]);
        one.update(fingerprint);
        for (sum, byte) in self.folded.iter_mut().zip(one.finalize()) {
            *sum ^= byte;
        }
    }

    fn finish(mut self) -> String {
        self.hash.update(self.folded);
        self.hash
            .finalize()
            .iter()
            .take(8)
            .map(|b| format!("{b:02x}"))
            .collect()
    }
}

/// A plan to be read, from a file or from memory.
#[derive(Debug, Clone)]
pub enum PlanSource {
    /// A file of this machine.
    File(std::path::PathBuf),
    /// The text itself.
    Text(bytes::Bytes),
}

impl PlanSource {
    fn open(&self) -> Result<Box<dyn BufRead + Send>> {
        match self {
            PlanSource::Text(text) => Ok(Box::new(std::io::Cursor::new(text.clone()))),
            PlanSource::File(path) => match std::fs::File::open(path) {
                Ok(file) => Ok(Box::new(std::io::BufReader::new(file))),
                Err(e) => Err(Error::new(ErrorKind::NotFound, e.to_string())
                    .during("read the plan")
                    .at(path.display())),
            },
        }
    }

    /// The first line.
    ///
    /// # Errors
    ///
    /// `Corrupt` if it is none, `Unsupported` for a newer version.
    pub fn header(&self) -> Result<PlanHeader> {
        let mut line = String::new();
        self.open()?
            .read_line(&mut line)
            .map_err(|e| damaged(1, &e.to_string()))?;
        let value: serde_json::Value =
            serde_json::from_str(&line).map_err(|e| damaged(1, &e.to_string()))?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if version > u64::from(PLAN_VERSION) => Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "the plan is of version {version}, newer than {PLAN_VERSION}, which this forkpoint knows"
                ),
            )),
            _ => serde_json::from_value(value).map_err(|e| damaged(1, &e.to_string())),
        }
    }

    /// The first line of a plan that is as it was made: every entry lies in a root of the plan, and the digest
    /// of all of them is the plan's id.
    ///
    /// # Errors
    ///
    /// Those of [`PlanSource::each`], and `Corrupt` for a plan that somebody has changed.
    pub fn checked(&self) -> Result<PlanHeader> {
        let header = self.header()?;
        let mut digest = PlanDigest::of(&header);
        let mut stranger = None;
        self.each(|entry| {
            digest.add(&entry.object, &entry.fingerprint);
            if stranger.is_none() && !header.roots.iter().any(|r| r.contains(&entry.object)) {
                stranger = Some(entry.object);
            }
        })?;
        if let Some(at) = stranger {
            return Err(
                Error::corrupt("the plan names an object outside of its roots")
                    .during("read the plan")
                    .at(at)
                    .hint("make the plan anew"),
            );
        }
        match digest.finish() == header.plan {
            true => Ok(header),
            false => Err(Error::corrupt(
                "the plan is not as it was made: its entries do not give its id",
            )
            .during("read the plan")
            .hint(
                "a plan is applied whole or not at all; pin what shall stay and make the plan anew",
            )),
        }
    }

    /// The first `most` entries.
    ///
    /// # Errors
    ///
    /// `Corrupt` for a line that is none.
    pub(crate) fn first(&self, most: usize) -> Result<Vec<PlanEntry>> {
        self.entries()?.take(most).collect()
    }

    /// All lines but the first.
    fn entries(&self) -> Result<impl Iterator<Item = Result<PlanEntry>>> {
        let lines = (1u64..).zip(self.open()?.lines()).skip(1);
        Ok(lines.map(|(number, line)| {
            let line = line.map_err(|e| damaged(number, &e.to_string()))?;
            serde_json::from_str(&line).map_err(|e| damaged(number, &e.to_string()))
        }))
    }

    /// Calls `each` for every entry, in their order.
    ///
    /// # Errors
    ///
    /// `Corrupt` for a line that is none, and if there are fewer or more than the header says.
    pub fn each(&self, mut each: impl FnMut(PlanEntry)) -> Result<()> {
        let expected = self.header()?.objects;
        let mut seen = 0;
        for entry in self.entries()? {
            each(entry?);
            seen += 1;
        }
        match seen == expected {
            true => Ok(()),
            false => Err(damaged(
                seen + 1,
                &format!("{seen} entries where the first line says {expected}"),
            )),
        }
    }
}

fn damaged(line: u64, why: &str) -> Error {
    Error::corrupt(format!("line {line} of the plan: {why}")).hint("make the plan anew")
}
