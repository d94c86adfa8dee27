//! Decodes a `_metadata` file: header, operators, subtasks.
//!
//! The layout is that of Flink's `MetadataV1Serializer` (Flink 1.2 to 1.10) and
//! `MetadataV2V3SerializerBase` with its subclasses up to version 6. So are the checks, with a few
//! more: bytes after the end, negative channel counts and deep nesting are refused.

use super::decode_handles::HandleReader;
use super::metadata::{
    Dialect, MasterState, Metadata, NEWEST_VERSION, OLDEST_VERSION, Operator, OperatorId,
    OperatorStates, Subtask, SubtaskState,
};
use super::properties;
use super::utf::Utf;
use super::wire::{Cursor, corrupt};
use crate::{Error, ErrorKind, Result};

/// The first four bytes of each file.
pub(super) const MAGIC: [u8; 4] = [0x49, 0x60, 0x67, 0x2D];

/// The first four bytes of each master state.
pub(super) const MASTER_MAGIC: [u8; 4] = [0xC9, 0x6B, 0x16, 0x96];

/// Decodes the bytes of a whole `_metadata` file.
///
/// Never panics and never allocates more than a small multiple of the file's length, whatever the
/// bytes are. There is no checksum in the format: damage within a size, an offset or a path may go
/// unnoticed, any other damage is refused.
///
/// # Errors
/// `Unsupported` for a version this crate does not know, `Corrupt` for everything else; the message
/// names the byte.
pub fn decode(bytes: &[u8]) -> Result<Metadata<'_>> {
    let version = header(bytes)?;
    let modern = decode_as(bytes, version, Dialect::Modern);
    if version != 3 {
        return modern;
    }
    // Version 3 has three layouts, and only the end of the file tells which one it is.
    modern.or_else(|error| {
        decode_as(bytes, version, Dialect::OldChangelog)
            .or_else(|_| decode_as(bytes, version, Dialect::OldChannels))
            .map_err(|_| {
                error.hint(
                    "a version 3 file: read as written by Flink 1.12 to 1.15 (this error), as \
                     written by Flink 1.14 with a changelog, and as written by Flink 1.11",
                )
            })
    })
}

/// True where `bytes` start like a `_metadata` file of any version.
pub fn is_metadata(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

fn header(bytes: &[u8]) -> Result<i32> {
    let mut cursor = Cursor::new(bytes);
    let magic = cursor.take(MAGIC.len(), "the magic number of Flink's metadata")?;
    if magic != MAGIC {
        return Err(Error::corrupt(format!(
            "not a Flink metadata file: it starts with {magic:02x?} and not with {MAGIC:02x?} at \
             byte 0"
        )));
    }
    let version = cursor.i32("the version")?;
    let supported = format!("versions {OLDEST_VERSION} to {NEWEST_VERSION} are supported");
    match version {
        OLDEST_VERSION..=NEWEST_VERSION => Ok(version),
        0 => Err(unsupported(format!(
            "version 0 at byte 4: Flink 1.1 wrote its state as Java objects; {supported}"
        ))),
        7.. => Err(unsupported(format!(
            "unknown version {version} at byte 4: a newer Flink wrote this file; {supported}"
        ))),
        _ => Err(Error::corrupt(format!(
            "unknown version {version} at byte 4; {supported}"
        ))),
    }
}

fn unsupported(message: String) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

fn decode_as(bytes: &[u8], version: i32, dialect: Dialect) -> Result<Metadata<'_>> {
    let mut cursor = Cursor::new(bytes);
    cursor.take(8, "the magic number and the version")?;
    let at = cursor.at();
    let checkpoint_id = cursor.i64("the checkpoint id")?;
    if checkpoint_id < 0 {
        return Err(corrupt(
            at,
            format_args!("negative checkpoint id {checkpoint_id}"),
        ));
    }
    let master_states = if version >= 2 {
        master_states(&mut cursor)?
    } else {
        Vec::new()
    };
    let operators = operators(&mut HandleReader {
        cursor: &mut cursor,
        version,
        dialect,
    })?;
    let (properties, properties_stream) = if version >= 4 {
        let stream = cursor.rest();
        let properties = properties::read(&mut cursor)?;
        let len = stream.len() - cursor.left();
        (properties, stream.get(..len).unwrap_or_default())
    } else {
        (None, &[][..])
    };
    if cursor.left() > 0 {
        return Err(corrupt(
            cursor.at(),
            format_args!(
                "{} bytes too many after the end of the metadata",
                cursor.left()
            ),
        ));
    }
    Ok(Metadata {
        version,
        dialect,
        checkpoint_id,
        master_states,
        operators,
        properties,
        properties_stream,
        file_len: bytes.len(),
    })
}

fn master_states<'a>(cursor: &mut Cursor<'a>) -> Result<Vec<MasterState<'a>>> {
    /// Magic, length, version, and the lengths of name and data.
    const SMALLEST: usize = 18;
    let count = cursor.count(SMALLEST, "master states")?;
    let mut states = Vec::with_capacity(count);
    for _ in 0..count {
        cursor.element(SMALLEST);
        let start = cursor.at();
        let magic = cursor.take(MASTER_MAGIC.len(), "the magic number of a master state")?;
        if magic != MASTER_MAGIC {
            return Err(corrupt(
                start,
                format_args!("wrong magic number {magic:02x?} of a master state"),
            ));
        }
        let len_at = cursor.at();
        let len = cursor.i32("the length of a master state")?;
        let begin = cursor.at();
        let state = MasterState {
            version: cursor.i32("the version of a master state")?,
            name: cursor.utf("the name of a master state")?,
            data: cursor.blob("the data of a master state")?,
        };
        let read = cursor.at() - begin;
        if usize::try_from(len) != Ok(read) {
            return Err(corrupt(
                len_at,
                format_args!("a master state of {read} bytes that claims to have {len}"),
            ));
        }
        states.push(state);
    }
    Ok(states)
}

