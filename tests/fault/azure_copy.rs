//! Azure's copies of whole blobs: at once, or pending until their time has come.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use url::Url;

use super::azure::{fail, meta_of, on_destination, tag_of, written};
use super::call::{Call, split_path};
use super::content::Content;
use super::faults::PendingEnd;
use super::log::Service;
use super::reply::{Reply, http_date, now};
use super::server::{Context, Pace};
use super::state::{Bucket, CopyProgress, CopyState, Meta, Object, State, Tag};
use super::xml::same_tag;

/// The most that Put Blob From URL takes. Source: its page of the REST reference.
const FROM_URL_LIMIT_BYTES: u64 = 5000 * 1024 * 1024;

/// The blob that a copy reads, with the right to read it and the conditions on it checked.
pub fn source(context: &Context) -> Result<(String, Arc<Object>), Reply> {
    let call = &context.call;
    let url = call.header("x-ms-copy-source").unwrap_or("");
    let url = Url::parse(url).map_err(|_| fail(400, "InvalidHeaderValue"))?;
    let (bucket, key) = split_path(url.path(), 2);
    let account = |bucket: &str| bucket.split('/').next().unwrap_or("").to_string();
    let by_key = call
        .header("authorization")
        .is_some_and(|a| a.starts_with("SharedKey "));
    let readable = url.query_pairs().any(|(name, _)| name == "sig")
        || call.header("x-ms-copy-source-authorization").is_some()
        || (by_key && account(&bucket) == account(&call.bucket));
    if !readable {
        return Err(fail(403, "CannotVerifyCopySource"));
    }
    let Some(in_bucket) = context.state().bucket(Service::Azure, &bucket) else {
        return Err(fail(404, "ContainerNotFound"));
    };
    settle(context.state(), &in_bucket, &key);
    let Some(blob) = in_bucket.get(&key) else {
        return Err(fail(404, "BlobNotFound"));
    };
    let differs = |tag: &str| !same_tag(tag, &tag_of(&blob));
    if !context.shared.faults().ignore_source_conditions
        && call.header("x-ms-source-if-match").is_some_and(differs)
    {
        return Err(fail(412, "SourceConditionNotMet"));
    }
    // Shown to everybody who may read the copy: without the query, which may hold a signature.
    let mut shown = url.clone();
    shown.set_query(None);
    Ok((shown.to_string(), blob))
}

/// The condition on the destination, unless it is to be ignored.
fn condition(context: &Context) -> impl Fn(Option<&Object>) -> Result<(), Reply> + use<> {
    let ignore = context.shared.faults().ignore_destination_conditions;
    let condition = on_destination(&context.call);
    move |there| if ignore { Ok(()) } else { condition(there) }
}

/// A copy has the metadata of its source unless it is sent other; tags and tier are not copied.
fn meta_of_copy(call: &Call, source: &Meta) -> Meta {
    let sent = meta_of(call);
    let mut meta = Meta {
        headers: source.headers.clone(),
        tags: sent.tags,
        class: sent.class,
    };
    if sent.headers.keys().any(|name| name.starts_with("meta-")) {
        meta.headers.retain(|name, _| !name.starts_with("meta-"));
    }
    meta.headers.extend(sent.headers);
    if call.header("x-ms-copy-source-tag-option") == Some("COPY") {
        meta.tags.clone_from(&source.tags);
    }
    meta
}

/// What it takes to end a copy that is pending.
#[derive(Debug)]
pub struct Target {
    pub content: Arc<Content>,
    pub tag: Tag,
}

/// Copies have no body to send spaces in.
fn silently(context: &Context) -> Pace {
    Pace {
        trickle: None,
        ..context.pace.clone()
    }
}

pub async fn copy(context: &Context, bucket: &Arc<Bucket>) -> Result<Reply, Reply> {
    let call = &context.call;
    settle(context.state(), bucket, &call.key);
    let admit = condition(context);
    admit(bucket.get(&call.key).as_deref())?;
    let (name, source) = source(context)?;
    let meta = Arc::new(meta_of_copy(call, &source.meta));
    let target = Target {
        content: Arc::clone(&source.content),
        tag: source.tag,
    };
    let id = format!("{:08x}-copy", context.state().next_number());
    let pending = context.shared.faults().pending;
    let progress = match pending {
        None => CopyProgress::Ended(PendingEnd::Success),
        Some(plan) => CopyProgress::Pending {
            since: Instant::now(),
            looks: 0,
            plan,
        },
    };
    let (content, tag) = match pending {
        None => (Arc::clone(&target.content), target.tag),
        // Visible at once, and empty.
        Some(_) => (Arc::default(), Tag::of(&Content::default())),
    };
    let len = content.len();
    let mut object = Object::with_tag(content, tag, meta);
    object.copy = Some(Box::new(CopyState {
        id: id.clone(),
        source: name,
        target: pending.is_some().then_some(target),
        state: Mutex::new(progress),
    }));
    let (shared, bucket, key) = (
        Arc::clone(&context.shared),
        Arc::clone(bucket),
        call.key.clone(),
    );
    let finish = move || match shared.state.put(&bucket, &key, object, admit) {
        Err(refused) => refused,
        Ok(object) => {
            bucket.blocks().remove(&key);
            let status = match pending {
                None => "success",
                Some(_) => "pending",
            };
            written(202, &object)
                .with("x-ms-copy-id", id)
                .with("x-ms-copy-status", status)
        }
    };
    Ok(context.take_time_at(silently(context), len, finish).await)
}

