//! Which snapshot: root, job and number. The number alone says nothing, it repeats across forks.

use std::fmt;

use serde::Serialize;

use crate::store::Location;

use super::layout::is_job_id;

/// The identity of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct SnapshotId {
    /// The root below which it was found.
    pub root: Location,
    /// The job: the path of its folder below the root, empty where snapshots lie in the root itself.
    pub job: String,
    /// The number within the job.
    pub number: i64,
    /// The name of its own folder: `chk-42`, `savepoint-ca3136-0123456789ab`.
    pub name: String,
}

impl SnapshotId {
    /// The identity of the snapshot number `number` in the folder `directory` below `root`.
    pub fn new(root: &Location, directory: &Location, number: i64) -> SnapshotId {
        let below = root.strip(directory).unwrap_or_default();
        let (job, name) = below.rsplit_once('/').unwrap_or(("", below));
        let name = if name.is_empty() {
            directory.name()
        } else {
            name
        };
        SnapshotId {
            root: root.clone(),
            job: job.to_string(),
            number,
            name: name.to_string(),
        }
    }

    /// True if `job` names this snapshot's job: the path below the root, its last part, or the location of
    /// its folder. Only the location tells two jobs whose folders end alike from each other.
    pub fn is_of_job(&self, job: &str) -> bool {
        let is_name = self.job == job || self.job.rsplit('/').next() == Some(job);
        !job.is_empty() && (is_name || self.is_of_home(job))
    }

    /// True if both are of one job.
    pub(crate) fn is_of_one_job_with(&self, other: &SnapshotId) -> bool {
        self.job == other.job && self.root == other.root
    }

    /// True if `home` is the location of the job's folder, however its scheme is spelled.
    fn is_of_home(&self, home: &str) -> bool {
        // Asked for each snapshot there is: mostly the end of the text says no.
        let folder = || match self.job.is_empty() {
            true => self.root.clone(),
            false => self.root.child(&self.job),
        };
        home.trim_end_matches('/').ends_with(&self.job)
            && location_of(home).is_some_and(|at| at == folder())
    }

    /// The job for people: the path of its folder below the root, or the root itself where that is the folder, as it
    /// is of a fork.
    pub fn job_name(&self) -> String {
        match self.job.is_empty() {
            true => self.root.to_string(),
            false => self.job.clone(),
        }
    }

    /// The job for people: ids shortened to eight digits.
    pub fn short_job(&self) -> String {
        match self.job.is_empty() {
            true => self.root.to_string(),
            false => short_job(&self.job),
        }
    }
}

/// The location that a job's name is, if it is one.
fn location_of(job: &str) -> Option<Location> {
    (job.contains(":/") || job.starts_with('/'))
        .then(|| Location::parse(job).ok())
        .flatten()
}

/// True for a job's name that is the location of its folder.
pub(crate) fn is_location(job: &str) -> bool {
    location_of(job).is_some()
}

/// True if `name` is the last part, or the last parts, of the location of a job's folder.
pub(crate) fn is_called(job: &str, name: &str) -> bool {
    let name = name.trim_matches('/');
    let ends = |at: Location| {
        let before = at.key().strip_suffix(name);
        before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
    };
    !name.is_empty() && location_of(job).is_some_and(ends)
}

/// True if two names are one job's: the same text, or one location however its scheme is spelled.
pub(crate) fn same_job(a: &str, b: &str) -> bool {
    a == b || matches!((location_of(a), location_of(b)), (Some(a), Some(b)) if a == b)
}

/// The fewest digits that are taken for the beginning of a job's id: as many as the name of a savepoint has of it.
const FEWEST_DIGITS: usize = 6;

/// True if `short` is a job's path `job`, or its last part, with the id cut short, as lists print it.
pub(crate) fn is_short_for(short: &str, job: &str) -> bool {
    let last = |path: &'_ str| path.rsplit('/').next().unwrap_or_default().to_string();
    let (digits, id) = (last(short), last(job));
    let is_cut = is_job_id(&id)
        && (FEWEST_DIGITS..32).contains(&digits.len())
        && digits.bytes().all(|b| b.is_ascii_hexdigit())
        && id.starts_with(&digits);
    let above = |path: &str| path.rsplit_once('/').map(|(above, _)| above.to_string());
    is_cut
        && above(short).is_none_or(|above_it| {
            short_job(&above(job).unwrap_or_default()) == short_job(&above_it)
        })
}

/// A job's path with ids shortened to eight digits.
pub fn short_job(job: &str) -> String {
    let short = |part: &str| match is_job_id(part) {
        true => part.get(..8).unwrap_or(part).to_string(),
        false => part.to_string(),
    };
    job.split('/').map(short).collect::<Vec<_>>().join("/")
}

