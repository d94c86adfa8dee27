//! What `forkpoint show` prints.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use crate::snapshot::{Object, Scope, Snapshot};
use crate::store::{Location, Stat};

use super::text::{count, human_bytes, name, table};

/// A snapshot, and what the stores say of its objects.
#[derive(Debug, Clone)]
pub struct ShowReport {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Per object what its store says; `None` for one that is missing. Empty if nobody looked.
    pub stats: HashMap<Location, Option<Stat>>,
}

impl ShowReport {
    /// The size in the store, else what the metadata says.
    fn size(&self, object: &Object) -> Option<u64> {
        match self.stats.get(&object.location) {
            Some(Some(stat)) => Some(stat.size),
            _ => object.size.bytes(),
        }
    }

    /// Whether an object that is there has a size that the metadata allows.
    fn size_as_declared(&self, object: &Object) -> Option<bool> {
        let stat = self.stats.get(&object.location)?.as_ref()?;
        Some(object.size.allows(stat.size))
    }

    /// Whether the object is there, if somebody looked.
    fn present(&self, object: &Object) -> Option<bool> {
        self.stats.get(&object.location).map(Option::is_some)
    }

    /// The objects that are there with another size than the metadata says, and that size.
    pub fn wrong_sizes(&self) -> Vec<(&Object, u64)> {
        let wrong = |o| match self.size_as_declared(o) {
            Some(false) => Some((o, self.stats.get(&o.location)?.as_ref()?.size)),
            _ => None,
        };
        self.snapshot.objects.iter().filter_map(wrong).collect()
    }

    fn is_outside(&self, object: &Object) -> bool {
        !self.snapshot.directory.contains(&object.location)
    }
}

/// The snapshot as a document; `files` lists each physical object once.
pub fn show_json(report: &ShowReport) -> Value {
    let s = &report.snapshot;
    let files: Vec<Value> = s
        .objects
        .iter()
        .map(|o| {
            json!({
                "location": o.location,
                "size": report.size(o),
                "scope": o.scope,
                "references": o.references,
                "present": report.present(o),
                "declared_size": o.size.bytes(),
                "size_as_declared": report.size_as_declared(o),
                "relative": o.relative.is_some(),
            })
        })
        .collect();
    let folders: Vec<Value> = s
        .folders
        .iter()
        .map(|f| json!({"location": f.location, "scope": f.scope}))
        .collect();
    json!({
        "version": 1,
        "snapshot": {
            "location": s.directory,
            "checkpoint_id": s.checkpoint_id,
            "format": s.format,
            "format_version": s.format_version,
            "kind": s.kind,
        },
        "operators": s.operators,
        "files": files,
        "folders": folders,
        "inlined": {"handles": s.inlined.0, "bytes": s.inlined.1},
    })
}

