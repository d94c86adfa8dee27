//! Decodes samples of Flink's `_metadata` files and compares with what Flink itself reads.

// Helpers of tests fail by panicking, like the tests themselves.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout
)]

#[path = "flink_metadata/dump.rs"]
mod dump;
#[path = "flink_metadata/fixtures.rs"]
mod fixtures;

use std::fs;

use forkpoint::ErrorKind;
use forkpoint::snapshot::flink::{
    self, Dialect, KeyedHandle, Location, Metadata, NewPath, Reference, Role, SnapshotKind,
    SubtaskState, Utf,
};
use serde_json::Value;

/// Keys that Flink's objects have only since a release: type of the object, key, release.
const NEWER_KEYS: &[(&str, &str, (u32, u32))] = &[
    ("incremental", "checkpointed_size", (1, 15)),
    ("incremental", "state_handle_id", (1, 15)),
    ("key_groups", "state_handle_id", (1, 15)),
    ("changelog", "checkpoint_id", (1, 16)),
    ("changelog_file", "storage_identifier", (1, 16)),
];

/// `1.10` of `v2-full-flink1.10.3`. The dumps of hand-made files are from 2.3.
fn release(name: &str) -> (u32, u32) {
    match name.split_once("-flink") {
        Some((_, release)) => {
            let mut parts = release.split('.').map(|part| part.parse().unwrap());
            (parts.next().unwrap(), parts.next().unwrap())
        }
        None => (2, 3),
    }
}

/// Leaves out what a release does not have, and sorts what it has in hash order.
fn normalize(dump: &mut Value, release: (u32, u32)) {
    match dump {
        Value::Array(list) => list.iter_mut().for_each(|item| normalize(item, release)),
        Value::Object(map) => {
            map.values_mut().for_each(|item| normalize(item, release));
            let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
            let kind = kind.to_owned();
            for (of, key, since) in NEWER_KEYS {
                if kind == *of && release < *since {
                    map.remove(*key);
                }
            }
            if kind == "incremental" && release < (1, 16) {
                for list in ["shared", "private"] {
                    if let Some(Value::Array(list)) = map.get_mut(list) {
                        list.sort_by_key(|file| file["name"].to_string());
                    }
                }
            }
        }
        _ => {}
    }
}