/// The job that a savepoint was taken of, if its name begins with the id of exactly one of `jobs`.
/// Flink names it `savepoint-`, six digits of the job's id, `-`, twelve at random.
pub(crate) fn job_of_savepoint<'a>(
    name: &str,
    jobs: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let prefix = name.strip_prefix("savepoint-")?.split('-').next()?;
    let mut of_it = jobs.filter(|job| {
        let id = job.rsplit('/').next().unwrap_or(job);
        prefix.len() == 6 && is_job_id(id) && id.starts_with(prefix)
    });
    match (of_it.next(), of_it.next()) {
        (Some(job), None) => Some(job),
        _ => None,
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.job.is_empty() {
            true => write!(f, "{}", self.name),
            false => write!(f, "{}/{}", self.short_job(), self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_of_two_jobs_are_two_snapshots() {
        let root = Location::parse("s3://b/r").unwrap();
        let a = SnapshotId::new(
            &root,
            &root.child("00000000000000000000000000000001/chk-43"),
            43,
        );
        let b = SnapshotId::new(
            &root,
            &root.child("00000000000000000000000000000002/chk-43"),
            43,
        );
        assert_ne!(a, b);
        assert_eq!(a.to_string(), "00000000/chk-43");
        assert_eq!(
            SnapshotId::new(&root, &root.child("chk-7"), 7).to_string(),
            "chk-7"
        );
        assert_eq!(SnapshotId::new(&root, &root, 7).name, "r");
    }

    #[test]
    fn a_location_names_one_job_where_the_end_of_it_names_two() {
        let root = Location::parse("s3://b/jobs").unwrap();
        let prod = SnapshotId::new(&root, &root.child("prod/orders/chk-7"), 7);
        let staging = SnapshotId::new(&root, &root.child("staging/orders/chk-7"), 7);
        assert!(prod.is_of_job("orders") && staging.is_of_job("orders"));
        assert!(prod.is_of_job("prod/orders") && !staging.is_of_job("prod/orders"));
        for home in ["s3://b/jobs/prod/orders", "s3a://b/jobs/prod/orders/"] {
            assert!(prod.is_of_job(home) && !staging.is_of_job(home), "{home}");
            assert!(same_job(home, "s3n://b/jobs/prod/orders"));
        }
        assert!(!prod.is_of_job("s3://c/jobs/prod/orders"));
        assert!(!prod.is_of_job("s3://b/jobs/prod"));
        let alone = SnapshotId::new(&root, &root.child("chk-7"), 7);
        assert!(alone.is_of_job("s3://b/jobs") && !alone.is_of_job("s3://b/jobs/x"));
        assert!(!same_job("orders", "s3://b/orders") && !same_job("s3://b/a", "s3://b/b"));
        for name in ["orders", "prod/orders", "jobs/prod/orders", "/orders/"] {
            assert!(is_called("s3a://b/jobs/prod/orders", name), "{name}");
        }
        for name in [
            "",
            "/",
            "rders",
            "jobs",
            "b/jobs/prod/orders",
            "staging/orders",
        ] {
            assert!(!is_called("s3a://b/jobs/prod/orders", name), "{name}");
        }
        assert!(!is_called("orders", "orders"), "no location");
    }

    #[test]
    fn an_id_that_was_cut_short_is_known_by_its_beginning() {
        let id = "ca3136b6d378bc858d567bb5adc77912";
        let below = format!("prod/{id}");
        for (short, job) in [
            ("ca3136b6", id),
            ("ca3136", id),
            ("ca3136b6", &below),
            ("prod/ca3136b6", &below),
        ] {
            assert!(is_short_for(short, job), "{short} {job}");
        }
        for (short, job) in [
            ("", id),
            ("ca313", id),
            ("ca3136b7", id),
            ("stage/ca3136b6", &below),
            ("prod/ca3136b6", id),
            (id, id),
            ("orders", "orders-v2"),
        ] {
            assert!(!is_short_for(short, job), "{short} {job}");
        }
    }

    #[test]
    fn a_savepoint_names_its_job() {
        let jobs = [
            "ckpt/ca3136b6d378bc858d567bb5adc77912",
            "aa000000000000000000000000000000",
        ];
        let job = |name| job_of_savepoint(name, jobs.iter().copied());
        assert_eq!(job("savepoint-ca3136-0123456789ab"), Some(jobs[0]));
        assert_eq!(job("savepoint-bbbbbb-0123456789ab"), None);
        assert_eq!(job("chk-4"), None);
    }
}
