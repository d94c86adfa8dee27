//! How the work of a plan is spread, as rows to draw: one for each worker, or where there are many, one
//! for each group of them. Pure.

use crate::restore::{BoundReason, ImbalanceReason, NANOSECONDS, RestorePlan};

use super::text::{human_bytes, name};

/// Above so many workers, several share a row.
const ROWS: usize = 40;

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    /// The worker, or the first and the last of several.
    pub(super) label: String,
    /// Estimated seconds of the slowest of them.
    pub(super) seconds: f64,
    /// Objects of all of them.
    pub(super) objects: u64,
    /// Bytes of all of them.
    pub(super) bytes: u64,
}

/// All rows, and what they are measured by.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Balance {
    pub(super) rows: Vec<Row>,
    /// Workers in a row.
    pub(super) per_row: usize,
    /// What everybody would take if the work could be divided at will, in seconds.
    pub(super) ideal: f64,
    /// What the slowest takes, in seconds.
    pub(super) slowest: f64,
}

pub(super) fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / NANOSECONDS as f64
}

/// The rows of a plan.
pub(super) fn balance(plan: &RestorePlan) -> Balance {
    let per_row = plan.workers.len().div_ceil(ROWS).max(1);
    let rows = plan
        .workers
        .chunks(per_row)
        .filter_map(|group| {
            let (first, last) = (group.first()?, group.last()?);
            Some(Row {
                label: match group.len() {
                    1 => first.worker.to_string(),
                    _ => format!("{}-{}", first.worker, last.worker),
                },
                seconds: seconds(group.iter().map(|w| w.cost_ns).max().unwrap_or(0)),
                objects: group.iter().map(|w| w.objects).sum(),
                bytes: group.iter().map(|w| w.bytes).sum(),
            })
        })
        .collect();
    Balance {
        rows,
        per_row,
        ideal: seconds(plan.balance.average_ns),
        slowest: seconds(plan.balance.slowest_ns),
    }
}

/// Seconds for people: `0.4 ms`, `1.38 s`, `12.3 s`, `4 min 10 s`, `3 h 20 min`.
pub(super) fn human_seconds(seconds: f64) -> String {
    if seconds < 1.0 {
        return format!("{:.1} ms", seconds * 1000.0);
    }
    let whole = seconds.round() as u64;
    match whole {
        0..10 => format!("{seconds:.2} s"),
        10..120 => format!("{seconds:.1} s"),
        120..7200 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// The biggest reasons why the slowest worker takes longer than the ideal, biggest first.
pub(super) fn reasons(plan: &RestorePlan) -> Vec<String> {
    plan.balance
        .reasons
        .iter()
        .map(|reason| {
            let excess = human_seconds(seconds(reason.excess_ns()));
            let why = match reason {
                ImbalanceReason::LargeObject { task, .. } => {
                    let task = plan.tasks.get(*task as usize).map(|t| &t.duplicate);
                    let what = task.map_or_else(String::new, |t| {
                        format!("{} of {}", name(t.source.name()), human_bytes(t.size))
                    });
                    format!("one object takes longer than the ideal, and is not divided: {what}")
                }
                ImbalanceReason::FewHolders { first, end, .. } => {
                    format!(
                        "only workers {first} to {} can do much of it",
                        end.saturating_sub(1)
                    )
                }
                ImbalanceReason::IdleWorkers { workers, .. } => {
                    format!("{workers} workers can do nothing of it")
                }
                ImbalanceReason::WholeObjects { .. } => {
                    "objects are copied whole, and no better distribution was found".into()
                }
            };
            format!("{excess}: {why}")
        })
        .collect()
}

/// Why no distribution can be faster than the bound.
pub(super) fn bound(plan: &RestorePlan) -> String {
    let bound = human_seconds(seconds(plan.balance.lower_bound_ns));
    let everybody = plan.workers.len();
    let why = match plan.balance.bound {
        // In a fork everybody can do everything.
        BoundReason::FewWorkers { first, end } if (end - first) as usize == everybody => {
            "which is the ideal"
        }
        bound => bound.as_str(),
    };
    format!("no distribution is faster than {bound}: {why}")
}
