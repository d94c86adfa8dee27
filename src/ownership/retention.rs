//! Which snapshots a policy keeps, and why. Pure.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::snapshot::Kind;

use super::identity::SnapshotId;

/// One rule: what any rule keeps is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeepRule {
    /// It speaks of savepoints; else of checkpoints.
    pub savepoints: bool,
    /// What it keeps.
    pub what: Keep,
}

/// What a rule keeps of each job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Keep {
    /// The newest ones, so many.
    Last(u64),
    /// Those that are no older than this, in milliseconds.
    Within(u64),
    /// The newest of each period of this length, in milliseconds, counted from 1970.
    Every(u64),
    /// Those whose name, or job and name with a slash, is this; `*` stands for anything.
    Named(String),
}

impl FromStr for KeepRule {
    type Err = Error;

    /// `last=3`, `within=7d`, `every=1d`, `named=chk-42`; before it `savepoint:` or `checkpoint:`.
    fn from_str(text: &str) -> Result<KeepRule> {
        let refuse = |why: &str| {
            // All in one text: of a wrong argument nothing else is printed.
            Err(Error::invalid(format!(
                "`{text}` is no rule: {why}; rules are last=N, such as last=3, within=TIME, such as within=7d, \
                 every=TIME, such as every=1d, and named=PATTERN, such as named=chk-42 or named=chk-*, for savepoints \
                 with `savepoint:` in front; a TIME is a number and a unit: {UNITS}"
            )))
        };
        let time = |value: &str| parse_millis(value).ok();
        let (savepoints, rule) = match text.split_once(':') {
            Some(("savepoint" | "savepoints", rule)) => (true, rule),
            Some(("checkpoint" | "checkpoints", rule)) => (false, rule),
            Some(_) => return refuse("before the colon stands `savepoint` or `checkpoint`"),
            None => (false, text),
        };
        let Some((name, value)) = rule.split_once('=') else {
            return refuse("a rule has a `=`");
        };
        let what = match name {
            "last" => match value.parse() {
                Ok(n) => Keep::Last(n),
                Err(_) => return refuse("how many is a whole number"),
            },
            "within" => match time(value) {
                Some(millis) => Keep::Within(millis),
                None => return refuse(&no_time(value)),
            },
            "every" => match time(value) {
                Some(0) => return refuse("a period has a length"),
                Some(millis) => Keep::Every(millis),
                None => return refuse(&no_time(value)),
            },
            "named" if value.is_empty() => return refuse("the name or the pattern is missing"),
            "named" => Keep::Named(value.to_string()),
            _ => return refuse(&format!("there is no rule `{name}`")),
        };
        Ok(KeepRule { savepoints, what })
    }
}

impl fmt::Display for KeepRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.savepoints {
            f.write_str("savepoint:")?;
        }
        match &self.what {
            Keep::Last(n) => write!(f, "last={n}"),
            Keep::Within(millis) => write!(f, "within={}s", millis / 1000),
            Keep::Every(millis) => write!(f, "every={}s", millis / 1000),
            Keep::Named(pattern) => write!(f, "named={pattern}"),
        }
    }
}

/// The units of a span of time, for messages.
const UNITS: &str = "ms, s, m (minutes), h, d or w";

/// What is wrong with a text that is no span of time.
fn no_time(text: &str) -> String {
    match text.parse::<u64>() {
        Ok(_) => format!("`{text}` has no unit"),
        Err(_) => format!("`{text}` is no span of time"),
    }
}

/// A span of time as people write it: `500ms`, `90s`, `10m`, `24h`, `7d`, `2w`. In milliseconds.
///
/// # Errors
///
/// `Invalid` for anything else.
pub fn parse_millis(text: &str) -> Result<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        "w" => 604_800_000,
        "" if digits == "0" => 0,
        _ => 0u64.wrapping_sub(1),
    };
    match digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)) {
        Some(millis) if unit != u64::MAX => Ok(millis),
        _ => Err(Error::invalid(format!(
            "{}; a span of time is a number and a unit, such as 90s, 10m, 24h or 7d; units are {UNITS}",
            no_time(text)
        ))),
    }
}

