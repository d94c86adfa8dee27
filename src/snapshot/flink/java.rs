//! Walks the subset of Java's object serialization that checkpoint properties use, to learn what
//! is in it and where it ends. Nothing is instantiated, and what does not occur there is refused.
//!
//! Grammar: "Java Object Serialization Specification", chapter 6. Elements get their handles, which
//! later references name, in the order in which they begin.

use super::utf::Utf;
use super::wire::{Cursor, corrupt};
use crate::{Error, Result};

const STREAM_HEADER: [u8; 4] = [0xAC, 0xED, 0x00, 0x05];
const TC_NULL: u8 = 0x70;
const TC_REFERENCE: u8 = 0x71;
const TC_CLASSDESC: u8 = 0x72;
const TC_OBJECT: u8 = 0x73;
const TC_STRING: u8 = 0x74;
const TC_ENDBLOCKDATA: u8 = 0x78;
const TC_ENUM: u8 = 0x7E;
const SC_SERIALIZABLE: u8 = 0x02;
const SC_ENUM: u8 = 0x12;
const FIRST_HANDLE: i32 = 0x7E_0000;
/// Real streams hold about twenty elements.
const MAX_ELEMENTS: usize = 4096;

/// A serialized object graph.
#[derive(Debug, Default)]
pub(super) struct Graph<'a> {
    elements: Vec<Element<'a>>,
}

/// What a handle stands for.
#[derive(Debug)]
enum Element<'a> {
    /// Announced, but not complete.
    Open,
    Class(Class<'a>),
    Text(Utf<'a>),
    Object(Object<'a>),
    Constant {
        class: usize,
        name: Utf<'a>,
    },
}

#[derive(Debug)]
struct Class<'a> {
    name: Utf<'a>,
    version: i64,
    flags: u8,
    fields: Vec<Field<'a>>,
    parent: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Field<'a> {
    kind: u8,
    name: Utf<'a>,
}

#[derive(Debug)]
struct Object<'a> {
    class: usize,
    fields: Vec<(Utf<'a>, Value)>,
}

/// The value of a field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    Null,
    Bool(bool),
    /// A primitive value of another type.
    Primitive,
    /// The element with this number.
    Element(usize),
}

/// An object of the graph.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectView<'g, 'a> {
    graph: &'g Graph<'a>,
    object: &'g Object<'a>,
}

impl<'g, 'a> ObjectView<'g, 'a> {
    /// Name and serial version of the object's class.
    pub(super) fn class(self) -> Option<(Utf<'a>, i64)> {
        let class = self.graph.class(self.object.class)?;
        Some((class.name, class.version))
    }

    pub(super) fn field(self, name: &str) -> Option<Value> {
        let mut fields = self.object.fields.iter();
        fields
            .find(|(field, _)| field.as_bytes() == name.as_bytes())
            .map(|(_, value)| *value)
    }
}

impl<'a> Graph<'a> {
    /// Reads a stream header and one element. `None` is Java's null.
    pub(super) fn read(cursor: &mut Cursor<'a>) -> Result<(Self, Value)> {
        let at = cursor.at();
        let header = cursor.take(STREAM_HEADER.len(), "the header of a Java stream")?;
        if header != STREAM_HEADER {
            return Err(corrupt(
                at,
                format_args!("{header:02x?} is not the header of a Java stream,"),
            ));
        }
        let mut graph = Graph::default();
        let value = graph.content(cursor)?;
        Ok((graph, value))
    }

