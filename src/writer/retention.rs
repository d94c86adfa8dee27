//! Which checkpoints of a job stay, and removing the others by the rules of a clean.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use crate::error::{Error, ErrorKind, Result};
use crate::ownership::clean::{ApplyReport, PlanSource, apply_once, plan_clean, remove_ended};
use crate::ownership::{
    CleanPolicy, Keep, KeepRule, Lineage, Survey, incomplete_error, root_of, survey,
};
use crate::progress::{Cancel, Progress};
use crate::snapshot::native::{COMMIT_OBJECT, ManifestKind};
use crate::store::Location;

use super::catalog;
use super::coordinator::Job;
use super::uploads::now;

/// How long one retention may delete, in milliseconds; the next one goes on. What one that was killed has left is
/// over so much sooner than after a clean.
const LEASE_MS: u64 = 10 * 60_000;

/// Which of two values of a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Better {
    /// The lower one, as of a loss.
    Lower,
    /// The higher one, as of an accuracy.
    Higher,
}

/// The best checkpoints by a metric.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Best {
    /// The metric's name.
    pub metric: String,
    /// How many stay.
    pub count: usize,
    /// Which value is better; of equal ones the newer.
    pub better: Better,
}

/// Which checkpoints stay: what any of these says. Savepoints stay always.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// The newest ones, so many; at least one stays.
    pub num_retained: usize,
    /// The best ones by some metrics.
    pub best: Vec<Best>,
    /// Those whose number is a multiple of this; 0: none for that reason.
    pub every_nth: u64,
    /// Other roots whose snapshots may refer to files of this job. Where this job's own checkpoints refer to, since
    /// it was started in claim or legacy mode, is looked at without being named.
    pub also: Vec<Location>,
}

/// Checkpoints by number, each with its metrics.
type Checkpoints = BTreeMap<i64, BTreeMap<String, f64>>;

impl Retention {
    /// The newest `num_retained`.
    pub fn newest(num_retained: usize) -> Retention {
        Retention {
            num_retained,
            best: Vec::new(),
            every_nth: 0,
            also: Vec::new(),
        }
    }

    /// And the best `count` by a metric.
    #[must_use]
    pub fn and_best(
        mut self,
        metric: impl Into<String>,
        count: usize,
        better: Better,
    ) -> Retention {
        self.best.push(Best {
            metric: metric.into(),
            count,
            better,
        });
        self
    }

    /// And those whose number is a multiple of `n`.
    #[must_use]
    pub fn and_every_nth(mut self, n: u64) -> Retention {
        self.every_nth = n;
        self
    }

    /// The numbers that stay of these checkpoints, each with its metrics, by these rules. Pure.
    pub fn retained(&self, checkpoints: &BTreeMap<i64, BTreeMap<String, f64>>) -> BTreeSet<i64> {
        let newest = checkpoints.keys().rev().take(self.num_retained.max(1));
        let mut stay: BTreeSet<i64> = newest.copied().collect();
        for best in &self.best {
            let mut by_value: Vec<(f64, i64)> = checkpoints
                .iter()
                .filter_map(|(number, metrics)| Some((*metrics.get(&best.metric)?, *number)))
                .collect();
            by_value.sort_by(|(a, n), (b, m)| {
                let order = match best.better {
                    Better::Lower => a.total_cmp(b),
                    Better::Higher => b.total_cmp(a),
                };
                order.then(m.cmp(n))
            });
            stay.extend(by_value.iter().take(best.count).map(|(_, number)| *number));
        }
        if let Ok(n @ 1..) = i64::try_from(self.every_nth) {
            stay.extend(checkpoints.keys().filter(|number| *number % n == 0));
        }
        stay
    }
}

impl Job {
    /// Removes the checkpoints that no rule of `retention` keeps, with the files that only they refer to: by
    /// the rules of a clean, so that pins, claims and restores of others are respected, and nothing goes
    /// while evidence is missing. What nothing refers to is left to `forkpoint clean`, which knows how old it
    /// must be.
    ///
    /// What the job was started from stays until its first checkpoint is complete, and what the next one
    /// builds upon stays always. An attempt under way has pinned what it builds upon, so that nothing needs
    /// to be waited for. Snapshots of other jobs, in folders below this one's, are none of its business, and nor
    /// is a snapshot elsewhere that the job has claimed: that goes with a `forkpoint clean` of its own root, once
    /// no checkpoint refers to its files any more.
    ///
    /// A retention that takes longer than ten minutes is finished by the next one. What one that was killed has
    /// noted beside the snapshots is removed by the next retention or commit, 15 minutes after those ten.
    ///
    /// # Cost
    ///
    /// Five listings below the job's folder, each manifest read three times, and those of a clean. One manifest is
    /// in memory at a time.
    ///
    /// # Errors
    ///
    /// `Incomplete` while evidence is missing: nothing is deleted then.
    pub async fn retain(
        &self,
        retention: &Retention,
        progress: &dyn Progress,
        cancel: &Cancel,
    ) -> Result<Option<ApplyReport>> {
        let stores = &self.0.stores;
        if let Err(e) = remove_ended(stores, &self.0.home).await {
            tracing::warn!(home = %self.0.home, error = %e, "what a retention has left stays");
        }
        let (checkpoints, elsewhere) = self.checkpoints().await?;
        let stay = retention.retained(&checkpoints);
        if stay.len() == checkpoints.len() {
            return Ok(None);
        }
        // One that is completed meanwhile is the newest, which always stays.
        let mut keep = vec![KeepRule {
            savepoints: false,
            what: Keep::Last(retention.num_retained.max(1) as u64),
        }];
        keep.extend(stay.iter().map(|number| named(format!("chk-{number}"))));
        keep.extend(self.needed().into_iter().map(named));
        let mut also = retention.also.clone();
        also.extend(elsewhere);
        let plan = self.plan(keep, &also, progress).await?;
        let Some(plan) = plan else { return Ok(None) };
        let report = apply_once(stores, &plan, LEASE_MS, progress, cancel).await?;
        Ok(Some(report))
    }

