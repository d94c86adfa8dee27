//! Snapshot, object, other snapshots: who depends on whom. Pure, over a [`Survey`].

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use serde::Serialize;

use crate::snapshot::Kind;

use super::names::ObjectId;
use super::survey::{Node, Survey};

/// Objects and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// How many objects.
    pub objects: u64,
    /// Their bytes, as the store's listing says.
    pub bytes: u64,
}

impl Amount {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// Which snapshots use which object. Four bytes a reference, four an object.
#[derive(Debug)]
pub struct Lineage<'s> {
    survey: &'s Survey,
    /// Where the users of an object begin in `users`; one more than there are objects.
    offsets: Vec<u32>,
    users: Vec<u32>,
}

/// From where a snapshot grew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Parent {
    /// Its place in [`Survey::nodes`].
    pub node: usize,
    /// How many objects they share; 0 where something else says so.
    pub shared: u64,
    /// What says so.
    pub evidence: GrowthEvidence,
}

/// What says that a snapshot grew from another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum GrowthEvidence {
    /// It is the next one of the same job.
    SameJob,
    /// It refers to objects of it.
    SharedObjects,
    /// Its objects have the names that a fork of that very snapshot to this place gives them, or the snapshot
    /// writer to a job that is started from it without claim.
    ForkNames,
    /// All objects in its own folder have the random names and the sizes of those of the other, which was there
    /// before.
    SameObjects,
    /// A claim, or the record of a restore.
    Record,
}

impl<'s> Lineage<'s> {
    /// Turns the references of all snapshots around.
    pub fn new(survey: &'s Survey) -> Lineage<'s> {
        let used = |node: &'s Node| node.objects.iter().chain(node.meant.iter());
        let mut offsets = vec![0u32; survey.names.len() + 1];
        for id in survey.nodes.iter().flat_map(used) {
            if let Some(count) = offsets.get_mut(*id as usize + 1) {
                *count += 1;
            }
        }
        let mut sum = 0u32;
        for offset in &mut offsets {
            sum = sum.saturating_add(*offset);
            *offset = sum;
        }
        let mut next = offsets.clone();
        let mut users = vec![0u32; sum as usize];
        for (number, node) in (0u32..).zip(&survey.nodes) {
            for id in used(node) {
                if let Some(at) = next.get_mut(*id as usize) {
                    if let Some(slot) = users.get_mut(*at as usize) {
                        *slot = number;
                    }
                    *at += 1;
                }
            }
        }
        Lineage {
            survey,
            offsets,
            users,
        }
    }

    /// What this was made from.
    pub fn survey(&self) -> &'s Survey {
        self.survey
    }

    /// The snapshots that use an object, by their place in [`Survey::nodes`], sorted.
    pub fn users(&self, id: ObjectId) -> &[u32] {
        let at = |n: usize| self.offsets.get(n).map_or(0, |o| *o as usize);
        self.users
            .get(at(id as usize)..at(id as usize + 1))
            .unwrap_or_default()
    }

    /// All objects of a snapshot that are there.
    pub fn total(&self, node: usize) -> Amount {
        self.sum(node, |_| true)
    }

    /// The objects that no other snapshot uses: what its deletion would free.
    pub fn exclusive(&self, node: usize) -> Amount {
        self.sum(node, |users| users.len() == 1)
    }

    fn sum(&self, node: usize, wanted: impl Fn(&[u32]) -> bool) -> Amount {
        let mut amount = Amount::default();
        let ids = self.survey.nodes.get(node).map_or(&[][..], |n| &n.objects);
        for id in ids {
            let fact = self.survey.fact(*id);
            if fact.listed && wanted(self.users(*id)) {
                amount.add(fact.size);
            }
        }
        amount
    }

    /// The other snapshots that use objects of this one, by their place, and how much of it.
    pub fn used_by(&self, node: usize) -> BTreeMap<usize, Amount> {
        let mut others = BTreeMap::new();
        let ids = self.survey.nodes.get(node).map_or(&[][..], |n| &n.objects);
        for id in ids {
            for user in self.users(*id) {
                if *user as usize != node {
                    let amount: &mut Amount = others.entry(*user as usize).or_default();
                    amount.add(self.survey.fact(*id).size);
                }
            }
        }
        others
    }

    /// As [`Lineage::used_by`], without the amounts: quick where many objects have the same users.
    pub fn users_of_snapshot(&self, node: usize) -> Vec<usize> {
        let hasher = RandomState::new();
        let mut seen = HashSet::new();
        let mut others: HashSet<u32> = HashSet::new();
        let ids = self.survey.nodes.get(node).map_or(&[][..], |n| &n.objects);
        for users in ids.iter().map(|id| self.users(*id)) {
            if users.len() > 1 && seen.insert(hasher.hash_one(users)) {
                others.extend(users);
            }
        }
        let mut others: Vec<usize> = others.into_iter().map(|n| n as usize).collect();
        others.sort_unstable();
        others.retain(|n| *n != node);
        others
    }

    /// From where a snapshot grew: the newest earlier one of its job, or the one of another job that it
    /// shares most objects with, or the one that a record says its job was started from.
    pub fn parent(&self, node: usize) -> Option<Parent> {
        let nodes = &self.survey.nodes;
        let own = nodes.get(node)?;
        let is_older = |other: &Node| other.id.number < own.id.number;
        let siblings = nodes.iter().enumerate().filter(|(_, n)| {
            n.id.is_of_one_job_with(&own.id) && n.kind == Kind::Checkpoint && is_older(n)
        });
        let shared = |other: usize| {
            let same = own.objects.iter().chain(own.meant.iter());
            let theirs = u32::try_from(other).unwrap_or(u32::MAX);
            same.filter(|id| self.users(**id).binary_search(&theirs).is_ok())
                .count() as u64
        };
        if let Some((other, _)) = siblings.max_by_key(|(_, n)| n.id.number) {
            return Some(Parent {
                node: other,
                shared: shared(other),
                evidence: GrowthEvidence::SameJob,
            });
        }
        let strangers = self.users_of_snapshot(node).into_iter().chain(
            // Only meant, not shared: its own objects have no other users.
            own.meant
                .iter()
                .flat_map(|id| self.users(*id))
                .map(|n| *n as usize),
        );
        let by_objects = strangers
            .filter(|other| {
                *other != node
                    && nodes
                        .get(*other)
                        .is_some_and(|n| is_older(n) && n.id.job != own.id.job)
            })
            .map(|other| Parent {
                node: other,
                shared: shared(other),
                evidence: GrowthEvidence::SharedObjects,
            })
            .max_by_key(|parent| (parent.shared, nodes.get(parent.node).map(|n| n.id.number)));
        by_objects.or_else(|| {
            let records = &self.survey.records;
            let claims = records.claims.iter().map(|(of, claim)| (of, &claim.job));
            let restores = records
                .restores
                .iter()
                .map(|(of, restore)| (of, &restore.job));
            claims
                .chain(restores)
                .filter(|(_, job)| own.id.is_of_job(job))
                .filter_map(|(of, _)| self.survey.find(of))
                .filter(|other| *other != node && nodes.get(*other).is_some_and(is_older))
                .max_by_key(|other| nodes.get(*other).map(|n| n.id.number))
                .map(|node| Parent {
                    node,
                    shared: 0,
                    evidence: GrowthEvidence::Record,
                })
        })
    }
}
