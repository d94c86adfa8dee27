//! The part of the traversal that handles are concerned with.

use super::encode::{Encoder, Output, Site, Visitor};
use super::handles::{
    ChangelogFiles, ChangelogHandle, ChangelogMemory, ChannelHandle, Channels, DistributionMode,
    IncrementalHandle, KeyGroupRange, KeyGroupsForm, KeyGroupsHandle, KeyedHandle, NamedHandle,
    Offsets, OperatorHandle, Segment, SegmentScope, StreamHandle,
};
use super::metadata::Dialect;
use super::path::{check, check_relative};
use super::references::{Location, Role};
use super::rewrite::NewPath;
use super::tags;
use super::utf::{Utf, encode_utf};
use crate::{Error, Result};

impl<'m, O: Output, V: Visitor<'m>> Encoder<'m, O, V> {
    fn stream(&mut self, handle: &'m StreamHandle<'m>, site: Site<'m>) -> Result<()> {
        match handle {
            StreamHandle::Inline(state) => self.inline(state, site),
            StreamHandle::File { size, path } => {
                let (path, size) = (*path, *size);
                match self.visit(site, Location::Absolute { path, size })? {
                    None => self.file(size, path.as_bytes()),
                    Some(new) => self.moved(&new, size),
                }
            }
            StreamHandle::Relative { path, size } => {
                let (path, size) = (*path, *size);
                match self.visit(site, Location::Relative { path, size })? {
                    None => self.relative(path.as_bytes(), size),
                    Some(new) => self.moved(&new, size),
                }
            }
            StreamHandle::KeyGroups(inner) => {
                self.u8(tags::KEY_GROUPS);
                self.range(inner.range);
                self.out.put(inner.offsets.as_bytes());
                self.stream(&inner.delegate, site)
            }
            StreamHandle::Segment(segment) => self.segment(segment, site),
            StreamHandle::EmptySegment => {
                self.visit_fixed(site, Location::Empty)?;
                self.u8(tags::EMPTY_SEGMENT);
                Ok(())
            }
        }
    }

    fn next_handle(&mut self) {
        self.handles = self.handles.wrapping_add(1);
    }

    fn file(&mut self, size: i64, path: &[u8]) -> Result<()> {
        self.u8(tags::FILE);
        self.i64(size);
        self.utf_bytes(path)
    }

    /// Path and size stand in the other order than those of [`Encoder::file`].
    fn relative(&mut self, path: &[u8], size: i64) -> Result<()> {
        self.u8(tags::RELATIVE);
        self.utf_bytes(path)?;
        self.i64(size);
        Ok(())
    }

    fn moved(&mut self, new: &NewPath, size: i64) -> Result<()> {
        match new {
            NewPath::Absolute(path) => {
                check_absolute(path)?;
                self.file(size, &encode_utf(path)?)
            }
            NewPath::Relative(path) => {
                let version = self.metadata.version;
                if version < 3 {
                    return Err(Error::invalid(format!(
                        "the relative path {path:?} in metadata of version {version}, which has \
                         absolute paths only"
                    )));
                }
                check_relative(path)
                    .map_err(|why| Error::invalid(format!("the relative path {path:?} {why}")))?;
                self.relative(&encode_utf(path)?, size)
            }
        }
    }

    fn segment(&mut self, segment: &'m Segment<'m>, site: Site<'m>) -> Result<()> {
        let location = Location::Segment {
            path: segment.path,
            start: segment.start,
            size: segment.size,
            scope: segment.scope,
            logical_file_id: segment.logical_file_id,
        };
        let new = self.visit(site, location)?;
        self.u8(tags::SEGMENT);
        self.i64(segment.start);
        self.i64(segment.size);
        self.i32(match segment.scope {
            SegmentScope::Exclusive => 0,
            SegmentScope::Shared => 1,
        });
        self.absolute(segment.path, new)?;
        self.utf(segment.logical_file_id)
    }

    /// A path that cannot become relative.
    fn absolute(&mut self, path: Utf<'m>, new: Option<NewPath>) -> Result<()> {
        match new {
            None => self.utf(path),
            Some(NewPath::Absolute(new)) => {
                check_absolute(&new)?;
                self.utf_bytes(&encode_utf(&new)?)
            }
            Some(NewPath::Relative(new)) => Err(Error::invalid(format!(
                "the relative path {new:?} in place of {path:?}, which must be absolute"
            ))),
        }
    }

    fn range(&mut self, range: KeyGroupRange) {
        self.i32(range.first);
        self.i32(range.count);
    }

    pub(super) fn keyed(&mut self, handle: Option<&'m KeyedHandle<'m>>) -> Result<()> {
        match handle {
            None => {
                self.u8(tags::NONE);
                Ok(())
            }
            Some(KeyedHandle::KeyGroups(handle)) => self.key_groups(handle),
            Some(KeyedHandle::Incremental(handle)) => self.incremental(handle),
            Some(KeyedHandle::Changelog(handle)) => self.changelog(handle),
            Some(KeyedHandle::ChangelogMemory(handle)) => self.changelog_memory(handle),
            Some(KeyedHandle::ChangelogFiles(handle)) => self.changelog_files(handle),
        }
    }

    fn key_groups(&mut self, handle: &'m KeyGroupsHandle<'m>) -> Result<()> {
        self.next_handle();
        let (tag, role) = match handle.form {
            KeyGroupsForm::First => (tags::KEY_GROUPS, Role::KeyGroups),
            KeyGroupsForm::Second(_) => (tags::KEY_GROUPS_2, Role::KeyGroups),
            KeyGroupsForm::Savepoint => (tags::SAVEPOINT_KEY_GROUPS, Role::SavepointKeyGroups),
        };
        self.u8(tag);
        self.range(handle.range);
        self.out.put(handle.offsets.as_bytes());
        self.stream(&handle.delegate, Site::new(role, Some(handle.range)))?;
        match handle.form {
            KeyGroupsForm::Second(id) => self.utf(id),
            _ => Ok(()),
        }
    }

    fn incremental(&mut self, handle: &'m IncrementalHandle<'m>) -> Result<()> {
        self.next_handle();
        let second = handle.second_form.as_ref();
        self.u8(if second.is_some() {
            tags::INCREMENTAL_2
        } else {
            tags::INCREMENTAL
        });
        self.i64(handle.checkpoint_id);
        self.utf(handle.backend_id)?;
        self.range(handle.range);
        if let Some(second) = second {
            self.i64(second.checkpointed_size);
        }
        match &handle.meta {
            None => self.u8(tags::NONE),
            Some(meta) => self.stream(meta, Site::new(Role::KeyedMeta, Some(handle.range)))?,
        }
        self.named(
            &handle.shared,
            Site::new(Role::KeyedShared, Some(handle.range)),
        )?;
        self.named(
            &handle.private,
            Site::new(Role::KeyedPrivate, Some(handle.range)),
        )?;
        match second {
            Some(second) => self.utf(second.state_handle_id),
            None => Ok(()),
        }
    }

    fn named(&mut self, list: &'m [NamedHandle<'m>], site: Site<'m>) -> Result<()> {
        self.count(list.len())?;
        for named in list {
            self.utf(named.name)?;
            let local_name = Some(named.name);
            self.stream(&named.handle, Site { local_name, ..site })?;
        }
        Ok(())
    }

    fn changelog(&mut self, handle: &'m ChangelogHandle<'m>) -> Result<()> {
        let tag = match handle.checkpoint_id {
            Some(_) => tags::CHANGELOG_2,
            None => tags::CHANGELOG,
        };
        let old = self.metadata.dialect == Dialect::OldChangelog && tag == tags::CHANGELOG;
        self.u8(tag);
        self.range(handle.range);
        if !old {
            self.i64(handle.checkpointed_size);
        }
        self.changelogs += 1;
        let outer = self.changelog_range.replace(handle.range);
        for list in [&handle.materialized, &handle.non_materialized] {
            self.count(list.len())?;
            for part in list {
                self.keyed(part.as_ref())?;
            }
        }
        self.changelogs -= 1;
        self.changelog_range = outer;
        if old {
            return Ok(());
        }
        self.i64(handle.materialization_id);
        if let Some(id) = handle.checkpoint_id {
            self.i64(id);
        }
        self.utf(handle.state_handle_id)
    }

    fn changelog_memory(&mut self, handle: &'m ChangelogMemory<'m>) -> Result<()> {
        self.u8(tags::CHANGELOG_MEMORY);
        self.range(handle.range);
        self.i64(handle.from);
        self.i64(handle.to);
        self.count(handle.changes.len())?;
        for change in &handle.changes {
            self.i32(change.key_group);
            self.blob(change.data)?;
        }
        match self.metadata.dialect {
            Dialect::OldChangelog => Ok(()),
            _ => self.utf(handle.state_handle_id),
        }
    }

    fn changelog_files(&mut self, handle: &'m ChangelogFiles<'m>) -> Result<()> {
        self.next_handle();
        let tag = match handle.storage_identifier {
            Some(_) => tags::CHANGELOG_FILES_2,
            None => tags::CHANGELOG_FILES,
        };
        let old = self.metadata.dialect == Dialect::OldChangelog && tag == tags::CHANGELOG_FILES;
        self.u8(tag);
        self.range(handle.range);
        self.count(handle.parts.len())?;
        self.changelogs += 1;
        for part in &handle.parts {
            self.i64(part.offset);
            let site = Site {
                offset: Some(part.offset),
                ..Site::new(Role::ChangelogFile, Some(handle.range))
            };
            self.stream(&part.handle, site)?;
        }
        self.changelogs -= 1;
        self.i64(handle.state_size);
        if !old {
            self.i64(handle.checkpointed_size);
            self.utf(handle.state_handle_id)?;
        }
        match handle.storage_identifier {
            Some(identifier) => self.utf(identifier),
            None => Ok(()),
        }
    }

    pub(super) fn operator_handle(
        &mut self,
        handle: &'m OperatorHandle<'m>,
        role: Role,
    ) -> Result<()> {
        self.next_handle();
        let site = Site {
            states: &handle.states,
            ..Site::new(role, None)
        };
        self.u8(match handle.file_merging {
            None => tags::PARTITIONABLE,
            Some(_) => tags::FILE_MERGING,
        });
        self.count(handle.states.len())?;
        for state in &handle.states {
            self.utf(state.name)?;
            self.u8(match state.mode {
                DistributionMode::SplitDistribute => 0,
                DistributionMode::Union => 1,
                DistributionMode::Broadcast => 2,
            });
            self.offsets(state.offsets)?;
        }
        if let Some(directories) = &handle.file_merging {
            for (path, task_owned) in [(directories.task_owned, true), (directories.shared, false)]
            {
                let new = self.visit(site, Location::Directory { path, task_owned })?;
                self.absolute(path, new)?;
            }
            self.u8(directories.empty);
        }
        self.stream(&handle.delegate, site)
    }

    fn offsets(&mut self, offsets: Offsets<'_>) -> Result<()> {
        self.count(offsets.len())?;
        self.out.put(offsets.as_bytes());
        Ok(())
    }

    pub(super) fn channels(&mut self, list: &'m [ChannelHandle<'m>], input: bool) -> Result<()> {
        self.count(list.len())?;
        for handle in list {
            self.channel(handle, input)?;
        }
        Ok(())
    }

    fn channel(&mut self, handle: &'m ChannelHandle<'m>, input: bool) -> Result<()> {
        self.next_handle();
        let (role, one, merged) = if input {
            (
                Role::InputChannel,
                tags::CHANNEL_INPUT,
                tags::CHANNEL_MERGED_INPUT,
            )
        } else {
            (
                Role::OutputChannel,
                tags::CHANNEL_OUTPUT,
                tags::CHANNEL_MERGED_OUTPUT,
            )
        };
        if self.metadata.version >= 6 {
            self.u8(match handle.channels {
                Channels::One { .. } => one,
                Channels::Merged(_) => merged,
            });
        }
        if let Some(subtask) = handle.subtask {
            self.i32(subtask);
        }
        if let Channels::One { index, offsets } = handle.channels {
            self.i32(index.0);
            self.i32(index.1);
            self.offsets(offsets)?;
        }
        self.i64(handle.size);
        match &handle.delegate {
            None => self.u8(tags::NONE),
            Some(delegate) => self.stream(delegate, Site::new(role, None))?,
        }
        match handle.channels {
            Channels::Merged(offsets) => self.blob(offsets),
            Channels::One { .. } => Ok(()),
        }
    }
}

/// Refuses what [`FlinkPath::parse`](super::FlinkPath::parse) would, without taking it apart.
fn check_absolute(path: &str) -> Result<()> {
    check(path).map_err(|why| Error::invalid(format!("the path {path:?} {why}")))
}