#[test]
fn every_sample_reads_as_flink_reads_it() {
    let samples = fixtures::with_dumps();
    assert!(samples.len() > 40, "{}", samples.len());
    for sample in samples.iter().filter(|sample| sample.must_load()) {
        let name = &sample.name;
        let metadata = flink::decode(&sample.bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut ours = dump::metadata(&metadata);
        let mut theirs: Value = serde_json::from_slice(&fs::read(&sample.dump).unwrap()).unwrap();
        let release = release(name);
        normalize(&mut ours, release);
        normalize(&mut theirs, release);
        if ours != theirs {
            panic!("{name}:\nours {ours:#}\nFlink {theirs:#}");
        }
        let again = metadata.encode().unwrap();
        assert!(again == sample.bytes, "{name} changed by encoding");
    }
}

#[test]
fn real_checkpoints_survive_decoding_and_encoding() {
    for (name, bytes) in fixtures::real() {
        let metadata = flink::decode(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(metadata.encode().unwrap() == bytes, "{name}");
        let mut references = 0;
        metadata.walk(&mut |_| references += 1);
        assert!(references > 0, "{name}");
    }
}

#[test]
fn what_must_not_load_is_refused_with_a_place() {
    let mut refused = 0;
    for sample in fixtures::with_dumps() {
        if sample.must_load() {
            continue;
        }
        let name = sample.name;
        let error = match flink::decode(&sample.bytes) {
            Ok(_) => panic!("{name} was decoded"),
            Err(error) => error,
        };
        let kind = if name == "bad-version-99" {
            ErrorKind::Unsupported
        } else {
            ErrorKind::Corrupt
        };
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.message().contains("byte "), "{name}: {error}");
        refused += 1;
    }
    assert!(refused >= 30, "{refused}");
}

#[test]
fn every_truncation_is_refused() {
    for sample in fixtures::with_dumps() {
        if sample.bytes.len() > 12_000 || !sample.must_load() {
            continue;
        }
        for len in 0..sample.bytes.len() {
            let error = match flink::decode(&sample.bytes[..len]) {
                Ok(_) => panic!("{} cut to {len} bytes was decoded", sample.name),
                Err(error) => error,
            };
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{}", sample.name);
        }
    }
}

fn sample(name: &str) -> Vec<u8> {
    let mut path = fixtures::directory().join(format!("{name}.metadata"));
    if !path.exists() {
        path = fixtures::directory().join(format!("edge/{name}.metadata"));
    }
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Moves everything to another place and back.
#[test]
fn rewriting_moves_every_path_and_nothing_else() {
    for sample in fixtures::with_dumps() {
        if !sample.name.starts_with('v') {
            continue;
        }
        let metadata = flink::decode(&sample.bytes).unwrap();
        let moved = metadata
            .encode_with(&mut |reference| {
                Ok(match reference.location {
                    Location::Absolute { path, .. }
                    | Location::Segment { path, .. }
                    | Location::Directory { path, .. } => {
                        Some(NewPath::Absolute(format!("new://place/{path}")))
                    }
                    Location::Relative { path, .. } => {
                        Some(NewPath::Relative(format!("moved-{path}")))
                    }
                    Location::Inline { .. } | Location::Empty => None,
                })
            })
            .unwrap();
        let there = flink::decode(&moved).unwrap();
        there.walk(&mut |reference| match reference.location {
            Location::Absolute { path, .. }
            | Location::Segment { path, .. }
            | Location::Directory { path, .. } => {
                assert!(path.as_bytes().starts_with(b"new://place/"));
            }
            Location::Relative { path, .. } => assert!(path.as_bytes().starts_with(b"moved-")),
            Location::Inline { .. } | Location::Empty => {}
        });
        let back = there
            .encode_with(&mut |reference| {
                let strip = |path: flink::Utf<'_>, prefix| {
                    let path = path.to_str().unwrap().into_owned();
                    path.strip_prefix(prefix).unwrap().to_owned()
                };
                Ok(match reference.location {
                    Location::Absolute { path, .. }
                    | Location::Segment { path, .. }
                    | Location::Directory { path, .. } => {
                        Some(NewPath::Absolute(strip(path, "new://place/")))
                    }
                    Location::Relative { path, .. } => {
                        Some(NewPath::Relative(strip(path, "moved-")))
                    }
                    Location::Inline { .. } | Location::Empty => None,
                })
            })
            .unwrap();
        assert!(back == sample.bytes, "{}", sample.name);
    }
}

#[test]
fn files_can_become_absolute_and_relative_again() {
    let bytes = sample("v6-all-flink2.3.0");
    let metadata = flink::decode(&bytes).unwrap();
    let absolute = metadata
        .encode_with(&mut |reference| {
            Ok(match reference.location {
                Location::Relative { path, .. } => {
                    Some(NewPath::Absolute(format!("s3://fork/chk-1/{path}")))
                }
                _ => None,
            })
        })
        .unwrap();
    let there = flink::decode(&absolute).unwrap();
    let mut forked = 0;
    there.walk(&mut |reference| match reference.location {
        Location::Relative { .. } => panic!("{reference:?}"),
        Location::Absolute { path, .. } => {
            forked += usize::from(path.as_bytes().starts_with(b"s3://fork/"));
        }
        _ => {}
    });
    assert!(forked > 5, "{forked}");
    let back = there
        .encode_with(&mut |reference| {
            Ok(match reference.location {
                Location::Absolute { path, .. } => {
                    let path = path.to_str()?;
                    path.strip_prefix("s3://fork/chk-1/")
                        .map(|name| NewPath::Relative(name.to_owned()))
                }
                _ => None,
            })
        })
        .unwrap();
    assert!(back == bytes);
}

type Choice = fn(&Reference<'_>) -> bool;

/// Replaces the first reference that `choose` likes, and returns the error.
fn refusal(name: &str, new: NewPath, choose: Choice) -> forkpoint::Error {
    let bytes = sample(name);
    let metadata = flink::decode(&bytes).unwrap();
    let rewritten =
        metadata.encode_with(&mut |reference| Ok(choose(&reference).then(|| new.clone())));
    match rewritten {
        Ok(_) => panic!("{new:?} was taken"),
        Err(error) => error,
    }
}

#[test]
fn paths_that_flink_could_not_read_are_refused() {
    let absolute = |r: &Reference<'_>| matches!(r.location, Location::Absolute { .. });
    for (sample, new, choose) in [
        (
            "v2-full-flink1.10.3",
            NewPath::Relative("x".into()),
            absolute as Choice,
        ),
        (
            "v6-all-flink2.3.0",
            NewPath::Relative("s3:x".into()),
            absolute,
        ),
        ("v6-all-flink2.3.0", NewPath::Relative("/".into()), absolute),
        ("v6-all-flink2.3.0", NewPath::Absolute("".into()), absolute),
        (
            "v6-all-flink2.3.0",
            NewPath::Absolute("s3:x".into()),
            absolute,
        ),
        (
            "v6-all-flink2.3.0",
            NewPath::Absolute(format!("/{}", "é".repeat(33_000))),
            absolute,
        ),
        ("v6-all-flink2.3.0", NewPath::Relative("x".into()), |r| {
            matches!(r.location, Location::Segment { .. })
        }),
        ("v6-all-flink2.3.0", NewPath::Relative("x".into()), |r| {
            matches!(r.location, Location::Directory { .. })
        }),
        ("v6-all-flink2.3.0", NewPath::Absolute("/x".into()), |r| {
            matches!(r.location, Location::Inline { .. })
        }),
        ("v6-all-flink2.3.0", NewPath::Absolute("/x".into()), |r| {
            matches!(r.location, Location::Empty)
        }),
    ] {
        let error = refusal(sample, new, choose);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}

#[test]
fn the_walk_tells_roles() {
    let bytes = sample("v6-all-flink2.3.0");
    let metadata = flink::decode(&bytes).unwrap();
    let mut seen = Vec::new();
    metadata.walk(&mut |r| {
        seen.push((r.role, r.in_changelog, r.raw_keyed));
        assert_eq!(r.subtask.is_none(), r.role == Role::Coordinator);
        assert!(r.operator < metadata.operators.len());
        let named = matches!(r.role, Role::KeyedShared | Role::KeyedPrivate);
        assert_eq!(r.local_name.is_some(), named);
    });
    for expected in [
        (Role::Coordinator, false, false),
        (Role::ManagedOperatorState, false, false),
        (Role::RawOperatorState, false, false),
        (Role::KeyGroups, false, false),
        (Role::KeyGroups, false, true),
        (Role::SavepointKeyGroups, false, false),
        (Role::SavepointKeyGroups, true, false),
        (Role::KeyedShared, false, false),
        (Role::KeyedShared, true, false),
        (Role::KeyedPrivate, true, false),
        (Role::KeyedMeta, true, false),
        (Role::ChangelogFile, true, false),
        (Role::InputChannel, false, false),
        (Role::OutputChannel, false, false),
    ] {
        assert!(seen.contains(&expected), "{expected:?}");
    }
    let directories = |task_owned| {
        let mut count = 0;
        metadata.walk(&mut |r| {
            if let Location::Directory {
                task_owned: owned, ..
            } = r.location
            {
                count += usize::from(owned == task_owned);
            }
        });
        count
    };
    assert_eq!((directories(true), directories(false)), (3, 3));
}

/// The samples of Flink 1.11 and 1.14 that are not at hand are made of newer ones.
#[test]
fn the_dialects_of_version_3_are_told_apart() {
    let bytes = sample("v3-channels-flink1.13.6");
    let mut metadata = flink::decode(&bytes).unwrap();
    assert_eq!(metadata.dialect, Dialect::Modern);
    metadata.dialect = Dialect::OldChannels;
    let mut channels = 0;
    for state in states(&mut metadata) {
        let lists = [&mut state.input_channels, &mut state.output_channels];
        for channel in lists.into_iter().flatten() {
            channel.subtask = None;
            channels += 1;
        }
    }
    assert!(channels > 0);
    expect_dialect(&metadata);

    let bytes = sample("v3-changelog-flink1.15.4");
    let mut metadata = flink::decode(&bytes).unwrap();
    metadata.dialect = Dialect::OldChangelog;
    let mut changelogs = 0;
    for state in states(&mut metadata) {
        if let Some(KeyedHandle::Changelog(handle)) = &mut state.managed_keyed {
            handle.checkpointed_size = 0;
            handle.materialization_id = 0;
            handle.state_handle_id = Utf::default();
            for part in handle.non_materialized.iter_mut().flatten() {
                match part {
                    KeyedHandle::ChangelogMemory(memory) => {
                        memory.state_handle_id = Utf::default();
                    }
                    KeyedHandle::ChangelogFiles(files) => {
                        files.checkpointed_size = 0;
                        files.state_handle_id = Utf::default();
                    }
                    _ => panic!("{part:?}"),
                }
            }
            changelogs += 1;
        }
    }
    assert!(changelogs > 0);
    expect_dialect(&metadata);
}

fn states<'t, 'a>(
    metadata: &'t mut Metadata<'a>,
) -> impl Iterator<Item = &'t mut SubtaskState<'a>> {
    let operators = metadata.operators.iter_mut();
    operators
        .flat_map(|operator| &mut operator.subtasks)
        .filter_map(|subtask| subtask.state.as_deref_mut())
}

/// Decodes what `metadata` encodes to, and expects the same tree.
fn expect_dialect(metadata: &Metadata<'_>) {
    let bytes = metadata.encode().unwrap();
    let again = flink::decode(&bytes).unwrap();
    assert_eq!(again.dialect, metadata.dialect);
    assert_eq!(again.operators, metadata.operators);
    assert!(again.encode().unwrap() == bytes);
}

#[test]
fn newer_and_older_versions_are_refused_by_name() {
    let mut bytes = sample("v6-all-flink2.3.0");
    for (version, kind) in [
        (0, ErrorKind::Unsupported),
        (7, ErrorKind::Unsupported),
        (-1, ErrorKind::Corrupt),
    ] {
        bytes[4..8].copy_from_slice(&i32::to_be_bytes(version));
        let error = flink::decode(&bytes).unwrap_err();
        assert_eq!(error.kind(), kind);
        let message = error.message();
        assert!(
            message.contains(&format!("version {version} at byte 4")),
            "{message}"
        );
        assert!(
            message.contains("versions 1 to 6 are supported"),
            "{message}"
        );
    }
    assert!(flink::is_metadata(&bytes));
    assert!(!flink::is_metadata(b"PK"));
}

#[test]
fn properties_tell_how_the_snapshot_was_made() {
    let bytes = sample("v4-all-flink1.20.5");
    let checkpoint = flink::decode(&bytes).unwrap();
    let properties = checkpoint.properties.as_ref().unwrap();
    assert_eq!(properties.kind, SnapshotKind::Checkpoint);
    assert_eq!(properties.sharing.as_str(), "FORWARD_BACKWARD");
    assert!(!properties.unclaimed);
    assert!(checkpoint.properties_stream().starts_with(&[0xAC, 0xED]));
    // Damage within a name that Flink looks for is found, wherever it is.
    let start = bytes.len() - checkpoint.properties_stream().len();
    for name in ["forced", "unclaimed", "checkpointType", "FORWARD_BACKWARD"] {
        let at = bytes[start..]
            .windows(name.len())
            .position(|window| window == name.as_bytes())
            .unwrap();
        let mut damaged = bytes.clone();
        damaged[start + at] ^= 1;
        let error = flink::decode(&damaged).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
    }
    let null = sample("odd-parallelism-0");
    assert!(flink::decode(&null).unwrap().properties.is_none());
}
