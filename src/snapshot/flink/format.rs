//! Flink's format as the rest of the crate sees it: which objects a `_metadata` file needs, and the
//! same file with its objects in other places.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};

use crate::error::{Error, ErrorKind, Result};
use crate::snapshot::{
    DeclaredSize, Folder, Holder, Kind, Lookup, NewPlace, Object, Operator, Scope, Snapshot,
    SnapshotFormat,
};
use crate::store::Location as Place;

use super::{
    Location, Metadata, NewPath, Reference, Role, SavepointFormat, SegmentScope, SnapshotKind, Utf,
    decode, table::Table,
};

/// The `_metadata` file of Flink's checkpoints and savepoints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlinkFormat;

impl SnapshotFormat for FlinkFormat {
    fn name(&self) -> &'static str {
        "flink"
    }

    fn commit_object(&self) -> &'static str {
        "_metadata"
    }

    fn how_to_restore(&self, snapshot: &crate::store::Location) -> String {
        format!("restore from it with: flink run -s {snapshot} ...")
    }

    fn read(&self, bytes: &[u8], lookup: &Lookup) -> Result<Snapshot> {
        read(bytes, lookup, None)
    }

    fn read_with_references(&self, bytes: &[u8], lookup: &Lookup) -> Result<Snapshot> {
        read(bytes, lookup, Some(Table::default()))
    }

    fn rewrite(
        &self,
        bytes: &[u8],
        lookup: &Lookup,
        to: &Place,
        new_place: &NewPlace<'_>,
    ) -> Result<Vec<u8>> {
        let metadata = decode(bytes)?;
        let mut known: HashMap<PathKey<'_>, NewPath> = HashMap::new();
        metadata.encode_with(&mut |reference| {
            let (path, relative) = match reference.location {
                Location::Absolute { path, .. }
                | Location::Segment { path, .. }
                | Location::Directory { path, .. } => (path, false),
                Location::Relative { path, .. } => (path, true),
                Location::Inline { .. } | Location::Empty => return Ok(None),
            };
            if let Some(new) = known.get(&(relative, path.as_bytes())) {
                return Ok(Some(new.clone()));
            }
            let new = if relative {
                let (old, _) = resolve(bytes, path, |text| lookup.relative(text))?;
                let place = new_place(&old)?;
                match to.strip(&place) {
                    Some(below) if !below.is_empty() => NewPath::Relative(below.to_string()),
                    _ => NewPath::Absolute(place.to_string()),
                }
            } else {
                let old = resolve(bytes, path, |text| lookup.absolute(text))?;
                NewPath::Absolute(new_place(&old)?.to_string())
            };
            // A relative path that stays the same keeps its very bytes.
            if let NewPath::Relative(below) = &new
                && path
                    .to_str()
                    .is_ok_and(|text| text.trim_start_matches('/') == below)
            {
                return Ok(None);
            }
            known.insert((relative, path.as_bytes()), new.clone());
            Ok(Some(new))
        })
    }

    fn absolute_paths(&self, bytes: &[u8], limit: usize) -> Result<Vec<String>> {
        let metadata = decode(bytes)?;
        let mut paths = Vec::new();
        metadata.try_walk(&mut |reference| {
            if let Location::Absolute { path, .. } | Location::Segment { path, .. } =
                reference.location
                && paths.len() < limit
            {
                paths.push(resolve(bytes, path, |text| Ok(text.to_string()))?);
            }
            Ok(())
        })?;
        Ok(paths)
    }
}

fn read<'a>(bytes: &'a [u8], lookup: &Lookup, table: Option<Table<'a>>) -> Result<Snapshot> {
    let metadata = decode(bytes)?;
    let mut reader = Reader {
        bytes,
        lookup,
        by_text: HashMap::new(),
        objects: Vec::new(),
        table,
        folders: BTreeMap::new(),
        operators: metadata.operators.iter().map(describe).collect(),
        inlined: (0, 0),
    };
    metadata.try_walk(&mut |reference| reader.add(reference))?;
    drop(reader.by_text);
    let (objects, positions) = merge_by_place(reader.objects);
    let references = reader.table.map(|table| table.finish(&positions));
    Ok(Snapshot {
        directory: lookup.directory().clone(),
        format: FlinkFormat.name(),
        format_version: metadata.version,
        checkpoint_id: metadata.checkpoint_id,
        kind: kind(&metadata, lookup.directory()),
        operators: reader.operators,
        objects,
        folders: reader
            .folders
            .into_iter()
            .map(|(location, scope)| Folder { location, scope })
            .collect(),
        inlined: reader.inlined,
        references,
    })
}

