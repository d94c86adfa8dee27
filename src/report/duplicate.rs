//! What `forkpoint duplicate` prints.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::error::ErrorKind;
use crate::store::{Item, Receipt};
use crate::tree::{Failure, NOTHING_ALLOWED, TreeReport, TreeRequest};

use super::text::{count, human_bytes, name};

/// Different failures that the text names.
const FAILURES_SHOWN: usize = 20;

/// The receipt of one object as a document.
pub fn duplicate_json(receipt: &Receipt) -> Value {
    json!({
        "version": 1,
        "source": receipt.source,
        "destination": receipt.destination,
        "method": receipt.method,
        "bytes": receipt.bytes,
        "source_tag": receipt.source_tag,
        "destination_tag": receipt.destination_tag,
        "attempts": receipt.attempts,
        "reused": false,
    })
}

/// An equal object that was at the destination already, as a document.
pub fn reused_json(item: &Item) -> Value {
    json!({
        "version": 1,
        "source": item.source,
        "destination": item.destination,
        "method": null,
        "bytes": item.stat.size,
        "reused": true,
    })
}

/// The same for people.
pub fn reused_text(item: &Item) -> String {
    format!(
        "{} already there, equal: left as it is\n  from {}\n  to   {}\n",
        human_bytes(item.stat.size),
        name(&item.source),
        name(&item.destination)
    )
}

/// The receipt of one object for people.
pub fn duplicate_text(receipt: &Receipt) -> String {
    let shared = match receipt.method {
        crate::store::Method::LocalHardLink => {
            "  the two names share one file: they are not independent\n"
        }
        _ => "",
    };
    format!(
        "{} duplicated by {}\n  from {}\n  to   {}\n{shared}",
        human_bytes(receipt.bytes),
        receipt.method,
        name(&receipt.source),
        name(&receipt.destination)
    )
}

/// The result of a tree as a document.
pub fn tree_json(request: &TreeRequest, report: &TreeReport) -> Value {
    let methods: Map<String, Value> = report
        .methods
        .iter()
        .map(|(m, n)| (m.to_string(), json!(n)))
        .collect();
    let verified: Map<String, Value> = report
        .verified
        .iter()
        .map(|(l, n)| (l.as_str().to_string(), json!(n)))
        .collect();
    let failures: Vec<Value> = report
        .failures
        .iter()
        .map(|f| json!({"destination": f.destination, "kind": f.error.kind(), "error": f.error.to_string()}))
        .collect();
    json!({
        "version": 1,
        "source": request.source,
        "destination": request.destination,
        "objects": report.objects,
        "bytes": report.bytes,
        "copied": report.copied,
        "reused": report.reused,
        "failed": report.failed,
        "methods": methods,
        "verified": verified,
        "failures": failures,
    })
}

/// The result of a tree for people.
pub fn tree_text(request: &TreeRequest, report: &TreeReport) -> String {
    let methods: Vec<String> = report
        .methods
        .iter()
        .map(|(m, n)| format!("{n} by {m}"))
        .collect();
    let verified: Vec<String> = report
        .verified
        .iter()
        .filter(|(level, n)| **n > 0 && level.as_str() != "none")
        .map(|(l, n)| format!("{n} by {}", l.as_str()))
        .collect();
    let list = |words: Vec<String>| match words.is_empty() {
        true => String::new(),
        false => format!(" ({})", words.join(", ")),
    };
    let mut text = format!(
        "duplicated {}\n        to {}\n\n  {}: {} of {} copied{}, {} were already there\n",
        name(&request.source),
        name(&request.destination),
        count(report.objects, "object", "objects"),
        report.copied,
        human_bytes(report.bytes),
        list(methods),
        report.reused,
    );
    if !verified.is_empty() {
        text.push_str(&format!("  verified: {}\n", verified.join(", ")));
    }
    if report.failed > 0 {
        text.push_str(&format!(
            "  failed: {}\n",
            count(report.failed, "object", "objects")
        ));
        text.push_str(&failures_text(&report.failures));
        text.push_str(&format!("  {}\n", next_step(report)));
    }
    text
}

/// What to do about failures.
fn next_step(report: &TreeReport) -> &'static str {
    let failures = &report.failures;
    let stays = |f: &Failure| matches!(f.error.kind(), ErrorKind::Unsupported | ErrorKind::Invalid);
    if report.copied + report.reused > 0 || !failures.iter().all(Failure::is_absent) {
        match failures.iter().all(stays) {
            false => "the same command, run again, copies what is not there yet",
            true => {
                "that does not pass by itself: see to what is named; the same command then copies what is not there yet"
            }
        }
    } else if failures.iter().any(|f| f.error.kind() == ErrorKind::Denied) {
        NOTHING_ALLOWED
    } else {
        "nothing was copied"
    }
}

/// Failures with one text are one line, and there are no more lines than fit on a screen.
fn failures_text(failures: &[Failure]) -> String {
    let mut groups: Vec<(String, usize)> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for failure in failures {
        let said = failure.error.to_string();
        match known.get(&said).and_then(|at| groups.get_mut(*at)) {
            Some((_, times)) => *times += 1,
            None => {
                known.insert(said.clone(), groups.len());
                groups.push((said, 1));
            }
        }
    }
    let mut text = String::new();
    for (said, times) in groups.iter().take(FAILURES_SHOWN) {
        text.push_str(&match times {
            1 => format!("    {said}\n"),
            times => format!("    {said} ({times} times)\n"),
        });
    }
    if groups.len() > FAILURES_SHOWN {
        let more = groups.len() - FAILURES_SHOWN;
        text.push_str(&format!("    and {more} more, see --format json\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::store::Location;

    fn failure(n: usize, why: &str) -> Failure {
        Failure {
            destination: Location::parse(&format!("s3://bucket/{n}")).unwrap(),
            error: Error::new(ErrorKind::Denied, why),
        }
    }

    #[test]
    fn failures_of_one_kind_are_one_line() {
        let mut failures: Vec<Failure> = (0..400).map(|n| failure(n, "no credentials")).collect();
        failures.push(failure(400, "not allowed"));
        let text = failures_text(&failures);
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines, ["no credentials (400 times)", "not allowed"]);
    }

    #[test]
    fn failures_that_differ_fit_on_a_screen() {
        let failures: Vec<Failure> = (0..400).map(|n| failure(n, &format!("{n}"))).collect();
        let text = failures_text(&failures);
        assert_eq!(text.lines().count(), FAILURES_SHOWN + 1);
        assert!(
            text.ends_with("and 380 more, see --format json\n"),
            "{text}"
        );
    }
}
