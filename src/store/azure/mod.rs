//! Azure Blob Storage.
//!
//! object_store's copy takes a pending copy for a finished one and cannot cross accounts; its uploads
//! carry no hash and complete without a condition. So these are requests of our own, signed with the
//! store's credentials.
//! Source of the rules: the pages Copy Blob, Abort Copy Blob, Put Blob, Put Block, Put Block From URL,
//! Put Block List and Get Block List of the Azure Blob REST reference.

mod blocks;
mod container;
mod copy;
mod write;

pub(crate) use blocks::{block_ids, block_size};
pub(crate) use container::AzureContainer;