/// The objects of all texts, sorted by place and each once; and where each went.
fn merge_by_place(objects: Vec<Object>) -> (Vec<Object>, Vec<u32>) {
    let mut positions = vec![0; objects.len()];
    let mut numbered: Vec<(u32, Object)> = (0..).zip(objects).collect();
    // Those of one place stay in the order in which they were met: the first holder counts.
    numbered.sort_unstable_by(|(m, a), (n, b)| a.location.cmp(&b.location).then(m.cmp(n)));
    let mut position = 0;
    numbered.dedup_by(|(number, later), (_, first)| {
        let is_same = later.location == first.location;
        if is_same {
            first.references = first.references.saturating_add(later.references);
            first.scope = first.scope.max(later.scope);
            first.size = first.size.and(later.size);
            first.relative = first.relative.take().or_else(|| later.relative.take());
        } else {
            position += 1;
        }
        if let Some(slot) = positions.get_mut(*number as usize) {
            *slot = position;
        }
        is_same
    });
    let objects = numbered.into_iter().map(|(_, object)| object).collect();
    (objects, positions)
}

fn describe(operator: &super::Operator<'_>) -> Operator {
    let text = |utf: Utf<'_>| (!utf.is_empty()).then(|| utf.to_str_lossy().into_owned());
    Operator {
        operator_id: operator.id.to_string(),
        name: text(operator.name),
        uid: text(operator.uid),
        parallelism: u32::try_from(operator.parallelism).unwrap_or(0),
        max_parallelism: u32::try_from(operator.max_parallelism).unwrap_or(0),
        subtasks: u32::try_from(operator.subtasks.len()).unwrap_or(u32::MAX),
        finished: operator.fully_finished.is_some()
            || (!operator.subtasks.is_empty()
                && operator.subtasks.iter().all(|s| s.state.is_none())),
        references: 0,
        referenced_bytes: 0,
        inlined_bytes: 0,
    }
}

/// Files of version 4 and later say it; for earlier ones the name of the folder and the form of
/// the keyed state do.
fn kind(metadata: &Metadata<'_>, directory: &Place) -> Kind {
    match metadata.properties.as_ref().map(|p| p.kind) {
        Some(SnapshotKind::Savepoint {
            format: SavepointFormat::Native,
            ..
        }) => Kind::SavepointNative,
        Some(SnapshotKind::Savepoint { .. }) => Kind::SavepointCanonical,
        Some(SnapshotKind::Checkpoint) => Kind::Checkpoint,
        None => {
            let mut canonical = false;
            metadata.walk(&mut |r| canonical |= r.role == Role::SavepointKeyGroups);
            match (canonical, directory.name().starts_with("savepoint-")) {
                (true, _) => Kind::SavepointCanonical,
                (false, true) => Kind::SavepointNative,
                (false, false) => Kind::Checkpoint,
            }
        }
    }
}

/// The scope that a reference gives its object, from the role alone.
fn scope(reference: &Reference<'_>) -> Scope {
    match (reference.location, reference.role) {
        // Segments say it themselves.
        (
            Location::Segment {
                scope: SegmentScope::Shared,
                ..
            },
            _,
        ) => Scope::Shared,
        (
            Location::Segment {
                scope: SegmentScope::Exclusive,
                ..
            },
            _,
        ) => Scope::Exclusive,
        (
            Location::Directory {
                task_owned: true, ..
            },
            _,
        ) => Scope::TaskOwned,
        (Location::Directory { .. }, _) => Scope::Shared,
        // Changes, and what was materialized from them: owned by the tasks, and used by later
        // checkpoints until the next materialization.
        _ if reference.in_changelog => Scope::TaskOwned,
        (_, Role::KeyedShared) => Scope::Shared,
        _ => Scope::Exclusive,
    }
}

/// What a reference says of the size of its object.
fn declared(reference: &Reference<'_>) -> DeclaredSize {
    match reference.location {
        Location::Absolute { size, .. } | Location::Relative { size, .. } => {
            match u64::try_from(size) {
                Err(_) => DeclaredSize::Unknown,
                // Parts of a changelog file give the size of the part or of the whole.
                Ok(size) if reference.role == Role::ChangelogFile => DeclaredSize::AtLeast(size),
                Ok(size) => DeclaredSize::Exactly(size),
            }
        }
        Location::Segment { start, size, .. } => u64::try_from(start)
            .and_then(|start| Ok(start.saturating_add(u64::try_from(size)?)))
            .map_or(DeclaredSize::Unknown, DeclaredSize::AtLeast),
        _ => DeclaredSize::Unknown,
    }
}

/// Reads a path and applies `rule`; an error names the byte where the path stands.
fn resolve<T>(bytes: &[u8], path: Utf<'_>, rule: impl FnOnce(&str) -> Result<T>) -> Result<T> {
    let at_byte = |e: Error| {
        let offset = (path.as_bytes().as_ptr() as usize).wrapping_sub(bytes.as_ptr() as usize);
        let what = e.location().map(|l| format!("`{l}`: ")).unwrap_or_default();
        // What is wrong use when a person types it, is damage when a file says it.
        let kind = match e.kind() {
            ErrorKind::Invalid => ErrorKind::Corrupt,
            kind => kind,
        };
        let named = Error::new(
            kind,
            format!("{what}{} (path at byte {offset})", e.message()),
        );
        match e.next_step() {
            Some(hint) => named.hint(hint),
            None => named,
        }
    };
    let text: Cow<'_, str> = path.to_str().map_err(at_byte)?;
    rule(&text).map_err(at_byte)
}

