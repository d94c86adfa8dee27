//! What `forkpoint fork` prints.

use serde_json::{Map, Value, json};

use crate::fork::ForkReport;

use super::text::{count, human_bytes, name};

/// The result as a document. `compared`: every byte was compared with the original.
pub fn fork_json(report: &ForkReport, compared: bool) -> Value {
    let mut document = made_json(report);
    if let Value::Object(document) = &mut document {
        let sure = if compared { "content" } else { "size" };
        document.insert("verified".into(), json!(sure));
    }
    document
}

/// What was made, without how it was looked at.
pub(super) fn made_json(report: &ForkReport) -> Value {
    let methods: Map<String, Value> = report
        .methods
        .iter()
        .map(|(method, n)| (method.to_string(), json!(n)))
        .collect();
    json!({
        "version": 1,
        "snapshot": report.snapshot,
        "source": report.source,
        "fork_id": report.fork_id,
        "objects": report.objects,
        "bytes": report.bytes,
        "copied": report.copied,
        "reused": report.reused,
        "methods": methods,
        "independent": report.independent,
        "unpinned": report.unpinned,
    })
}

/// The result for people. `compared`: every byte was compared with the original.
pub fn fork_text(report: &ForkReport, compared: bool) -> String {
    let methods = report
        .methods
        .iter()
        .map(|(method, n)| format!("{n} by {method}"))
        .collect::<Vec<_>>()
        .join(", ");
    let methods = if methods.is_empty() {
        String::new()
    } else {
        format!(" ({methods})")
    };
    let reused = match report.reused {
        0 => String::new(),
        n => format!(", {n} were already there"),
    };
    let sure = match (compared, report.reused) {
        (true, _) => "and every byte is as in the original",
        (false, 0) => "every object is there with its size",
        (false, _) => {
            "every object is there with its size\n  \
             what an earlier run had finished was looked at by size alone: `forkpoint fork` with --verify content, or \
             `forkpoint verify --against`, compares every byte"
        }
    };
    format!(
        "forked {}\n    to {}\n\n  {} of {} besides the metadata: {} copied{methods}{reused}\n  \
         independent: no reference leaves the fork, {sure}\n\n\
         {}\n",
        name(&report.source),
        name(&report.snapshot),
        count(report.objects, "object", "objects"),
        human_bytes(report.bytes),
        report.copied,
        name(&report.how_to_restore),
    )
}
