//! Histories of jobs in memory: snapshots by job, number and the names of the files they use.

use bytes::Bytes;
use forkpoint::ownership::clean::{
    ApplyOptions, ApplyReport, CleanPlan, PlanSource, apply_plan, plan_clean,
};
use forkpoint::ownership::{
    ClaimReport, ClaimRequest, CleanPolicy, Lineage, Survey, Verdict, claim, judge, survey,
};
use forkpoint::progress::{Cancel, Silent};
use forkpoint::snapshot::RestoreMode;
use forkpoint::store::{Location, Stores};

use super::synthetic::numbered_metadata;

pub const FILE_BYTES: u64 = 100;

pub struct Lab {
    pub stores: Stores,
    pub root: Location,
}

impl Lab {
    pub fn new() -> Lab {
        Lab::at(super::local_stores(), super::at("memory:/ckpt"))
    }

    pub fn at(stores: Stores, root: Location) -> Lab {
        Lab { stores, root }
    }

    /// The folder of a job; its id begins with the name.
    pub fn home(&self, job: &str) -> Location {
        self.root.join(&format!("{job:0<32}")).unwrap()
    }

    pub fn directory(&self, job: &str, number: i64) -> Location {
        self.home(job).join(&format!("chk-{number}")).unwrap()
    }

    /// `a:x` is the shared file x of job a; `a:7/x` is the file x in the folder of its checkpoint 7.
    pub fn file(&self, spec: &str) -> Location {
        let (job, name) = spec.split_once(':').unwrap();
        let uuid = |name: &str| {
            let hash = name
                .bytes()
                .fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
            format!("{hash:08x}-0000-4000-8000-000000000000")
        };
        match name.split_once('/') {
            Some((number, name)) => self
                .directory(job, number.parse().unwrap())
                .join(&uuid(name))
                .unwrap(),
            None => self
                .home(job)
                .join(&format!("shared/{}", uuid(name)))
                .unwrap(),
        }
    }

    pub async fn write(&self, spec: &str) -> Location {
        let at = self.file(spec);
        self.write_at(&at).await;
        at
    }

    pub async fn write_at(&self, at: &Location) {
        let content = Bytes::from(vec![b'x'; FILE_BYTES as usize]);
        // It may be there: files are shared.
        let _ = self.stores.put(at, content, true).await;
    }

    /// A completed checkpoint of a job that uses these files; writes those that are not there.
    pub async fn complete(&self, job: &str, number: i64, files: &[&str]) -> Location {
        let directory = self.directory(job, number);
        self.complete_at(&directory, number, files).await;
        directory
    }

    pub async fn complete_at(&self, directory: &Location, number: i64, files: &[&str]) {
        let mut named = Vec::new();
        for spec in files {
            named.push((self.write(spec).await.to_string(), FILE_BYTES));
        }
        let at = directory.join("_metadata").unwrap();
        self.stores
            .put(&at, Bytes::from(numbered_metadata(number, &named)), true)
            .await
            .unwrap();
    }

    pub async fn look(&self) -> Survey {
        survey(&self.stores, std::slice::from_ref(&self.root), &Silent)
            .await
            .unwrap()
    }

    pub async fn why(&self, directory: &Location) -> Verdict {
        let survey = self.look().await;
        let node = survey
            .find(directory)
            .unwrap_or_else(|| panic!("no {directory}"));
        judge(&Lineage::new(&survey), node, survey.taken_at).unwrap()
    }

    pub async fn start(
        &self,
        from: &Location,
        job: &str,
        mode: RestoreMode,
        chain: bool,
    ) -> forkpoint::Result<ClaimReport> {
        let request = ClaimRequest {
            snapshot: from.clone(),
            job: format!("{job:0<32}"),
            mode,
            chain,
            guessed_roots: false,
        };
        claim(
            &self.stores,
            std::slice::from_ref(&self.root),
            &request,
            &Silent,
        )
        .await
    }

    /// The plan of a clean without a limit of age, and its text.
    pub async fn plan(&self, keep: &[&str]) -> (CleanPlan, PlanSource) {
        let survey = self.look().await;
        let lineage = Lineage::new(&survey);
        let policy = CleanPolicy {
            keep: keep.iter().map(|r| r.parse().unwrap()).collect(),
            min_age_ms: 0,
        };
        let roots = std::slice::from_ref(&self.root);
        let plan = plan_clean(&lineage, roots, &[], &policy, survey.taken_at + 1);
        let mut text = Vec::new();
        // A blocked plan has no text.
        let _ = plan.write(&lineage, &mut text);
        (plan, PlanSource::Text(Bytes::from(text)))
    }

    pub async fn apply(&self, plan: &PlanSource) -> forkpoint::Result<ApplyReport> {
        let options = ApplyOptions {
            grace_ms: 0,
            max_delete: None,
        };
        apply_plan(&self.stores, plan, &options, &Silent, &Cancel::default()).await
    }

    pub async fn clean(&self, keep: &[&str]) -> ApplyReport {
        let (_, plan) = self.plan(keep).await;
        self.apply(&plan).await.unwrap()
    }

    pub async fn is_there(&self, at: &Location) -> bool {
        self.stores.find(at).await.unwrap().is_some()
    }

    pub async fn has(&self, directory: &Location) -> bool {
        self.is_there(&directory.join("_metadata").unwrap()).await
    }
}
