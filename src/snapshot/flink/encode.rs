//! The one traversal of the tree: it encodes, and shows every reference to a visitor.
//!
//! Plain encoding, rewriting and walking are this traversal with another output or visitor, so
//! that they cannot disagree on what references there are and in which order.

use super::decode::{MAGIC, MASTER_MAGIC};
use super::handles::{InlineState, KeyGroupRange, PartitionableState};
use super::metadata::{MasterState, Metadata, Operator, OperatorStates, SubtaskState};
use super::references::{Location, Reference, Role};
use super::rewrite::NewPath;
use super::tags;
use super::utf::{MAX_UTF_BYTES, Utf};
use crate::{Error, Result};

/// Where the bytes go.
pub(super) trait Output {
    fn put(&mut self, bytes: &[u8]);
}

impl Output for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// For those who only want to see the references.
pub(super) struct Discard;

impl Output for Discard {
    #[inline]
    fn put(&mut self, _: &[u8]) {}
}

/// Sees each reference, and may have another place for it.
pub(super) trait Visitor<'m> {
    /// False where `visit` does nothing, so that references need not be put together.
    const LISTENS: bool;

    fn visit(&mut self, reference: Reference<'m>) -> Result<Option<NewPath>>;
}

/// What is known of a handle from where it stands.
#[derive(Clone, Copy)]
pub(super) struct Site<'m> {
    pub(super) role: Role,
    pub(super) key_groups: Option<KeyGroupRange>,
    pub(super) local_name: Option<Utf<'m>>,
    pub(super) offset: Option<i64>,
    pub(super) states: &'m [PartitionableState<'m>],
}

impl Site<'_> {
    pub(super) fn new(role: Role, key_groups: Option<KeyGroupRange>) -> Self {
        Site {
            role,
            key_groups,
            local_name: None,
            offset: None,
            states: &[],
        }
    }
}

pub(super) struct Encoder<'m, O, V> {
    pub(super) metadata: &'m Metadata<'m>,
    pub(super) out: O,
    pub(super) visitor: V,
    operator: usize,
    subtask: Option<i32>,
    pub(super) raw_keyed: bool,
    pub(super) changelogs: usize,
    pub(super) changelog_range: Option<KeyGroupRange>,
    /// Handles seen so far.
    pub(super) handles: u32,
}

