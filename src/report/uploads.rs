//! What `forkpoint uploads` prints.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::error::Error;
use crate::store::OpenUpload;

use super::text::{count, name, table};

/// The open uploads as a document. Ages are in seconds.
pub fn uploads_json(
    old: &[OpenUpload],
    young: usize,
    abort: bool,
    failed: &[(OpenUpload, Error)],
    now: SystemTime,
) -> Value {
    let uploads: Vec<Value> = old
        .iter()
        .map(|upload| {
            let error = failed.iter().find(|(f, _)| f == upload);
            json!({
                "destination": upload.destination,
                "id": upload.id,
                "age_seconds": upload.age(now).map(|age| age.as_secs()),
                "aborted": abort && error.is_none(),
                "error": error.map(|(_, e)| e.to_string()),
            })
        })
        .collect();
    json!({"version": 1, "uploads": uploads, "younger": young})
}

/// The open uploads for people.
pub fn uploads_text(
    old: &[OpenUpload],
    young: usize,
    abort: bool,
    failed: &[(OpenUpload, Error)],
    now: SystemTime,
) -> String {
    let mut rows = Vec::new();
    for upload in old {
        let mut row = vec![
            upload.age(now).map_or_else(|| "?".into(), human_age),
            name(&upload.destination),
        ];
        if let Some((_, e)) = failed.iter().find(|(f, _)| f == upload) {
            row.push(format!("NOT ABORTED: {e}"));
        }
        rows.push(row);
    }
    let mut text = table(&rows, &[0]);
    if !rows.is_empty() {
        text.push('\n');
    }
    let found = count(old.len() as u64, "open upload", "open uploads");
    text.push_str(&match (old.is_empty(), abort) {
        (true, _) => "no open uploads of that age".to_string(),
        (false, false) => format!("{found}; --abort ends them"),
        (false, true) => format!("{} of {found} aborted", old.len() - failed.len()),
    });
    if young > 0 {
        text.push_str(&format!("; {young} younger or of unknown age left alone"));
    }
    text.push('\n');
    text
}

/// `45 s`, `12 min`, `5 h`, `9 d`.
fn human_age(age: Duration) -> String {
    match age.as_secs() {
        s @ 0..120 => format!("{s} s"),
        s @ 120..7200 => format!("{} min", s / 60),
        s @ 7200..172_800 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86_400),
    }
}
