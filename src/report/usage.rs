//! What `forkpoint usage` prints.

use serde_json::{Value, json};

use crate::ownership::{Usage, human_millis};

use super::ls::missing_text;
use super::text::{count, human_bytes, name, table};

/// The sums as a document.
pub fn usage_json(usage: &Usage) -> Value {
    let mut document = json!({ "version": 1 });
    if let (Value::Object(document), Ok(Value::Object(usage))) =
        (&mut document, serde_json::to_value(usage))
    {
        document.extend(usage);
    }
    document
}

/// The sums for people.
pub fn usage_text(usage: &Usage) -> String {
    let mut rows = Vec::new();
    for (class, amount) in &usage.classes {
        rows.push(vec![
            (*class).to_string(),
            amount.objects.to_string(),
            human_bytes(amount.bytes),
        ]);
        let details = match *class {
            "orphan" => &usage.orphans,
            "unknown" => &usage.unknown,
            _ => continue,
        };
        for (detail, amount) in details {
            rows.push(vec![
                format!("  {detail}"),
                amount.objects.to_string(),
                human_bytes(amount.bytes),
            ]);
        }
    }
    let mut text = table(&rows, &[1, 2]);
    text.push_str(&format!(
        "{}, {}\n",
        count(usage.total.objects, "object", "objects"),
        human_bytes(usage.total.bytes)
    ));
    for (detail, at) in &usage.examples {
        text.push_str(&format!("  {detail}: {}\n", name(at)));
    }
    if let Some(oldest) = usage.oldest_live_unix_ms {
        text.push_str(&format!(
            "the oldest object in use is {} old: no bucket rule may expire objects by age\n",
            human_millis(usage.taken_at_unix_ms.saturating_sub(oldest))
        ));
    }
    text.push_str(&missing_text(&usage.missing));
    text
}
