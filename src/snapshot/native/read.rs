//! From a manifest to a snapshot: what contradicts itself is refused, with the part that does.

use std::collections::{HashMap, HashSet};

use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::{
    DeclaredSize, FileRole, Handle, Holder, KeyGroupRange, Kind, Lookup, MAX_KEY_GROUPS, Object,
    Operator, OperatorStatePart, Part, References, Scope, Snapshot, StateKind, StateReference,
};
use crate::store::{Location, split_text};

use super::manifest::{
    INLINE_LIMIT_BYTES, Manifest, ManifestKind, ManifestOperator, ManifestScope, ManifestState,
    Partition,
};

/// Refuses a manifest whose parts contradict each other.
pub(super) fn check(manifest: &Manifest) -> Result<()> {
    let refuse = |what: String, why: String| Err(Error::corrupt(format!("{what}: {why}")));
    if manifest.number < 1 || manifest.number == i64::MAX {
        let why = format!("{} is not between 1 and {}", manifest.number, i64::MAX - 1);
        return refuse("number".into(), why);
    }
    let mut ids = HashSet::new();
    for (n, operator) in manifest.operators.iter().enumerate() {
        let at = format!("operators[{n}]");
        if !ids.insert(operator.id.as_str()) {
            return refuse(at, format!("a second operator `{}`", operator.id));
        }
        for (name, count) in [
            ("parallelism", operator.parallelism),
            ("max_parallelism", operator.max_parallelism),
        ] {
            if !(1..=MAX_KEY_GROUPS).contains(&count) {
                return refuse(
                    format!("{at}.{name}"),
                    format!("{count} is not between 1 and {MAX_KEY_GROUPS}"),
                );
            }
        }
        check_subtasks(manifest, operator, &at)?;
    }
    Ok(())
}

fn check_subtasks(manifest: &Manifest, operator: &ManifestOperator, at: &str) -> Result<()> {
    let refuse = |what: String, why: String| Err(Error::corrupt(format!("{what}: {why}")));
    let mut seen = HashSet::new();
    for (n, subtask) in operator.subtasks.iter().enumerate() {
        let at = format!("{at}.subtasks[{n}]");
        let number = subtask.subtask;
        if number >= operator.parallelism {
            return refuse(
                at,
                format!("subtask {number} of {} subtasks", operator.parallelism),
            );
        }
        if !seen.insert(number) {
            return refuse(at, format!("a second subtask {number}"));
        }
        let mut inlined = 0;
        for (n, state) in subtask.states.iter().enumerate() {
            let at = format!("{at}.states[{n}]");
            if let Partition::KeyGroups { range } = state.partition {
                // As read it may be anything: its own constructor was not asked.
                let well_formed = KeyGroupRange::new(range.first(), range.len());
                if well_formed.is_err() || range.end() > operator.max_parallelism {
                    return refuse(
                        at,
                        format!(
                            "{} key groups from {} on are not among the {} of the operator",
                            range.len(),
                            range.first(),
                            operator.max_parallelism
                        ),
                    );
                }
            }
            for (n, file) in state.files.iter().enumerate() {
                if file.file as usize >= manifest.files.len() {
                    return refuse(
                        format!("{at}.files[{n}]"),
                        format!("file {} of {} files", file.file, manifest.files.len()),
                    );
                }
            }
            inlined += inline_len(state);
            if inlined > INLINE_LIMIT_BYTES {
                return refuse(
                    at,
                    format!(
                        "more than {INLINE_LIMIT_BYTES} bytes of one subtask inside the manifest"
                    ),
                );
            }
        }
    }
    Ok(())
}

/// Bytes that a base64 text stands for.
fn inline_len(state: &ManifestState) -> usize {
    state.inline.as_deref().map_or(0, |text| {
        let padding = text.bytes().rev().take_while(|b| *b == b'=').count().min(2);
        (text.len() / 4 * 3).saturating_sub(padding)
    })
}

/// Where a path leads, and the path below the snapshot's own folder if it is one.
pub(super) fn locate(path: &str, lookup: &Lookup) -> Result<(Location, Option<String>)> {
    // What is wrong use when a person types it, is damage when a manifest says it.
    let damaged = |e: Error| match e.kind() {
        ErrorKind::Invalid => Error::corrupt(format!("`{path}`: {}", e.message())),
        _ => e,
    };
    if split_text(path).0.is_some() || path.starts_with('/') {
        return Ok((lookup.absolute(path).map_err(damaged)?, None));
    }
    if let Some(below) = path.strip_prefix("../") {
        let home = lookup.directory().parent().ok_or_else(|| {
            Error::corrupt(format!("`{path}`: there is no folder above the snapshot"))
        })?;
        return Ok((home.join(below).map_err(damaged)?, None));
    }
    let (at, plain) = lookup.relative(path).map_err(damaged)?;
    Ok((at, Some(plain)))
}

/// How a location is written in the manifest of a snapshot in the folder `directory`.
pub(super) fn path_from(directory: &Location, at: &Location) -> String {
    let plain = |below: &str| !below.is_empty() && split_text(below).0.is_none();
    if let Some(below) = directory.strip(at).filter(|below| plain(below)) {
        return below.to_string();
    }
    let home = directory.parent();
    match home.as_ref().and_then(|home| home.strip(at)) {
        Some(below) if !below.is_empty() => format!("../{below}"),
        _ => at.to_string(),
    }
}

