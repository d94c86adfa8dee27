//! Azure's blocks: put, copied from a URL, listed, and made a blob by a list.

use std::sync::Arc;

use serde::Deserialize;

use super::azure::{blob, fail, meta_of, on_destination, written};
use super::azure_copy::{settle, source};
use super::content::Content;
use super::reply::{Reply, escape};
use super::server::{Context, Pace};
use super::state::{Bucket, Object, Part, Tag};

/// The most that one block holds. Source: the pages of Put Block and Put Block From URL.
const BLOCK_LIMIT_BYTES: u64 = 4000 * 1024 * 1024;
const MOST_BLOCKS: usize = 50_000;

fn add(bucket: &Bucket, key: &str, id: &str, part: Part) -> Result<(), Reply> {
    let mut blocks = bucket.blocks();
    let blocks = blocks.entry(key.to_string()).or_default();
    let others = blocks.uncommitted.keys();
    let mut others = others.chain(blocks.committed.iter().map(|(id, _)| id));
    // All blocks of a blob have names of one length.
    if id.is_empty() || others.any(|other| other.len() != id.len()) {
        return Err(fail(400, "InvalidBlobOrBlock"));
    }
    blocks.uncommitted.insert(id.to_string(), part);
    Ok(())
}

pub fn put_block(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let call = &context.call;
    let content = Content::of_bytes(call.body.clone());
    let part = Part {
        tag: Tag::of(&content),
        content: Arc::new(content),
    };
    let id = call.param("blockid").unwrap_or("");
    add(bucket, &call.key, id, part)?;
    Ok(Reply::new(201))
}

pub async fn put_block_from_url(context: &Context, bucket: &Arc<Bucket>) -> Result<Reply, Reply> {
    let call = &context.call;
    if context.shared.faults().no_part_copy {
        return Err(fail(501, "NotImplemented"));
    }
    let (_, source) = source(context)?;
    let len = source.content.len();
    let (start, end) = call
        .range("x-ms-source-range", len)
        .map_err(|()| fail(416, "InvalidRange"))?
        .unwrap_or((0, len));
    let part_len = end - start;
    if part_len > BLOCK_LIMIT_BYTES {
        return Err(fail(413, "RequestBodyTooLarge"));
    }
    let content = source.content.slice(start..end);
    let part = Part {
        tag: Tag::of(&content),
        content: Arc::new(content),
    };
    let id = call.param("blockid").unwrap_or("").to_string();
    let (bucket, key) = (Arc::clone(bucket), call.key.clone());
    let finish = move || match add(&bucket, &key, &id, part) {
        Ok(()) => Reply::new(201),
        Err(refused) => refused,
    };
    let pace = Pace {
        trickle: None,
        ..context.pace.clone()
    };
    Ok(context.take_time_at(pace, part_len, finish).await)
}

#[derive(Deserialize)]
struct BlockList {
    #[serde(rename = "$value", default)]
    blocks: Vec<Named>,
}

#[derive(Deserialize)]
enum Named {
    Latest(String),
    Committed(String),
    Uncommitted(String),
}

pub fn put_block_list(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let call = &context.call;
    settle(context.state(), bucket, &call.key);
    let Ok(list) = quick_xml::de::from_reader::<_, BlockList>(&call.body[..]) else {
        return Err(fail(400, "InvalidXmlDocument"));
    };
    if list.blocks.len() > MOST_BLOCKS {
        return Err(fail(400, "BlockListTooLong"));
    }
    let admit = on_destination(call);
    admit(bucket.get(&call.key).as_deref())?;
    let mut all = bucket.blocks();
    let known = all.get(&call.key).cloned().unwrap_or_default();
    let committed = |id: &str| {
        let found = known.committed.iter().find(|(known, _)| known == id);
        found.map(|(_, part)| part)
    };
    let mut named = Vec::with_capacity(list.blocks.len());
    let mut content = Content::default();
    for block in &list.blocks {
        let (id, part) = match block {
            Named::Latest(id) => {
                let latest = known.uncommitted.get(id).or_else(|| committed(id));
                (id, latest)
            }
            Named::Committed(id) => (id, committed(id)),
            Named::Uncommitted(id) => (id, known.uncommitted.get(id)),
        };
        let part = part.ok_or_else(|| fail(400, "InvalidBlockList"))?;
        content.append(&part.content);
        named.push((id.clone(), part.clone()));
    }
    let object = Object::new(Arc::new(content), Arc::new(meta_of(call)));
    let object = context.state().put(bucket, &call.key, object, admit)?;
    let blocks = all.entry(call.key.clone()).or_default();
    blocks.uncommitted.clear();
    blocks.committed = named;
    Ok(written(201, &object))
}

pub fn get_block_list(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let call = &context.call;
    let wanted = call.param("blocklisttype").unwrap_or("committed");
    let blocks = bucket.blocks().get(&call.key).cloned();
    let blocks = match blocks {
        Some(blocks) => blocks,
        None => blob(context, bucket).map(|_| Default::default())?,
    };
    let entry = |id: &str, part: &Part| {
        let (id, len) = (escape(id), part.content.len());
        format!("<Block><Name>{id}</Name><Size>{len}</Size></Block>")
    };
    let mut text = String::from("<BlockList>");
    if wanted != "uncommitted" {
        let list = blocks.committed.iter().map(|(id, p)| entry(id, p));
        let list: String = list.collect();
        text.push_str(&format!("<CommittedBlocks>{list}</CommittedBlocks>"));
    }
    if wanted != "committed" {
        let list = blocks.uncommitted.iter().map(|(id, p)| entry(id, p));
        let list: String = list.collect();
        text.push_str(&format!("<UncommittedBlocks>{list}</UncommittedBlocks>"));
    }
    text.push_str("</BlockList>");
    Ok(Reply::xml(200, text))
}