/// A snapshot as retention sees it.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Which one.
    pub id: SnapshotId,
    /// Snapshots of one family are counted together: those of a job, and those that it has claimed.
    pub family: String,
    /// Checkpoint or savepoint.
    pub kind: Kind,
    /// When it was written, in milliseconds since 1970; 0 if that is not known.
    pub modified: u64,
    /// All its objects are there.
    pub intact: bool,
}

/// Why a policy keeps a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RetentionReason {
    /// A rule says so.
    Rule(String),
    /// It is a savepoint and no rule speaks of savepoints: they are their owners'.
    Savepoint,
    /// It is younger than the limit below which nothing is deleted, or its age is not known.
    TooYoung,
    /// Its job was at work lately, and this is the newest one to start from.
    NewestOfActiveJob,
    /// Objects of it are not there. It is not counted by any rule, and left for a person to look at.
    Damaged,
}

/// What is kept by `rules` at the time `now`: for each candidate its reasons, none if it goes.
///
/// `active` are the families that were at work within `min_age` milliseconds.
pub fn retain(
    candidates: &[Candidate],
    rules: &[KeepRule],
    active: &HashSet<String>,
    min_age: u64,
    now: u64,
) -> Vec<Vec<RetentionReason>> {
    let mut reasons: Vec<Vec<RetentionReason>> = vec![Vec::new(); candidates.len()];
    let mut give = |n: usize, reason: RetentionReason| {
        if let Some(reasons) = reasons.get_mut(n) {
            reasons.push(reason);
        }
    };
    let speaks_of_savepoints = rules.iter().any(|rule| rule.savepoints);
    let mut families: BTreeMap<(&str, bool), Vec<(usize, &Candidate)>> = BTreeMap::new();
    for (n, candidate) in candidates.iter().enumerate() {
        let is_savepoint = candidate.kind != Kind::Checkpoint;
        if is_savepoint && !speaks_of_savepoints {
            give(n, RetentionReason::Savepoint);
        }
        if candidate.modified == 0 || now.saturating_sub(candidate.modified) < min_age {
            give(n, RetentionReason::TooYoung);
        }
        if candidate.intact {
            let family = families
                .entry((&candidate.family, is_savepoint))
                .or_default();
            family.push((n, candidate));
        } else {
            give(n, RetentionReason::Damaged);
        }
    }
    for ((family, is_savepoint), members) in &mut families {
        // A fork of an older one has a smaller number and may be newer: time decides, then number.
        members.sort_by_key(|(_, c)| std::cmp::Reverse((c.id.number, c.modified)));
        if let (false, true, Some((n, _))) =
            (*is_savepoint, active.contains(*family), members.first())
        {
            give(*n, RetentionReason::NewestOfActiveJob);
        }
        for rule in rules.iter().filter(|rule| rule.savepoints == *is_savepoint) {
            let mut periods = HashSet::new();
            for (rank, (n, candidate)) in (0u64..).zip(members.iter()) {
                let kept = match &rule.what {
                    Keep::Last(limit) => rank < *limit,
                    Keep::Within(millis) => now.saturating_sub(candidate.modified) <= *millis,
                    Keep::Every(millis) => periods.insert(candidate.modified / (*millis).max(1)),
                    Keep::Named(pattern) => {
                        matches(pattern, &candidate.id.name)
                            || matches(
                                pattern,
                                &format!("{}/{}", candidate.id.job, candidate.id.name),
                            )
                    }
                };
                if kept {
                    give(*n, RetentionReason::Rule(rule.to_string()));
                }
            }
        }
    }
    reasons
}