pub async fn put_from_url(context: &Context, bucket: &Arc<Bucket>) -> Result<Reply, Reply> {
    let call = &context.call;
    settle(context.state(), bucket, &call.key);
    let admit = condition(context);
    admit(bucket.get(&call.key).as_deref())?;
    let (_, source) = source(context)?;
    let len = source.content.len();
    if len > FROM_URL_LIMIT_BYTES {
        return Err(fail(413, "RequestBodyTooLarge"));
    }
    let meta = Arc::new(meta_of_copy(call, &source.meta));
    let object = Object::with_tag(Arc::clone(&source.content), source.tag, meta);
    let (shared, bucket, key) = (
        Arc::clone(&context.shared),
        Arc::clone(bucket),
        call.key.clone(),
    );
    let finish = move || match shared.state.put(&bucket, &key, object, admit) {
        Err(refused) => refused,
        Ok(object) => {
            bucket.blocks().remove(&key);
            written(201, &object)
        }
    };
    Ok(context.take_time_at(silently(context), len, finish).await)
}

pub fn abort(context: &Context, bucket: &Bucket) -> Result<Reply, Reply> {
    let blob = bucket
        .get(&context.call.key)
        .ok_or_else(|| fail(404, "BlobNotFound"))?;
    let id = context.call.param("copyid").unwrap_or("");
    match &blob.copy {
        Some(copy) if is_pending(&blob) && copy.id == id => {
            *copy.progress() = CopyProgress::Ended(PendingEnd::Aborted);
            Ok(Reply::new(204))
        }
        Some(_) if is_pending(&blob) => Err(fail(409, "CopyIdMismatch")),
        _ => Err(fail(409, "NoPendingCopyOperation")),
    }
}

pub fn is_pending(blob: &Object) -> bool {
    blob.copy
        .as_ref()
        .is_some_and(|c| matches!(*c.progress(), CopyProgress::Pending { .. }))
}

/// Counts a look at a pending copy, and ends it if its time has come.
pub fn settle(state: &State, bucket: &Bucket, key: &str) {
    let Some(blob) = bucket.get(key) else { return };
    let Some(copy) = &blob.copy else { return };
    let mut progress = copy.progress();
    let CopyProgress::Pending { since, looks, plan } = &mut *progress else {
        return;
    };
    *looks += 1;
    if *looks <= plan.polls || since.elapsed() < plan.lasts {
        return;
    }
    let end = plan.end;
    *progress = CopyProgress::Ended(end);
    drop(progress);
    let (PendingEnd::Success, Some(target)) = (end, &copy.target) else {
        return;
    };
    let mut object = Object::with_tag(
        Arc::clone(&target.content),
        target.tag,
        Arc::clone(&blob.meta),
    );
    object.copy = Some(Box::new(CopyState {
        id: copy.id.clone(),
        source: copy.source.clone(),
        target: None,
        state: Mutex::new(CopyProgress::Ended(end)),
    }));
    // Only if nobody has written there meanwhile.
    let _ = state.put(bucket, key, object, |there| match there {
        Some(there) if there.generation == blob.generation => Ok(()),
        _ => Err(()),
    });
}

/// Adds what is known of the copy that made the blob.
pub fn describe(reply: Reply, blob: &Object) -> Reply {
    let Some(copy) = &blob.copy else { return reply };
    let reply = reply
        .with("x-ms-copy-id", &copy.id)
        .with("x-ms-copy-source", &copy.source);
    let len = blob.content.len();
    let (status, why) = match *copy.progress() {
        CopyProgress::Pending { .. } => return reply.with("x-ms-copy-status", "pending"),
        CopyProgress::Ended(PendingEnd::Success) => ("success", ""),
        CopyProgress::Ended(PendingEnd::Failed) => ("failed", "500 InternalError \"Copy failed.\""),
        CopyProgress::Ended(PendingEnd::Aborted) => ("aborted", ""),
    };
    let reply = reply
        .with("x-ms-copy-status", status)
        .with("x-ms-copy-progress", format!("{len}/{len}"))
        .with("x-ms-copy-completion-time", http_date(now()));
    match why {
        "" => reply,
        why => reply.with("x-ms-copy-status-description", why),
    }
}