/// A path's bytes, and whether it is a relative one.
type PathKey<'a> = (bool, &'a [u8]);

struct Reader<'a> {
    bytes: &'a [u8],
    lookup: &'a Lookup,
    /// The number of a text that was met before, as most were.
    by_text: HashMap<PathKey<'a>, u32>,
    /// One for each text, by number: two texts may name one place.
    objects: Vec<Object>,
    table: Option<Table<'a>>,
    folders: BTreeMap<Place, Scope>,
    operators: Vec<Operator>,
    inlined: (u64, u64),
}

impl<'a> Reader<'a> {
    fn add(&mut self, reference: Reference<'a>) -> Result<()> {
        let (path, relative) = match reference.location {
            Location::Absolute { path, .. } | Location::Segment { path, .. } => (path, false),
            Location::Relative { path, .. } => (path, true),
            Location::Directory { path, .. } => {
                let place = resolve(self.bytes, path, |text| self.lookup.absolute(text))?;
                self.folders.entry(place).or_insert(scope(&reference));
                return self.note(&reference, None);
            }
            Location::Inline { size, .. } => {
                self.inlined.0 += 1;
                self.inlined.1 += size as u64;
                if let Some(operator) = self.operators.get_mut(reference.operator) {
                    operator.inlined_bytes += size as u64;
                }
                return self.note(&reference, None);
            }
            Location::Empty => return self.note(&reference, None),
        };
        let part = match reference.location {
            Location::Segment { size, .. } => u64::try_from(size).unwrap_or(0),
            _ => declared(&reference).bytes().unwrap_or(0),
        };
        if let Some(operator) = self.operators.get_mut(reference.operator) {
            operator.references += 1;
            operator.referenced_bytes = operator.referenced_bytes.saturating_add(part);
        }
        let (scope, size) = (scope(&reference), declared(&reference));
        let number = match self.by_text.entry((relative, path.as_bytes())) {
            Entry::Occupied(known) => {
                let number = *known.get();
                if let Some(object) = self.objects.get_mut(number as usize) {
                    object.references += 1;
                    object.scope = object.scope.max(scope);
                    object.size = object.size.and(size);
                }
                number
            }
            Entry::Vacant(unknown) => {
                let (location, relative) = if relative {
                    let rule = |text: &str| self.lookup.relative(text);
                    let (place, plain) = resolve(self.bytes, path, rule)?;
                    (place, Some(plain))
                } else {
                    (
                        resolve(self.bytes, path, |text| self.lookup.absolute(text))?,
                        None,
                    )
                };
                let number = u32::try_from(self.objects.len())
                    .map_err(|_| Error::corrupt("more than 4 billion objects"))?;
                self.objects.push(Object {
                    location,
                    scope,
                    size,
                    references: 1,
                    relative,
                    holder: Holder {
                        operator: reference.operator,
                        subtask: reference.subtask,
                    },
                });
                *unknown.insert(number)
            }
        };
        self.note(&reference, Some(number))
    }

    fn note(&mut self, reference: &Reference<'a>, object: Option<u32>) -> Result<()> {
        match &mut self.table {
            Some(table) => table.add(reference, object),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(text: &str, scope: Scope, size: DeclaredSize, relative: Option<&str>) -> Object {
        Object {
            location: Place::parse(text).unwrap(),
            scope,
            size,
            references: 2,
            relative: relative.map(str::to_string),
            holder: Holder {
                operator: text.len(),
                subtask: None,
            },
        }
    }

    #[test]
    fn texts_of_one_place_are_one_object_of_the_first_holder() {
        let (objects, positions) = merge_by_place(vec![
            met("s3://b/y", Scope::Exclusive, DeclaredSize::AtLeast(3), None),
            met("s3a://b/x", Scope::Exclusive, DeclaredSize::Unknown, None),
            met("s3://c/x", Scope::Exclusive, DeclaredSize::Unknown, None),
            met(
                "s3://b/x",
                Scope::Shared,
                DeclaredSize::AtLeast(7),
                Some("x"),
            ),
            met(
                "s3n://b/y",
                Scope::Exclusive,
                DeclaredSize::Exactly(9),
                None,
            ),
        ]);
        assert_eq!(positions, [1, 0, 2, 0, 1]);
        let [x, y, other] = objects.as_slice() else {
            panic!("{objects:?}");
        };
        assert_eq!(
            (x.references, x.scope, x.size, x.relative.as_deref()),
            (4, Scope::Shared, DeclaredSize::AtLeast(7), Some("x"))
        );
        assert_eq!(
            (x.location.to_string(), x.holder.operator),
            ("s3a://b/x".into(), 9)
        );
        assert_eq!((y.references, y.size), (4, DeclaredSize::Exactly(9)));
        assert_eq!(
            (y.location.to_string(), y.holder.operator),
            ("s3://b/y".into(), 8)
        );
        assert_eq!((other.references, positions.len()), (2, 5));
        assert_eq!(merge_by_place(Vec::new()), (Vec::new(), Vec::new()));
    }
}
