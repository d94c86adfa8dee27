//! What `forkpoint lineage` prints.

use serde_json::{Value, json};

use crate::ownership::{Branch, FamilyTree, NeedReason, SnapshotSummary};
use crate::snapshot::RestoreMode;

use super::ls::missing_text;
use super::text::{human_bytes, name};

/// The forest as a document.
pub fn lineage_json(tree: &FamilyTree) -> Value {
    json!({
        "version": 1,
        "taken_at_unix_ms": tree.taken_at_unix_ms,
        "jobs": tree.branches,
        "missing": tree.missing,
    })
}

/// The forest for people: below each snapshot the jobs that grew from it. What was started from one and shares
/// nothing with it is said to be independent.
pub fn lineage_text(tree: &FamilyTree) -> String {
    let mut text = String::new();
    for (n, branch) in tree.branches.iter().enumerate() {
        if branch.grew_from.is_none() {
            push_branch(&mut text, tree, n, "", tree.branches.len());
        }
    }
    if text.is_empty() {
        text.push_str("no snapshot\n");
    }
    text.push_str(&missing_text(&tree.missing));
    text
}

fn push_branch(text: &mut String, tree: &FamilyTree, n: usize, indent: &str, depth: usize) {
    // Parents are older than their children, so that there is no circle; this is for damaged ones.
    let (Some(branch), Some(depth)) = (tree.branches.get(n), depth.checked_sub(1)) else {
        return;
    };
    text.push_str(&format!(
        "{indent}job {}{}\n",
        name(job_name(branch)),
        grew(branch)
    ));
    for (place, s) in branch.snapshots.iter().enumerate() {
        let is_last = place + 1 == branch.snapshots.len();
        let (tee, bar) = if is_last {
            ("└─", "  ")
        } else {
            ("├─", "│ ")
        };
        let lost = match s.missing_objects {
            0 => String::new(),
            n => format!(", {n} objects lost"),
        };
        // That of the oldest one is seen by where its job stands.
        let shown = branch.grew_from.filter(|_| place == 0);
        let from = match &s.started_from {
            Some(from) if shown.is_none() => {
                format!(", started from {}, independent", name(&from.directory))
            }
            _ => String::new(),
        };
        text.push_str(&format!(
            "{indent}{tee} {}  {}, {} exclusive{lost}{from}{}\n",
            name(&s.snapshot.name),
            human_bytes(s.total.bytes),
            human_bytes(s.exclusive.bytes),
            started_text(s),
        ));
        for (child, other) in tree.branches.iter().enumerate() {
            if other
                .grew_from
                .is_some_and(|g| g.branch == n && g.snapshot == place)
            {
                push_branch(text, tree, child, &format!("{indent}{bar}   "), depth);
            }
        }
    }
}

/// Which jobs were started from the snapshot, as records say: one that claimed it, and those that may need it yet.
pub(super) fn started_text(s: &SnapshotSummary) -> String {
    let mut text = String::new();
    if let Some(job) = &s.claimed_by {
        text.push_str(&format!(", claimed by job {}", name(job)));
    }
    for need in &s.needs {
        match need {
            NeedReason::Restoring {
                mode: RestoreMode::Claim,
                ..
            } => text.push_str(", which has completed no checkpoint yet"),
            NeedReason::Restoring { job, mode } => {
                text.push_str(&format!(", job {} starts from it ({mode})", name(job)));
            }
            _ => {}
        }
    }
    text
}

pub(super) fn job_name(branch: &Branch) -> String {
    match branch.job.is_empty() {
        true => branch.root.to_string(),
        false => branch.job.clone(),
    }
}

fn grew(branch: &Branch) -> String {
    match branch.grew_from {
        Some(g) if g.shared_objects > 0 => format!(", shares {} objects with it", g.shared_objects),
        Some(_) => ", started from it, independent".to_string(),
        None => String::new(),
    }
}
