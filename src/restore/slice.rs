//! What one worker needs of a plan for many. Pure.
//!
//! A plan of a million objects takes 400 to 700 MB as a document, and once it is read more than twice that. A worker reads
//! the tasks of others only as far as to see whose they are.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Which tasks of a plan to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slice {
    /// Those of one worker.
    Worker(u32),
    /// All of them, whoever has been given them.
    All,
}

/// A plan as far as its tasks need not be understood.
#[derive(Deserialize)]
struct Document<'a> {
    workers: Vec<Given>,
    #[serde(borrow)]
    tasks: Vec<&'a RawValue>,
}

/// A worker, or a task as far as its worker.
#[derive(Deserialize)]
struct Given {
    worker: u32,
}

/// The plan `document` with the tasks of `worker` alone, and those of workers that it does not have, for which it is
/// refused; nothing else changes.
pub(super) fn cut(document: &[u8], worker: u32) -> serde_json::Result<Vec<u8>> {
    let Document { workers, tasks } = serde_json::from_slice(document)?;
    let all = workers.iter().map(|w| w.worker);
    let others: HashSet<u32> = all.filter(|other| *other != worker).collect();
    let (Some(first), Some(last)) = (tasks.first(), tasks.last()) else {
        return Ok(document.to_vec());
    };
    // They are pieces of the document.
    let place = |text: &str| (text.as_ptr() as usize).saturating_sub(document.as_ptr() as usize);
    let (start, end) = (place(first.get()), place(last.get()) + last.get().len());
    let before = document.get(..start).unwrap_or_default();
    let after = document.get(end..).unwrap_or_default();
    let mut own = Vec::with_capacity(before.len() + after.len());
    own.extend_from_slice(before);
    let mut is_first = true;
    for task in tasks {
        let Given { worker } = serde_json::from_str(task.get())?;
        if others.contains(&worker) {
            continue;
        }
        if !is_first {
            own.push(b',');
        }
        is_first = false;
        own.extend_from_slice(task.get().as_bytes());
    }
    own.extend_from_slice(after);
    Ok(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_tasks_of_others_go() {
        let with = |tasks: &str| {
            let workers = r#"[{"worker":1}, {"bytes":0,"worker":2},{"worker":3}]"#;
            format!(r#"{{"a": "]", "tasks" : {tasks}, "workers":{workers}}}"#)
        };
        let one = r#"{"worker":1,"x":"}, {\"worker\": 7"}"#;
        let two = r#"{ "y":[1], "worker" : 2 }"#;
        let all = with(&format!("[{one},\n {two}, {one}]"));
        let of = |worker| String::from_utf8(cut(all.as_bytes(), worker).unwrap()).unwrap();
        assert_eq!(of(1), with(&format!("[{one},{one}]")));
        assert_eq!(of(2), with(&format!("[{two}]")));
        assert_eq!(of(3), with("[]"));
        let nobodys = r#"{"worker":4}"#;
        let strange = with(&format!("[{one}, {nobodys}]"));
        let left = with(&format!("[{nobodys}]"));
        assert_eq!(cut(strange.as_bytes(), 2).unwrap(), left.as_bytes());
        let none = with("[ ]");
        assert_eq!(cut(none.as_bytes(), 1).unwrap(), none.as_bytes());
    }

    #[test]
    fn what_is_no_plan_is_refused() {
        for text in [
            "",
            "{}",
            "[]",
            r#"{"tasks":[]}"#,
            r#"{"workers":[],"tasks":{}}"#,
            r#"{"workers":[{}],"tasks":[]}"#,
            r#"{"workers":[],"tasks":[{}]}"#,
            r#"{"workers":[],"tasks":[{"worker":-1}]}"#,
            r#"{"workers":[],"tasks":[{"worker":1}"#,
            r#"{"workers":[],"tasks":[],"tasks":[]}"#,
        ] {
            assert!(cut(text.as_bytes(), 1).is_err(), "{text}");
        }
        assert!(cut(b"{\"workers\":[],\"tasks\":[\"\xff\"]}", 1).is_err());
    }
}
