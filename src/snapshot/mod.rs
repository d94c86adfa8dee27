//! References: what a checkpoint is made of.

pub mod flink;
