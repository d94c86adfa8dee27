//! Shows decoded metadata as the JSON that Flink's own objects were dumped to.
//!
//! Where Flink computes something on loading (sizes, ids), so does this.

use forkpoint::snapshot::flink::{
    ChannelHandle, Channels, DistributionMode, FlinkPath, InlineState, KeyGroupRange,
    KeyGroupsForm, KeyedHandle, Metadata, NamedHandle, Offsets, Operator, OperatorHandle,
    OperatorStates, Properties, SegmentScope, SnapshotKind, StreamHandle, Subtask, Utf,
};
use md5::Md5;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

pub(crate) fn metadata(metadata: &Metadata<'_>) -> Value {
    let id = metadata.checkpoint_id;
    json!({
        "version": metadata.version,
        "checkpoint_id": id,
        "master_states": metadata.master_states.iter().map(|state| json!({
            "name": text(state.name),
            "version": state.version,
            "data": blob(state.data),
        })).collect::<Vec<_>>(),
        "operators": metadata.operators.iter().map(operator).collect::<Vec<_>>(),
        "properties": metadata.properties.as_ref().map(properties),
    })
}

fn text(text: Utf<'_>) -> Value {
    text.to_str_lossy().into()
}

fn text_or_null(utf: Utf<'_>) -> Value {
    if utf.is_empty() {
        Value::Null
    } else {
        text(utf)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn blob(bytes: &[u8]) -> Value {
    json!({ "len": bytes.len(), "sha256": hex(&Sha256::digest(bytes)) })
}

fn path(utf: Utf<'_>) -> Value {
    FlinkPath::parse(&utf.to_str_lossy())
        .unwrap()
        .to_string()
        .into()
}

fn range(range: KeyGroupRange) -> Value {
    if range.count == 0 {
        json!([])
    } else {
        json!([range.first, range.first + range.count - 1])
    }
}

fn offsets(offsets: Offsets<'_>) -> Value {
    let list: Vec<i64> = offsets.iter().collect();
    assert_eq!(list.len(), offsets.len());
    list.into()
}

fn operator(operator: &Operator<'_>) -> Value {
    // Flink keeps the last of several subtasks with one index, and sorts by the index.
    let mut subtasks: Vec<&Subtask<'_>> = Vec::new();
    for subtask in &operator.subtasks {
        subtasks.retain(|known| known.index != subtask.index);
        subtasks.push(subtask);
    }
    subtasks.sort_by_key(|subtask| subtask.index);
    json!({
        "operator_id": operator.id.to_string(),
        "name": text_or_null(operator.name),
        "uid": text_or_null(operator.uid),
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "fully_finished": operator.fully_finished.is_some(),
        "coordinator_state": operator.coordinator.as_ref().map(inline),
        "subtasks": subtasks.into_iter().map(subtask).collect::<Vec<_>>(),
    })
}

fn subtask(subtask: &Subtask<'_>) -> Value {
    let Some(state) = &subtask.state else {
        return json!({ "index": subtask.index, "finished": true });
    };
    let channels = |list: &[ChannelHandle<'_>], input| -> Vec<Value> {
        list.iter().map(|handle| channel(handle, input)).collect()
    };
    json!({
        "index": subtask.index,
        "finished": false,
        "managed_operator": operator_states(&state.managed_operator),
        "raw_operator": operator_states(&state.raw_operator),
        "managed_keyed": state.managed_keyed.as_ref().map(keyed),
        "raw_keyed": state.raw_keyed.as_ref().map(keyed),
        "input_channels": channels(&state.input_channels, true),
        "output_channels": channels(&state.output_channels, false),
    })
}

fn operator_states(states: &OperatorStates<'_>) -> Value {
    match states {
        OperatorStates::Chain(chain) => chain
            .iter()
            .map(|handle| handle.as_deref().map(operator_handle))
            .collect::<Vec<_>>()
            .into(),
        OperatorStates::One { handle, .. } => handle
            .iter()
            .map(|handle| operator_handle(handle))
            .collect::<Vec<_>>()
            .into(),
    }
}

fn operator_handle(handle: &OperatorHandle<'_>) -> Value {
    let mut states = handle.states.clone();
    states.sort_by_key(|state| state.name.code_units().collect::<Vec<_>>());
    let mut dump = json!({
        "type": "operator",
        "states": states.iter().map(|state| json!({
            "name": text(state.name),
            "mode": match state.mode {
                DistributionMode::SplitDistribute => "SPLIT_DISTRIBUTE",
                DistributionMode::Union => "UNION",
                DistributionMode::Broadcast => "BROADCAST",
            },
            "offsets": offsets(state.offsets),
        })).collect::<Vec<_>>(),
        "delegate": stream(&handle.delegate),
    });
    if let Some(directories) = &handle.file_merging {
        dump["type"] = "operator_file_merging".into();
        dump["task_owned_dir"] = path(directories.task_owned);
        dump["shared_dir"] = path(directories.shared);
        dump["empty"] = (directories.empty != 0).into();
    }
    dump
}

fn inline(state: &InlineState<'_>) -> Value {
    json!({ "type": "bytes", "name": text(state.name), "data": blob(state.data) })
}

fn stream(handle: &StreamHandle<'_>) -> Value {
    match handle {
        StreamHandle::Inline(state) => inline(state),
        StreamHandle::File { size, path: file } => {
            json!({ "type": "file", "path": path(*file), "size": size })
        }
        StreamHandle::Relative { path, size } => {
            let relative = path.to_str_lossy();
            // Any scheme will do: the dumps have a variable in place of the directory.
            let directory = FlinkPath::parse("root:/job/chk-1").unwrap();
            let resolved = directory.resolve(&relative).unwrap();
            json!({
                "type": "relative_file",
                "relative_path": relative,
                "resolved": format!("$ROOT{}", resolved.path),
                "size": size,
            })
        }
        StreamHandle::KeyGroups(inner) => json!({
            "type": "key_groups_stream",
            "range": range(inner.range),
            "offsets": offsets(inner.offsets),
            "delegate": stream(&inner.delegate),
        }),
        StreamHandle::Segment(segment) => json!({
            "type": "segment",
            "path": path(segment.path),
            "start_pos": segment.start,
            "size": segment.size,
            "scope": match segment.scope {
                SegmentScope::Exclusive => "EXCLUSIVE",
                SegmentScope::Shared => "SHARED",
            },
            "logical_file_id": text(segment.logical_file_id),
        }),
        StreamHandle::EmptySegment => json!({ "type": "empty_segment" }),
    }
}

fn keyed(handle: &KeyedHandle<'_>) -> Value {
    match handle {
        KeyedHandle::KeyGroups(handle) => {
            let mut dump = json!({
                "range": range(handle.range),
                "type": "key_groups",
                "offsets": offsets(handle.offsets),
                "delegate": stream(&handle.delegate),
            });
            match handle.form {
                KeyGroupsForm::First => dump["state_handle_id"] = Value::Null,
                KeyGroupsForm::Second(id) => dump["state_handle_id"] = text(id),
                KeyGroupsForm::Savepoint => dump["type"] = "savepoint_key_groups".into(),
            }
            dump
        }
        KeyedHandle::Incremental(handle) => {
            let second = handle.second_form.as_ref();
            let mut size = second.map_or(-1, |second| second.checkpointed_size);
            if size == -1 {
                let files = handle.shared.iter().chain(&handle.private);
                size = handle.meta.as_ref().map_or(0, stream_size)
                    + files.map(|file| stream_size(&file.handle)).sum::<i64>();
            }
            json!({
                "range": range(handle.range),
                "type": "incremental",
                "checkpoint_id": handle.checkpoint_id,
                "backend_id": uuid(handle.backend_id),
                "meta": handle.meta.as_ref().map(stream),
                "checkpointed_size": size,
                "shared": named(&handle.shared),
                "private": named(&handle.private),
                "state_handle_id": second.map(|second| text(second.state_handle_id)),
            })
        }
        KeyedHandle::Changelog(handle) => {
            let list = |parts: &[Option<KeyedHandle<'_>>]| -> Vec<Value> {
                parts.iter().flatten().map(keyed).collect()
            };
            json!({
                "range": range(handle.range),
                "type": "changelog",
                "checkpointed_size": handle.checkpointed_size,
                "materialization_id": handle.materialization_id,
                "checkpoint_id": handle.checkpoint_id.unwrap_or(handle.materialization_id),
                "materialized": list(&handle.materialized),
                "non_materialized": list(&handle.non_materialized),
                "state_handle_id": text(handle.state_handle_id),
            })
        }
        KeyedHandle::ChangelogMemory(handle) => json!({
            "range": range(handle.range),
            "type": "changelog_memory",
            "from": handle.from,
            "to": handle.to,
            "changes": handle.changes.iter().map(|change| json!({
                "key_group": change.key_group,
                "data": blob(change.data),
            })).collect::<Vec<_>>(),
            "state_handle_id": text(handle.state_handle_id),
        }),
        KeyedHandle::ChangelogFiles(handle) => json!({
            "range": range(handle.range),
            "type": "changelog_file",
            "handles": handle.parts.iter().map(|part| json!({
                "offset": part.offset,
                "handle": stream(&part.handle),
            })).collect::<Vec<_>>(),
            "state_size": handle.state_size,
            "checkpointed_size": handle.checkpointed_size,
            "storage_identifier": handle.storage_identifier.map_or("filesystem".into(), text),
            "state_handle_id": text(handle.state_handle_id),
        }),
    }
}

fn named(list: &[NamedHandle<'_>]) -> Vec<Value> {
    list.iter()
        .map(|file| json!({ "name": text(file.name), "handle": stream(&file.handle) }))
        .collect()
}

fn stream_size(handle: &StreamHandle<'_>) -> i64 {
    match handle {
        StreamHandle::Inline(state) => i64::try_from(state.data.len()).unwrap(),
        StreamHandle::File { size, .. } | StreamHandle::Relative { size, .. } => *size,
        StreamHandle::KeyGroups(inner) => stream_size(&inner.delegate),
        StreamHandle::Segment(segment) => segment.size,
        StreamHandle::EmptySegment => 0,
    }
}

/// Flink takes a backend id that is no UUID for the name of one (version 3).
fn uuid(id: Utf<'_>) -> String {
    let id = id.to_str_lossy();
    let lengths: Vec<usize> = id.split('-').map(str::len).collect();
    if lengths == [8, 4, 4, 4, 12] {
        return id.into_owned();
    }
    let mut hash: [u8; 16] = Md5::digest(id.as_bytes()).into();
    hash[6] = (hash[6] & 0x0F) | 0x30;
    hash[8] = (hash[8] & 0x3F) | 0x80;
    let digits = hex(&hash);
    [
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..],
    ]
    .join("-")
}

fn channel(handle: &ChannelHandle<'_>, input: bool) -> Value {
    let mut dump = json!({
        "subtask": handle.subtask,
        "size": handle.size,
        "delegate": handle.delegate.as_ref().map(stream),
    });
    match handle.channels {
        Channels::One {
            index,
            offsets: list,
        } => {
            dump["type"] = if input {
                "input_channel".into()
            } else {
                "result_subpartition".into()
            };
            dump["offsets"] = offsets(list);
            dump["info"] = json!([index.0, index.1]);
        }
        Channels::Merged(list) => {
            dump["type"] = if input {
                "merged_input_channel".into()
            } else {
                "merged_result_subpartition".into()
            };
            dump["channel_offsets"] = blob(list);
        }
    }
    dump
}

fn properties(properties: &Properties<'_>) -> Value {
    let package = "org.apache.flink.runtime.checkpoint";
    let mut kind = Map::new();
    match properties.kind {
        SnapshotKind::Checkpoint => {
            kind.insert("class".into(), format!("{package}.CheckpointType").into());
            kind.insert(
                "sharingFilesStrategy".into(),
                properties.sharing.as_str().into(),
            );
        }
        SnapshotKind::Savepoint {
            format,
            post_action,
        } => {
            kind.insert("class".into(), format!("{package}.SavepointType").into());
            kind.insert("postCheckpointAction".into(), post_action.as_str().into());
            kind.insert("formatType".into(), format.as_str().into());
        }
    }
    kind.insert("name".into(), text(properties.name));
    json!({
        "class": format!("{package}.CheckpointProperties"),
        "checkpointType": kind,
        "forced": properties.forced,
        "discardSubsumed": properties.discard_subsumed,
        "discardFinished": properties.discard_finished,
        "discardCancelled": properties.discard_cancelled,
        "discardFailed": properties.discard_failed,
        "discardSuspended": properties.discard_suspended,
        "unclaimed": properties.unclaimed,
    })
}
