//! How much of a manifest is free: metrics, `user`, and fields that this version does not know. A value takes many
//! times the memory of its text, so that these are counted before any of them is built.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::error::{Error, Result};

use super::manifest::no_manifest;

/// Most values that metrics, `user` and unknown fields of a manifest have together: numbers, texts, lists, objects.
pub const FREE_VALUES_LIMIT: usize = 100_000;
/// Most bytes of their keys and texts together.
pub const FREE_TEXT_LIMIT_BYTES: usize = 1024 * 1024;

/// Most values of a partition, which has five at most as far as this version knows.
const PARTITION_VALUES: usize = 64;
/// Most bytes of their keys and texts.
const PARTITION_TEXT_BYTES: usize = 4096;

/// What a part of a manifest is.
#[derive(Clone, Copy)]
enum Part {
    /// A field that is read into one plain value.
    Plain,
    /// A list of objects with these known fields.
    List(Fields),
    /// An object of a few values, which is read as a whole before it is understood.
    Small,
    /// Anything.
    Free,
}

type Fields = &'static [(&'static str, Part)];

const MANIFEST: Fields = &[
    ("format", Part::Plain),
    ("version", Part::Plain),
    ("job", Part::Plain),
    ("number", Part::Plain),
    ("kind", Part::Plain),
    ("attempt", Part::Plain),
    ("created_unix_ms", Part::Plain),
    ("files", Part::List(FILE)),
    ("operators", Part::List(OPERATOR)),
];
const FILE: Fields = &[
    ("path", Part::Plain),
    ("size", Part::Plain),
    ("sha256", Part::Plain),
    ("scope", Part::Plain),
];
const OPERATOR: Fields = &[
    ("id", Part::Plain),
    ("name", Part::Plain),
    ("parallelism", Part::Plain),
    ("max_parallelism", Part::Plain),
    ("subtasks", Part::List(SUBTASK)),
];
const SUBTASK: Fields = &[("subtask", Part::Plain), ("states", Part::List(STATE))];
const STATE: Fields = &[
    ("name", Part::Plain),
    ("partition", Part::Small),
    ("files", Part::List(STATE_FILE)),
    ("inline", Part::Plain),
];
const STATE_FILE: Fields = &[("file", Part::Plain), ("name", Part::Plain)];

/// Refuses a manifest with too much that is free. Builds nothing.
///
/// # Errors
///
/// `Corrupt`, with the byte.
pub(super) fn check_free(bytes: &[u8]) -> Result<()> {
    let mut seen = Seen {
        what: "metrics, user data and unknown fields have",
        values: 0,
        text: 0,
        most_values: FREE_VALUES_LIMIT,
        most_text: FREE_TEXT_LIMIT_BYTES,
    };
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let object = Object {
        fields: MANIFEST,
        seen: &mut seen,
    };
    object
        .deserialize(&mut json)
        .map_err(|e| no_manifest(bytes, &e))
}

/// The error of the writer for what readers would refuse.
pub(super) fn too_much(e: Error) -> Error {
    e.hint(
        "keep what is large in a file of a state; metrics and user data are for a few small values",
    )
}

struct Seen {
    what: &'static str,
    values: usize,
    text: usize,
    most_values: usize,
    most_text: usize,
}

impl Seen {
    fn partition() -> Seen {
        Seen {
            what: "a partition has",
            values: 0,
            text: 0,
            most_values: PARTITION_VALUES,
            most_text: PARTITION_TEXT_BYTES,
        }
    }

    fn add<E: serde::de::Error>(&mut self, text: usize) -> std::result::Result<(), E> {
        self.values += 1;
        self.text = self.text.saturating_add(text);
        if self.values > self.most_values || self.text > self.most_text {
            return Err(E::custom(format!(
                "{} more than {} values or {} bytes of text",
                self.what, self.most_values, self.most_text
            )));
        }
        Ok(())
    }
}

/// An object with known fields.
struct Object<'s> {
    fields: Fields,
    seen: &'s mut Seen,
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<(), D::Error> {
        from.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        while let Some((part, length)) = map.next_key_seed(Key(self.fields))? {
            match part {
                Part::Plain => map.next_value::<IgnoredAny>().map(drop)?,
                Part::List(fields) => map.next_value_seed(List {
                    fields,
                    seen: self.seen,
                })?,
                Part::Small => map.next_value_seed(Free(&mut Seen::partition()))?,
                Part::Free => {
                    self.seen.add(length)?;
                    map.next_value_seed(Free(self.seen))?;
                }
            }
        }
        Ok(())
    }
}

/// A list of such objects.
struct List<'s> {
    fields: Fields,
    seen: &'s mut Seen,
}

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<(), D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<(), A::Error> {
        while list
            .next_element_seed(Object {
                fields: self.fields,
                seen: self.seen,
            })?
            .is_some()
        {}
        Ok(())
    }
}

/// What a key stands for, and its length.
struct Key(Fields);

impl<'de> DeserializeSeed<'de> for Key {
    type Value = (Part, usize);

    fn deserialize<D: Deserializer<'de>>(
        self,
        from: D,
    ) -> std::result::Result<Self::Value, D::Error> {
        from.deserialize_identifier(self)
    }
}

impl Visitor<'_> for Key {
    type Value = (Part, usize);

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: serde::de::Error>(self, key: &str) -> std::result::Result<Self::Value, E> {
        let known = self.0.iter().find(|(name, _)| *name == key);
        Ok((known.map_or(Part::Free, |(_, part)| *part), key.len()))
    }
}

/// Anything: counted, with all that is in it.
struct Free<'s>(&'s mut Seen);

impl<'de> DeserializeSeed<'de> for Free<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> std::result::Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Free<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> std::result::Result<(), E> {
        self.0.add(0)
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> std::result::Result<(), E> {
        self.0.add(0)
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> std::result::Result<(), E> {
        self.0.add(0)
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> std::result::Result<(), E> {
        self.0.add(0)
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> std::result::Result<(), E> {
        self.0.add(0)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<(), E> {
        self.0.add(text.len())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<(), A::Error> {
        self.0.add(0)?;
        while list.next_element_seed(Free(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        self.0.add(0)?;
        while let Some((_, length)) = map.next_key_seed(Key(&[]))? {
            self.0.add(length)?;
            map.next_value_seed(Free(self.0))?;
        }
        Ok(())
    }
}
