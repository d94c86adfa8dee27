//! What `forkpoint why` prints.

use serde_json::{Value, json};

use crate::ownership::{
    Answer, BEING_GIVEN_UP, Class, CleanOutlook, MIN_AGE_MS, NO_RULE, NeedReason, ObjectOutlook,
    ObjectVerdict, Verdict, human_millis,
};

use crate::store::Location;

use super::clean::stay_text;
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
            name(reason_text(reason, verdict.refers_to))
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
        "  of {}: deleting it would free {limit}{}, {}\n",
        objects_text(verdict),
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

/// Where was looked for what needs it, for people.
pub fn roots_text(roots: &[Location], guessed: bool) -> String {
    let mut text = String::new();
    for root in roots {
        text.push_str(&format!("  looked at: {}\n", name(root)));
    }
    if guessed {
        text.push_str(
            "    as no --root was given: jobs that keep their checkpoints elsewhere were not asked\n",
        );
    }
    text
}

/// What a clean would do about the snapshot, for people.
pub fn outlook_text(outlook: &CleanOutlook) -> String {
    let command = command(&outlook.keep, outlook.min_age_ms);
    if outlook.blocked {
        return blocked(&command);
    }
    if !outlook.goes {
        let mut why: Vec<String> = outlook.stays.iter().map(stay_text).collect();
        if outlook.keep.is_empty() && !why.iter().any(|reason| reason == NO_RULE) {
            // Said first, for whoever gives a rule and is told of the next reason only then.
            why.insert(0, NO_RULE.to_string());
        }
        return format!("  {command} would keep it: {}\n", name(why.join("; ")));
    }
    let left = match outlook.left.objects {
        0 => String::new(),
        n => format!(
            "; {} of it, {}, {}, since snapshots that stay need {}",
            count(n, "object", "objects"),
            human_bytes(outlook.left.bytes),
            if n == 1 { "stays" } else { "stay" },
            if n == 1 { "it" } else { "them" },
        ),
    };
    format!(
        "  {command} would delete it: {}, {}{left}\n",
        count(outlook.deleted.objects, "object", "objects"),
        human_bytes(outlook.deleted.bytes)
    )
}

/// What a clean would do about the object, for people.
pub fn object_outlook_text(outlook: &ObjectOutlook) -> String {
    let command = command(&outlook.keep, outlook.min_age_ms);
    if outlook.blocked {
        return blocked(&command);
    }
    let what = if outlook.goes { "delete" } else { "keep" };
    let why = match outlook.class {
        Class::Live => "snapshots that stay refer to it",
        Class::NeededBy => "a snapshot that stays needs it",
        Class::Pinned => "a pin, a claim, a restore or a fork keeps it",
        Class::Going => "only snapshots that go refer to it",
        Class::TooYoung => {
            "it is younger than the minimum age, or its job is at work and may yet refer to it"
        }
        Class::Orphan(cause) => cause.as_str(),
        Class::Unknown(doubt) => doubt.as_str(),
        Class::Record => "it is a record of forkpoint's own",
        Class::Marker => "it marks a folder",
        Class::Absent => "it is not there",
    };
    format!("  {command} would {what} it: {why}\n")
}

fn blocked(command: &str) -> String {
    format!("  {command} would delete nothing while evidence is missing\n")
}

/// A clean, as it would be typed.
fn command(keep: &[String], min_age_ms: u64) -> String {
    let mut text = match keep {
        [] => "clean without --keep".to_string(),
        rules => {
            let rules: Vec<String> = rules.iter().map(|rule| format!("--keep {rule}")).collect();
            format!("clean {}", name(rules.join(" ")))
        }
    };
    if min_age_ms != MIN_AGE_MS {
        text.push_str(&format!(
            " with a minimum age of {}",
            human_millis(min_age_ms)
        ));
    }
    text
}

fn push_lines(text: &mut String, head: &str, lines: &[String]) {
    for line in lines {
        text.push_str(&format!("{head}{}\n", name(line)));
    }
}

/// How many objects the snapshot consists of, and where they are if not all were seen.
fn objects_text(verdict: &Verdict) -> String {
    let all = count(verdict.refers_to, "object", "objects");
    let seen = human_bytes(verdict.total.bytes);
    let mut elsewhere = Vec::new();
    if verdict.outside > 0 {
        elsewhere.push(format!(
            "{} outside of the roots that were looked at",
            verdict.outside
        ));
    }
    if verdict.lost > 0 {
        elsewhere.push(match verdict.wrong_size {
            0 => format!("{} not there", verdict.lost),
            wrong => format!(
                "{} lost ({wrong} of them there with another size than the metadata says)",
                verdict.lost
            ),
        });
    }
    match elsewhere.is_empty() {
        true => format!("{all}, {seen}"),
        false => format!(
            "{all}, {} seen below the roots, {seen}, and {}",
            verdict.total.objects,
            elsewhere.join(", ")
        ),
    }
}

fn reason_text(reason: &NeedReason, objects: u64) -> String {
    match reason {
        NeedReason::UsedBy {
            snapshot,
            amount,
            seen_objects,
            ..
        } => {
            let seen = match amount.objects - seen_objects.min(&amount.objects) {
                0 => String::new(),
                _ => format!(", {seen_objects} of them seen below the roots"),
            };
            format!(
                "{snapshot} refers to {} of its {objects} objects{seen}, {}",
                amount.objects,
                human_bytes(amount.bytes)
            )
        }
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
            given_up,
            ..
        } => match given_up {
            None => format!("fork {fork_id} to {destination} reads it, or was left half done"),
            Some(_) => format!("fork {fork_id} to {destination} is {BEING_GIVEN_UP}"),
        },
        NeedReason::Restoring { job, mode } => {
            format!(
                "job {job} was started from it ({mode}) and has completed no checkpoint of its own since"
            )
        }
    }
}
