//! The one-byte tags in front of handles (constants of Flink's `MetadataV2V3SerializerBase` and
//! `ChannelStateHandleSerializerV2`).

pub(super) const NONE: u8 = 0;
pub(super) const BYTES: u8 = 1;
pub(super) const FILE: u8 = 2;
/// In keyed position up to Flink 1.14, in stream position since 1.13.
pub(super) const KEY_GROUPS: u8 = 3;
pub(super) const PARTITIONABLE: u8 = 4;
pub(super) const INCREMENTAL: u8 = 5;
pub(super) const RELATIVE: u8 = 6;
pub(super) const SAVEPOINT_KEY_GROUPS: u8 = 7;
pub(super) const CHANGELOG: u8 = 8;
pub(super) const CHANGELOG_MEMORY: u8 = 9;
pub(super) const CHANGELOG_FILES: u8 = 10;
pub(super) const INCREMENTAL_2: u8 = 11;
pub(super) const KEY_GROUPS_2: u8 = 12;
pub(super) const CHANGELOG_FILES_2: u8 = 13;
pub(super) const CHANGELOG_2: u8 = 14;
pub(super) const SEGMENT: u8 = 15;
pub(super) const EMPTY_SEGMENT: u8 = 16;
pub(super) const FILE_MERGING: u8 = 17;

pub(super) const CHANNEL_INPUT: u8 = 1;
pub(super) const CHANNEL_OUTPUT: u8 = 2;
pub(super) const CHANNEL_MERGED_INPUT: u8 = 3;
pub(super) const CHANNEL_MERGED_OUTPUT: u8 = 4;