fn operators<'a>(reader: &mut HandleReader<'_, 'a>) -> Result<Vec<Operator<'a>>> {
    let smallest = match reader.version {
        1 | 2 => 32,
        3 | 4 => 29,
        _ => 33,
    };
    let count = reader.cursor.count(smallest, "operators")?;
    let mut operators = Vec::with_capacity(count);
    for _ in 0..count {
        reader.cursor.element(smallest);
        operators.push(operator(reader)?);
    }
    Ok(operators)
}

fn operator<'a>(reader: &mut HandleReader<'_, 'a>) -> Result<Operator<'a>> {
    let version = reader.version;
    let (name, uid) = if version >= 5 {
        (
            reader.cursor.utf("the name of an operator")?,
            reader.cursor.utf("the uid of an operator")?,
        )
    } else {
        (Utf::default(), Utf::default())
    };
    let id = OperatorId(reader.cursor.id("the id of an operator")?);
    let at = reader.cursor.at();
    let parallelism = reader.cursor.i32("the parallelism of an operator")?;
    let max_parallelism = reader
        .cursor
        .i32("the maximum parallelism of an operator")?;
    if parallelism < 0 || parallelism > max_parallelism {
        return Err(corrupt(
            at,
            format_args!(
                "operator {id} with parallelism {parallelism} and maximum parallelism \
                 {max_parallelism}"
            ),
        ));
    }
    let chain_length = if version <= 2 {
        reader.cursor.i32("the chain length of a task")?
    } else {
        1
    };
    let coordinator_at = reader.cursor.at();
    let coordinator = if version >= 3 {
        reader.coordinator()?
    } else {
        None
    };
    let at = reader.cursor.at();
    let count = reader.cursor.i32("the number of subtasks")?;
    let fully_finished = (count < 0 && version >= 3).then_some(count);
    if fully_finished.is_some() && coordinator.is_some() {
        return Err(corrupt(
            coordinator_at,
            format_args!("the finished operator {id} has coordinator state"),
        ));
    }
    let subtasks = if fully_finished.is_some() {
        Vec::new()
    } else {
        subtasks(reader, count, at, parallelism)?
    };
    Ok(Operator {
        name,
        uid,
        id,
        parallelism,
        max_parallelism,
        chain_length,
        coordinator,
        subtasks,
        fully_finished,
    })
}

fn subtasks<'a>(
    reader: &mut HandleReader<'_, 'a>,
    count: i32,
    at: usize,
    parallelism: i32,
) -> Result<Vec<Subtask<'a>>> {
    // A finished subtask, which version 3 introduced, is its index and nothing else.
    let smallest = if reader.version >= 3 { 4 } else { 26 };
    let count = reader.cursor.believe(count, smallest, at, "subtasks")?;
    let mut subtasks = Vec::with_capacity(count);
    for _ in 0..count {
        reader.cursor.element(smallest);
        let at = reader.cursor.at();
        let raw = reader.cursor.i32("the index of a subtask")?;
        let finished = raw < 0 && reader.version >= 3;
        // `!raw` is `-raw - 1` without the overflow.
        let index = if finished { !raw } else { raw };
        if index < 0 || index >= parallelism {
            return Err(corrupt(
                at,
                format_args!("subtask {index} of an operator with parallelism {parallelism}"),
            ));
        }
        let state = if finished {
            None
        } else {
            Some(Box::new(subtask_state(reader)?))
        };
        subtasks.push(Subtask { index, state });
    }
    Ok(subtasks)
}

fn subtask_state<'a>(reader: &mut HandleReader<'_, 'a>) -> Result<SubtaskState<'a>> {
    let mut duration = -1;
    if reader.version <= 2 {
        duration = reader.cursor.i64("the duration of a subtask")?;
        let at = reader.cursor.at();
        let legacy = reader.cursor.i32("the number of legacy states")?;
        if legacy != 0 {
            return Err(corrupt(
                at,
                format_args!("{legacy} legacy states, which no Flink since 1.4 can restore,"),
            ));
        }
    }
    let managed_operator = operator_states(reader)?;
    let raw_operator = operator_states(reader)?;
    let managed_keyed = reader.keyed()?;
    let raw_keyed = reader.keyed()?;
    let (input_channels, output_channels) = if reader.version >= 3 {
        (reader.channels(true)?, reader.channels(false)?)
    } else {
        (Vec::new(), Vec::new())
    };
    Ok(SubtaskState {
        duration,
        managed_operator,
        raw_operator,
        managed_keyed,
        raw_keyed,
        input_channels,
        output_channels,
    })
}

fn operator_states<'a>(reader: &mut HandleReader<'_, 'a>) -> Result<OperatorStates<'a>> {
    if reader.version == 1 {
        let count = reader
            .cursor
            .count(1, "operator state handles of a chain")?;
        let mut chain = Vec::with_capacity(count);
        for _ in 0..count {
            reader.cursor.element(1);
            chain.push(reader.operator()?.map(Box::new));
        }
        return Ok(OperatorStates::Chain(chain));
    }
    let flag = reader.cursor.i32("whether operator state follows")?;
    let handle = if flag == 0 {
        None
    } else {
        let at = reader.cursor.at();
        let Some(handle) = reader.operator()? else {
            return Err(corrupt(
                at,
                format_args!("operator state is announced, but there is no handle"),
            ));
        };
        Some(Box::new(handle))
    };
    Ok(OperatorStates::One { flag, handle })
}
