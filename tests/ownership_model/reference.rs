//! What may be deleted, said a second time and without any of the crate's own reasoning.

use std::collections::{BTreeMap, HashSet};

use super::sim::Object;

type Store = BTreeMap<String, Object>;

/// A snapshot that was ever completed.
#[derive(Debug, Clone)]
pub struct Snapshot {
    pub folder: String,
    pub job: String,
    pub number: i64,
    pub objects: Vec<String>,
}

impl Snapshot {
    fn commit(&self) -> String {
        format!("{}/_metadata", self.folder)
    }
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
    fn there<'m>(&'m self, store: &'m Store) -> impl Iterator<Item = &'m Snapshot> {
        let is_there = |s: &&Snapshot| store.contains_key(&s.commit());
        self.snapshots.iter().filter(is_there)
    }

    /// The jobs that a snapshot counts for: its own, who has claimed it, who has claimed that one's newest...
    fn heirs<'m>(&'m self, own: &'m Snapshot) -> Vec<&'m str> {
        let mut heirs = vec![own.job.as_str()];
        let mut last = Some(own);
        while let Some(heir) = last.and_then(|s| self.claimed.iter().find(|c| c.0 == s.folder)) {
            heirs.push(&heir.1);
            let of_heir = self.snapshots.iter().filter(|s| s.job == heir.1);
            last = of_heir.max_by_key(|s| s.number);
        }
        heirs
    }

    /// May a cleaner delete `key` at this moment?
    pub fn may_delete(&self, key: &str, store: &Store) -> Result<(), String> {
        if self.uploading.contains(key) {
            return Err("a checkpoint under way has uploaded it".into());
        }
        let Some(folder) = key.strip_suffix("/_metadata") else {
            let mut users = self
                .there(store)
                .filter(|s| s.objects.iter().any(|o| o == key));
            return users
                .next()
                .map_or(Ok(()), |s| Err(format!("{} needs it", s.folder)));
        };
        // A fork may write a name again that was cleaned before: the last one counts.
        let Some(own) = self.snapshots.iter().rev().find(|s| s.folder == folder) else {
            return Err("it was never completed".into());
        };
        if self.pinned.iter().any(|f| f == folder) {
            return Err("it is pinned".into());
        }
        let newer_of = |jobs: &[&str]| {
            let newer = |s: &&Snapshot| s.number > own.number && jobs.contains(&s.job.as_str());
            self.snapshots.iter().filter(newer).count()
        };
        let waits = |(from, job): &&(String, String)| from == folder && newer_of(&[job]) == 0;
        if let Some((_, job)) = self.started.iter().find(waits) {
            return Err(format!(
                "{job} was started from it and has completed nothing"
            ));
        }
        match newer_of(&self.heirs(own)) < self.keep_last {
            true => Err(format!(
                "it is among the last {} of its job",
                self.keep_last
            )),
            false => Ok(()),
        }
    }

    /// What is left that nothing refers to.
    pub fn unreferenced(&self, store: &Store) -> Vec<String> {
        let of = |s: &Snapshot| {
            s.objects
                .iter()
                .cloned()
                .chain([s.commit()])
                .collect::<Vec<_>>()
        };
        let needed: HashSet<String> = self.there(store).flat_map(of).collect();
        let left = |key: &&String| !key.contains("/.forkpoint/") && !needed.contains(*key);
        store.keys().filter(left).cloned().collect()
    }

    /// Snapshots that are there and lack objects which no job has deleted.
    pub fn broken(&self, store: &Store) -> Vec<String> {
        let lost = |o: &String| !store.contains_key(o) && !self.deleted_by_jobs.contains(o);
        let broken = self.there(store).filter(|s| s.objects.iter().any(lost));
        broken.map(|s| s.folder.clone()).collect()
    }
}
