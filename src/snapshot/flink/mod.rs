//! Flink's `_metadata` file: read it, describe it, rewrite it.
