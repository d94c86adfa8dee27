//! What `forkpoint clean` prints.

use serde_json::{Value, json};

use crate::ownership::clean::{ApplyReport, CleanPlan, SpareReason, Status};
use crate::ownership::{Class, Fate, NeedReason, RetentionReason, StayReason};

use super::ls::missing_text;
use super::text::{count, human_bytes, name, table};

/// A plan's sums as a document; the objects themselves are in the plan's file.
pub fn clean_json(plan: &CleanPlan) -> Value {
    let staying: Vec<&Fate> = plan.staying().collect();
    let classes: serde_json::Map<String, Value> = sums(plan)
        .into_iter()
        .map(|(class, objects, bytes)| {
            (
                class.to_string(),
                json!({ "objects": objects, "bytes": bytes }),
            )
        })
        .collect();
    json!({
        "version": 1,
        "plan": plan.header.plan,
        "roots": plan.header.roots,
        "keep": plan.header.keep,
        "min_age_ms": plan.header.min_age_ms,
        "classes": classes,
        "going": plan.header.snapshots,
        "staying": staying,
        "objects": plan.header.objects,
        "bytes": plan.header.bytes,
        "blocked": !plan.missing.is_empty(),
        "missing": plan.missing,
    })
}

fn sums(plan: &CleanPlan) -> Vec<(&'static str, u64, u64)> {
    let mut sums: Vec<(&'static str, u64, u64)> = Vec::new();
    for (class, amount) in plan
        .sums
        .iter()
        .filter(|(class, _)| **class != Class::Absent)
    {
        match sums.iter_mut().find(|(known, ..)| *known == class.as_str()) {
            Some((_, objects, bytes)) => {
                *objects += amount.objects;
                *bytes = bytes.saturating_add(amount.bytes);
            }
            None => sums.push((class.as_str(), amount.objects, amount.bytes)),
        }
    }
    sums
}

/// A plan's sums for people.
pub fn clean_text(plan: &CleanPlan) -> String {
    let mut text = String::new();
    for going in plan.header.snapshots.iter().take(50) {
        text.push_str(&format!(
            "goes   {}  {}, {}\n",
            name(&going.directory),
            count(going.objects, "object", "objects"),
            human_bytes(going.bytes)
        ));
    }
    if plan.header.snapshots.len() > 50 {
        text.push_str(&format!(
            "goes   and {} more\n",
            plan.header.snapshots.len() - 50
        ));
    }
    for fate in plan.staying().take(50) {
        let why: Vec<String> = fate.stays.iter().map(stay_text).collect();
        text.push_str(&format!(
            "stays  {}  {}\n",
            name(&fate.directory),
            name(why.join("; "))
        ));
    }
    let staying = plan.staying().count();
    if staying > 50 {
        text.push_str(&format!("stays  and {} more\n", staying - 50));
    }
    let rows: Vec<Vec<String>> = sums(plan)
        .into_iter()
        .map(|(class, objects, bytes)| {
            vec![
                format!("  {class}"),
                objects.to_string(),
                human_bytes(bytes),
            ]
        })
        .collect();
    if !rows.is_empty() {
        let between = if text.is_empty() { "" } else { "\n" };
        text.push_str(&format!("{between}{}\n", table(&rows, &[1, 2])));
    }
    text.push_str(&format!(
        "plan {}: {}, {} to delete\n",
        plan.header.plan,
        count(plan.header.objects, "object", "objects"),
        human_bytes(plan.header.bytes)
    ));
    if !plan.missing.is_empty() {
        text.push_str(
            "this is no plan to apply: nothing may be deleted while evidence is missing, and --out writes nothing\n",
        );
    }
    text.push_str(&missing_text(&plan.missing));
    text
}

pub(super) fn stay_text(reason: &StayReason) -> String {
    match reason {
        StayReason::Retention(RetentionReason::Rule(rule)) => rule.clone(),
        StayReason::Retention(RetentionReason::Savepoint) => {
            "savepoint, and no rule speaks of them".into()
        }
        StayReason::Retention(RetentionReason::TooYoung) => "too young".into(),
        StayReason::Retention(RetentionReason::NewestOfActiveJob) => {
            "newest of a job at work".into()
        }
        StayReason::Retention(RetentionReason::Damaged) => {
            "objects of it are lost; look at it".into()
        }
        StayReason::Need(NeedReason::Pinned { name, owner, .. }) => {
            format!("pin {name} of {owner}")
        }
        StayReason::Need(NeedReason::ForkedTo { destination, .. }) => {
            format!("fork to {destination}")
        }
        StayReason::Need(NeedReason::Restoring { job, mode }) => {
            format!("job {job} starts from it ({mode})")
        }
        StayReason::Need(_) => "needed by another snapshot".into(),
    }
}

/// What a run came to, as a document.
pub fn applied_json(report: &ApplyReport) -> Value {
    let mut document = json!({ "version": 1 });
    if let (Value::Object(document), Ok(Value::Object(report))) =
        (&mut document, serde_json::to_value(report))
    {
        document.extend(report);
    }
    document
}

/// What a run came to, for people.
pub fn applied_text(report: &ApplyReport) -> String {
    if let Status::Waiting { until_unix_ms } = report.status {
        return format!(
            "plan {}: begun; nothing is deleted yet\n  apply it again from {} on, or with --wait\n",
            report.plan,
            crate::clock::utc(until_unix_ms)
        );
    }
    let mut text = format!(
        "plan {}: {} deleted, {}\n",
        report.plan,
        count(report.deleted, "object", "objects"),
        human_bytes(report.bytes)
    );
    if report.gone > 0 {
        text.push_str(&format!(
            "  {} gone already\n",
            count(report.gone, "object was", "objects were")
        ));
    }
    for (reason, n) in &report.spared {
        let why = match reason {
            SpareReason::NeededNow => "needed, pinned or claimed by now",
            SpareReason::Changed => "another object of the same name by now",
            SpareReason::SnapshotStillThere => {
                "the commit object of its snapshot could not be deleted"
            }
        };
        text.push_str(&format!(
            "  {} left: {why}\n",
            count(*n, "object", "objects")
        ));
    }
    for left in &report.left {
        let by = match &left.by {
            Some(by) if left.since.is_empty() => format!("needed by {by}"),
            // A snapshot stays for a reason, and that is what somebody can change.
            Some(by) => {
                let since: Vec<String> = left.since.iter().map(stay_text).collect();
                format!("needed by {by}, which stays: {}", since.join("; "))
            }
            None => format!("it is {} now", left.class.as_str()),
        };
        text.push_str(&format!("    {}: {}\n", name(&left.object), name(by)));
    }
    if report.spared.values().sum::<u64>() > 0 {
        text.push_str("  a new plan says what may go now\n");
    }
    if report.failed > 0 {
        text.push_str(&format!(
            "  {} could not be deleted:\n",
            count(report.failed, "object", "objects")
        ));
        for failure in &report.failures {
            text.push_str(&format!("    {}\n", name(failure)));
        }
    }
    if report.is_unfinished() {
        text.push_str("  apply the same plan again: it goes on with what is left\n");
    }
    text
}
