//! What may be deleted, said a second time and without any of the crate's own reasoning.

use std::collections::{BTreeMap, HashSet};

use super::sim::Object;

/// A snapshot that was ever completed.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub folder: String,
    pub job: String,
    pub number: i64,
    pub objects: Vec<String>,
}

/// What the parties have been promised.
#[derive(Debug, Default)]
pub struct Model {
    pub keep_last: usize,
    pub snapshots: Vec<Snapshot>,
    /// Objects of checkpoints under way.
    pub uploading: HashSet<String>,
    /// Folders of snapshots, once for each pin that was confirmed and not yet taken back.
    pub pinned: Vec<String>,
    /// Folders of snapshots and the jobs that were told they may start from them.
    pub started: Vec<(String, String)>,
    /// Folders of snapshots and the jobs that have claimed them.
    pub claimed: Vec<(String, String)>,
    /// A job that has claimed one of several siblings deletes what they share, as Flink does.
    pub deleted_by_jobs: HashSet<String>,
}

impl Model {
    fn newer(&self, job: &str, number: i64) -> usize {
        self.snapshots
            .iter()
            .filter(|s| s.job == job && s.number > number)
            .count()
    }

    /// The jobs that a snapshot counts for: its own, who has claimed it, who has claimed that one's newest...
    fn heirs<'m>(&'m self, own: &'m Snapshot) -> Vec<&'m str> {
        let mut heirs = vec![own.job.as_str()];
        let mut last = Some(own);
        while let Some((_, job)) =
            last.and_then(|s| self.claimed.iter().find(|(f, _)| *f == s.folder))
        {
            heirs.push(job);
            last = self
                .snapshots
                .iter()
                .filter(|s| s.job == *job)
                .max_by_key(|s| s.number);
        }
        heirs
    }

    /// May a cleaner delete `key` at this moment?
    pub fn may_delete(&self, key: &str, store: &BTreeMap<String, Object>) -> Result<(), String> {
        if self.uploading.contains(key) {
            return Err("a checkpoint under way has uploaded it".into());
        }
        let is_there = |s: &Snapshot| store.contains_key(&format!("{}/_metadata", s.folder));
        let Some(folder) = key.strip_suffix("/_metadata") else {
            let user = self
                .snapshots
                .iter()
                .find(|s| is_there(s) && s.objects.iter().any(|o| o == key));
            return user.map_or(Ok(()), |s| Err(format!("{} needs it", s.folder)));
        };
        // A fork may write a name again that was cleaned before: the last one counts.
        let Some(own) = self.snapshots.iter().rev().find(|s| s.folder == folder) else {
            return Err("it was never completed".into());
        };
        if self.pinned.iter().any(|f| f == folder) {
            return Err("it is pinned".into());
        }
        for (_, job) in self.started.iter().filter(|(f, _)| f == folder) {
            if self.newer(job, own.number) == 0 {
                return Err(format!(
                    "{job} was started from it and has completed nothing"
                ));
            }
        }
        let heirs = self.heirs(own);
        let newer = |s: &&Snapshot| s.number > own.number && heirs.contains(&s.job.as_str());
        if self.snapshots.iter().filter(newer).count() < self.keep_last {
            return Err(format!(
                "it is among the last {} of its job",
                self.keep_last
            ));
        }
        Ok(())
    }

    /// What is left that nothing refers to.
    pub fn unreferenced(&self, store: &BTreeMap<String, Object>) -> Vec<String> {
        let mut needed: HashSet<String> = HashSet::new();
        for s in &self.snapshots {
            if store.contains_key(&format!("{}/_metadata", s.folder)) {
                needed.insert(format!("{}/_metadata", s.folder));
                needed.extend(s.objects.iter().cloned());
            }
        }
        store
            .keys()
            .filter(|k| !k.contains("/.forkpoint/") && !needed.contains(*k))
            .cloned()
            .collect()
    }

    /// Snapshots that are there and lack objects which no job has deleted.
    pub fn broken(&self, store: &BTreeMap<String, Object>) -> Vec<String> {
        let is_there = |s: &&Snapshot| store.contains_key(&format!("{}/_metadata", s.folder));
        let lacks = |s: &&Snapshot| {
            s.objects
                .iter()
                .any(|o| !store.contains_key(o) && !self.deleted_by_jobs.contains(o))
        };
        self.snapshots
            .iter()
            .filter(is_there)
            .filter(lacks)
            .map(|s| s.folder.clone())
            .collect()
    }
}