impl<'m, O: Output, V: Visitor<'m>> Encoder<'m, O, V> {
    pub(super) fn new(metadata: &'m Metadata<'_>, out: O, visitor: V) -> Self {
        Encoder {
            metadata,
            out,
            visitor,
            operator: 0,
            subtask: None,
            raw_keyed: false,
            changelogs: 0,
            changelog_range: None,
            handles: 0,
        }
    }

    /// Encodes everything and returns the output.
    pub(super) fn run(mut self) -> Result<O> {
        let metadata = self.metadata;
        self.out.put(&MAGIC);
        self.i32(metadata.version);
        self.i64(metadata.checkpoint_id);
        if metadata.version >= 2 {
            self.count(metadata.master_states.len())?;
            for state in &metadata.master_states {
                self.master_state(state)?;
            }
        }
        self.count(metadata.operators.len())?;
        for (position, operator) in metadata.operators.iter().enumerate() {
            self.operator = position;
            self.operator(operator)?;
        }
        self.out.put(metadata.properties_stream);
        Ok(self.out)
    }

    #[inline]
    pub(super) fn u8(&mut self, value: u8) {
        self.out.put(&[value]);
    }

    #[inline]
    pub(super) fn i32(&mut self, value: i32) {
        self.out.put(&value.to_be_bytes());
    }

    #[inline]
    pub(super) fn i64(&mut self, value: i64) {
        self.out.put(&value.to_be_bytes());
    }

    pub(super) fn count(&mut self, count: usize) -> Result<()> {
        let count = i32::try_from(count)
            .map_err(|_| Error::invalid(format!("the format cannot hold {count} elements")))?;
        self.i32(count);
        Ok(())
    }

    #[inline]
    pub(super) fn utf(&mut self, text: Utf<'_>) -> Result<()> {
        self.utf_bytes(text.as_bytes())
    }

    pub(super) fn utf_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let len = u16::try_from(bytes.len()).map_err(|_| {
            Error::invalid(format!(
                "the format cannot hold a text of more than {MAX_UTF_BYTES} bytes"
            ))
        })?;
        self.out.put(&len.to_be_bytes());
        self.out.put(bytes);
        Ok(())
    }

    pub(super) fn blob(&mut self, bytes: &[u8]) -> Result<()> {
        self.count(bytes.len())?;
        self.out.put(bytes);
        Ok(())
    }

    /// Shows a reference to the visitor.
    #[inline]
    pub(super) fn visit(
        &mut self,
        site: Site<'m>,
        location: Location<'m>,
    ) -> Result<Option<NewPath>> {
        if !V::LISTENS {
            return Ok(None);
        }
        self.visitor.visit(Reference {
            operator: self.operator,
            subtask: self.subtask,
            role: site.role,
            raw_keyed: self.raw_keyed,
            in_changelog: self.changelogs > 0,
            handle: self.handles,
            key_groups: site.key_groups,
            changelog_key_groups: self.changelog_range,
            offset: site.offset,
            states: site.states,
            local_name: site.local_name,
            location,
        })
    }

    /// Shows a reference that cannot be moved.
    pub(super) fn visit_fixed(&mut self, site: Site<'m>, location: Location<'m>) -> Result<()> {
        match self.visit(site, location)? {
            None => Ok(()),
            Some(_) => Err(Error::invalid(format!(
                "a new path for {location:?}, which is in no file"
            ))),
        }
    }

    fn master_state(&mut self, state: &'m MasterState<'m>) -> Result<()> {
        self.out.put(&MASTER_MAGIC);
        // Version, and the lengths of name and data.
        self.count(10 + state.name.as_bytes().len() + state.data.len())?;
        self.i32(state.version);
        self.utf(state.name)?;
        self.blob(state.data)
    }

    fn operator(&mut self, operator: &'m Operator<'m>) -> Result<()> {
        let version = self.metadata.version;
        if version >= 5 {
            self.utf(operator.name)?;
            self.utf(operator.uid)?;
        }
        self.out.put(&operator.id.0);
        self.i32(operator.parallelism);
        self.i32(operator.max_parallelism);
        if version <= 2 {
            self.i32(operator.chain_length);
        } else {
            self.subtask = None;
            match &operator.coordinator {
                None => self.u8(tags::NONE),
                Some(state) => self.inline(state, Site::new(Role::Coordinator, None))?,
            }
        }
        if let Some(count) = operator.fully_finished {
            self.i32(count);
            return Ok(());
        }
        self.count(operator.subtasks.len())?;
        for subtask in &operator.subtasks {
            match &subtask.state {
                None => self.i32(!subtask.index),
                Some(state) => {
                    self.i32(subtask.index);
                    self.subtask = Some(subtask.index);
                    self.subtask_state(state)?;
                }
            }
        }
        Ok(())
    }

    fn subtask_state(&mut self, state: &'m SubtaskState<'m>) -> Result<()> {
        let version = self.metadata.version;
        if version <= 2 {
            self.i64(state.duration);
            // The number of legacy states.
            self.i32(0);
        }
        self.operator_states(&state.managed_operator, Role::ManagedOperatorState)?;
        self.operator_states(&state.raw_operator, Role::RawOperatorState)?;
        self.keyed(state.managed_keyed.as_ref())?;
        self.raw_keyed = true;
        self.keyed(state.raw_keyed.as_ref())?;
        self.raw_keyed = false;
        if version >= 3 {
            self.channels(&state.input_channels, true)?;
            self.channels(&state.output_channels, false)?;
        }
        Ok(())
    }

    fn operator_states(&mut self, states: &'m OperatorStates<'m>, role: Role) -> Result<()> {
        match states {
            OperatorStates::Chain(chain) => {
                self.count(chain.len())?;
                for handle in chain {
                    match handle {
                        None => self.u8(tags::NONE),
                        Some(handle) => self.operator_handle(handle, role)?,
                    }
                }
            }
            OperatorStates::One { flag, handle } => {
                self.i32(*flag);
                if let Some(handle) = handle {
                    self.operator_handle(handle, role)?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn inline(&mut self, state: &'m InlineState<'m>, site: Site<'m>) -> Result<()> {
        let location = Location::Inline {
            name: state.name,
            size: state.data.len(),
        };
        self.visit_fixed(site, location)?;
        self.u8(tags::BYTES);
        self.utf(state.name)?;
        self.blob(state.data)
    }
}
