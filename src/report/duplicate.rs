//! What `forkpoint duplicate` prints.

use serde_json::{Value, json};

use crate::store::Receipt;

use super::text::human_bytes;

/// The receipt as a document.
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
    })
}

/// The receipt for people.
pub fn duplicate_text(receipt: &Receipt) -> String {
    format!(
        "{} duplicated by {}\n  from {}\n  to   {}\n",
        human_bytes(receipt.bytes),
        receipt.method,
        receipt.source,
        receipt.destination
    )
}