    /// The job's checkpoints, and the roots of the files elsewhere that they refer to.
    async fn checkpoints(&self) -> Result<(Checkpoints, BTreeSet<Location>)> {
        let (stores, home) = (&self.0.stores, &self.0.home);
        let (mut checkpoints, mut elsewhere) = (Checkpoints::new(), BTreeSet::new());
        let catalog = catalog::list(stores, home).await?;
        for (_, directory) in &catalog.checkpoints {
            let manifest = match catalog::read(stores, directory).await {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                found => found?.manifest,
            };
            for file in &manifest.files {
                let at = manifest.locate(file, directory)?;
                if !home.contains(&at) {
                    elsewhere.insert(root_of(&at));
                }
            }
            if manifest.kind == ManifestKind::Checkpoint {
                checkpoints.insert(manifest.number, manifest.metrics);
            }
        }
        Ok((checkpoints, elsewhere))
    }

    /// The names of snapshots that the job runs from or builds upon.
    fn needed(&self) -> Vec<String> {
        let state = self.0.state();
        let source = state.source.as_ref().filter(|source| source.own);
        let source = source.map(|source| &source.snapshot);
        let needed = state.base.iter().chain(source);
        needed.map(|at| at.name().to_string()).collect()
    }

    /// A plan for the snapshots that go and what is theirs alone; `None` if nothing goes.
    async fn plan(
        &self,
        mut keep: Vec<KeepRule>,
        also: &[Location],
        progress: &dyn Progress,
    ) -> Result<Option<PlanSource>> {
        let stores = &self.0.stores;
        let root = stores.real(&self.0.home).await?;
        let mut roots = vec![root.clone()];
        roots.extend(also.iter().cloned());
        let mut survey = survey(stores, &roots, progress).await?;
        keep.extend(of_others(&survey, &root));
        pass_over_unused(&mut survey);
        let lineage = Lineage::new(&survey);
        let policy = CleanPolicy {
            keep,
            min_age_ms: 0,
        };
        let plan = plan_clean(&lineage, std::slice::from_ref(&root), also, &policy, now());
        if !plan.missing.is_empty() {
            return Err(incomplete_error(&plan.missing).during("clean"));
        }
        if plan.header.objects == 0 {
            return Ok(None);
        }
        let mut going = plan.header.snapshots.iter().map(|s| &s.directory);
        if let Some(at) = going.find(|at| at.parent().as_ref() != Some(&root)) {
            return Err(
                Error::new(ErrorKind::Internal, "this snapshot is another job's")
                    .during("clean")
                    .at(at),
            );
        }
        let mut text = Vec::new();
        plan.write(&lineage, &mut text)?;
        Ok(Some(PlanSource::Text(text.into())))
    }
}

fn named(name: String) -> KeepRule {
    KeepRule {
        savepoints: false,
        what: Keep::Named(name),
    }
}

/// Rules that keep the checkpoints of other jobs: those in folders below `home`, and those in it that have
/// another format.
fn of_others(survey: &Survey, home: &Location) -> Vec<KeepRule> {
    let mut names = BTreeSet::new();
    for node in &survey.nodes {
        let commit = survey.names.location(node.commit);
        let is_native = commit.is_some_and(|at| at.name() == COMMIT_OBJECT);
        if !home.contains(&node.directory) {
            continue;
        }
        if node.directory.parent().as_ref() != Some(home) {
            // As a rule is written, a colon means something else.
            names.insert(format!("{}/*", node.id.job.replace(':', "*")));
        } else if !is_native {
            names.insert(node.id.name.replace(':', "*"));
        }
    }
    names.into_iter().map(named).collect()
}

/// What no snapshot refers to is taken as if it were not there: it may be an attempt's under way.
fn pass_over_unused(survey: &mut Survey) {
    let used: HashSet<u32> = survey
        .nodes
        .iter()
        .flat_map(|node| node.objects.iter().copied())
        .collect();
    for (id, fact) in (0u32..).zip(&mut survey.facts) {
        fact.listed &= used.contains(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoints(losses: &[(i64, Option<f64>)]) -> BTreeMap<i64, BTreeMap<String, f64>> {
        let metrics = |loss: &Option<f64>| loss.iter().map(|l| ("loss".to_string(), *l)).collect();
        losses.iter().map(|(n, l)| (*n, metrics(l))).collect()
    }

    #[test]
    fn each_rule_keeps_what_it_says() {
        let all = checkpoints(&[
            (1, Some(0.9)),
            (2, Some(0.2)),
            (3, None),
            (4, Some(0.2)),
            (5, Some(0.5)),
            (6, Some(0.7)),
        ]);
        let kept = |r: Retention| r.retained(&all).into_iter().collect::<Vec<_>>();
        assert_eq!(kept(Retention::newest(2)), [5, 6]);
        assert_eq!(kept(Retention::newest(0)), [6]);
        let best = Retention::newest(1).and_best("loss", 1, Better::Lower);
        assert_eq!(kept(best), [4, 6]);
        let worst = Retention::newest(1).and_best("loss", 2, Better::Higher);
        assert_eq!(kept(worst), [1, 6]);
        assert_eq!(kept(Retention::newest(1).and_every_nth(2)), [2, 4, 6]);
        assert_eq!(
            kept(Retention::newest(1).and_best("x", 3, Better::Lower)),
            [6]
        );
        assert!(Retention::newest(3).retained(&BTreeMap::new()).is_empty());
    }
}
