//! What `forkpoint probe` prints.

use serde_json::{Value, json};

use crate::store::ProbeReport;

use super::text::{human_bytes, name, table};

/// The findings as a document. Times are in milliseconds.
pub fn probe_json(report: &ProbeReport) -> Value {
    let sizes: Vec<Value> = report
        .timings
        .iter()
        .map(|t| {
            json!({
                "bytes": t.bytes,
                "method": t.method,
                "rounds": t.millis.len(),
                "median_ms": t.median(),
                "fastest_ms": t.millis.first(),
                "slowest_ms": t.millis.last(),
            })
        })
        .collect();
    json!({
        "version": 1,
        "source": report.source,
        "destination": report.destination,
        "method": report.choice.method,
        "reason": report.choice.reason,
        "server_side": report.choice.method.is_server_side(),
        "create_only_copy": report.create_only_copy,
        "create_only_put": report.create_only_put,
        "part_copy": report.part_copy,
        "sizes": sizes,
    })
}

/// The findings for people.
pub fn probe_text(report: &ProbeReport) -> String {
    let answer = |found: Option<bool>| match found {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "-",
    };
    let mut text = format!(
        "from  {}\n  to  {}\n\n  duplicates by {} ({})\n",
        name(&report.source),
        name(&report.destination),
        report.choice.method,
        report.choice.reason
    );
    let found = [
        (
            "a write keeps an existing object when asked to",
            report.create_only_put,
        ),
        (
            "a copy keeps an existing object when asked to",
            report.create_only_copy,
        ),
        ("large objects are copied in parts", report.part_copy),
    ];
    for (what, found) in found {
        text.push_str(&format!("  {:<48}  {}\n", what, answer(found)));
    }
    let mut rows = vec![
        ["  SIZE", "METHOD", "MEDIAN", "FASTEST", "SLOWEST", "RATE"]
            .map(String::from)
            .to_vec(),
    ];
    let millis = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.1} ms"));
    for timing in &report.timings {
        let median = timing.median();
        let rate = median.filter(|m| *m > 0.0).map_or_else(
            || "-".into(),
            |m| {
                format!(
                    "{}/s",
                    human_bytes((timing.bytes as f64 / m * 1000.0) as u64)
                )
            },
        );
        rows.push(vec![
            format!("  {}", human_bytes(timing.bytes)),
            timing.method.to_string(),
            millis(median),
            millis(timing.millis.first().copied()),
            millis(timing.millis.last().copied()),
            rate,
        ]);
    }
    text.push('\n');
    text.push_str(&table(&rows, &[2, 3, 4, 5]));
    text
}
