//! Decodes the state handles, by position and tag.
//!
//! All kinds of handles share one space of tags, but each position allows only its own kind. In
//! Flink: `deserializeStreamStateHandle`, `deserializeKeyedStateHandle` and
//! `deserializeOperatorStateHandle` of `MetadataV2V3SerializerBase`, and `ChannelStateHandleSerializer`.

use super::handles::{
    Change, ChangelogFiles, ChangelogHandle, ChangelogMemory, ChangelogPart, ChannelHandle,
    Channels, DistributionMode, FileMergingDirectories, IncrementalHandle, IncrementalSecondForm,
    InlineState, KeyGroupRange, KeyGroupsForm, KeyGroupsHandle, KeyedHandle, NamedHandle, Offsets,
    OperatorHandle, PartitionableState, Segment, SegmentScope, StreamHandle, StreamKeyGroups,
};
use super::metadata::Dialect;
use super::path;
use super::tags::*;
use super::utf::Utf;
use super::wire::{Cursor, corrupt};
use crate::{Error, Result};

/// No operator has more key groups (Flink's `KeyGroupRangeAssignment.UPPER_BOUND_MAX_PARALLELISM`).
const MAX_KEY_GROUPS: i32 = 32_768;

/// Reads handles of one file.
pub(super) struct HandleReader<'c, 'a> {
    pub(super) cursor: &'c mut Cursor<'a>,
    pub(super) version: i32,
    pub(super) dialect: Dialect,
}