    pub(super) fn object(&self, value: Value) -> Option<ObjectView<'_, 'a>> {
        match (value, self) {
            (Value::Element(element), graph) => match graph.elements.get(element)? {
                Element::Object(object) => Some(ObjectView { graph, object }),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn text(&self, value: Value) -> Option<Utf<'a>> {
        match value {
            Value::Element(element) => match self.elements.get(element)? {
                Element::Text(text) => Some(*text),
                _ => None,
            },
            _ => None,
        }
    }

    /// Class name and constant name of an enum constant.
    pub(super) fn constant(&self, value: Value) -> Option<(Utf<'a>, Utf<'a>)> {
        match value {
            Value::Element(element) => match self.elements.get(element)? {
                Element::Constant { class, name } => Some((self.class(*class)?.name, *name)),
                _ => None,
            },
            _ => None,
        }
    }

    fn class(&self, element: usize) -> Option<&Class<'a>> {
        match self.elements.get(element)? {
            Element::Class(class) => Some(class),
            _ => None,
        }
    }

    fn announce(&mut self, at: usize) -> Result<usize> {
        if self.elements.len() >= MAX_ELEMENTS {
            return Err(corrupt(
                at,
                format_args!("a Java stream of more than {MAX_ELEMENTS} elements"),
            ));
        }
        self.elements.push(Element::Open);
        Ok(self.elements.len() - 1)
    }

    fn complete(&mut self, element: usize, content: Element<'a>) {
        if let Some(slot) = self.elements.get_mut(element) {
            *slot = content;
        }
    }

    fn content(&mut self, cursor: &mut Cursor<'a>) -> Result<Value> {
        cursor.enter()?;
        let at = cursor.at();
        let value = match cursor.u8("an element of a Java stream")? {
            TC_NULL => Value::Null,
            TC_REFERENCE => Value::Element(self.reference(cursor)?),
            TC_STRING => {
                let element = self.announce(at)?;
                let text = cursor.utf("a text of a Java stream")?;
                self.complete(element, Element::Text(text));
                Value::Element(element)
            }
            TC_OBJECT => self.object_content(cursor, at)?,
            TC_ENUM => self.enum_content(cursor, at)?,
            code => return Err(unknown(at, code)),
        };
        cursor.leave();
        Ok(value)
    }

    fn reference(&self, cursor: &mut Cursor<'a>) -> Result<usize> {
        let at = cursor.at();
        let handle = cursor.i32("a reference of a Java stream")?;
        handle
            .checked_sub(FIRST_HANDLE)
            .and_then(|element| usize::try_from(element).ok())
            .filter(|element| *element < self.elements.len())
            .ok_or_else(|| {
                corrupt(
                    at,
                    format_args!("a reference to element {handle:#x}, which is missing,"),
                )
            })
    }

    /// The class description of an object, which must be one.
    fn class_of(&mut self, cursor: &mut Cursor<'a>) -> Result<usize> {
        let at = cursor.at();
        self.class_content(cursor)?
            .ok_or_else(|| corrupt(at, format_args!("a Java object without a class")))
    }

    fn class_content(&mut self, cursor: &mut Cursor<'a>) -> Result<Option<usize>> {
        let at = cursor.at();
        match cursor.u8("a class of a Java stream")? {
            TC_NULL => Ok(None),
            TC_REFERENCE => {
                let element = self.reference(cursor)?;
                match self.class(element) {
                    Some(_) => Ok(Some(element)),
                    None => Err(corrupt(at, format_args!("a reference to what is no class"))),
                }
            }
            TC_CLASSDESC => {
                cursor.enter()?;
                let name = cursor.utf("the name of a Java class")?;
                let version = cursor.i64("the serial version of a Java class")?;
                let element = self.announce(at)?;
                let flags_at = cursor.at();
                let flags = cursor.u8("the flags of a Java class")?;
                if !matches!(flags, SC_SERIALIZABLE | SC_ENUM) {
                    return Err(corrupt(
                        flags_at,
                        format_args!("flags {flags:#04x} of a Java class, which are unexpected,"),
                    ));
                }
                let fields = self.class_fields(cursor)?;
                let end = cursor.at();
                let code = cursor.u8("the end of a Java class")?;
                if code != TC_ENDBLOCKDATA {
                    return Err(unknown(end, code));
                }
                // The parent cannot be this class or a child of it: those are still open and thus
                // no class yet. So chains of parents end.
                let parent = self.class_content(cursor)?;
                self.complete(
                    element,
                    Element::Class(Class {
                        name,
                        version,
                        flags,
                        fields,
                        parent,
                    }),
                );
                cursor.leave();
                Ok(Some(element))
            }
            code => Err(unknown(at, code)),
        }
    }

    fn class_fields(&mut self, cursor: &mut Cursor<'a>) -> Result<Vec<Field<'a>>> {
        let count = cursor.u16("the number of fields of a Java class")?;
        let mut fields = Vec::new();
        for _ in 0..count {
            let at = cursor.at();
            let kind = cursor.u8("the type of a field of a Java class")?;
            let name = cursor.utf("the name of a field of a Java class")?;
            match kind {
                b'B' | b'C' | b'D' | b'F' | b'I' | b'J' | b'S' | b'Z' => {}
                b'L' | b'[' => {
                    let at = cursor.at();
                    let class = self.content(cursor)?;
                    if self.text(class).is_none() {
                        return Err(corrupt(at, format_args!("a field's class that is no text")));
                    }
                }
                _ => {
                    return Err(corrupt(
                        at,
                        format_args!("unknown type {kind:#04x} of a field"),
                    ));
                }
            }
            fields.push(Field { kind, name });
        }
        Ok(fields)
    }

    fn object_content(&mut self, cursor: &mut Cursor<'a>, at: usize) -> Result<Value> {
        let class = self.class_of(cursor)?;
        let element = self.announce(at)?;
        // The fields of the topmost parent come first.
        let mut layout: Vec<Field<'a>> = Vec::new();
        let mut lineage = Vec::new();
        let mut next = Some(class);
        while let Some(found) = next.and_then(|parent| self.class(parent)) {
            if found.flags != SC_SERIALIZABLE {
                return Err(corrupt(
                    at,
                    format_args!("a Java object of an enum's class"),
                ));
            }
            // Each class may repeat in no lineage, as parents precede their children.
            lineage.push(found.fields.as_slice());
            next = found.parent;
        }
        let total: usize = lineage.iter().map(|fields| fields.len()).sum();
        if total > cursor.left() {
            return Err(corrupt(
                cursor.at(),
                format_args!(
                    "a Java object of {total} fields, with {} bytes left,",
                    cursor.left()
                ),
            ));
        }
        layout.reserve(total);
        layout.extend(lineage.into_iter().rev().flatten());
        let mut fields = Vec::with_capacity(total);
        for field in layout {
            let value = match field.kind {
                b'Z' => Value::Bool(cursor.u8("a boolean of a Java object")? != 0),
                b'B' => skip(cursor, 1)?,
                b'C' | b'S' => skip(cursor, 2)?,
                b'I' | b'F' => skip(cursor, 4)?,
                b'J' | b'D' => skip(cursor, 8)?,
                _ => self.content(cursor)?,
            };
            fields.push((field.name, value));
        }
        self.complete(element, Element::Object(Object { class, fields }));
        Ok(Value::Element(element))
    }

    fn enum_content(&mut self, cursor: &mut Cursor<'a>, at: usize) -> Result<Value> {
        let class = self.class_of(cursor)?;
        if self.class(class).is_none_or(|class| class.flags != SC_ENUM) {
            return Err(corrupt(
                at,
                format_args!("an enum constant of what is no enum"),
            ));
        }
        let element = self.announce(at)?;
        let name_at = cursor.at();
        let value = self.content(cursor)?;
        let name = self.text(value).ok_or_else(|| {
            corrupt(
                name_at,
                format_args!("an enum constant whose name is no text"),
            )
        })?;
        self.complete(element, Element::Constant { class, name });
        Ok(Value::Element(element))
    }
}

fn skip(cursor: &mut Cursor<'_>, n: usize) -> Result<Value> {
    cursor.take(n, "a field of a Java object")?;
    Ok(Value::Primitive)
}

#[cold]
fn unknown(at: usize, code: u8) -> Error {
    corrupt(
        at,
        format_args!(
            "element {code:#04x} of a Java stream, which checkpoint properties don't use,"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of the given parts behind its header.
    fn stream(parts: &[&[u8]]) -> Vec<u8> {
        [&STREAM_HEADER[..], &parts.concat()].concat()
    }

    fn utf(text: &str) -> Vec<u8> {
        let len = u16::try_from(text.len()).unwrap().to_be_bytes();
        [&len[..], text.as_bytes()].concat()
    }

    /// A class with the given fields, without the parent.
    fn class(name: &str, flags: u8, fields: &[(u8, &str)]) -> Vec<u8> {
        let mut class = vec![TC_CLASSDESC];
        class.extend(utf(name));
        class.extend(1_i64.to_be_bytes());
        class.push(flags);
        class.extend(u16::try_from(fields.len()).unwrap().to_be_bytes());
        for (kind, name) in fields {
            class.push(*kind);
            class.extend(utf(name));
            if *kind == b'L' {
                class.push(TC_STRING);
                class.extend(utf("LType;"));
            }
        }
        class.push(TC_ENDBLOCKDATA);
        class
    }

    fn refusal(bytes: &[u8]) -> String {
        let error = Graph::read(&mut Cursor::new(bytes)).unwrap_err();
        assert!(error.message().contains("byte "), "{error}");
        error.message().to_owned()
    }

    #[test]
    fn null_ends_after_one_byte() {
        let bytes = stream(&[&[TC_NULL], &[1, 2, 3]]);
        let mut cursor = Cursor::new(&bytes);
        let (_, root) = Graph::read(&mut cursor).unwrap();
        assert!(matches!(root, Value::Null));
        assert_eq!(cursor.left(), 3);
    }

    #[test]
    fn fields_of_parents_come_first_and_references_work() {
        let parent = class(
            "Parent",
            SC_SERIALIZABLE,
            &[(b'Z', "flag"), (b'J', "number")],
        );
        let child = class("Child", SC_SERIALIZABLE, &[(b'L', "text"), (b'L', "again")]);
        // Elements: Child, two class names, Parent, the object, then the text.
        let bytes = stream(&[
            &[TC_OBJECT],
            &child,
            &parent,
            &[TC_NULL],
            &[1],
            &7_i64.to_be_bytes(),
            &[TC_STRING],
            &utf("hello"),
            &[TC_REFERENCE],
            &(FIRST_HANDLE + 5).to_be_bytes(),
        ]);
        let mut cursor = Cursor::new(&bytes);
        let (graph, root) = Graph::read(&mut cursor).unwrap();
        assert_eq!(cursor.left(), 0);
        let object = graph.object(root).unwrap();
        assert_eq!(object.class().unwrap().0.to_string(), "Child");
        assert!(matches!(object.field("flag"), Some(Value::Bool(true))));
        assert!(matches!(object.field("number"), Some(Value::Primitive)));
        for name in ["text", "again"] {
            let text = graph.text(object.field(name).unwrap()).unwrap();
            assert_eq!(text.to_string(), "hello");
        }
        assert!(object.field("other").is_none());
    }

    #[test]
    fn enum_constants_have_a_name() {
        let bytes = stream(&[
            &[TC_ENUM],
            &class("Color", SC_ENUM, &[]),
            &[TC_NULL, TC_STRING],
            &utf("RED"),
        ]);
        let (graph, root) = Graph::read(&mut Cursor::new(&bytes)).unwrap();
        let (class, name) = graph.constant(root).unwrap();
        assert_eq!(
            (class.to_string(), name.to_string()),
            ("Color".into(), "RED".into())
        );
    }

    #[test]
    fn a_class_cannot_be_its_own_parent() {
        let bytes = stream(&[
            &[TC_OBJECT],
            &class("Loop", SC_SERIALIZABLE, &[]),
            &[TC_REFERENCE],
            &FIRST_HANDLE.to_be_bytes(),
        ]);
        assert!(refusal(&bytes).contains("no class"));
    }

    #[test]
    fn what_does_not_belong_is_refused() {
        assert!(refusal(&[0xAC, 0xED, 0, 6, TC_NULL]).contains("header"));
        // A block of raw data, an array, and a proxy.
        for code in [0x77, 0x75, 0x7D] {
            assert!(refusal(&stream(&[&[code]])).contains("don't use"));
        }
        assert!(refusal(&stream(&[&[TC_REFERENCE], &[0; 4]])).contains("missing"));
        assert!(refusal(&stream(&[&[TC_OBJECT, TC_NULL]])).contains("without a class"));
        let external = class("External", 0x0C, &[]);
        assert!(refusal(&stream(&[&[TC_OBJECT], &external])).contains("flags"));
        let no_enum = class("Plain", SC_SERIALIZABLE, &[]);
        let bytes = stream(&[&[TC_ENUM], &no_enum, &[TC_NULL, TC_STRING, 0, 0]]);
        assert!(refusal(&bytes).contains("no enum"));
        let fields = class("Large", SC_SERIALIZABLE, &[(b'L', "a"), (b'L', "b")]);
        let bytes = stream(&[&[TC_OBJECT], &fields, &[TC_NULL, TC_NULL]]);
        assert!(refusal(&bytes).contains("2 fields"));
    }

    #[test]
    fn nesting_is_limited() {
        let node = class("Node", SC_SERIALIZABLE, &[(b'L', "next")]);
        let mut bytes = stream(&[&[TC_OBJECT], &node, &[TC_NULL]]);
        for _ in 0..1000 {
            bytes.extend([TC_OBJECT, TC_REFERENCE]);
            bytes.extend(FIRST_HANDLE.to_be_bytes());
        }
        bytes.push(TC_NULL);
        assert!(refusal(&bytes).contains("nested"));
    }
}
