//! What `forkpoint plan --workers` prints.

use serde_json::{Value, json};

use crate::fork::Export;
use crate::restore::{Estimate, RestorePlan};
use crate::store::Location;

use super::balance::{balance, bound, human_seconds, reasons};
use super::text::{count, human_bytes, name, table};

/// Characters of a bar that reaches the slowest worker.
const BAR: usize = 40;

/// A plan for many workers, what it takes, and where it was written.
#[derive(Debug, Clone)]
pub struct WorkersReport {
    /// The plan.
    pub plan: RestorePlan,
    /// What it takes.
    pub estimate: Estimate,
    /// Where the plan was written.
    pub out: Option<Location>,
    /// Where the manifest for a bulk copier was written, and the job that belongs to it.
    pub export: Option<(Location, Export)>,
    /// Nobody shall run it: the fork is given up with it.
    pub to_give_up: bool,
}

/// The plan as a document. The tasks are in it if the plan was not written elsewhere.
pub fn workers_json(report: &WorkersReport) -> Value {
    let plan = &report.plan;
    let mut json = json!({
        "version": 1,
        "fork_id": plan.fork_id,
        "source": plan.source,
        "destination": plan.destination,
        "snapshot": plan.snapshot,
        "objects": plan.objects,
        "bytes": plan.bytes,
        "done": plan.terms.as_ref().map(|t| t.done),
        "workers": plan.workers,
        "balance": plan.balance,
        "reasons": reasons(plan),
        "estimate": report.estimate,
        "out": report.out,
    });
    if let (Some((at, export)), Some(fields)) = (&report.export, json.as_object_mut()) {
        fields.insert("manifest".into(), json!(at));
        fields.insert("job".into(), export.job.clone());
    }
    if let (None, Some(fields)) = (&report.out, json.as_object_mut()) {
        fields.insert("plan".into(), json!(plan));
    }
    json
}

/// The plan for people: a bar for each worker, what it takes, what stands in the way of better.
pub fn workers_text(report: &WorkersReport) -> String {
    let (plan, estimate) = (&report.plan, &report.estimate);
    let snapshot = plan.snapshot.as_ref().map_or_else(String::new, name);
    let mut text = format!("fork  {}\n  to  {snapshot}\n", name(&plan.source));
    text.push_str(&format!(
        "  by  {}: {}, {}\n",
        count(plan.workers.len() as u64, "worker", "workers"),
        count(plan.objects, "object", "objects"),
        human_bytes(plan.bytes)
    ));
    if let Some(terms) = &plan.terms
        && (terms.done.objects > 0 || terms.done.unproven > 0)
    {
        let done = terms.done;
        text.push_str(&format!(
            "      besides {} of {} that an earlier attempt has copied, as receipts prove\n",
            count(done.objects, "object", "objects"),
            human_bytes(done.bytes)
        ));
        if done.unproven > 0 {
            text.push_str(&format!(
                "      {} of those left are there without a receipt: their contents will be compared\n",
                done.unproven
            ));
        }
    }
    text.push('\n');
    text.push_str(&bars(plan));
    text.push_str("\nestimated, each worker one object after another\n");
    text.push_str(&methods(estimate));
    text.push_str(&format!(
        "  {} until the slowest is done, {} in all; {}\n",
        human_seconds(estimate.seconds),
        human_seconds(estimate.total_seconds),
        bound(plan)
    ));
    if let (Some(money), Some(currency)) = (estimate.money, &estimate.currency) {
        text.push_str(&format!("  {money:.4} {} by your prices\n", name(currency)));
    } else if estimate.currency.is_some() {
        text.push_str("  no sum: your prices lack a method\n");
    }
    let reasons = reasons(plan);
    if !reasons.is_empty() {
        text.push_str("\nwhat the slowest worker takes longer than the ideal for\n");
        for reason in reasons {
            text.push_str(&format!("  {reason}\n"));
        }
    }
    text.push('\n');
    text.push_str(&next_steps(report));
    text
}

fn bars(plan: &RestorePlan) -> String {
    let balance = balance(plan);
    let scale = balance.slowest.max(f64::MIN_POSITIVE);
    let place = |seconds: f64| ((seconds / scale * BAR as f64).round() as usize).min(BAR);
    let ideal = place(balance.ideal);
    let rows: Vec<Vec<String>> = balance
        .rows
        .iter()
        .map(|row| {
            let filled = place(row.seconds);
            let bar: String = (0..=BAR)
                .map(|at| match at {
                    _ if at == ideal => '|',
                    _ if at < filled => '#',
                    _ => ' ',
                })
                .collect();
            vec![
                format!("  {}", row.label),
                bar,
                human_seconds(row.seconds),
                count(row.objects, "object", "objects"),
                human_bytes(row.bytes),
            ]
        })
        .collect();
    let what = match balance.per_row {
        1 => "worker, its time".to_string(),
        n => format!("{n} workers a row, the time of the slowest of them"),
    };
    format!(
        "{what}; | is the ideal, {}\n{}",
        human_seconds(balance.ideal),
        table(&rows, &[0, 2, 3, 4])
    )
}

fn methods(estimate: &Estimate) -> String {
    let rows: Vec<Vec<String>> = estimate
        .methods
        .iter()
        .map(|(method, sum)| {
            let mut row = vec![
                format!("  {method}"),
                count(sum.objects, "object", "objects"),
                human_bytes(sum.bytes),
                count(sum.read_requests, "read", "reads"),
                count(sum.write_requests, "write", "writes"),
                human_seconds(sum.seconds),
            ];
            if let (Some(money), Some(currency)) = (sum.money, &estimate.currency) {
                row.push(format!("{money:.4} {}", name(currency)));
            }
            row
        })
        .collect();
    table(&rows, &[1, 2, 3, 4, 5, 6])
}

fn next_steps(report: &WorkersReport) -> String {
    let Some(out) = &report.out else {
        return "nothing was written; --out PLAN writes the plan for the workers\n".into();
    };
    let last = report.plan.workers.last().map_or(0, |w| w.worker);
    match &report.export {
        None if report.to_give_up => format!(
            "the plan is in {}, to give the fork up:\n  what would go:  forkpoint abandon PLAN\n  \
             remove it:      forkpoint abandon PLAN --apply\n",
            name(out)
        ),
        None => format!(
            "the plan is in {}\n  each worker:    forkpoint run PLAN --worker I    (I from 0 to {last}; or --all in one)\n  \
             when all ended: forkpoint commit PLAN\n",
            name(out)
        ),
        Some((manifest, export)) => format!(
            "the plan is in {}, the manifest in {}\nstart this job, and when it has ended `forkpoint commit PLAN --copied-by ...`\n{:#}\n",
            name(out),
            name(manifest),
            export.job
        ),
    }
}