/// The snapshot for people.
pub fn show_text(report: &ShowReport, all_files: bool) -> String {
    let s = &report.snapshot;
    let mut text = format!(
        "{}\n  {} {}, {} metadata version {}\n",
        name(&s.directory),
        s.kind.as_str(),
        s.checkpoint_id,
        s.format,
        s.format_version
    );
    text.push_str("\noperators\n");
    let mut rows = vec![
        [
            "OPERATOR", "SUBTASKS", "MAX", "FILES", "BYTES", "INLINED", "NAME",
        ]
        .map(String::from)
        .to_vec(),
    ];
    for o in &s.operators {
        let label = match (&o.name, o.finished) {
            (Some(n), false) => name(n),
            (Some(n), true) => format!("{} (finished)", name(n)),
            (None, true) => "(finished)".into(),
            (None, false) => String::new(),
        };
        rows.push(vec![
            o.operator_id.clone(),
            o.parallelism.to_string(),
            o.max_parallelism.to_string(),
            o.references.to_string(),
            human_bytes(o.referenced_bytes),
            human_bytes(o.inlined_bytes),
            label,
        ]);
    }
    text.push_str(&table(&rows, &[1, 2, 3, 4, 5]));
    text.push_str("\nfiles\n");
    text.push_str(&scopes(report));
    outside(report, &mut text);
    let missing: Vec<&Object> = s
        .objects
        .iter()
        .filter(|o| report.present(o) == Some(false))
        .collect();
    if !missing.is_empty() {
        text.push_str(&format!(
            "\nmissing: {}\n",
            count(missing.len() as u64, "object", "objects")
        ));
        for object in missing {
            text.push_str(&format!("  {}\n", name(&object.location)));
        }
    }
    let wrong = report.wrong_sizes();
    if !wrong.is_empty() {
        text.push_str(&format!(
            "\nof another size than the metadata says: {}\n",
            count(wrong.len() as u64, "object", "objects")
        ));
        for (object, size) in wrong {
            text.push_str(&format!(
                "  {}: {size} bytes, not {}\n",
                name(&object.location),
                object.size.bytes().unwrap_or(0)
            ));
        }
    }
    if all_files {
        let mut rows = vec![
            ["SIZE", "SCOPE", "REFS", "LOCATION"]
                .map(String::from)
                .to_vec(),
        ];
        for o in &s.objects {
            rows.push(vec![
                report.size(o).map_or_else(|| "?".into(), human_bytes),
                o.scope.as_str().into(),
                o.references.to_string(),
                name(&o.location),
            ]);
        }
        text.push('\n');
        text.push_str(&table(&rows, &[0, 2]));
    }
    text
}

fn scopes(report: &ShowReport) -> String {
    let mut sums: BTreeMap<Scope, (u64, u64, u64)> = BTreeMap::new();
    for object in &report.snapshot.objects {
        let sum = sums.entry(object.scope).or_default();
        sum.0 += 1;
        sum.1 += report.size(object).unwrap_or(0);
        sum.2 += object.references;
    }
    let mut rows = vec![
        ["SCOPE", "OBJECTS", "BYTES", "REFERENCES"]
            .map(String::from)
            .to_vec(),
    ];
    for (scope, (objects, bytes, references)) in sums.into_iter().rev() {
        rows.push(vec![
            scope.as_str().into(),
            objects.to_string(),
            human_bytes(bytes),
            references.to_string(),
        ]);
    }
    let (handles, bytes) = report.snapshot.inlined;
    rows.push(vec![
        "in the metadata".into(),
        "-".into(),
        human_bytes(bytes),
        handles.to_string(),
    ]);
    table(&rows, &[1, 2, 3])
}

/// Which folders besides its own the snapshot needs.
fn outside(report: &ShowReport, text: &mut String) {
    let mut folders: BTreeMap<Location, (u64, u64)> = BTreeMap::new();
    for object in report
        .snapshot
        .objects
        .iter()
        .filter(|o| report.is_outside(o))
    {
        if let Some(folder) = object.location.parent() {
            let sum = folders.entry(folder).or_default();
            sum.0 += 1;
            sum.1 += report.size(object).unwrap_or(0);
        }
    }
    if folders.is_empty() {
        text.push_str(
            "\nnothing lies outside the snapshot's own folder: a plain copy of it is complete\n",
        );
        return;
    }
    text.push_str("\noutside its own folder: a plain copy of the folder would miss these\n");
    let rows: Vec<Vec<String>> = folders
        .into_iter()
        .map(|(folder, (n, bytes))| {
            vec![
                format!("  {}", name(folder)),
                count(n, "object", "objects"),
                human_bytes(bytes),
            ]
        })
        .collect();
    text.push_str(&table(&rows, &[2]));
    if !report.snapshot.folders.is_empty() {
        text.push_str("\nfolders that the engine removes as a whole when a job that owns this snapshot lets it go\n");
        for folder in &report.snapshot.folders {
            text.push_str(&format!("  {}\n", name(&folder.location)));
        }
    }
}
