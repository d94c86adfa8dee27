//! What `forkpoint run`, `commit` and `abandon` print.

use serde_json::{Map, Value, json};

use crate::fork::{AbandonReport, CommitReport, LeftReport, RunReport};
use crate::store::{Location, Provider};

use super::fork::made_json;
use super::text::{count, human_bytes, name};

/// How many objects a text names.
const NAMED: usize = 20;

/// What a worker did, as a document.
pub fn run_json(report: &RunReport) -> Value {
    let methods: Map<String, Value> = report
        .methods
        .iter()
        .map(|(method, n)| (method.to_string(), json!(n)))
        .collect();
    json!({
        "version": 1,
        "worker": report.worker,
        "snapshot": report.snapshot,
        "fork_id": report.fork_id,
        "objects": report.objects,
        "bytes": report.bytes,
        "copied": report.copied,
        "reused": report.reused,
        "methods": methods,
        "committed": report.committed,
        "unpinned": report.unpinned,
    })
}

/// What a worker did, for people.
pub fn run_text(report: &RunReport) -> String {
    if report.committed {
        return format!(
            "the fork is committed already and this share is there, there was nothing to do: {}\n",
            name(&report.snapshot)
        );
    }
    let who = match report.worker {
        Some(worker) => format!("worker {worker}"),
        None => "all workers".into(),
    };
    format!(
        "{who} of the fork to {}\n  {} of {}: {} copied, {} were already there\nwhen all workers have ended: forkpoint commit PLAN\n",
        name(&report.snapshot),
        count(report.objects, "object", "objects"),
        human_bytes(report.bytes),
        report.copied,
        report.reused
    )
}

/// A committed fork as a document: that of `fork`, and what proved the objects.
pub fn commit_json(report: &CommitReport) -> Value {
    let mut json = made_json(&report.fork);
    if let Some(fields) = json.as_object_mut() {
        // Whether the source could be pinned, the worker knows that began.
        fields.remove("unpinned");
        let proofs: Map<String, Value> = report
            .proofs
            .iter()
            .map(|(proof, n)| (proof.as_str().to_string(), json!(n)))
            .collect();
        fields.insert("committed".into(), json!(true));
        fields.insert("already".into(), json!(report.already));
        fields.insert("proofs".into(), Value::Object(proofs));
        fields.insert("copied_by".into(), json!(report.copied_by));
    }
    json
}

/// A committed fork for people.
pub fn commit_text(report: &CommitReport) -> String {
    let fork = &report.fork;
    let proofs: Vec<String> = report
        .proofs
        .iter()
        .map(|(proof, n)| format!("{n} by {}", proof.as_str()))
        .collect();
    let proofs = match (report.already, proofs.is_empty()) {
        (true, _) => ", committed before".to_string(),
        (_, true) => String::new(),
        _ => format!(", proved: {}", proofs.join(", ")),
    };
    let mut text = format!(
        "forked {}\n    to {}\n\n  {} of {}{proofs}\n",
        name(&fork.source),
        name(&fork.snapshot),
        count(fork.objects, "object", "objects"),
        human_bytes(fork.bytes),
    );
    if let Some(copier) = report.copied_by {
        text.push_str(&format!(
            "  those without a receipt were copied by {}, as you say: what is proved by size alone rests on that\n",
            copier.as_str()
        ));
    }
    text.push_str(&format!(
        "  independent: no reference leaves the fork, every object is there with its size\n\n\
         {}\n",
        name(&fork.how_to_restore)
    ));
    text
}

/// What is left, as a document.
pub fn left_json(report: &LeftReport, out: Option<&Location>) -> Value {
    let workers: Vec<Value> = report
        .workers
        .iter()
        .map(|(worker, left)| {
            json!({"worker": worker, "objects": left.objects, "bytes": left.bytes})
        })
        .collect();
    json!({
        "version": 1,
        "committed": false,
        "snapshot": report.snapshot,
        "fork_id": report.fork_id,
        "begun": !report.not_begun,
        "done": report.done,
        "objects": report.objects,
        "bytes": report.bytes,
        "workers": workers,
        "out": out,
    })
}