impl<'a> HandleReader<'_, 'a> {
    /// The state of an operator coordinator: nothing or inline state.
    pub(super) fn coordinator(&mut self) -> Result<Option<InlineState<'a>>> {
        let at = self.cursor.at();
        match self.cursor.u8("the tag of a coordinator state")? {
            NONE => Ok(None),
            BYTES => self.inline().map(Some),
            tag => Err(bad_tag(at, tag, "coordinator state")),
        }
    }

    fn inline(&mut self) -> Result<InlineState<'a>> {
        Ok(InlineState {
            name: self.cursor.utf("the name of inline state")?,
            data: self.cursor.blob("inline state")?,
        })
    }

    /// A stream handle that may be missing.
    fn stream_or_none(&mut self) -> Result<Option<StreamHandle<'a>>> {
        let at = self.cursor.at();
        let tag = self.cursor.u8("the tag of a stream handle")?;
        Ok(match tag {
            NONE => None,
            BYTES => Some(StreamHandle::Inline(self.inline()?)),
            FILE => {
                let size = self.cursor.i64("the size of a file handle")?;
                let path = self.path("the path of a file handle")?;
                Some(StreamHandle::File { size, path })
            }
            // Version 1 is older than all other tags, and its readers never knew them.
            _ if self.version == 1 => return Err(bad_tag(at, tag, "a stream handle")),
            RELATIVE => {
                let path = self.relative_path()?;
                let size = self.cursor.i64("the size of a relative file handle")?;
                Some(StreamHandle::Relative { path, size })
            }
            KEY_GROUPS => {
                self.cursor.enter()?;
                let (range, offsets) = self.range_with_offsets()?;
                let delegate = self.stream("key groups of a stream handle")?;
                self.cursor.leave();
                Some(StreamHandle::KeyGroups(Box::new(StreamKeyGroups {
                    range,
                    offsets,
                    delegate,
                })))
            }
            SEGMENT => Some(StreamHandle::Segment(Box::new(self.segment()?))),
            EMPTY_SEGMENT => Some(StreamHandle::EmptySegment),
            _ => return Err(bad_tag(at, tag, "a stream handle")),
        })
    }

    /// A stream handle that must be there, for `whom`.
    fn stream(&mut self, whom: &str) -> Result<StreamHandle<'a>> {
        let at = self.cursor.at();
        match self.stream_or_none()? {
            Some(handle) => Ok(handle),
            None => Err(corrupt(at, format_args!("no handle for {whom}"))),
        }
    }

    fn segment(&mut self) -> Result<Segment<'a>> {
        let start = self.cursor.i64("the start of a segment")?;
        let size = self.cursor.i64("the size of a segment")?;
        let at = self.cursor.at();
        let scope = match self.cursor.i32("the scope of a segment")? {
            0 => SegmentScope::Exclusive,
            1 => SegmentScope::Shared,
            scope => {
                return Err(corrupt(
                    at,
                    format_args!("unknown scope {scope} of a segment"),
                ));
            }
        };
        Ok(Segment {
            start,
            size,
            scope,
            path: self.path("the path of a segment")?,
            logical_file_id: self.cursor.utf("the logical file id of a segment")?,
        })
    }

    /// A path text that Flink's `Path` takes.
    fn path(&mut self, what: &str) -> Result<Utf<'a>> {
        let at = self.cursor.at();
        let text = self.cursor.utf(what)?;
        match path::check_utf(text) {
            Ok(()) => Ok(text),
            Err(why) => Err(corrupt(at, format_args!("{what} {text:?} {why}"))),
        }
    }

    fn relative_path(&mut self) -> Result<Utf<'a>> {
        const WHAT: &str = "the path of a relative file handle";
        let at = self.cursor.at();
        let text = self.cursor.utf(WHAT)?;
        match path::check_relative_utf(text) {
            Ok(()) => Ok(text),
            Err(why) => Err(corrupt(at, format_args!("{WHAT} {text:?} {why}"))),
        }
    }

    fn range(&mut self) -> Result<KeyGroupRange> {
        let at = self.cursor.at();
        let first = self.cursor.i32("the first key group")?;
        let count = self.cursor.i32("the number of key groups")?;
        if first < 0 || !(0..=MAX_KEY_GROUPS).contains(&count) || first > i32::MAX - count {
            return Err(corrupt(
                at,
                format_args!(
                    "a range of {count} key groups from {first} on; there are at most \
                     {MAX_KEY_GROUPS}"
                ),
            ));
        }
        Ok(KeyGroupRange { first, count })
    }

    fn range_with_offsets(&mut self) -> Result<(KeyGroupRange, Offsets<'a>)> {
        let range = self.range()?;
        let count = usize::try_from(range.count).unwrap_or(0);
        let offsets = self
            .cursor
            .raw_list(count, 8, "the offsets of key groups")?;
        Ok((range, Offsets(offsets)))
    }

    fn offsets(&mut self, what: &str) -> Result<Offsets<'a>> {
        let count = self.cursor.count(8, what)?;
        self.cursor.element(count * 8);
        self.cursor.raw_list(count, 8, what).map(Offsets)
    }

    /// A keyed handle that may be missing.
    pub(super) fn keyed(&mut self) -> Result<Option<KeyedHandle<'a>>> {
        let at = self.cursor.at();
        let tag = self.cursor.u8("the tag of a keyed handle")?;
        Ok(Some(match tag {
            NONE => return Ok(None),
            KEY_GROUPS => self.key_groups(tag)?,
            _ if self.version == 1 => return Err(bad_tag(at, tag, "a keyed handle")),
            KEY_GROUPS_2 | SAVEPOINT_KEY_GROUPS => self.key_groups(tag)?,
            INCREMENTAL | INCREMENTAL_2 => self.incremental(tag)?,
            CHANGELOG | CHANGELOG_2 => {
                self.cursor.enter()?;
                let changelog = self.changelog(tag)?;
                self.cursor.leave();
                changelog
            }
            CHANGELOG_MEMORY => self.changelog_memory()?,
            CHANGELOG_FILES | CHANGELOG_FILES_2 => self.changelog_files(tag)?,
            _ => return Err(bad_tag(at, tag, "a keyed handle")),
        }))
    }

    fn key_groups(&mut self, tag: u8) -> Result<KeyedHandle<'a>> {
        let (range, offsets) = self.range_with_offsets()?;
        let delegate = self.stream("the key groups of a keyed handle")?;
        let form = match tag {
            KEY_GROUPS_2 => KeyGroupsForm::Second(self.state_handle_id()?),
            SAVEPOINT_KEY_GROUPS => KeyGroupsForm::Savepoint,
            _ => KeyGroupsForm::First,
        };
        Ok(KeyedHandle::KeyGroups(Box::new(KeyGroupsHandle {
            form,
            range,
            offsets,
            delegate,
        })))
    }

    fn state_handle_id(&mut self) -> Result<Utf<'a>> {
        self.cursor.utf("a state handle id")
    }

    fn incremental(&mut self, tag: u8) -> Result<KeyedHandle<'a>> {
        let checkpoint_id = self
            .cursor
            .i64("the checkpoint id of an incremental handle")?;
        let backend_id = self.cursor.utf("the backend id of an incremental handle")?;
        let range = self.range()?;
        let checkpointed_size = if tag == INCREMENTAL_2 {
            Some(
                self.cursor
                    .i64("the checkpointed size of an incremental handle")?,
            )
        } else {
            None
        };
        let meta = self.stream_or_none()?;
        let shared = self.named("shared files")?;
        let private = self.named("private files")?;
        let second_form = match checkpointed_size {
            Some(checkpointed_size) => Some(IncrementalSecondForm {
                checkpointed_size,
                state_handle_id: self.state_handle_id()?,
            }),
            None => None,
        };
        Ok(KeyedHandle::Incremental(Box::new(IncrementalHandle {
            checkpoint_id,
            backend_id,
            range,
            meta,
            shared,
            private,
            second_form,
        })))
    }

    fn named(&mut self, what: &str) -> Result<Vec<NamedHandle<'a>>> {
        /// The length of the name, and a tag without a body.
        const SMALLEST: usize = 3;
        let count = self.cursor.count(SMALLEST, what)?;
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            self.cursor.element(SMALLEST);
            list.push(NamedHandle {
                name: self
                    .cursor
                    .utf("the name of a file of an incremental handle")?,
                handle: self.stream("a file of an incremental handle")?,
            });
        }
        Ok(list)
    }

    fn changelog(&mut self, tag: u8) -> Result<KeyedHandle<'a>> {
        let old = self.dialect == Dialect::OldChangelog && tag == CHANGELOG;
        let range = self.range()?;
        let checkpointed_size = if old {
            0
        } else {
            self.cursor.i64("the checkpointed size of a changelog")?
        };
        let materialized = self.keyed_list(false)?;
        let non_materialized = self.keyed_list(true)?;
        let mut handle = ChangelogHandle {
            range,
            materialized,
            non_materialized,
            checkpointed_size,
            materialization_id: 0,
            checkpoint_id: None,
            state_handle_id: Utf::default(),
        };
        if !old {
            handle.materialization_id = self.cursor.i64("the materialization id of a changelog")?;
            if tag == CHANGELOG_2 {
                handle.checkpoint_id = Some(self.cursor.i64("the checkpoint id of a changelog")?);
            }
            handle.state_handle_id = self.state_handle_id()?;
        }
        Ok(KeyedHandle::Changelog(Box::new(handle)))
    }

    fn keyed_list(&mut self, changes_only: bool) -> Result<Vec<Option<KeyedHandle<'a>>>> {
        let count = self.cursor.count(1, "parts of a changelog")?;
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            self.cursor.element(1);
            let at = self.cursor.at();
            let part = self.keyed()?;
            if changes_only
                && !matches!(
                    part,
                    None | Some(KeyedHandle::ChangelogMemory(_) | KeyedHandle::ChangelogFiles(_))
                )
            {
                return Err(corrupt(
                    at,
                    format_args!("the changes of a changelog hold a handle of another kind"),
                ));
            }
            list.push(part);
        }
        Ok(list)
    }

    fn changelog_memory(&mut self) -> Result<KeyedHandle<'a>> {
        /// A key group and the length of the data.
        const SMALLEST: usize = 8;
        let range = self.range()?;
        let from = self.cursor.i64("the first sequence number of changes")?;
        let to = self.cursor.i64("the last sequence number of changes")?;
        let count = self.cursor.count(SMALLEST, "changes")?;
        let mut changes = Vec::with_capacity(count);
        for _ in 0..count {
            self.cursor.element(SMALLEST);
            changes.push(Change {
                key_group: self.cursor.i32("the key group of a change")?,
                data: self.cursor.blob("the data of a change")?,
            });
        }
        let state_handle_id = if self.dialect == Dialect::OldChangelog {
            Utf::default()
        } else {
            self.state_handle_id()?
        };
        Ok(KeyedHandle::ChangelogMemory(Box::new(ChangelogMemory {
            range,
            from,
            to,
            changes,
            state_handle_id,
        })))
    }

    fn changelog_files(&mut self, tag: u8) -> Result<KeyedHandle<'a>> {
        /// An offset and a tag without a body.
        const SMALLEST: usize = 9;
        let old = self.dialect == Dialect::OldChangelog && tag == CHANGELOG_FILES;
        let range = self.range()?;
        let count = self.cursor.count(SMALLEST, "changelog files")?;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            self.cursor.element(SMALLEST);
            parts.push(ChangelogPart {
                offset: self.cursor.i64("the offset of a part of a changelog")?,
                handle: self.stream("a part of a changelog")?,
            });
        }
        let state_size = self.cursor.i64("the size of a changelog")?;
        let (mut checkpointed_size, mut state_handle_id) = (0, Utf::default());
        if !old {
            checkpointed_size = self.cursor.i64("the checkpointed size of a changelog")?;
            state_handle_id = self.state_handle_id()?;
        }
        let storage_identifier = if tag == CHANGELOG_FILES_2 {
            Some(self.cursor.utf("the storage identifier of a changelog")?)
        } else {
            None
        };
        Ok(KeyedHandle::ChangelogFiles(Box::new(ChangelogFiles {
            range,
            parts,
            state_size,
            checkpointed_size,
            state_handle_id,
            storage_identifier,
        })))
    }

    /// An operator handle that may be missing.
    pub(super) fn operator(&mut self) -> Result<Option<OperatorHandle<'a>>> {
        let at = self.cursor.at();
        let tag = self.cursor.u8("the tag of an operator handle")?;
        match tag {
            NONE => Ok(None),
            PARTITIONABLE => {
                let states = self.partitionable_states()?;
                let delegate = self.stream("operator state")?;
                Ok(Some(OperatorHandle {
                    states,
                    file_merging: None,
                    delegate,
                }))
            }
            FILE_MERGING if self.version > 1 => {
                let states = self.partitionable_states()?;
                let directories = FileMergingDirectories {
                    task_owned: self.path("the task-owned directory of merged operator state")?,
                    shared: self.path("the shared directory of merged operator state")?,
                    empty: self.cursor.u8("whether merged operator state is empty")?,
                };
                let at = self.cursor.at();
                let delegate = self.stream("merged operator state")?;
                if !matches!(
                    delegate,
                    StreamHandle::Segment(_) | StreamHandle::EmptySegment
                ) {
                    return Err(corrupt(
                        at,
                        format_args!("the handle of merged operator state is no segment"),
                    ));
                }
                Ok(Some(OperatorHandle {
                    states,
                    file_merging: Some(Box::new(directories)),
                    delegate,
                }))
            }
            _ => Err(bad_tag(at, tag, "an operator handle")),
        }
    }

    fn partitionable_states(&mut self) -> Result<Vec<PartitionableState<'a>>> {
        /// The length of the name, the mode, and the number of offsets.
        const SMALLEST: usize = 7;
        let count = self.cursor.count(SMALLEST, "operator states")?;
        let mut states = Vec::with_capacity(count);
        for _ in 0..count {
            self.cursor.element(SMALLEST);
            let name = self.cursor.utf("the name of an operator state")?;
            let at = self.cursor.at();
            let mode = match self.cursor.u8("the mode of an operator state")? {
                0 => DistributionMode::SplitDistribute,
                1 => DistributionMode::Union,
                2 => DistributionMode::Broadcast,
                mode => {
                    return Err(corrupt(
                        at,
                        format_args!("unknown mode {mode} of an operator state"),
                    ));
                }
            };
            states.push(PartitionableState {
                name,
                mode,
                offsets: self.offsets("offsets of an operator state")?,
            });
        }
        Ok(states)
    }

    /// The channel handles of one direction.
    pub(super) fn channels(&mut self, input: bool) -> Result<Vec<ChannelHandle<'a>>> {
        let smallest = match (self.version, self.dialect) {
            (6.., _) => 18,
            (_, Dialect::OldChannels) => 21,
            _ => 25,
        };
        let what = if input {
            "input channel handles"
        } else {
            "output channel handles"
        };
        let count = self.cursor.count(smallest, what)?;
        let mut channels = Vec::with_capacity(count);
        for _ in 0..count {
            self.cursor.element(smallest);
            channels.push(self.channel(input)?);
        }
        Ok(channels)
    }

    fn channel(&mut self, input: bool) -> Result<ChannelHandle<'a>> {
        if self.version >= 6 {
            let at = self.cursor.at();
            match (self.cursor.u8("the tag of a channel handle")?, input) {
                (CHANNEL_INPUT, true) | (CHANNEL_OUTPUT, false) => {}
                (CHANNEL_MERGED_INPUT, true) | (CHANNEL_MERGED_OUTPUT, false) => {
                    return self.merged_channels();
                }
                (tag, true) => return Err(bad_tag(at, tag, "an input channel handle")),
                (tag, false) => return Err(bad_tag(at, tag, "an output channel handle")),
            }
        }
        let subtask = if self.dialect == Dialect::OldChannels {
            None
        } else {
            Some(self.cursor.i32("the subtask of a channel handle")?)
        };
        let index = (
            self.cursor.i32("the gate or partition of a channel")?,
            self.cursor.i32("the index of a channel")?,
        );
        let offsets = self.offsets("offsets of a channel")?;
        Ok(ChannelHandle {
            subtask,
            size: self.cursor.i64("the size of a channel handle")?,
            channels: Channels::One { index, offsets },
            delegate: Some(self.stream("a channel")?),
        })
    }

    fn merged_channels(&mut self) -> Result<ChannelHandle<'a>> {
        let subtask = self.cursor.i32("the subtask of a merged channel handle")?;
        let size = self.cursor.i64("the size of a merged channel handle")?;
        let delegate = self.stream_or_none()?;
        let offsets = self
            .cursor
            .blob("the channel offsets of a merged channel handle")?;
        Ok(ChannelHandle {
            subtask: Some(subtask),
            size,
            channels: Channels::Merged(offsets),
            delegate,
        })
    }
}

#[cold]
fn bad_tag(at: usize, tag: u8, position: &str) -> Error {
    corrupt(at, format_args!("unknown tag {tag} for {position}"))
}
