//! What `forkpoint why` prints.

use serde_json::{Value, json};

use crate::ownership::{Answer, NeedReason, ObjectVerdict, Verdict};

use super::ls::missing_text;
use super::text::{count, human_bytes, name};

/// The verdict as a document.
pub fn why_json(verdict: &Verdict) -> Value {
    let mut document = json!({ "version": 1 });
    if let (Value::Object(document), Ok(Value::Object(verdict))) =
        (&mut document, serde_json::to_value(verdict))
    {
        document.extend(verdict);
    }
    document
}

/// The verdict on an object as a document.
pub fn object_json(verdict: &ObjectVerdict) -> Value {
    let mut document = json!({ "version": 1 });
    if let (Value::Object(document), Ok(Value::Object(verdict))) =
        (&mut document, serde_json::to_value(verdict))
    {
        document.extend(verdict);
    }
    document
}

/// The verdict for people.
pub fn why_text(verdict: &Verdict) -> String {
    let mut text = format!(
        "{}\n  {}",
        name(&verdict.directory),
        verdict.answer.as_str()
    );
    if let Some(job) = &verdict.claimed_by {
        text.push_str(&format!(" (claimed by job {})", name(job)));
    }
    text.push('\n');
    for reason in verdict.reasons.iter().take(20) {
        text.push_str(&format!(
            "    {}\n",
            name(reason_text(reason, verdict.total.objects))
        ));
    }
    if verdict.reasons.len() > 20 {
        text.push_str(&format!("    and {} more\n", verdict.reasons.len() - 20));
    }
    let limit = match (verdict.answer, verdict.missing.is_empty()) {
        (Answer::Unknown, _) | (_, false) => "at most ",
        _ => "",
    };
    text.push_str(&format!(
        "  of {}, {}: deleting it would free {limit}{}, {}\n",
        count(verdict.total.objects, "object", "objects"),
        human_bytes(verdict.total.bytes),
        count(verdict.freed.objects, "object", "objects"),
        human_bytes(verdict.freed.bytes),
    ));
    push_lines(&mut text, "  note: ", &verdict.notes);
    push_lines(&mut text, "  would change it: ", &verdict.changes);
    text.push_str(&missing_text(&verdict.missing));
    text
}

/// The verdict on an object for people.
pub fn object_text(verdict: &ObjectVerdict) -> String {
    let size = verdict
        .bytes
        .map_or_else(String::new, |b| format!(", {}", human_bytes(b)));
    let mut text = format!(
        "{}\n  {}{size}\n",
        name(&verdict.object),
        verdict.answer.as_str()
    );
    for snapshot in verdict.used_by.iter().take(20) {
        text.push_str(&format!("    {} refers to it\n", name(snapshot)));
    }
    if verdict.used_by.len() > 20 {
        text.push_str(&format!("    and {} more\n", verdict.used_by.len() - 20));
    }
    push_lines(&mut text, "  note: ", &verdict.notes);
    push_lines(&mut text, "  would change it: ", &verdict.changes);
    text.push_str(&missing_text(&verdict.missing));
    text
}

fn push_lines(text: &mut String, head: &str, lines: &[String]) {
    for line in lines {
        text.push_str(&format!("{head}{}\n", name(line)));
    }
}

fn reason_text(reason: &NeedReason, objects: u64) -> String {
    match reason {
        NeedReason::UsedBy {
            snapshot, amount, ..
        } => format!(
            "{snapshot} refers to {} of its {objects} objects, {}",
            amount.objects,
            human_bytes(amount.bytes)
        ),
        NeedReason::MeantBy {
            snapshot,
            objects: meant,
            ..
        } => format!(
            "{snapshot} has relative references that lead nowhere; {meant} of them have names of its objects"
        ),
        NeedReason::Pinned {
            name,
            owner,
            why,
            expires_unix_ms,
        } => {
            let until = expires_unix_ms
                .map_or_else(String::new, |t| format!(", until {}", crate::clock::utc(t)));
            format!("pinned as `{name}` by {owner}: {why}{until}")
        }
        NeedReason::ForkedTo {
            fork_id,
            destination,
            ..
        } => {
            format!("fork {fork_id} to {destination} reads it, or was left half done")
        }
        NeedReason::Restoring { job, mode } => {
            format!(
                "job {job} was started from it ({mode}) and has completed no checkpoint of its own since"
            )
        }
    }
}