/// True if `text` is `pattern`, where each `*` stands for any text.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = rest.get(at + part.len()..).unwrap_or_default(),
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Location;

    const DAY: u64 = 86_400_000;

    fn candidates(spec: &[(&str, i64, Kind, u64, bool)]) -> Vec<Candidate> {
        let root = Location::parse("s3://b/r").unwrap();
        let one =
            |(job, number, kind, modified, intact): &(&str, i64, Kind, u64, bool)| Candidate {
                id: SnapshotId::new(
                    &root,
                    &root.join(&format!("{job}/chk-{number}")).unwrap(),
                    *number,
                ),
                family: (*job).to_string(),
                kind: *kind,
                modified: *modified,
                intact: *intact,
            };
        spec.iter().map(one).collect()
    }

    fn kept(candidates: &[Candidate], rules: &[&str], active: &[&str], now: u64) -> Vec<i64> {
        let rules: Vec<KeepRule> = rules.iter().map(|r| r.parse().unwrap()).collect();
        let active = active.iter().map(|s| (*s).to_string()).collect();
        let reasons = retain(candidates, &rules, &active, DAY, now);
        let kept = candidates
            .iter()
            .zip(reasons)
            .filter(|(_, r)| !r.is_empty());
        kept.map(|(c, _)| c.id.number).collect()
    }

    #[test]
    fn each_rule_keeps_what_it_says_and_any_of_them_is_enough() {
        use Kind::Checkpoint as C;
        let now = 100 * DAY;
        let all = candidates(&[
            ("a", 1, C, 10 * DAY, true),
            ("a", 2, C, 50 * DAY, true),
            ("a", 3, C, 50 * DAY + 5, true),
            ("a", 4, C, 90 * DAY, true),
            ("a", 5, C, 91 * DAY, false),
            ("b", 9, C, 20 * DAY, true),
        ]);
        assert_eq!(kept(&all, &["last=2"], &[], now), [3, 4, 5, 9]);
        assert_eq!(kept(&all, &["within=10d"], &[], now), [4, 5]);
        assert_eq!(kept(&all, &["every=1d"], &[], now), [1, 3, 4, 5, 9]);
        assert_eq!(kept(&all, &["named=a/chk-2"], &[], now), [2, 5]);
        assert_eq!(
            kept(&all, &["named=*chk-1", "last=1"], &[], now),
            [1, 4, 5, 9]
        );
        // A job at work keeps what it would start from, whatever the rules say; young ones stay.
        assert_eq!(kept(&all, &["last=0"], &["a"], now), [4, 5]);
        assert_eq!(kept(&all, &["last=0"], &[], 90 * DAY + 1), [4, 5]);
    }

    #[test]
    fn savepoints_stay_until_a_rule_speaks_of_them() {
        let all = candidates(&[
            ("a", 1, Kind::SavepointNative, DAY, true),
            ("a", 2, Kind::SavepointCanonical, 2 * DAY, true),
            ("a", 3, Kind::Checkpoint, 3 * DAY, true),
        ]);
        assert_eq!(kept(&all, &["last=0"], &[], 9 * DAY), [1, 2]);
        assert_eq!(
            kept(&all, &["last=0", "savepoint:last=1"], &[], 9 * DAY),
            [2]
        );
    }

    #[test]
    fn rules_that_are_none_are_refused() {
        for bad in [
            "", "last", "last=x", "last=-1", "every=0", "within=7", "newest=3", "x:last=3",
            "named=",
        ] {
            assert!(bad.parse::<KeepRule>().is_err(), "{bad}");
        }
        assert_eq!(parse_millis("7d").unwrap(), 7 * DAY);
        assert!(parse_millis("99999999999999999999d").is_err());
        assert!(parse_millis("99999999999999999w").is_err());
    }

    #[test]
    fn patterns_match_as_a_shell_would() {
        for (pattern, text, yes) in [
            ("chk-4", "chk-4", true),
            ("chk-4", "chk-42", false),
            ("chk-*", "chk-42", true),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ab", false),
            ("a*b*c", "axbyc", true),
            ("*b*b", "ab", false),
        ] {
            assert_eq!(matches(pattern, text), yes, "{pattern} {text}");
        }
    }
}