/// What a manifest refers to.
pub(super) fn snapshot(
    manifest: &Manifest,
    lookup: &Lookup,
    with_references: bool,
) -> Result<Snapshot> {
    let (mut objects, index_of) = objects(manifest, lookup)?;
    let mut references = References::default();
    let mut inlined = (0u64, 0u64);
    let mut names: HashMap<(usize, &str), u32> = HashMap::new();
    let mut operators = Vec::with_capacity(manifest.operators.len());
    for (number, operator) in manifest.operators.iter().enumerate() {
        let mut described = Operator {
            operator_id: operator.id.clone(),
            name: operator.name.clone(),
            uid: None,
            parallelism: operator.parallelism,
            max_parallelism: operator.max_parallelism,
            subtasks: short(operator.subtasks.len())?,
            finished: false,
            references: 0,
            referenced_bytes: 0,
            inlined_bytes: 0,
        };
        for subtask in &operator.subtasks {
            for state in &subtask.states {
                let handle = short(references.handles.len())?;
                if with_references {
                    let next = short(names.len())?;
                    let name = *names.entry((number, &state.name)).or_insert(next);
                    add_handle(
                        &mut references,
                        state,
                        short(number)?,
                        subtask.subtask,
                        name,
                    )?;
                }
                for file in &state.files {
                    let object = index_of.get(file.file as usize).copied().unwrap_or(0);
                    let Some(known) = objects.get_mut(object as usize) else {
                        continue;
                    };
                    if known.references == 0 {
                        known.holder = Holder {
                            operator: number,
                            subtask: i32::try_from(subtask.subtask).ok(),
                        };
                    }
                    known.references += 1;
                    described.references += 1;
                    let size = known.size.bytes().unwrap_or(0);
                    described.referenced_bytes = described.referenced_bytes.saturating_add(size);
                    if with_references {
                        references.references.push(StateReference {
                            object,
                            handle,
                            role: role(state.partition, known.scope),
                            part: Part::Whole,
                        });
                    }
                }
                if state.inline.is_some() {
                    let bytes = inline_len(state) as u64;
                    inlined.0 += 1;
                    inlined.1 += bytes;
                    described.inlined_bytes += bytes;
                }
            }
        }
        operators.push(described);
    }
    Ok(Snapshot {
        directory: lookup.directory().clone(),
        format: "native",
        format_version: i32::try_from(manifest.version).unwrap_or(i32::MAX),
        checkpoint_id: manifest.number,
        kind: match manifest.kind {
            ManifestKind::Checkpoint => Kind::Checkpoint,
            ManifestKind::Savepoint => Kind::SavepointNative,
        },
        operators,
        objects,
        folders: Vec::new(),
        inlined,
        references: with_references.then_some(references),
    })
}

/// The objects behind the files, each once and sorted by location; and for each file its object.
fn objects(manifest: &Manifest, lookup: &Lookup) -> Result<(Vec<Object>, Vec<u32>)> {
    let mut found: Vec<(Object, usize)> = Vec::with_capacity(manifest.files.len());
    for (n, file) in manifest.files.iter().enumerate() {
        let (location, relative) = locate(&file.path, lookup).map_err(|e| {
            let named = Error::new(e.kind(), format!("files[{n}].path: {}", e.message()));
            match e.next_step() {
                Some(hint) => named.hint(hint),
                None => named,
            }
        })?;
        let scope = match file.scope {
            ManifestScope::Shared => Scope::Shared,
            ManifestScope::Exclusive => Scope::Exclusive,
        };
        let object = Object {
            location,
            scope,
            size: DeclaredSize::Exactly(file.size),
            references: 0,
            relative,
            holder: Holder {
                operator: usize::MAX,
                subtask: None,
            },
        };
        found.push((object, n));
    }
    found.sort_by(|(a, _), (b, _)| a.location.cmp(&b.location));
    let mut objects: Vec<Object> = Vec::with_capacity(found.len());
    let mut index_of = vec![0; found.len()];
    let mut first_of_last = 0;
    for (object, n) in found {
        match objects.last_mut() {
            Some(last) if last.location == object.location => {
                if manifest.files.get(first_of_last).map(|f| &f.sha256)
                    != manifest.files.get(n).map(|f| &f.sha256)
                {
                    return Err(Error::corrupt(format!(
                        "files[{first_of_last}] and files[{n}] are one object with two digests"
                    )));
                }
                last.scope = last.scope.max(object.scope);
                last.size = last.size.and(object.size);
            }
            _ => {
                objects.push(object);
                first_of_last = n;
            }
        }
        if let Some(slot) = index_of.get_mut(n) {
            *slot = short(objects.len() - 1)?;
        }
    }
    Ok((objects, index_of))
}

fn add_handle(
    references: &mut References,
    state: &ManifestState,
    operator: u32,
    subtask: u32,
    name: u32,
) -> Result<()> {
    let handle = short(references.handles.len())?;
    let key_groups = match state.partition {
        Partition::KeyGroups { range } => Some(range),
        _ => None,
    };
    references.handles.push(Handle {
        operator,
        subtask,
        kind: match key_groups {
            Some(_) => StateKind::KeyedIncremental,
            None => StateKind::Operator,
        },
        raw: false,
        in_changelog: false,
        key_groups,
        changelog_key_groups: None,
    });
    if let Some((distribution, elements)) = state.partition.distribution() {
        references.operator_states.push(OperatorStatePart {
            handle,
            name,
            order: name,
            distribution,
            elements,
        });
    }
    Ok(())
}

fn role(partition: Partition, scope: Scope) -> FileRole {
    match (partition, scope) {
        (Partition::KeyGroups { .. }, Scope::Shared) => FileRole::DatabaseShared,
        (Partition::KeyGroups { .. }, _) => FileRole::DatabasePrivate,
        _ => FileRole::Content,
    }
}

fn short(number: usize) -> Result<u32> {
    u32::try_from(number).map_err(|_| Error::corrupt("more than 4 billion of a kind"))
}