/// What is left, for people.
pub fn left_text(report: &LeftReport, out: Option<&Location>) -> String {
    let mut text = format!(
        "not committed: missing are {} of {}, {} are there\n",
        count(report.objects, "object", "objects"),
        human_bytes(report.bytes),
        report.done
    );
    if report.not_begun {
        text.push_str("no worker has begun, or the fork was given up since\n");
    }
    for (worker, left) in &report.workers {
        let who = match worker {
            Some(worker) => format!("worker {worker}"),
            None => "not in this plan".into(),
        };
        text.push_str(&format!(
            "  {who}: {}, {}\n",
            count(left.objects, "object", "objects"),
            human_bytes(left.bytes)
        ));
    }
    text.push_str(&match out {
        Some(out) => format!(
            "they are given to others in {}: run that plan's workers, then commit it\n",
            name(out)
        ),
        // Another plan has left them out, as an earlier attempt had copied them.
        None if report.workers.keys().all(Option::is_none) => {
            "give them to workers: forkpoint commit PLAN --redistribute N --out PLAN2\n".into()
        }
        None => "run these workers again, or give their work to others: forkpoint commit PLAN --redistribute N --out PLAN2\n".into(),
    });
    text
}

/// What was abandoned, as a document.
pub fn abandon_json(report: &AbandonReport) -> Value {
    let own: Vec<Value> = report
        .own
        .iter()
        .map(|(at, bytes)| json!({"location": at, "bytes": bytes}))
        .collect();
    json!({
        "version": 1,
        "destination": report.destination,
        "fork_id": report.fork_id,
        "under_way": report.under_way,
        "being_given_up": report.being_given_up,
        "applied": report.applied,
        "own": own,
        "unproved": report.unproved,
    })
}

/// What was abandoned, for people.
pub fn abandon_text(report: &AbandonReport) -> String {
    if report.being_given_up {
        return format!(
            "this fork below {} was given up by a run that is still at work or was stopped before its end, and nobody can fork \
             to there until then: --apply ends it, after a minute for what that run may still be removing\n",
            name(&report.destination)
        );
    }
    if !report.under_way {
        return format!(
            "this fork is not under way below {}: there is nothing to remove\n",
            name(&report.destination)
        );
    }
    let bytes: u64 = report.own.iter().map(|(_, bytes)| bytes).sum();
    let mut text = format!(
        "{} {} of {} that this fork has left below {}\n",
        match report.applied {
            true => "removed",
            false => "would remove",
        },
        count(report.own.len() as u64, "object", "objects"),
        human_bytes(bytes),
        name(&report.destination)
    );
    for (at, bytes) in report.own.iter().take(NAMED) {
        text.push_str(&format!("  {:>10}  {}\n", human_bytes(*bytes), name(at)));
    }
    if report.own.len() > NAMED {
        let more = report.own.len() - NAMED;
        text.push_str(&format!("  and {more} more (--format json names all)\n"));
    }
    let may_come = report.applied && report.destination.provider() != Provider::Local;
    if may_come && !report.own.is_empty() {
        text.push_str(
            "what a worker was copying when it was killed the service may still bring to its end: run the same command again \
             in some minutes, which says so\n",
        );
    }
    if !report.unproved.is_empty() {
        text.push_str(&format!(
            "{} not proved to be the fork's, and {}; so {} its note and journal\n",
            match report.unproved.len() {
                1 => "1 object is".to_string(),
                n => format!("{n} objects are"),
            },
            match (report.applied, report.unproved.len()) {
                (true, 1) => "stays",
                (true, _) => "stay",
                (false, _) => "would stay",
            },
            if report.applied { "do" } else { "would" },
        ));
        for at in report.unproved.iter().take(NAMED) {
            text.push_str(&format!("  {}\n", name(at)));
        }
        text.push_str(
            "look at them: move away what somebody needs, remove what nobody does, then run `forkpoint abandon PLAN --apply` \
             again, which ends it; until then nobody can fork to here\n",
        );
    }
    if !report.applied {
        text.push_str("nothing was removed; --apply removes\n");
    }
    text
}
