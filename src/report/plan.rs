//! What `forkpoint plan` and `forkpoint fork --dry-run` print.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::restore::ForkPlan;

use super::text::{count, human_bytes, table};

/// The plan as a document.
pub fn plan_json(plan: &ForkPlan) -> Value {
    json!({
        "version": plan.version,
        "fork_id": plan.fork_id,
        "source": plan.source,
        "destination": plan.destination,
        "snapshot": plan.snapshot,
        "metadata_sha256": plan.metadata_sha256,
        "tasks": plan.tasks,
        "folders": plan.folders,
        "objects": plan.objects,
        "bytes": plan.bytes,
        "left_behind": plan.left_behind,
    })
}

/// The plan for people: every object, and the sums by method with the reason.
pub fn plan_text(plan: &ForkPlan) -> String {
    let mut text = format!("fork  {}\n  to  {}\n", plan.source, plan.snapshot);
    if !plan.tasks.is_empty() {
        let mut rows = vec![
            ["SIZE", "METHOD", "SCOPE", "FROM", "TO"]
                .map(String::from)
                .to_vec(),
        ];
        for task in &plan.tasks {
            let from = plan
                .source
                .strip(&task.source)
                .map_or_else(|| task.source.to_string(), |p| format!("./{p}"));
            let to = plan
                .destination
                .strip(&task.destination)
                .unwrap_or_default();
            rows.push(vec![
                human_bytes(task.size),
                task.method.to_string(),
                task.scope.as_str().to_string(),
                from,
                to.to_string(),
            ]);
        }
        text.push('\n');
        text.push_str(&table(&rows, &[0]));
    }
    if !plan.folders.is_empty() {
        text.push_str(
            "\nfolders that the engine removes as a whole, and their places in the fork\n",
        );
        for folder in &plan.folders {
            text.push_str(&format!(
                "  {}\n    -> {}\n",
                folder.source, folder.destination
            ));
        }
    }
    text.push_str(&format!(
        "\n{} of {} to duplicate, then one commit object\n",
        count(plan.objects, "object", "objects"),
        human_bytes(plan.bytes)
    ));
    let mut methods: BTreeMap<_, (u64, u64, &str)> = BTreeMap::new();
    for task in &plan.tasks {
        let sum = methods.entry(task.method).or_insert((0, 0, &task.reason));
        sum.0 += 1;
        sum.1 = sum.1.saturating_add(task.size);
    }
    for (method, (objects, bytes, reason)) in methods {
        text.push_str(&format!(
            "  {method}: {}, {} ({reason})\n",
            count(objects, "object", "objects"),
            human_bytes(bytes)
        ));
    }
    text
}
