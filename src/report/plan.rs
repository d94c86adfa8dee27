//! What `forkpoint plan` and `forkpoint fork --dry-run` print.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::fork::Outlook;
use crate::restore::{Done, ForkPlan, Task};
use crate::store::Location;

use super::text::{count, human_bytes, name, table};

/// The plan as a document.
pub fn plan_json(plan: &ForkPlan, outlook: Outlook) -> Value {
    let done = match outlook {
        Outlook::Committed => Done {
            objects: plan.objects,
            bytes: plan.bytes,
            unproven: 0,
        },
        Outlook::Open(done) => done,
    };
    json!({
        "committed": outlook == Outlook::Committed,
        "done": done,
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

/// The plan for people: every object by the folder it is in, and the sums by method with the reason.
pub fn plan_text(plan: &ForkPlan, outlook: Outlook) -> String {
    let mut text = format!(
        "fork  {}\n  to  {}\n",
        name(&plan.source),
        name(&plan.snapshot)
    );
    let mut folders: BTreeMap<Option<Location>, Vec<&Task>> = BTreeMap::new();
    for task in &plan.tasks {
        folders.entry(task.source.parent()).or_default().push(task);
    }
    for (folder, tasks) in folders {
        let title = folder.map_or_else(String::new, |f| name(&f));
        text.push_str(&format!("\nfrom {title}\n"));
        let rows: Vec<Vec<String>> = tasks.iter().map(|task| row(plan, task)).collect();
        text.push_str(&table(&rows, &[0]));
    }
    if !plan.folders.is_empty() {
        text.push_str(
            "\nfolders that the engine removes as a whole, and their places in the fork\n",
        );
        for folder in &plan.folders {
            text.push_str(&format!(
                "  {}\n    -> {}\n",
                name(&folder.source),
                name(&folder.destination)
            ));
        }
    }
    text.push_str(&format!(
        "\n{} of {} to duplicate, then one commit object (the metadata, not counted here)\n",
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
    text.push_str(&outlook_text(plan, outlook));
    text
}

/// What is done of it already.
fn outlook_text(plan: &ForkPlan, outlook: Outlook) -> String {
    match outlook {
        Outlook::Committed => {
            "\nThis fork is there already and committed: made again, it is only proved again.\n"
                .into()
        }
        Outlook::Open(Done {
            objects: 0,
            unproven: 0,
            ..
        }) => String::new(),
        Outlook::Open(done) => {
            let unproven = match done.unproven {
                0 => String::new(),
                n => format!(
                    "; {} without a receipt will be compared",
                    count(
                        n,
                        "more object that is there",
                        "more objects that are there"
                    )
                ),
            };
            format!(
                "\nan earlier run has done {} of {} ({} of {}){unproven}\n",
                done.objects,
                count(plan.objects, "object", "objects"),
                human_bytes(done.bytes),
                human_bytes(plan.bytes),
            )
        }
    }
}

fn row(plan: &ForkPlan, task: &Task) -> Vec<String> {
    let to = plan
        .destination
        .strip(&task.destination)
        .unwrap_or_default();
    // The new name is the old one, or the old one and a suffix: the folder tells where to look.
    let to = match to.strip_suffix(task.source.name()) {
        Some(folder) => folder.to_string(),
        None => to.to_string(),
    };
    vec![
        format!("  {:>10}", human_bytes(task.size)),
        task.method.to_string(),
        task.scope.as_str().to_string(),
        name(task.source.name()),
        format!("-> {}", name(to)),
    ]
}
